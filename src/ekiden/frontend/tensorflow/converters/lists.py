"""Lists of tensors: TensorList of control flow v2, TensorArray of v1.

Both are sequences (see ekiden.frontend.common.sequence_value). A list of a declared length whose
element shape is known starts with zeros; any other starts empty and is filled from the front. The
handle and the flow of a TensorArray are one value: a write returns a new flow.
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
from ekiden.topi.dimensions import as_dim
from ekiden.topi.dimensions import known as number

MOST = 4096
"""The longest list that begins with zeros."""


def _list(node: Node, index: int = 0) -> SequenceValue:
    value = node.value(index)
    if not isinstance(value, SequenceValue):
        node.unsupported(f"input {index} must be a list of tensors")
    return value


def _reserved(dims: Sequence[int] | None, count: int | None, dtype: str) -> SequenceValue:
    if dims is None or -1 in dims or count is None or count > MOST:
        return SequenceValue((), dtype=dtype)
    # The sizes come from an untrusted model file: do not allocate whatever they say.
    if math.prod(dims) > MAX_CONSTANT_ELEMENTS:  # not allocated at the word of a number
        return SequenceValue((), dtype=dtype)
    zero = constant(np.zeros(tuple(dims), to_numpy(dtype)))
    return SequenceValue([zero] * count, dtype=dtype)


def _stated(node: Node, index: int) -> list[int] | None:
    """Return the element shape that an input declares; None unless it is complete."""
    dims_array = node.value(index).array
    dims = None if dims_array is None or dims_array.ndim == 0 else [int(d) for d in dims_array]
    return None if dims is None or -1 in dims else dims


def _count(node: Node, index: int) -> int | None:
    count_array = node.value(index).array
    return None if count_array is None else int(count_array.item())


def _reserve(node: Node) -> Value:
    dtype = node.dtype_of("element_dtype")
    return _reserved(_stated(node, 0), _count(node, 1), dtype)


def _empty(node: Node) -> Value:
    return SequenceValue((), dtype=node.dtype_of("element_dtype"))


def _array(node: Node) -> list[Value]:
    """(handle, flow): the same list."""
    reserved = _reserved(node.shape_of("element_shape"), _count(node, 0), node.dtype_of("dtype"))
    return [reserved, reserved]


def _written(node: Node, elements: SequenceValue, position: Value, new: Value) -> Value:
    """Return the list with element `position` replaced, or appended if it is one past the last."""
    if elements.items is not None and position.array is not None:
        at, items = int(position.array.item()), list(elements.items)
        if not 0 <= at <= len(items):
            node.unsupported(f"element {at} is written to a list of {len(items)}")
        items[at : at + 1] = [new]
        return SequenceValue(items, dtype=elements.dtype)
    first = elements.items == ()
    both = SequenceValue([new], element=None if first else elements.joined()).joined()
    scope = node.scope
    existing, element = scope.sequence(elements, both), scope.relaxed(scope.expr(new), both)
    at_ = op.cast(as_scalar(scope, position), "int64")
    # Sequences have no assignment: replacing is an erase and an insert.
    changed = sequence.insert(sequence.erase(existing, at_), element, at_)
    is_new = op.equal(at_, sequence.length(existing))
    updated = If(scope.spanned(is_new), scope.spanned(sequence.append(existing, element)),
              scope.spanned(changed), span=scope.span)  # fmt: skip
    return scope.bound(updated)


def _set_item(node: Node) -> Value:
    return _written(node, _list(node), node.value(1), node.value(2))


def _array_write(node: Node) -> Value:
    """(handle, index, value, flow)"""
    return _written(node, _list(node, 3), node.value(1), node.value(2))


def _read(node: Node, elements: SequenceValue, position: Value) -> Value:
    if elements.items is not None and position.array is not None:
        at = int(position.array.item())
        if not 0 <= at < len(elements.items):
            node.unsupported(f"element {at} is read of a list of {len(elements.items)}")
        return elements.items[at]
    # An empty list has no element type that the result could have.
    if elements.items == ():
        node.unsupported("an element is read before one is written")
    at_ = op.cast(as_scalar(node.scope, position), "int64")
    element = sequence.at(node.scope.expr(elements), at_)
    return node.scope.bound(node.scope.spanned(element))


def _get_item(node: Node) -> Value:
    return _read(node, _list(node), node.value(1))


def _array_read(node: Node) -> Value:
    """(handle, index, flow)"""
    return _read(node, _list(node, 2), node.value(1))


def _push_back(node: Node) -> Value:
    elements, new = _list(node), node.value(1)
    if elements.items is not None and elements.items:
        return SequenceValue([*elements.items, new], dtype=elements.dtype)
    first = elements.items == ()
    both = SequenceValue([new], element=None if first else elements.joined()).joined()
    existing = node.scope.sequence(elements, both)
    return node.scope.bound(sequence.append(existing, node.scope.relaxed(node.expr(1), both)))


def _pop_back(node: Node) -> list[Value]:
    """Return (the list without its last element, that element)."""
    elements = _list(node)
    if elements.items is not None:
        if not elements.items:
            node.unsupported("the list is empty")
        return [SequenceValue(elements.items[:-1], dtype=elements.dtype), elements.items[-1]]
    existing, last = node.scope.expr(elements), const(np.int64(-1))
    remaining = node.scope.bound(sequence.erase(existing, last))
    return [remaining, node.scope.bound(node.scope.spanned(sequence.at(existing, last)))]


def _length(node: Node, elements: SequenceValue) -> Value:
    if elements.items is not None:
        return constant(np.asarray(len(elements.items), np.int32))
    length = sequence.length(node.scope.expr(elements))
    return node.scope.bound(node.scope.spanned(op.cast(length, "int32")))


def _stack(node: Node, elements: SequenceValue, length: PrimExpr | None) -> Value:
    """Return all elements stacked along a new first axis."""
    if elements.items:
        tensors = [node.scope.expr(v) for v in elements.items]
        return node.scope.bound(node.scope.spanned(op.stack(tensors, axis=0)))
    element = elements.joined()
    existing = node.scope.sequence(elements, element)
    return stacked(node.scope, Parts(existing, element), "stacked", length)


def _list_stack(node: Node) -> Value:
    count = node.number("num_elements", -1)
    return _stack(node, _list(node), as_dim(count) if count >= 0 else None)


def _array_gather(node: Node) -> Value:
    """(handle, indices, flow)"""
    elements, indices = _list(node, 2), node.value(1)
    every = _stack(node, elements, _extent(indices))
    if _is_count(indices):
        return every
    expr = op.take(node.scope.expr(every), node.expr(1), axis=0)
    return node.scope.bound(node.scope.spanned(expr))


def _extent(indices: Value) -> PrimExpr | None:
    """Return the number of elements if the constant indices are 0, 1, 2, ..., else None."""
    return as_dim(indices.array.size) if _is_count(indices) and indices.array is not None else None


def _is_count(indices: Value) -> bool:
    """Return whether indices are 0, 1, 2, ...: constants, or the result of arange."""
    if indices.array is not None:
        return bool(np.array_equal(indices.array, np.arange(indices.array.size)))
    called = getattr(getattr(indices.expr, "op", None), "name", "")
    return bool(called.rpartition(".")[2] == "arange")


def _parts(node: Node, index: int) -> Value:
    """Return the rows of a tensor as a list."""
    extent, kind = number(node.shape(index)[0]), node.type(index)
    if extent is not None and extent <= MOST:
        rows = [op.take(node.expr(index), const(np.int32(i)), axis=0) for i in range(extent)]
        return SequenceValue([node.value_of(node.scope.spanned(r)) for r in rows], dtype=kind.dtype)
    count = op.take(op.shape_of(node.expr(index), dtype="int64"), const(np.int32(0)), axis=0)
    sizes = op.full(const(np.int64(1)), op.reshape(count, (1,)), "int64")
    split_rows = sequence.split(node.expr(index), sizes, 0, False, as_dim(1))
    return node.scope.bound(node.scope.spanned(split_rows))


def _from_tensor(node: Node) -> Value:
    return _parts(node, 0)


def _array_scatter(node: Node) -> Value:
    """(handle, indices, value, flow), of all indices in turn."""
    if not _is_count(node.value(1)):
        node.unsupported("the indices must be 0, 1, 2, ...")
    return _parts(node, 2)


def _array_split(node: Node) -> Value:
    """Convert TensorArraySplitV3 (handle, value, lengths, flow): pieces of these lengths along axis
    0.
    """
    sizes = node.axes(2, "lengths")
    boundaries = [int(p) for p in np.cumsum(sizes)[:-1]]
    pieces = op.split(node.expr(1), boundaries, axis=0) if boundaries else [node.expr(1)]
    rows = [node.value_of(node.scope.spanned(pieces[i])) for i in range(len(sizes))]
    return SequenceValue(rows, dtype=node.dtype(1))


def _resize(node: Node) -> Value:
    """Convert TensorListResize to the list's own length, or of an empty list, which is filled from
    the front.
    """
    elements, count = _list(node), _count(node, 1)
    if elements.items == () or (elements.items is not None and count == len(elements.items)):
        return elements
    node.unsupported("a list that has elements is not resized")


def _joined(node: Node, index: int, lengths: bool = True) -> list[Value]:
    """Return (the elements concatenated along the first axis, their extents if known)."""
    elements = _list(node, index)
    if elements.items:
        exprs: list[Expr] = [node.scope.expr(v) for v in elements.items]
        concatenated = node.scope.bound(node.scope.spanned(op.concatenate(exprs, axis=0)))
        extents = [number(v.type.shape[0]) for v in elements.items]
        # The extents are unknown: the second output stays missing.
        if None in extents:
            return [concatenated]
        return [concatenated, constant(np.array(extents, np.int64))]
    return [node.scope.bound(sequence.concat(node.scope.expr(elements), 0))]


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
