"""Reductions by any body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.combined import REDUCE, is_neutral
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.converters.bodies import combined, kind_of, text_of
from ekiden.frontend.jax.node import Converter, Node, Pair, PairRule, Row, per_part
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import as_attr, known


def _reduce(node: Node) -> Result:
    axes, block = list(node.ints("dimensions")), node.region()
    count = len(node.inputs) // 2
    kind = kind_of(node, block) if count == 1 else ""
    if kind in REDUCE:
        function, both = REDUCE[kind]
        found = function(node.expr(0), axis=axes, keepdims=False) if axes else node.expr(0)
        return found if is_neutral(node.value(1), kind) else both(found, node.expr(1))
    if count == 2 and (pair := _position(node, block, axes)) is not None:
        return pair
    return _folded(node, block, axes, count)


_PICK = "compare LT a1 a3; and v{0} v{1}; or v{2} v{3}; select v{2} a0 a2; select v{4} a1 a3; "
_EXTREMES: Mapping[str, str] = {
    text.replace("DIRECTION", direction): direction
    for direction in ("GT", "LT")
    for text in (
        "compare DIRECTION a0 a2; compare EQ a0 a2; "
        + _PICK.format(1, 2, 0, 3, 4) + "return v5 v6",
        "compare DIRECTION a0 a2; compare NE a0 a0; or v0 v1; compare EQ a0 a2; "
        + _PICK.format(3, 4, 2, 5, 6) + "return v7 v8",
    )
}  # fmt: skip
"""The bodies of jnp.argmax and jnp.argmin, of integers and of floats: what they compare by."""


def _position(node: Node, block: ir.Block, axes: Sequence[int]) -> list[Expr] | None:
    """The largest or smallest element and where it is, of an iota: what jnp.argmax gives."""
    if len(axes) != 1 or not _is_iota(node, axes[0]):
        return None
    direction = _EXTREMES.get(text_of(block))
    if direction is None:
        return None
    first = op.argmax if direction == "GT" else op.argmin
    value = op.max if direction == "GT" else op.min
    data = node.expr(0)
    place = op.cast(first(data, axis=list(axes), keepdims=False), node.dtype(1))
    made = value(data, axis=list(axes), keepdims=False)
    if not is_float(node.dtype(0)):
        return [made, place]
    nan = op.isnan(data)  # the first NaN is the answer
    any_nan = op.any(nan, axis=list(axes), keepdims=False)
    at = op.argmax(op.cast(nan, "int32"), axis=list(axes), keepdims=False)
    place = op.where(any_nan, op.cast(at, node.dtype(1)), place)
    return [op.where(any_nan, const(np.nan, node.dtype(0)), made), place]


def _is_iota(node: Node, axis: int) -> bool:
    """Whether the second input counts along an axis."""
    owner = node.operation.operands[1].owner
    made = getattr(owner, "operation", None)
    if made is None or made.name not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return False
    return int(made.attributes["iota_dimension"].value) == axis


def _folded(node: Node, block: ir.Block, axes: Sequence[int], count: int) -> list[Value]:
    """By any body: halves of an axis are combined until one element is left of it."""
    values = [node.value(i) for i in range(count)]
    for axis in sorted(axes, reverse=True):
        values = _fold_axis(node, block, values, axis)
    start = []
    for value, init in zip(values, node.inputs[count:], strict=True):
        assert init is not None
        start.append(node.given(op.broadcast_to(node.scope.expr(init), as_attr(value.type.shape))))
    return combined(node, block, start, values)


def _fold_axis(node: Node, block: ir.Block, values: Sequence[Value], axis: int) -> list[Value]:
    extent = known(values[0].type.shape[axis])
    if extent is None:
        return _looped(node, block, values, axis)
    if extent == 0:
        node.unsupported("a reduction by a body of its own over no elements")
    while extent > 1:
        half = extent // 2
        first, second = (_part(node, values, axis, at, at + half) for at in (0, half))
        made = combined(node, block, first, second)
        if extent % 2:
            rest = _part(node, values, axis, extent - 1, extent)
            made = [
                node.given(op.concatenate([node.scope.expr(a), node.scope.expr(b)], axis=axis))
                for a, b in zip(made, rest, strict=True)
            ]
        values, extent = made, half + extent % 2
    return [node.given(op.squeeze(node.scope.expr(v), axis=[axis])) for v in values]


def _part(node: Node, values: Sequence[Value], axis: int, begin: int, end: int) -> list[Value]:
    return [
        node.given(op.strided_slice(node.scope.expr(v), (begin,), (end,), axes=(axis,)))
        for v in values
    ]


def _looped(node: Node, block: ir.Block, values: Sequence[Value], axis: int) -> list[Value]:
    """Along an axis of symbolic extent: its elements one after the other."""
    scope = node.scope

    def row(value: Value, at: Expr) -> Value:
        return node.given(op.take(scope.expr(value), at, axis=axis))

    def step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        at = op.add(scope.expr(index), const(1, "int64"))
        return Iteration(go, combined(node, block, carried, [row(v, at) for v in values]))

    start = [row(v, const(0, "int64")) for v in values]
    extent = values[0].type.shape[axis]
    limit = scope.spanned(op.subtract(scope.scalar(extent), const(1, "int64")))
    names = [f"reduced{i}" for i in range(len(values))]
    found, _, _ = Loop(node, names, start, limit, None, step).build()
    return found


def _sum_of_parts(convert: Converter) -> PairRule:
    def rule(node: Node) -> Pair:
        """The sum of each part. Refuses other reductions, which are not of parts."""
        if kind_of(node, node.region()) != "add":
            node.unsupported("reductions of complex numbers other than sums")
        return per_part(convert)(node)

    return rule


ROWS: tuple[Row, ...] = (Row("stablehlo.reduce", _reduce, on_complex=_sum_of_parts),)
