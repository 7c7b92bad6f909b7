"""Sequences of tensors and optional values; see ekiden.frontend.common.sequence_value.

A sequence whose length is known while importing is a tuple of values, and its operators are done
then: no list is left in the program. One that a loop or a branch grows is a List of the prelude,
whose tensors have one type: dimensions in which they differ are `?`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.loop import Iteration, Loop, Parts, as_scalar, stacked
from ekiden.frontend.common.sequence_value import Absent, SequenceValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, Tuple, const
from ekiden.relay.op import sequence
from ekiden.topi.shape import as_dim, known


def _sequence(node: Node, index: int) -> SequenceValue:
    found = node.value(index)
    if not isinstance(found, SequenceValue):
        node.unsupported(f"input {index} must be a sequence")
    return found


def _place(node: Node, index: int, length: int, end: int) -> int | None:
    """A position in a sequence of known length, if it is known."""
    given = node.optional(index)
    if given is None:
        return end
    if given.array is None:
        return None
    place = int(given.array.item())
    if not -length <= place <= end:
        node.unsupported(f"position {place} is out of range for {length} elements")
    return place + length if place < 0 else place


def _position(node: Node, index: int) -> Expr:
    found = as_scalar(node.scope, node.value(index))
    return found if node.dtype(index) == "int64" else op.cast(found, "int64")


def _empty(node: Node) -> Value:
    return SequenceValue((), dtype=from_onnx_dtype(node.get_int("dtype", 1)))


def _construct(node: Node) -> Value:
    return SequenceValue([node.value(i) for i in range(len(node.inputs))])


def _insert(node: Node) -> Value:
    given, new = _sequence(node, 0), node.value(1)
    if given.items is not None:
        count = len(given.items)
        place = _place(node, 2, count, count)
        if place is not None:
            return SequenceValue((*given.items[:place], new, *given.items[place:]))
    both = SequenceValue([new], element=None if given.items == () else given.joined()).joined()
    whole, element = node.scope.sequence(given, both), node.scope.relaxed(node.expr(1), both)
    if node.optional(2) is None:
        return node.scope.bound(sequence.append(whole, element))
    return node.scope.bound(sequence.insert(whole, element, _position(node, 2)))


def _erase(node: Node) -> Value:
    given = _sequence(node, 0)
    if given.items is not None:
        place = _place(node, 1, len(given.items), len(given.items) - 1)
        if place is not None:
            return SequenceValue(
                (*given.items[:place], *given.items[place + 1 :]), dtype=given.dtype
            )
    last = const(np.int64(-1))
    at = last if node.optional(1) is None else _position(node, 1)
    return node.scope.bound(sequence.erase(node.expr(0), at))


def _at(node: Node) -> Value:
    given = _sequence(node, 0)
    if given.items is not None:
        place = _place(node, 1, len(given.items), len(given.items) - 1)
        if place is not None:
            return given.items[place]
    return node.scope.bound(sequence.at(node.expr(0), _position(node, 1)), node.proto.output[0])


def _length(node: Node) -> Value:
    given = _sequence(node, 0)
    if given.items is not None:
        return constant(np.asarray(len(given.items), np.int64))
    return node.scope.bound(sequence.length(node.expr(0)))


def _concat(node: Node) -> Value:
    given, is_new = _sequence(node, 0), bool(node.get_int("new_axis", 0))
    axis = node.get_int("axis")
    if given.items is not None:
        if not given.items:
            node.unsupported("the sequence is empty")
        exprs = Tuple(tuple(node.scope.expr(v) for v in given.items))
        rank = len(given.items[0].type.shape)
        at = node.axis(axis, rank + is_new)
        return node.scope.bound(op.stack(exprs, at) if is_new else op.concatenate(exprs, at))
    kind = given.joined()
    if is_new:
        parts = Parts(node.scope.expr(given), kind)
        return stacked(node.scope, parts, "stacked", None, node.axis(axis, len(kind.shape) + 1))
    at = node.axis(axis, len(kind.shape))
    return node.scope.bound(sequence.concat(node.scope.expr(given), at))


def _split(node: Node) -> Value:
    axis, shape = node.axis(node.get_int("axis", 0), node.rank(0)), node.shape(0)
    extent, given = known(shape[axis]), node.optional(1)
    keepdims = given is not None or bool(node.get_int("keepdims", 1))
    if extent is not None and (given is None or given.array is not None):
        return _parts(node, axis, _sizes(given, extent), keepdims)
    sizes = _runtime_sizes(node, axis, given)
    return node.scope.bound(sequence.split(node.expr(0), sizes, axis, keepdims, _extent(given)))


def _extent(given: Value | None) -> PrimExpr | None:
    """What all parts have along the axis: sizes are often a vector of ones."""
    if given is None:
        return as_dim(1)
    match given.expr:
        case Call(op=Op(name="full"), args=(Constant(data=number),)) if given.type.shape:
            return as_dim(int(number))
    return None


def _sizes(given: Value | None, extent: int) -> list[int]:
    if given is None or given.array is None:
        return [1] * extent
    if given.array.ndim:
        sizes = [int(n) for n in given.array]
        if min(sizes, default=0) < 0 or sum(sizes) != extent:
            raise Unsupported(f"'split' must add up to an extent of {extent}, got {sizes}")
        return sizes
    size = max(int(given.array), 1)
    return [min(size, extent - first) for first in range(0, extent, size)]


def _parts(node: Node, axis: int, sizes: Sequence[int], keepdims: bool) -> Value:
    """A tensor of known extent in parts, each a slice."""
    items, first = [], 0
    for size in sizes:
        end = first + size
        part: Expr = op.strided_slice(node.expr(0), begin=[first], end=[end], axes=[axis])
        if not keepdims:
            part = op.squeeze(part, axis=[axis])
        items.append(node.scope.bound(part))
        first = end
    if first != known(node.shape(0)[axis]):
        node.unsupported(f"'split' must add up to the extent of axis {axis}")
    return SequenceValue(items, dtype=node.dtype(0))


def _runtime_sizes(node: Node, axis: int, given: Value | None) -> Expr:
    if given is not None and given.type.shape:
        return op.cast(node.scope.expr(given), "int64")
    extent = node.scope.scalar(node.shape(0)[axis])
    size = const(np.int64(1)) if given is None else op.cast(as_scalar(node.scope, given), "int64")
    starts = op.arange(const(np.int64(0)), extent, size, dtype="int64")
    return op.minimum(op.subtract(extent, starts), size)


def _map(node: Node) -> list[Value]:
    body, lists = node.body("body"), [node.value(i) for i in range(len(node.inputs))]
    first = _sequence(node, 0)
    if all(v.items is not None for v in lists if isinstance(v, SequenceValue)):
        count = len(first.items or ())
        rows = [body.run([_element(v, i) for v in lists]) for i in range(count)]
        return [SequenceValue([r[i] for r in rows]) for i in range(len(node.proto.output))]

    def step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """One turn: the items of all sequences at its number."""
        at, scope = node.scope.expr(index), node.scope
        given = [
            scope.bound(sequence.at(scope.expr(v), at)) if isinstance(v, SequenceValue) else v
            for v in lists
        ]
        return Iteration(go, [], body.run(given))

    limit = node.scope.spanned(sequence.length(node.scope.expr(first)))
    _, parts, _ = Loop(node, (), (), limit, None, step).build()
    return [SequenceValue(expr=p.sequence, element=p.type) for p in parts]


def _element(value: Value, index: int) -> Value:
    if not isinstance(value, SequenceValue):
        return value
    assert value.items is not None
    return value.items[index]


def _optional(node: Node) -> Value:
    return Absent() if node.optional(0) is None else node.value(0)


def _has_element(node: Node) -> Value:
    given = node.optional(0)
    return constant(np.array(given is not None and not isinstance(given, Absent)))


def _get_element(node: Node) -> Value:
    given = node.value(0)
    if isinstance(given, Absent):
        node.unsupported("its input is an optional value that is absent")
    return given


# fmt: off
ROWS = (
    Row("SequenceEmpty",      _empty, attributes="dtype"),
    Row("SequenceConstruct",  _construct),
    Row("SequenceInsert",     _insert),
    Row("SequenceErase",      _erase),
    Row("SequenceAt",         _at),
    Row("SequenceLength",     _length),
    Row("SplitToSequence",    _split, attributes="axis keepdims"),
    Row("ConcatFromSequence", _concat, attributes="axis new_axis"),
    Row("SequenceMap",        _map, graphs="body"),
    Row("Optional",           _optional, attributes="type"),
    Row("OptionalHasElement", _has_element),
    Row("OptionalGetElement", _get_element),
)
# fmt: on
