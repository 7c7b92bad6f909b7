"""Lists of tensors: TensorList of control flow version 2, TensorArray of version 1.

Both are sequences (see ekiden.frontend.common.sequence_value). A list of a declared length whose
element shape is known starts with zeros; any other starts empty and is filled from the front. The
handle and the flow of a TensorArray are one value: a write returns a new flow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.constant_fill import MAX_CONSTANT_ELEMENTS
from ekiden.frontend.common.loop import CollectedSlices, as_scalar, stack_slices
from ekiden.frontend.common.sequence_value import SequenceValue
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.ir.dtype import to_numpy
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, If, const
from ekiden.relay.op import sequence
from ekiden.topi.dimensions import as_dim
from ekiden.topi.dimensions import known_int as number

MAX_PREFILLED_LENGTH = 4096
"""The longest list that begins with zeros."""


def _list_input(node: TensorflowNode, index: int = 0) -> SequenceValue:
    value = node.value(index)
    if not isinstance(value, SequenceValue):
        node.reject(f"input {index} must be a list of tensors")
    return value


def _make_zero_list(dims: Sequence[int] | None, count: int | None, dtype: str) -> SequenceValue:
    # Without a complete element shape the list starts empty; writes then append in order.
    if dims is None or -1 in dims or count is None or count > MAX_PREFILLED_LENGTH:
        return SequenceValue((), dtype=dtype)
    # The sizes come from an untrusted model file: do not allocate whatever they say.
    if math.prod(dims) > MAX_CONSTANT_ELEMENTS:  # not allocated at the word of a number
        return SequenceValue((), dtype=dtype)
    zero = constant_value(np.zeros(tuple(dims), to_numpy(dtype)))
    return SequenceValue([zero] * count, dtype=dtype)


def _declared_element_shape(node: TensorflowNode, index: int) -> list[int] | None:
    """Return the element shape that an input declares; None unless it is complete."""
    dims_array = node.value(index).array
    dims = None if dims_array is None or dims_array.ndim == 0 else [int(d) for d in dims_array]
    return None if dims is None or -1 in dims else dims


def _constant_count(node: TensorflowNode, index: int) -> int | None:
    count_array = node.value(index).array
    return None if count_array is None else int(count_array.item())


def _list_reserve(node: TensorflowNode) -> Value:
    dtype = node.dtype_attribute("element_dtype")
    return _make_zero_list(_declared_element_shape(node, 0), _constant_count(node, 1), dtype)


def _empty_list(node: TensorflowNode) -> Value:
    return SequenceValue((), dtype=node.dtype_attribute("element_dtype"))


def _tensor_array(node: TensorflowNode) -> list[Value]:
    """Convert TensorArrayV3 to (handle, flow), which are the same list."""
    # The flow output only orders side effects; carrying the list in it gives every reader the
    # newest one.
    reserved = _make_zero_list(
        node.shape_attribute("element_shape"),
        _constant_count(node, 0),
        node.dtype_attribute("dtype"),
    )
    return [reserved, reserved]


def _write_element(
    node: TensorflowNode, elements: SequenceValue, position: Value, new: Value
) -> Value:
    """Replace element `position` of a list, or append where it is one past the end."""
    if elements.items is not None and position.array is not None:
        offset, items = int(position.array.item()), list(elements.items)
        if not 0 <= offset <= len(items):
            node.reject(f"element {offset} is written to a list of {len(items)}")
        items[offset : offset + 1] = [new]
        return SequenceValue(items, dtype=elements.dtype)
    first = elements.items == ()
    both = SequenceValue(
        [new], element=None if first else elements.common_element_type()
    ).common_element_type()
    scope = node.scope
    existing, element = scope.sequence(elements, both), scope.relax_type(scope.expr(new), both)
    at_ = op.cast(as_scalar(scope, position), "int64")
    # Sequences have no assignment: replacing is an erase and an insert.
    changed = sequence.insert(sequence.erase(existing, at_), element, at_)
    is_new = op.equal(at_, sequence.length(existing))
    updated = If(scope.attach_span(is_new), scope.attach_span(sequence.append(existing, element)),
                 scope.attach_span(changed), span=scope.span)  # fmt: skip
    return scope.bind_named(updated)


def _list_set_item(node: TensorflowNode) -> Value:
    return _write_element(node, _list_input(node), node.value(1), node.value(2))


def _array_write(node: TensorflowNode) -> Value:
    """Convert TensorArrayWriteV3 (handle, index, value, flow)."""
    return _write_element(node, _list_input(node, 3), node.value(1), node.value(2))


def _read_element(node: TensorflowNode, elements: SequenceValue, position: Value) -> Value:
    if elements.items is not None and position.array is not None:
        offset = int(position.array.item())
        if not 0 <= offset < len(elements.items):
            node.reject(f"element {offset} is read of a list of {len(elements.items)}")
        return elements.items[offset]
    # An empty list has no element type that the result could have.
    if elements.items == ():
        node.reject("an element is read before one is written")
    at_ = op.cast(as_scalar(node.scope, position), "int64")
    element = sequence.at(node.scope.expr(elements), at_)
    return node.scope.bind_named(node.scope.attach_span(element))


def _list_get_item(node: TensorflowNode) -> Value:
    return _read_element(node, _list_input(node), node.value(1))


def _array_read(node: TensorflowNode) -> Value:
    """Convert TensorArrayReadV3 (handle, index, flow)."""
    return _read_element(node, _list_input(node, 2), node.value(1))


def _list_push_back(node: TensorflowNode) -> Value:
    elements, new = _list_input(node), node.value(1)
    if elements.items is not None and elements.items:
        return SequenceValue([*elements.items, new], dtype=elements.dtype)
    first = elements.items == ()
    # Elements of different shapes share a type whose differing dimensions are unknown.
    both = SequenceValue(
        [new], element=None if first else elements.common_element_type()
    ).common_element_type()
    existing = node.scope.sequence(elements, both)
    return node.scope.bind_named(
        sequence.append(existing, node.scope.relax_type(node.expr(1), both))
    )


def _list_pop_back(node: TensorflowNode) -> list[Value]:
    """Convert TensorListPopBack: (the list without its last element, that element)."""
    elements = _list_input(node)
    if elements.items is not None:
        if not elements.items:
            node.reject("the list is empty")
        return [SequenceValue(elements.items[:-1], dtype=elements.dtype), elements.items[-1]]
    existing, last = node.scope.expr(elements), const(np.int64(-1))
    remaining = node.scope.bind_named(sequence.erase(existing, last))
    return [remaining, node.scope.bind_named(node.scope.attach_span(sequence.at(existing, last)))]


def _list_length(node: TensorflowNode, elements: SequenceValue) -> Value:
    if elements.items is not None:
        return constant_value(np.asarray(len(elements.items), np.int32))
    length = sequence.length(node.scope.expr(elements))
    return node.scope.bind_named(node.scope.attach_span(op.cast(length, "int32")))


def _stack_elements(
    node: TensorflowNode, elements: SequenceValue, length: PrimExpr | None
) -> Value:
    """Stack all elements along a new first axis."""
    if elements.items:
        tensors = [node.scope.expr(v) for v in elements.items]
        return node.scope.bind_named(node.scope.attach_span(op.stack(tensors, axis=0)))
    element = elements.common_element_type()
    existing = node.scope.sequence(elements, element)
    return stack_slices(node.scope, CollectedSlices(existing, element), "stacked", length)


def _list_stack(node: TensorflowNode) -> Value:
    count = node.int_attribute("num_elements", -1)
    return _stack_elements(node, _list_input(node), as_dim(count) if count >= 0 else None)


def _array_gather(node: TensorflowNode) -> Value:
    """Convert TensorArrayGatherV3 (handle, indices, flow)."""
    elements, indices = _list_input(node, 2), node.value(1)
    every = _stack_elements(node, elements, _index_count(indices))
    if _is_arange(indices):
        return every
    expr = op.take(node.scope.expr(every), node.expr(1), axis=0)
    return node.scope.bind_named(node.scope.attach_span(expr))


def _index_count(indices: Value) -> PrimExpr | None:
    """Return the number of constant indices if they are 0, 1, 2, ...; else None."""
    return as_dim(indices.array.size) if _is_arange(indices) and indices.array is not None else None


def _is_arange(indices: Value) -> bool:
    """Return whether indices are 0, 1, 2, ...: constants, or the result of arange."""
    if indices.array is not None:
        return bool(np.array_equal(indices.array, np.arange(indices.array.size)))
    # TensorArray.stack gathers with range(size): no element is reordered.
    called = getattr(getattr(indices.expr, "op", None), "name", "")
    return bool(called.rpartition(".")[2] == "arange")


def _unstack_rows(node: TensorflowNode, index: int) -> Value:
    """Unstack a tensor into the list of its rows."""
    extent, kind = number(node.shape(index)[0]), node.type(index)
    if extent is not None and extent <= MAX_PREFILLED_LENGTH:
        rows = [op.take(node.expr(index), const(np.int32(i)), axis=0) for i in range(extent)]
        return SequenceValue(
            [node.as_value(node.scope.attach_span(r)) for r in rows], dtype=kind.dtype
        )
    count = op.take(op.shape_of(node.expr(index), dtype="int64"), const(np.int32(0)), axis=0)
    sizes = op.full(const(np.int64(1)), op.reshape(count, (1,)), "int64")
    split_rows = sequence.split(node.expr(index), sizes, 0, False, as_dim(1))
    return node.scope.bind_named(node.scope.attach_span(split_rows))


def _list_from_tensor(node: TensorflowNode) -> Value:
    return _unstack_rows(node, 0)


def _array_scatter(node: TensorflowNode) -> Value:
    """Convert TensorArrayScatterV3 (handle, indices, value, flow) of all indices in order."""
    if not _is_arange(node.value(1)):
        node.reject("the indices must be 0, 1, 2, ...")
    return _unstack_rows(node, 2)


def _array_split(node: TensorflowNode) -> Value:
    """Convert TensorArraySplitV3 (handle, value, lengths, flow): slices of these lengths along axis
    0.
    """
    sizes = node.constant_ints(2, "lengths")
    boundaries = [int(p) for p in np.cumsum(sizes)[:-1]]
    pieces = op.split(node.expr(1), boundaries, axis=0) if boundaries else [node.expr(1)]
    rows = [node.as_value(node.scope.attach_span(pieces[i])) for i in range(len(sizes))]
    return SequenceValue(rows, dtype=node.dtype(1))


def _list_resize(node: TensorflowNode) -> Value:
    """Convert TensorListResize to the list's own length, or of an empty list, which is filled from
    the front.
    """
    elements, count = _list_input(node), _constant_count(node, 1)
    if elements.items == () or (elements.items is not None and count == len(elements.items)):
        return elements
    node.reject("a list that has elements is not resized")


def _concat_elements(node: TensorflowNode, index: int, lengths: bool = True) -> list[Value]:
    """Concatenate the elements along the first axis; return the result and their extents
    if known.
    """
    elements = _list_input(node, index)
    if elements.items:
        exprs: list[Expr] = [node.scope.expr(v) for v in elements.items]
        concatenated = node.scope.bind_named(node.scope.attach_span(op.concatenate(exprs, axis=0)))
        extents = [number(v.type.shape[0]) for v in elements.items]
        # The extents are unknown: the second output stays missing.
        if None in extents:
            return [concatenated]
        return [concatenated, constant_value(np.array(extents, np.int64))]
    return [node.scope.bind_named(sequence.concat(node.scope.expr(elements), 0))]


# fmt: off
ROWS = (
    TensorflowRow("TensorListReserve",    _list_reserve),
    TensorflowRow("EmptyTensorList",      _empty_list),
    TensorflowRow("TensorListSetItem",    _list_set_item),
    TensorflowRow("TensorListGetItem",    _list_get_item),
    TensorflowRow("TensorListPushBack",   _list_push_back),
    TensorflowRow("TensorListPopBack",    _list_pop_back),
    TensorflowRow("TensorListLength",     lambda node: _list_length(node, _list_input(node))),
    TensorflowRow("TensorListStack",      _list_stack),
    TensorflowRow("TensorListFromTensor", _list_from_tensor),
    TensorflowRow("TensorListResize",     _list_resize),
    TensorflowRow("TensorListConcatV2",   lambda node: _concat_elements(node, 0)),
    TensorflowRow("TensorArrayV3",        _tensor_array),
    TensorflowRow("TensorArrayWriteV3",   _array_write),
    TensorflowRow("TensorArrayReadV3",    _array_read),
    TensorflowRow("TensorArraySizeV3",    lambda node: _list_length(node, _list_input(node, 1))),
    TensorflowRow("TensorArrayGatherV3",  _array_gather),
    TensorflowRow("TensorArrayScatterV3", _array_scatter),
    TensorflowRow("TensorArraySplitV3",   _array_split),
    TensorflowRow("TensorArrayConcatV3",  lambda node: _concat_elements(node, 1)),
    TensorflowRow("TensorArrayCloseV3",   lambda node: []),
)
# fmt: on
