"""Reductions with arbitrary bodies: by an operator, as argmax or argmin, as a tree, or by
a loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.converters.stablehlo import reduce
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reducers import REDUCTION_OPS
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.converters.reduction_bodies import (
    apply_body,
    canonical_body_text,
    match_reducer,
)
from ekiden.frontend.jax.node import (
    ComplexPair,
    ComplexRule,
    Converter,
    ImportedValues,
    StablehloNode,
    StablehloRow,
    flatten_parts,
    per_part_rule,
    reassemble_complex,
)
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int, to_attr_dims


def _reduce(node: StablehloNode) -> Result | ImportedValues:
    axes, block = list(node.int_array_attribute("dimensions")), node.region_block()
    count = len(node.inputs) // 2
    kind = match_reducer(node, block) if count == 1 else ""
    if kind in REDUCTION_OPS:
        return reduce(node, axes, kind)
    if count == 2 and (pair := _match_arg_reduction(node, block, axes)) is not None:
        return pair
    return _tree_reduce(node, block, axes, count)


_SELECT_BODY_TEXT = (
    "compare LT a1 a3; and v{0} v{1}; or v{2} v{3}; select v{2} a0 a2; select v{4} a1 a3; "
)
_ARG_REDUCTION_BODIES: Mapping[str, str] = {
    text.replace("DIRECTION", direction): direction
    for direction in ("GT", "LT")
    for text in (
        "compare DIRECTION a0 a2; compare EQ a0 a2; "
        + _SELECT_BODY_TEXT.format(1, 2, 0, 3, 4) + "return v5 v6",
        "compare DIRECTION a0 a2; compare NE a0 a0; or v0 v1; compare EQ a0 a2; "
        + _SELECT_BODY_TEXT.format(3, 4, 2, 5, 6) + "return v7 v8",
    )
}  # fmt: skip
"""The bodies of jnp.argmax and jnp.argmin, of integers and of floats: what they compare by."""


def _match_arg_reduction(
    node: StablehloNode, block: ir.Block, axes: Sequence[int]
) -> list[Expr] | None:
    """Match the body of jnp.argmax or jnp.argmin; return the extremum and its index, or None."""
    if len(axes) != 1 or not _is_iota(node, axes[0]):
        return None
    direction = _ARG_REDUCTION_BODIES.get(canonical_body_text(block))
    if direction is None:
        return None
    first = op.argmax if direction == "GT" else op.argmin
    value = op.max if direction == "GT" else op.min
    data = node.expr(0)
    index = op.cast(first(data, axis=list(axes), keepdims=False), node.dtype(1))
    extremum = value(data, axis=list(axes), keepdims=False)
    if not is_float(node.dtype(0)):
        return [extremum, index]
    # NumPy's argmax returns the first NaN.
    nan = op.isnan(data)  # the first NaN is the answer
    any_nan = op.any(nan, axis=list(axes), keepdims=False)
    axis_index = op.argmax(op.cast(nan, "int32"), axis=list(axes), keepdims=False)
    index = op.where(any_nan, op.cast(axis_index, node.dtype(1)), index)
    return [op.where(any_nan, const(np.nan, node.dtype(0)), extremum), index]


def _is_iota(node: StablehloNode, axis: int) -> bool:
    """Return whether the second input is an iota along an axis."""
    owner = node.operation.operands[1].owner
    producer = getattr(owner, "operation", None)
    if producer is None or producer.name not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return False
    return int(producer.attributes["iota_dimension"].value) == axis


def _tree_reduce(
    node: StablehloNode, block: ir.Block, axes: Sequence[int], count: int
) -> ImportedValues:
    """Reduce with any body as a tree: halves of an axis are combined until one element is left."""
    values = list(node.whole[:count])
    shape = [d for axis, d in enumerate(node.shape(0)) if axis not in axes]
    start = [
        node.map_parts(init, lambda expr: op.broadcast_to(expr, to_attr_dims(shape)))
        for init in node.whole[count:]
    ]
    # An empty reduction yields the initial value.
    if any(known_int(node.shape(0)[axis]) == 0 for axis in axes):
        return start
    for axis in sorted(axes, reverse=True):
        values = _tree_reduce_axis(node, block, values, axis)
    return apply_body(node, block, start, values)


def _tree_reduce_axis(
    node: StablehloNode, block: ir.Block, values: ImportedValues, axis: int
) -> ImportedValues:
    first = values[0].real if isinstance(values[0], ComplexValue) else values[0]
    extent = known_int(first.type.shape[axis])
    if extent is None:
        return _reduce_by_loop(node, block, values, axis, first.type.shape[axis])
    # log2(extent) whole-tensor steps instead of one per element; StableHLO leaves the order open.
    while extent > 1:
        half = extent // 2
        low_half, high_half = (
            _slice_axis(node, values, axis, position, position + half) for position in (0, half)
        )
        combined_half = apply_body(node, block, low_half, high_half)
        if extent % 2:
            last = _slice_axis(node, values, axis, extent - 1, extent)
            combined_half = [
                concat_values(node, [a, b], axis) for a, b in zip(combined_half, last, strict=True)
            ]
        values, extent = combined_half, half + extent % 2
    return [node.map_parts(v, lambda expr: op.squeeze(expr, axis=[axis])) for v in values]


def concat_values(node: StablehloNode, values: ImportedValues, axis: int) -> Value | ComplexValue:
    """Concatenate tensors along an axis, complex ones part by part."""
    sides = zip(*(flatten_parts([value]) for value in values), strict=True)
    concatenated = [
        node.bind_shared(op.concatenate([node.scope.expr(operand) for operand in side], axis=axis))
        for side in sides
    ]
    return ComplexValue(*concatenated) if len(concatenated) > 1 else concatenated[0]


def _slice_axis(
    node: StablehloNode, values: ImportedValues, axis: int, begin: int, end: int
) -> ImportedValues:
    return [
        node.map_parts(v, lambda expr: op.strided_slice(expr, (begin,), (end,), axes=(axis,)))
        for v in values
    ]


def _reduce_by_loop(
    node: StablehloNode, block: ir.Block, values: ImportedValues, axis: int, extent: PrimExpr
) -> ImportedValues:
    """Reduce an axis of symbolic extent by a loop over its elements."""
    scope = node.scope
    kinds = node.operation.results

    def take_row(value: Value, at: Expr) -> Value:
        return node.bind_shared(op.take(scope.expr(value), at, axis=axis))

    def loop_body(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """Apply the reducer to the carried values and the next rows."""
        position = op.add(scope.expr(index), const(1, "int64"))
        rows = reassemble_complex(kinds, [take_row(v, position) for v in flatten_parts(values)])
        return Iteration(
            go, flatten_parts(apply_body(node, block, reassemble_complex(kinds, carried), rows))
        )

    start = [take_row(v, const(0, "int64")) for v in flatten_parts(values)]
    limit = scope.attach_span(op.subtract(scope.emit_dim(extent), const(1, "int64")))
    names = [f"reduced{i}" for i in range(len(start))]
    last, _, _ = Loop(node, names, start, limit, None, loop_body).build()
    return reassemble_complex(kinds, last)


def _complex_reduce(convert: Converter) -> ComplexRule:
    def rule(node: StablehloNode) -> ComplexPair | ImportedValues:
        """Sum each part by itself; other complex reductions evaluate their bodies."""
        count = len(node.whole) // 2
        if count == 1 and match_reducer(node, node.region_block()) == "add":
            return per_part_rule(convert)(node)
        return _tree_reduce(
            node, node.region_block(), list(node.int_array_attribute("dimensions")), count
        )

    return rule


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.reduce", _reduce, make_complex_rule=_complex_reduce),
)
