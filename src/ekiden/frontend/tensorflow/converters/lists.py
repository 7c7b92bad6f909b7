"""Lists of tensors: TensorList of control flow v2, TensorArray of v1.

Both are sequences (see ekiden.frontend.common.sequence_value). One of a stated length whose
elements have a known shape begins with zeros; any other begins empty, and is written from the
front on. A TensorArray's handle and its flow are one value: what writes gives a new flow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.filled import MAX_CONSTANT_ELEMENTS
from ekiden.frontend.common.loop import Parts, as_scalar, stacked
from ekiden.frontend.common.sequence_value import SequenceValue
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.tensorflow.node import Node, Row
from ekiden.ir.dtype import to_numpy
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, If, const
from ekiden.relay.op import sequence
from ekiden.topi.shape import as_dim
from ekiden.topi.shape import known as number

MOST = 4096
"""The longest list that begins with zeros."""


def _list(node: Node, index: int = 0) -> SequenceValue:
    found = node.value(index)
    if not isinstance(found, SequenceValue):
        node.unsupported(f"input {index} must be a list of tensors")
    return found


def _reserved(dims: Sequence[int] | None, count: int | None, dtype: str) -> SequenceValue:
    if dims is None or -1 in dims or count is None or count > MOST:
        return SequenceValue((), dtype=dtype)
    if math.prod(dims) > MAX_CONSTANT_ELEMENTS:  # not allocated at the word of a number
        return SequenceValue((), dtype=dtype)
    zero = constant(np.zeros(tuple(dims), to_numpy(dtype)))
    return SequenceValue([zero] * count, dtype=dtype)


def _stated(node: Node, index: int) -> list[int] | None:
    """The shape of elements that an input states; None where it does not state it in full."""
    found = node.value(index).array
    dims = None if found is None or found.ndim == 0 else [int(d) for d in found]
    return None if dims is None or -1 in dims else dims


def _count(node: Node, index: int) -> int | None:
    found = node.value(index).array
    return None if found is None else int(found.item())


def _reserve(node: Node) -> Value:
    dtype = node.dtype_of("element_dtype")
    return _reserved(_stated(node, 0), _count(node, 1), dtype)


def _empty(node: Node) -> Value:
    return SequenceValue((), dtype=node.dtype_of("element_dtype"))


def _array(node: Node) -> list[Value]:
    """(handle, flow): the same list."""
    made = _reserved(node.shape_of("element_shape"), _count(node, 0), node.dtype_of("dtype"))
    return [made, made]


def _written(node: Node, given: SequenceValue, position: Value, new: Value) -> Value:
    """With another element; behind the last one, with one more."""
    if given.items is not None and position.array is not None:
        at, items = int(position.array.item()), list(given.items)
        if not 0 <= at <= len(items):
            node.unsupported(f"element {at} is written to a list of {len(items)}")
        items[at : at + 1] = [new]
        return SequenceValue(items, dtype=given.dtype)
    first = given.items == ()
    both = SequenceValue([new], element=None if first else given.joined()).joined()
    scope = node.scope
    whole, element = scope.sequence(given, both), scope.relaxed(scope.expr(new), both)
    at_ = op.cast(as_scalar(scope, position), "int64")
    changed = sequence.insert(sequence.erase(whole, at_), element, at_)
    is_new = op.equal(at_, sequence.length(whole))
    made = If(scope.spanned(is_new), scope.spanned(sequence.append(whole, element)),
              scope.spanned(changed), span=scope.span)  # fmt: skip
    return scope.bound(made)


def _set_item(node: Node) -> Value:
    return _written(node, _list(node), node.value(1), node.value(2))


def _array_write(node: Node) -> Value:
    """(handle, index, value, flow)"""
    return _written(node, _list(node, 3), node.value(1), node.value(2))


def _read(node: Node, given: SequenceValue, position: Value) -> Value:
    if given.items is not None and position.array is not None:
        at = int(position.array.item())
        if not 0 <= at < len(given.items):
            node.unsupported(f"element {at} is read of a list of {len(given.items)}")
        return given.items[at]
    if given.items == ():
        node.unsupported("an element is read before one is written")
    at_ = op.cast(as_scalar(node.scope, position), "int64")
    made = sequence.at(node.scope.expr(given), at_)
    return node.scope.bound(node.scope.spanned(made))


def _get_item(node: Node) -> Value:
    return _read(node, _list(node), node.value(1))


def _array_read(node: Node) -> Value:
    """(handle, index, flow)"""
    return _read(node, _list(node, 2), node.value(1))


def _push_back(node: Node) -> Value:
    given, new = _list(node), node.value(1)
    if given.items is not None and given.items:
        return SequenceValue([*given.items, new], dtype=given.dtype)
    first = given.items == ()
    both = SequenceValue([new], element=None if first else given.joined()).joined()
    whole = node.scope.sequence(given, both)
    return node.scope.bound(sequence.append(whole, node.scope.relaxed(node.expr(1), both)))


def _pop_back(node: Node) -> list[Value]:
    """(the list without its last element, that element)"""
    given = _list(node)
    if given.items is not None:
        if not given.items:
            node.unsupported("the list is empty")
        return [SequenceValue(given.items[:-1], dtype=given.dtype), given.items[-1]]
    whole, last = node.scope.expr(given), const(np.int64(-1))
    rest = node.scope.bound(sequence.erase(whole, last))
    return [rest, node.scope.bound(node.scope.spanned(sequence.at(whole, last)))]


def _length(node: Node, given: SequenceValue) -> Value:
    if given.items is not None:
        return constant(np.asarray(len(given.items), np.int32))
    found = sequence.length(node.scope.expr(given))
    return node.scope.bound(node.scope.spanned(op.cast(found, "int32")))


def _stack(node: Node, given: SequenceValue, length: PrimExpr | None) -> Value:
    """All elements along a new first axis."""
    if given.items:
        parts = [node.scope.expr(v) for v in given.items]
        return node.scope.bound(node.scope.spanned(op.stack(parts, axis=0)))
    element = given.joined()
    whole = node.scope.sequence(given, element)
    return stacked(node.scope, Parts(whole, element), "stacked", length)


def _list_stack(node: Node) -> Value:
    count = node.number("num_elements", -1)
    return _stack(node, _list(node), as_dim(count) if count >= 0 else None)


def _array_gather(node: Node) -> Value:
    """(handle, indices, flow)"""
    given, indices = _list(node, 2), node.value(1)
    every = _stack(node, given, _extent(indices))
    if _is_count(indices):
        return every
    expr = op.take(node.scope.expr(every), node.expr(1), axis=0)
    return node.scope.bound(node.scope.spanned(expr))


def _extent(indices: Value) -> PrimExpr | None:
    """How many there are, if the indices are those of all."""
    return as_dim(indices.array.size) if _is_count(indices) and indices.array is not None else None


def _is_count(indices: Value) -> bool:
    """Whether indices are 0, 1, 2, ...: known, or made by arange."""
    if indices.array is not None:
        return bool(np.array_equal(indices.array, np.arange(indices.array.size)))
    called = getattr(getattr(indices.expr, "op", None), "name", "")
    return bool(called.rpartition(".")[2] == "arange")


def _parts(node: Node, index: int) -> Value:
    """The rows of a tensor as a list."""
    extent, kind = number(node.shape(index)[0]), node.type(index)
    if extent is not None and extent <= MOST:
        rows = [op.take(node.expr(index), const(np.int32(i)), axis=0) for i in range(extent)]
        return SequenceValue([node.value_of(node.scope.spanned(r)) for r in rows], dtype=kind.dtype)
    count = op.take(op.shape_of(node.expr(index), dtype="int64"), const(np.int32(0)), axis=0)
    sizes = op.full(const(np.int64(1)), op.reshape(count, (1,)), "int64")
    made = sequence.split(node.expr(index), sizes, 0, False, as_dim(1))
    return node.scope.bound(node.scope.spanned(made))


def _from_tensor(node: Node) -> Value:
    return _parts(node, 0)


def _array_scatter(node: Node) -> Value:
    """(handle, indices, value, flow), of all indices in turn."""
    if not _is_count(node.value(1)):
        node.unsupported("the indices must be 0, 1, 2, ...")
    return _parts(node, 2)


def _array_split(node: Node) -> Value:
    """(handle, value, lengths, flow): parts of these lengths along the first axis."""
    sizes = node.axes(2, "lengths")
    places = [int(p) for p in np.cumsum(sizes)[:-1]]
    parts = op.split(node.expr(1), places, axis=0) if places else [node.expr(1)]
    rows = [node.value_of(node.scope.spanned(parts[i])) for i in range(len(sizes))]
    return SequenceValue(rows, dtype=node.dtype(1))


def _resize(node: Node) -> Value:
    """To its own length, or an empty one to any: it is then written from the front on."""
    given, count = _list(node), _count(node, 1)
    if given.items == () or (given.items is not None and count == len(given.items)):
        return given
    node.unsupported("a list that has elements is not resized")


def _joined(node: Node, index: int, lengths: bool = True) -> list[Value]:
    """(the elements one after the other along the first axis, their extents)"""
    given = _list(node, index)
    if given.items:
        exprs: list[Expr] = [node.scope.expr(v) for v in given.items]
        made = node.scope.bound(node.scope.spanned(op.concatenate(exprs, axis=0)))
        extents = [number(v.type.shape[0]) for v in given.items]
        if None in extents:
            return [made]
        return [made, constant(np.array(extents, np.int64))]
    return [node.scope.bound(sequence.concat(node.scope.expr(given), 0))]


# fmt: off
ROWS = (
    Row("TensorListReserve",    _reserve),
    Row("EmptyTensorList",      _empty),
    Row("TensorListSetItem",    _set_item),
    Row("TensorListGetItem",    _get_item),
    Row("TensorListPushBack",   _push_back),
    Row("TensorListPopBack",    _pop_back),
    Row("TensorListLength",     lambda node: _length(node, _list(node))),
    Row("TensorListStack",      _list_stack),
    Row("TensorListFromTensor", _from_tensor),
    Row("TensorListResize",     _resize),
    Row("TensorListConcatV2",   lambda node: _joined(node, 0)),
    Row("TensorArrayV3",        _array),
    Row("TensorArrayWriteV3",   _array_write),
    Row("TensorArrayReadV3",    _array_read),
    Row("TensorArraySizeV3",    lambda node: _length(node, _list(node, 1))),
    Row("TensorArrayGatherV3",  _array_gather),
    Row("TensorArrayScatterV3", _array_scatter),
    Row("TensorArraySplitV3",   _array_split),
    Row("TensorArrayConcatV3",  lambda node: _joined(node, 1)),
    Row("TensorArrayCloseV3",   lambda node: []),
)
# fmt: on
