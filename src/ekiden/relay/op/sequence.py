"""Sequences of tensors as cons lists in reverse order, so that append takes constant time.

A sequence is a value of the type List of the prelude, built by its constructors; what needs a walk
over it is done by a function of the runtime (`host`), not by a kernel. Positions count from the
front, or where negative from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr_text import format_type
from ekiden.ir.node import node
from ekiden.ir.op import Array, MemoryAliasing, OpDef, register_op
from ekiden.ir.prim import AnyDim, PrimExpr, is_const
from ekiden.ir.type import GlobalTypeVar, TensorType, Type, TypeCall, TypeVar
from ekiden.relay.expr import Call, Constructor, Expr, TypeData
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.op._declare import call_op, call_shape_rule, check_attrs, raise_type_error
from ekiden.runtime.errors import RunError
from ekiden.topi.dimensions import normalize_axis

_LIST_HEADER = GlobalTypeVar("List")
_ELEMENT_TYPE_VAR = TypeVar("A")
CONS = Constructor(
    "Cons", (_ELEMENT_TYPE_VAR, TypeCall(_LIST_HEADER, (_ELEMENT_TYPE_VAR,))), _LIST_HEADER, 0
)
NIL = Constructor("Nil", (), _LIST_HEADER, 1)
LIST = TypeData(_LIST_HEADER, (_ELEMENT_TYPE_VAR,), (CONS, NIL))
"""Data type List[A] of the prelude, which modules with sequences must define."""

Elements: TypeAlias = "list[Array]"


def list_type(element: Type) -> TypeCall:
    """Return the type of a sequence of tensors."""
    return TypeCall(_LIST_HEADER, (element,))


@node("relay.attrs.SequenceStackAttrs")
class SequenceStackAttrs(Attrs):
    """Attributes of sequence.stack: the static length, if known, and the order."""

    length: PrimExpr | None = None
    reverse: bool = False


@node("relay.attrs.SequenceConcatAttrs")
class SequenceConcatAttrs(Attrs):
    """Attributes of sequence.concat: the axis."""

    axis: int = 0


@node("relay.attrs.SequenceSplitAttrs")
class SequenceSplitAttrs(Attrs):
    """Attributes of sequence.split: axis, keepdims, and the common extent of all sections, if
    known.
    """

    axis: int = 0
    keepdims: bool = True
    extent: PrimExpr | None = None


def elements(value: object) -> Elements:
    """Return the tensors of an interpreted sequence, in order."""
    reversed_elements = []
    # Nil has no fields.
    while isinstance(value, ConstructorValue) and value.fields:
        reversed_elements.append(value.fields[0])
        value = value.fields[1]
    return [np.asarray(e) for e in reversed(reversed_elements)]


def from_elements(arrays: Iterable[Array]) -> ConstructorValue:
    """Build an interpreted sequence from tensors."""
    sequence_value = ConstructorValue(NIL)
    for array in arrays:
        # The last element ends up at the head of the list: appending is one Cons.
        sequence_value = ConstructorValue(CONS, (array, sequence_value))
    return sequence_value


def _element_type(name: str, kind: Type) -> TensorType:
    match kind:
        case TypeCall(func=GlobalTypeVar(name_hint="List"), args=(TensorType() as inner,)):
            return inner
    raise_type_error(name, f"expected a List of tensors, got {format_type(kind)}")


def _normalize_position(position: object, length: int, is_end: bool = False) -> int:
    offset = int(np.asarray(position))
    # An insertion may also stand behind the last element.
    if not -length <= offset < length + is_end:
        raise RunError(f"sequence: position {offset} is out of range for {length} elements")
    return offset + length if offset < 0 else offset


def _at_reference(attrs: Attrs | None, value: object, position: object) -> Array:
    tensors = elements(value)
    return tensors[_normalize_position(position, len(tensors))]


def _insert_reference(
    attrs: Attrs | None, value: object, new: Array, position: object
) -> ConstructorValue:
    tensors = elements(value)
    tensors.insert(_normalize_position(position, len(tensors), True), new)
    return from_elements(tensors)


def _erase_reference(attrs: Attrs | None, value: object, position: object) -> ConstructorValue:
    tensors = elements(value)
    del tensors[_normalize_position(position, len(tensors))]
    return from_elements(tensors)


def _stack_reference(attrs: SequenceStackAttrs, value: object, dims: Array, like: Array) -> Array:
    tensors = elements(value)
    if attrs.reverse:
        tensors.reverse()
    # An empty sequence knows neither shape nor dtype: the arguments give both.
    return np.stack(tensors) if tensors else np.zeros((0, *map(int, dims)), like.dtype)


def _stack_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    inner = _element_type("sequence.stack", types[0])
    length = check_attrs(SequenceStackAttrs, attrs).length
    return TensorType((AnyDim() if length is None else length, *inner.shape), inner.dtype)


def _concat_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    inner = _element_type("sequence.concat", types[0])
    requested_axis = check_attrs(SequenceConcatAttrs, attrs).axis
    name = "sequence.concat"
    axis = call_shape_rule(name, normalize_axis, requested_axis, len(inner.shape), name)
    return TensorType((*inner.shape[:axis], AnyDim(), *inner.shape[axis + 1 :]), inner.dtype)


def _split_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, settings = types[0], check_attrs(SequenceSplitAttrs, attrs)
    name = "sequence.split"
    if not isinstance(data, TensorType):
        raise_type_error(name, f"expected a tensor, got {format_type(data)}")
    axis = call_shape_rule(name, normalize_axis, settings.axis, len(data.shape), name)
    extent = AnyDim() if settings.extent is None else settings.extent
    axis_extent = (extent,) if settings.keepdims else ()
    return list_type(
        TensorType((*data.shape[:axis], *axis_extent, *data.shape[axis + 1 :]), data.dtype)
    )


def _split_reference(attrs: SequenceSplitAttrs, data: Array, sizes: Array) -> ConstructorValue:
    if sizes.sum() != data.shape[attrs.axis] or (sizes < 0).any():
        extent = data.shape[attrs.axis]
        raise RunError(f"sequence: parts of {sizes.tolist()} of an axis of extent {extent}")
    # The last cut is the end of the axis, which np.split implies.
    sections = np.split(data, np.cumsum(sizes)[:-1], attrs.axis) if sizes.size else []
    if not attrs.keepdims:
        sections = [p.squeeze(attrs.axis) for p in sections]
    return from_elements(sections)


_INTEGER_ARGUMENT_RANKS = {"position": 0, "dims": 1, "sizes": 1}
"""Ranks of integer arguments by name; a one-element vector counts as a scalar."""


def _check_integers(name: str, what: str, kind: Type) -> None:
    """Check that an argument is an integer scalar or vector, readable on the host."""
    fits = isinstance(kind, TensorType) and kind.dtype in ("int32", "int64")
    if fits and isinstance(kind, TensorType):
        rank, known_one = len(kind.shape), all(is_const(d, 1) for d in kind.shape)
        fits = rank == _INTEGER_ARGUMENT_RANKS[what] or (
            _INTEGER_ARGUMENT_RANKS[what] == 0 and known_one
        )
    if not fits:
        form = "a number" if _INTEGER_ARGUMENT_RANKS[what] == 0 else "a vector"
        raise_type_error(
            name, f"{what!r} must be {form} of int32 or int64, got {format_type(kind)}"
        )


def _declare_sequence_op(
    name: str,
    arguments: str,
    relation: Callable[[Sequence[Type], Attrs | None], Type],
    reference: Callable[..., Any],
    result: str,
    attrs: type[Attrs] | None = None,
    hands_on: tuple[int, ...] = (),
    memory: MemoryAliasing = MemoryAliasing.MAY_ALIAS,
) -> None:
    names = tuple(arguments.split())

    def checked(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the type after checking that positions and axes are integers."""
        for what, kind in zip(names, types, strict=True):
            if what in _INTEGER_ARGUMENT_RANKS:
                _check_integers(f"sequence.{name}", what, kind)
        return relation(types, attrs)

    register_op(
        OpDef(
            name=f"sequence.{name}",
            arguments=names,
            attrs=attrs,
            relation=checked,
            reference=reference,
            host=f"ek.sequence.{name}",
            forwarded_args=hands_on,
            memory=memory,
            result=result,
        )
    )


# fmt: off
_declare_sequence_op("length", "sequence", lambda types, attrs: TensorType((), "int64"),
    lambda attrs, value: np.asarray(len(elements(value)), np.int64), "an int64 scalar",
    hands_on=(0,), memory=MemoryAliasing.NO_ALIAS)
_declare_sequence_op("at", "sequence position",
    lambda types, attrs: _element_type("sequence.at", types[0]),
    _at_reference, "one element", hands_on=(0,))
_declare_sequence_op("insert", "sequence value position", lambda types, attrs: types[0],
    _insert_reference, "the sequence with `value` before that position", hands_on=(0, 1))
_declare_sequence_op("erase", "sequence position", lambda types, attrs: types[0],
    _erase_reference, "the sequence without that element", hands_on=(0,))
_declare_sequence_op("stack", "sequence dims like", _stack_type, _stack_reference,
    "the elements along a new first axis; of shape (0, *dims) where there are none",
    SequenceStackAttrs)
_declare_sequence_op("concat", "sequence", _concat_type,
    lambda attrs, value: np.concatenate(elements(value), attrs.axis),
    "the elements one after the other", SequenceConcatAttrs)
_declare_sequence_op("split", "data sizes", _split_type, _split_reference,
    "parts of these extents", SequenceSplitAttrs)
# fmt: on


def empty(element: Type | None = None) -> Call:
    """Return an empty sequence."""
    return Call(NIL, (), None, () if element is None else (element,))


def append(sequence: Expr, value: Expr) -> Call:
    """Append a tensor to a sequence."""
    return Call(CONS, (value, sequence))


def length(sequence: Expr) -> Call:
    """Return the number of elements of a sequence."""
    return call_op("sequence.length", sequence)


def at(sequence: Expr, position: Expr) -> Call:
    """Return the element at a position."""
    return call_op("sequence.at", sequence, position)


def insert(sequence: Expr, value: Expr, position: Expr) -> Call:
    """Insert an element before a position; the length itself means at the end."""
    return call_op("sequence.insert", sequence, value, position)


def erase(sequence: Expr, position: Expr) -> Call:
    """Remove the element at a position."""
    return call_op("sequence.erase", sequence, position)


def stack(
    sequence: Expr, dims: Expr, like: Expr, length: PrimExpr | None = None, reverse: bool = False
) -> Call:
    """Stack the elements along a new first axis, in order or reversed.

    `dims` is the shape of an element and `like` a tensor of its dtype, for an empty sequence.
    """
    attrs = SequenceStackAttrs(length, reverse)
    return call_op("sequence.stack", sequence, dims, like, attrs=attrs)


def concat(sequence: Expr, axis: int) -> Call:
    """Concatenate the elements (at least one) along an axis."""
    return call_op("sequence.concat", sequence, attrs=SequenceConcatAttrs(axis))


def split(
    data: Expr, sizes: Expr, axis: int, keepdims: bool = True, extent: PrimExpr | None = None
) -> Call:
    """Split a tensor along an axis into a sequence; `extent` is the sections' common extent, if
    any.
    """
    return call_op("sequence.split", data, sizes, attrs=SequenceSplitAttrs(axis, keepdims, extent))


__all__ = [
    "CONS", "LIST", "NIL", "append", "at", "concat", "elements", "empty", "erase", "from_elements",
    "insert", "length", "list_type", "split", "stack",
]  # fmt: skip
