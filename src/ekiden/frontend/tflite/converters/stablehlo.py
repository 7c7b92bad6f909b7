"""StableHLO operations embedded in TensorFlow Lite models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.common.converters import stablehlo as shared
from ekiden.frontend.common.converters.elementwise import elementwise_rows
from ekiden.frontend.common.dynamic_slices import xla_pad
from ekiden.frontend.common.reducers import REDUCTION_OPS
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.xla_scatter import SCATTER_MODES, xla_scatter
from ekiden.frontend.tflite.node import Converter, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr


def _int_list_option(node: TfliteNode, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    options = node.operation.options
    numbers = () if options is None else np.ravel(getattr(options, f"{name}AsNumpy")())
    has = options is not None and getattr(options, f"{name}Length")()
    return tuple(int(i) for i in numbers) if has else tuple(default)


def _static_output_shape(node: TfliteNode) -> tuple[int, ...]:
    shape = node.outs[0].shape
    if -1 in shape:
        node.reject(f"{node.outs[0]} must have constant extents")
    return shape


def _all_inputs_converter(function: Callable[..., Expr]) -> Converter:
    """Return the converter that applies an operator to all inputs."""
    return lambda node: function(*node.exprs())


# Elements.


_COMPARISONS = (op.equal, op.not_equal, op.greater_equal, op.greater, op.less_equal, op.less)
"""By StablehloComparisonDirection."""


def _compare(node: TfliteNode) -> Expr:
    return _COMPARISONS[node.read_option("ComparisonDirection")](*node.exprs())


def _convert(node: TfliteNode) -> Expr:
    target = node.outs[0].dtype
    return shared.convert_dtype(node.expr(0), node.dtype(0), target, shared.dtype_bits(target))


def _shift_left(node: TfliteNode) -> Expr:
    x, count = node.exprs()
    return shared.emit_shift(node, x, count, op.left_shift, shared.dtype_bits(node.dtype(0)))


# Movement.


def _broadcast(node: TfliteNode) -> Expr:
    axes = _int_list_option(node, "BroadcastDimensions")
    return shared.broadcast_in_dim(node, node.value(0), axes, _static_output_shape(node))


def _concatenate(node: TfliteNode) -> Expr:
    return op.concatenate(node.exprs(), axis=int(node.read_option("Dimension")))


def _reshape(node: TfliteNode) -> Expr:
    # An extent of 0 is meant as such: without `allowzero` it would copy the input's.
    return op.reshape(node.expr(0), _static_output_shape(node), allowzero=True)


def _slice(node: TfliteNode) -> Expr:
    begin, end, steps = (
        _int_list_option(node, n) for n in ("StartIndices", "LimitIndices", "Strides")
    )
    return op.strided_slice(node.expr(0), begin, end, strides=steps or (1,) * len(begin))


def _transpose(node: TfliteNode) -> Expr:
    return op.transpose(node.expr(0), _int_list_option(node, "Permutation"))


def _iota(node: TfliteNode) -> Value:
    return shared.emit_iota(
        node, _static_output_shape(node), int(node.read_option("IotaDimension")), node.outs[0].dtype
    )


def _pad(node: TfliteNode) -> Expr:
    names = ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding")
    none = (0,) * node.rank(0)
    low, high, inner = (_int_list_option(node, n, none) for n in names)
    return xla_pad(node, node.value(0), node.expr(1), low, high, inner)


def _dynamic_slice(node: TfliteNode) -> Expr:
    return shared.dynamic_slice(node, _int_list_option(node, "SliceSizes"))


def _dynamic_update_slice(node: TfliteNode) -> Expr:
    return shared.dynamic_update_slice(node, [node.value(axis + 2) for axis in range(node.rank(0))])


def _gather(node: TfliteNode) -> Expr:
    return shared.gather(
        node,
        int(node.read_option("IndexVectorDim")),
        _int_list_option(node, "SliceSizes"),
        _int_list_option(node, "CollapsedSliceDims"),
        _int_list_option(node, "StartIndexMap"),
        _int_list_option(node, "OffsetDims"),
    )


# Bodies.


def _match_reducer(node: TfliteNode, index: int) -> str:
    """Match a two-argument subgraph with a single operator; "second" returns its second argument.

    Raises Unsupported for another body.
    """
    graph = node.graph.subgraph_importer(index).graph
    if not graph.operations and graph.outputs == graph.inputs[1:2]:
        return "second"
    # All reducers are commutative, so the order of the arguments does not matter.
    if len(graph.operations) == 1 and set(graph.operations[0].inputs) == set(graph.inputs[:2]):
        kind = _REDUCER_KINDS.get(graph.operations[0].code.removeprefix("STABLEHLO_"))
        if kind is not None:
            return kind
    supported = ", ".join(sorted(set(_REDUCER_KINDS.values())))
    return node.reject(f"a body of its own; known are {supported}")


_REDUCER_KINDS: Mapping[str, str] = {
    "ADD": "add", "MUL": "multiply", "MULTIPLY": "multiply", "MAXIMUM": "maximum",
    "MINIMUM": "minimum", "AND": "and", "LOGICAL_AND": "and", "OR": "or", "LOGICAL_OR": "or",
}  # fmt: skip


def _scatter(node: TfliteNode) -> Expr:
    kind = _match_reducer(node, int(node.read_option("UpdateComputationSubgraphIndex")))
    if kind not in SCATTER_MODES:
        node.reject(f"a body that is {kind!r}")
    window = _int_list_option(node, "UpdateWindowDims")
    position = shared.scatter_window_positions(
        node,
        1,
        int(node.read_option("IndexVectorDim")),
        window,
        _int_list_option(node, "InsertedWindowDims"),
        _int_list_option(node, "ScatterDimsToOperandDims"),
    )
    return xla_scatter(node, position, kind, list(window))


def _reduce(node: TfliteNode) -> Expr:
    if len(node.inputs) != 2:
        node.reject("several tensors at once")
    kind = _match_reducer(node, int(node.read_option("BodySubgraphIndex")))
    if kind not in REDUCTION_OPS:
        node.reject(f"a body that is {kind!r}")
    return shared.reduce(node, _int_list_option(node, "Dimensions"), kind)


def _reduce_windows(node: TfliteNode, window: Window, kind: str) -> Expr:
    if kind not in REDUCTION_OPS or math.prod(window.static_extents) > shared.MAX_WINDOW_ELEMENTS:
        node.reject(f"windows of {window.static_extents} elements by {kind!r}")
    return shared.reduce_window(node, window, kind)


def _stablehlo_reduce_window(node: TfliteNode) -> Expr:
    size = _int_list_option(node, "WindowDimensions")
    ones, sides = (1,) * len(size), _int_list_option(node, "Padding", (0,) * 2 * len(size))
    steps, inner, apart = (
        _int_list_option(node, name, ones)
        for name in ("WindowStrides", "BaseDilations", "WindowDilations")
    )
    # A base dilation of d puts d - 1 gaps between elements.
    window = Window(size, steps, apart, sides[::2], sides[1::2], tuple(d - 1 for d in inner))
    return _reduce_windows(
        node, window, _match_reducer(node, int(node.read_option("BodySubgraphIndex")))
    )


_REDUCE_FUNCTIONS = ("", "add", "multiply", "minimum", "maximum", "and", "or")
"""By ReduceWindowFunction."""


def _reduce_window(node: TfliteNode) -> Expr:
    """Convert REDUCE_WINDOW (data, initial value, extents, strides, dilations)."""
    size, steps, apart = (node.constant_ints(i, "windows") for i in (2, 3, 4))
    none = (0,) * len(size)
    window = Window(size, steps, apart, none, none)
    return _reduce_windows(node, window, _REDUCE_FUNCTIONS[node.read_option("ReduceFunction")])


def _dot_general(node: TfliteNode) -> Expr:
    lhs_axes, rhs_axes = (
        [_int_list_option(node, f"{side}{kind}Dimensions") for kind in ("Batching", "Contracting")]
        for side in ("Lhs", "Rhs")
    )
    return shared.dot_general(
        node, node.value(0), node.value(1), lhs_axes, rhs_axes, node.outs[0].dtype
    )


def _sort(node: TfliteNode) -> Expr:
    """Convert STABLEHLO_SORT of one tensor with the comparator < or >."""
    body = node.graph.subgraph_importer(int(node.read_option("ComparatorSubgraphIndex"))).graph
    tests = body.operations
    # Exchanged arguments would reverse the order.
    if len(node.inputs) != 1 or len(tests) != 1 or tests[0].inputs != body.inputs:
        node.reject("several tensors, or an order of its own; known are < and >")
    kind = tests[0].code
    if kind == "STABLEHLO_COMPARE":
        kind = {3: "GREATER", 5: "LESS"}.get(tests[0].options.ComparisonDirection(), kind)
    if kind not in ("LESS", "GREATER"):
        node.reject(f"the order {kind}; known are < and >")
    return op.sort(node.expr(0), axis=int(node.read_option("Dimension")), is_ascend=kind == "LESS")


def _composite(node: TfliteNode) -> list[Value]:
    """Convert STABLEHLO_COMPOSITE by its decomposition."""
    index = int(node.read_option("DecompositionSubgraphIndex"))
    return node.graph.subgraph_importer(index).import_body(
        [node.value(i) for i in range(len(node.inputs))]
    )


_SHARED_OPERATIONS = frozenset(
    """
    abs add and cosine exponential floor log logistic maximum minimum multiply negate or rsqrt
    subtract tanh
    """.split()
)
"""Operations on each element that the schema of TensorFlow Lite has."""

# fmt: off
ROWS = (
    *(TfliteRow(f"STABLEHLO_{name.upper()}", row.convert)
      for name, _, row in elementwise_rows("stablehlo") if name in _SHARED_OPERATIONS),
    TfliteRow("STABLEHLO_CBRT",        lambda node: shared.emit_cbrt(node.expr(0), node.dtype(0))),
    TfliteRow("STABLEHLO_DIVIDE",      lambda node: shared.divide(node, *node.exprs())),
    TfliteRow("STABLEHLO_REMAINDER",   lambda node: shared.remainder(node, *node.exprs())),
    TfliteRow("STABLEHLO_POWER",       _all_inputs_converter(op.power)),
    TfliteRow("STABLEHLO_SHIFT_LEFT",  _shift_left),
    TfliteRow("STABLEHLO_CLAMP",       _all_inputs_converter(shared.emit_clamp)),
    TfliteRow("STABLEHLO_COMPARE",     _compare),
    TfliteRow("STABLEHLO_CONVERT",     _convert),
    TfliteRow("STABLEHLO_SELECT",      _all_inputs_converter(op.where)),
    TfliteRow("STABLEHLO_BROADCAST_IN_DIM", _broadcast),
    TfliteRow("STABLEHLO_CONCATENATE", _concatenate),
    TfliteRow("STABLEHLO_RESHAPE",     _reshape),
    TfliteRow("STABLEHLO_SLICE",       _slice),
    TfliteRow("STABLEHLO_TRANSPOSE",   _transpose),
    TfliteRow("STABLEHLO_IOTA",        _iota),
    TfliteRow("STABLEHLO_PAD",         _pad),
    TfliteRow("STABLEHLO_DYNAMIC_SLICE", _dynamic_slice),
    TfliteRow("STABLEHLO_DYNAMIC_UPDATE_SLICE", _dynamic_update_slice),
    TfliteRow("STABLEHLO_GATHER",      _gather),
    TfliteRow("STABLEHLO_SCATTER",     _scatter),
    TfliteRow("STABLEHLO_REDUCE",      _reduce),
    TfliteRow("STABLEHLO_REDUCE_WINDOW", _stablehlo_reduce_window),
    TfliteRow("REDUCE_WINDOW",         _reduce_window),
    TfliteRow("STABLEHLO_SORT",        _sort),
    TfliteRow("STABLEHLO_DOT_GENERAL", _dot_general),
    TfliteRow("STABLEHLO_COMPOSITE",   _composite),
)
# fmt: on
