"""ONNX sequences and optionals (values: ekiden.frontend.common.sequence_value).

A sequence of a length known at import is a tuple of values, whose operators are evaluated at
import: no list is left in the program. One that a loop or a branch grows is a List of the prelude,
whose tensors have one type: dimensions in which they differ are `?`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.loop import CollectedSlices, Iteration, Loop, as_scalar, stack_slices
from ekiden.frontend.common.sequence_value import AbsentValue, SequenceValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, Tuple, const
from ekiden.relay.op import sequence
from ekiden.topi.dimensions import as_dim, known_int


def _read_sequence_input(node: OnnxNode, index: int) -> SequenceValue:
    """Return an input that must be a sequence."""
    value = node.value(index)
    if not isinstance(value, SequenceValue):
        node.reject(f"input {index} must be a sequence")
    return value


def _read_constant_position(node: OnnxNode, index: int, length: int, end: int) -> int | None:
    """Return a constant position in a sequence of known length; None for run-time data."""
    position_input = node.optional_value(index)
    if position_input is None:
        return end
    if position_input.array is None:
        return None
    position = int(position_input.array.item())
    # ONNX counts positions in [-n, n] for SequenceInsert and in [-n, n - 1] for the others.
    if not -length <= position <= end:
        node.reject(f"position {position} is out of range for {length} elements")
    return position + length if position < 0 else position


def _emit_runtime_position(node: OnnxNode, index: int) -> Expr:
    """Emit a run-time position as int64."""
    position = as_scalar(node.scope, node.value(index))
    return position if node.dtype(index) == "int64" else op.cast(position, "int64")


def _sequence_empty(node: OnnxNode) -> Value:
    return SequenceValue((), dtype=from_onnx_dtype(node.get_int("dtype", 1)))


def _sequence_construct(node: OnnxNode) -> Value:
    return SequenceValue([node.value(i) for i in range(len(node.inputs))])


def _sequence_insert(node: OnnxNode) -> Value:
    source, new = _read_sequence_input(node, 0), node.value(1)
    if source.items is not None:
        count = len(source.items)
        position = _read_constant_position(node, 2, count, count)
        if position is not None:
            return SequenceValue((*source.items[:position], new, *source.items[position:]))
    both = SequenceValue(
        [new], element=None if source.items == () else source.common_element_type()
    ).common_element_type()
    typed_list, element = (
        node.scope.sequence(source, both),
        node.scope.relax_type(node.expr(1), both),
    )
    if node.optional_value(2) is None:
        return node.scope.bind_named(sequence.append(typed_list, element))
    return node.scope.bind_named(
        sequence.insert(typed_list, element, _emit_runtime_position(node, 2))
    )


def _sequence_erase(node: OnnxNode) -> Value:
    source = _read_sequence_input(node, 0)
    if source.items is not None:
        position = _read_constant_position(node, 1, len(source.items), len(source.items) - 1)
        if position is not None:
            return SequenceValue(
                (*source.items[:position], *source.items[position + 1 :]), dtype=source.dtype
            )
    # Without a position SequenceErase removes the last element.
    last = const(np.int64(-1))
    offset = last if node.optional_value(1) is None else _emit_runtime_position(node, 1)
    return node.scope.bind_named(sequence.erase(node.expr(0), offset))


def _sequence_at(node: OnnxNode) -> Value:
    source = _read_sequence_input(node, 0)
    if source.items is not None:
        position = _read_constant_position(node, 1, len(source.items), len(source.items) - 1)
        if position is not None:
            return source.items[position]
    return node.scope.bind_named(
        sequence.at(node.expr(0), _emit_runtime_position(node, 1)), node.proto.output[0]
    )


def _sequence_length(node: OnnxNode) -> Value:
    source = _read_sequence_input(node, 0)
    if source.items is not None:
        return constant_value(np.asarray(len(source.items), np.int64))
    return node.scope.bind_named(sequence.length(node.expr(0)))


def _concat_from_sequence(node: OnnxNode) -> Value:
    source, is_new = _read_sequence_input(node, 0), bool(node.get_int("new_axis", 0))
    axis = node.get_int("axis")
    if source.items is not None:
        if not source.items:
            node.reject("the sequence is empty")
        exprs = Tuple(tuple(node.scope.expr(v) for v in source.items))
        rank = len(source.items[0].type.shape)
        axis_index = node.axis(axis, rank + is_new)
        return node.scope.bind_named(
            op.stack(exprs, axis_index) if is_new else op.concatenate(exprs, axis_index)
        )
    # The elements of a run-time list have one type, in which differing dimensions are unknown.
    kind = source.common_element_type()
    if is_new:
        stack = CollectedSlices(node.scope.expr(source), kind)
        return stack_slices(
            node.scope, stack, "stacked", None, node.axis(axis, len(kind.shape) + 1)
        )
    axis_index = node.axis(axis, len(kind.shape))
    return node.scope.bind_named(sequence.concat(node.scope.expr(source), axis_index))


def _split_to_sequence(node: OnnxNode) -> Value:
    axis, shape = node.axis(node.get_int("axis", 0), node.rank(0)), node.shape(0)
    # `keepdims` is ignored where sizes are given (ONNX SplitToSequence).
    extent, split_input = known_int(shape[axis]), node.optional_value(1)
    keepdims = split_input is not None or bool(node.get_int("keepdims", 1))
    if extent is not None and (split_input is None or split_input.array is not None):
        return _split_statically(node, axis, _part_sizes(split_input, extent), keepdims)
    sizes = _runtime_part_sizes(node, axis, split_input)
    return node.scope.bind_named(
        sequence.split(node.expr(0), sizes, axis, keepdims, _part_extent(split_input))
    )


def _part_extent(split_input: Value | None) -> PrimExpr | None:
    """Return the extent of all parts along the split axis; None if unknown."""
    if split_input is None:
        return as_dim(1)
    match split_input.expr:
        case Call(op=Op(name="full"), args=(Constant(data=number),)) if split_input.type.shape:
            return as_dim(int(number))
    return None


def _part_sizes(split_input: Value | None, extent: int) -> list[int]:
    """Return the constant sizes of the parts."""
    if split_input is None or split_input.array is None:
        return [1] * extent
    if split_input.array.ndim:
        sizes = [int(n) for n in split_input.array]
        if min(sizes, default=0) < 0 or sum(sizes) != extent:
            raise Unsupported(f"'split' must add up to an extent of {extent}, got {sizes}")
        return sizes
    # A scalar `split` is the chunk size; the last chunk may be smaller.
    size = max(int(split_input.array), 1)
    return [min(size, extent - first) for first in range(0, extent, size)]


def _split_statically(node: OnnxNode, axis: int, sizes: Sequence[int], keepdims: bool) -> Value:
    """Return the slices of a tensor as a sequence of known length."""
    items, first = [], 0
    for size in sizes:
        end = first + size
        piece: Expr = op.strided_slice(node.expr(0), begin=[first], end=[end], axes=[axis])
        if not keepdims:
            piece = op.squeeze(piece, axis=[axis])
        items.append(node.scope.bind_named(piece))
        first = end
    if first != known_int(node.shape(0)[axis]):
        node.reject(f"'split' must add up to the extent of axis {axis}")
    return SequenceValue(items, dtype=node.dtype(0))


def _runtime_part_sizes(node: OnnxNode, axis: int, split_input: Value | None) -> Expr:
    """Emit the sizes of the parts, int64 vector."""
    if split_input is not None and split_input.type.shape:
        return op.cast(node.scope.expr(split_input), "int64")
    extent = node.scope.emit_dim(node.shape(0)[axis])
    size = (
        const(np.int64(1))
        if split_input is None
        else op.cast(as_scalar(node.scope, split_input), "int64")
    )
    starts = op.arange(const(np.int64(0)), extent, size, dtype="int64")
    # The last part gets what is left of the extent.
    return op.minimum(op.subtract(extent, starts), size)


def _sequence_map(node: OnnxNode) -> list[Value]:
    """Convert SequenceMap: inlined for known lengths, otherwise a loop."""
    body, lists = node.subgraph_importer("body"), [node.value(i) for i in range(len(node.inputs))]
    first = _read_sequence_input(node, 0)
    # Of known length: the body is inlined once for each element.
    if all(v.items is not None for v in lists if isinstance(v, SequenceValue)):
        count = len(first.items or ())
        rows = [body.import_body([_sequence_element(v, i) for v in lists]) for i in range(count)]
        return [SequenceValue([r[i] for r in rows]) for i in range(len(node.proto.output))]

    def map_body(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """Import one iteration on the elements at the loop index."""
        position, scope = node.scope.expr(index), node.scope
        elements = [
            scope.bind_named(sequence.at(scope.expr(v), position))
            if isinstance(v, SequenceValue)
            else v
            for v in lists
        ]
        return Iteration(go, [], body.import_body(elements))

    limit = node.scope.attach_span(sequence.length(node.scope.expr(first)))
    _, stacked_outputs, _ = Loop(node, (), (), limit, None, map_body).build()
    return [SequenceValue(expr=p.sequence, element=p.type) for p in stacked_outputs]


def _sequence_element(value: Value, index: int) -> Value:
    """Return an element of a sequence; other inputs are unchanged."""
    if not isinstance(value, SequenceValue):
        return value
    assert value.items is not None
    return value.items[index]


def _optional(node: OnnxNode) -> Value:
    """Convert Optional."""
    return AbsentValue() if node.optional_value(0) is None else node.value(0)


def _optional_has_element(node: OnnxNode) -> Value:
    """Convert OptionalHasElement: known at import."""
    value = node.optional_value(0)
    return constant_value(np.array(value is not None and not isinstance(value, AbsentValue)))


def _optional_get_element(node: OnnxNode) -> Value:
    """Convert OptionalGetElement; raise Unsupported for an absent value."""
    value = node.value(0)
    if isinstance(value, AbsentValue):
        node.reject("its input is an optional value that is absent")
    return value


# fmt: off
ROWS = (
    OnnxRow("SequenceEmpty",      _sequence_empty, attributes="dtype"),
    OnnxRow("SequenceConstruct",  _sequence_construct),
    OnnxRow("SequenceInsert",     _sequence_insert),
    OnnxRow("SequenceErase",      _sequence_erase),
    OnnxRow("SequenceAt",         _sequence_at),
    OnnxRow("SequenceLength",     _sequence_length),
    OnnxRow("SplitToSequence",    _split_to_sequence, attributes="axis keepdims"),
    OnnxRow("ConcatFromSequence", _concat_from_sequence, attributes="axis new_axis"),
    OnnxRow("SequenceMap",        _sequence_map, graph_attributes="body"),
    OnnxRow("Optional",           _optional, attributes="type"),
    OnnxRow("OptionalHasElement", _optional_has_element),
    OnnxRow("OptionalGetElement", _optional_get_element),
)
# fmt: on
