"""Sequences of tensors: lists whose last element comes first, so that adding one costs the same for
any length.

A sequence is a value of the type List of the prelude, built by its constructors; what needs a walk
over it is done by a function of the runtime (`host`), not by a kernel. Positions count from the
front, or where negative from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, Memory, OpDef, register_op
from ekiden.ir.prim import AnyDim, PrimExpr, is_const
from ekiden.ir.text import type_text
from ekiden.ir.type import GlobalTypeVar, TensorType, Type, TypeCall, TypeVar
from ekiden.relay.expr import Call, Constructor, Expr, TypeData
from ekiden.relay.op._declare import attempt, attrs_of, call, fail
from ekiden.relay.values import ConstructorValue
from ekiden.runtime.errors import RunError
from ekiden.topi.dimensions import normalize_axis

_HEADER = GlobalTypeVar("List")
_ELEMENT = TypeVar("A")
CONS = Constructor("Cons", (_ELEMENT, TypeCall(_HEADER, (_ELEMENT,))), _HEADER, 0)
NIL = Constructor("Nil", (), _HEADER, 1)
LIST = TypeData(_HEADER, (_ELEMENT,), (CONS, NIL))
"""The type List[A] of the prelude; a module that uses sequences must define it or the prelude's."""

Elements: TypeAlias = "list[Array]"


def list_type(element: Type) -> TypeCall:
    """Return the type of a sequence of such tensors."""
    return TypeCall(_HEADER, (element,))


@node("relay.attrs.SequenceStackAttrs")
class SequenceStackAttrs(Attrs):
    """How many tensors there are, if that is known."""

    length: PrimExpr | None = None
    reverse: bool = False


@node("relay.attrs.SequenceConcatAttrs")
class SequenceConcatAttrs(Attrs):
    """The axis along which tensors are put one after the other."""

    axis: int = 0


@node("relay.attrs.SequenceSplitAttrs")
class SequenceSplitAttrs(Attrs):
    """The axis that is cut, whether parts of extent 1 keep it, and the extent that all parts are
    known to have, if they are."""

    axis: int = 0
    keepdims: bool = True
    extent: PrimExpr | None = None


def elements(value: object) -> Elements:
    """Return the tensors of an interpreted sequence, the first one first."""
    reversed_elements = []
    while isinstance(value, ConstructorValue) and value.fields:
        reversed_elements.append(value.fields[0])
        value = value.fields[1]
    return [np.asarray(e) for e in reversed(reversed_elements)]


def from_elements(arrays: Iterable[Array]) -> ConstructorValue:
    """Return an interpreted sequence of tensors."""
    sequence_value = ConstructorValue(NIL)
    for array in arrays:
        sequence_value = ConstructorValue(CONS, (array, sequence_value))
    return sequence_value


def _element(name: str, kind: Type) -> TensorType:
    match kind:
        case TypeCall(func=GlobalTypeVar(name_hint="List"), args=(TensorType() as inner,)):
            return inner
    fail(name, f"expected a List of tensors, got {type_text(kind)}")


def _place(position: object, length: int, is_end: bool = False) -> int:
    at = int(np.asarray(position))
    if not -length <= at < length + is_end:
        raise RunError(f"sequence: position {at} is out of range for {length} elements")
    return at + length if at < 0 else at


def _at(attrs: Attrs | None, value: object, position: object) -> Array:
    tensors = elements(value)
    return tensors[_place(position, len(tensors))]


def _insert(attrs: Attrs | None, value: object, new: Array, position: object) -> ConstructorValue:
    tensors = elements(value)
    tensors.insert(_place(position, len(tensors), True), new)
    return from_elements(tensors)


def _erase(attrs: Attrs | None, value: object, position: object) -> ConstructorValue:
    tensors = elements(value)
    del tensors[_place(position, len(tensors))]
    return from_elements(tensors)


def _stack(attrs: SequenceStackAttrs, value: object, dims: Array, like: Array) -> Array:
    tensors = elements(value)
    if attrs.reverse:
        tensors.reverse()
    return np.stack(tensors) if tensors else np.zeros((0, *map(int, dims)), like.dtype)


def _stack_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    inner = _element("sequence.stack", types[0])
    length = attrs_of(SequenceStackAttrs, attrs).length
    return TensorType((AnyDim() if length is None else length, *inner.shape), inner.dtype)


def _concat_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    inner = _element("sequence.concat", types[0])
    requested_axis = attrs_of(SequenceConcatAttrs, attrs).axis
    name = "sequence.concat"
    axis = attempt(name, normalize_axis, requested_axis, len(inner.shape), name)
    return TensorType((*inner.shape[:axis], AnyDim(), *inner.shape[axis + 1 :]), inner.dtype)


def _split_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, settings = types[0], attrs_of(SequenceSplitAttrs, attrs)
    name = "sequence.split"
    if not isinstance(data, TensorType):
        fail(name, f"expected a tensor, got {type_text(data)}")
    axis = attempt(name, normalize_axis, settings.axis, len(data.shape), name)
    extent = AnyDim() if settings.extent is None else settings.extent
    axis_extent = (extent,) if settings.keepdims else ()
    return list_type(
        TensorType((*data.shape[:axis], *axis_extent, *data.shape[axis + 1 :]), data.dtype)
    )


def _split(attrs: SequenceSplitAttrs, data: Array, sizes: Array) -> ConstructorValue:
    if sizes.sum() != data.shape[attrs.axis] or (sizes < 0).any():
        extent = data.shape[attrs.axis]
        raise RunError(f"sequence: parts of {sizes.tolist()} of an axis of extent {extent}")
    sections = np.split(data, np.cumsum(sizes)[:-1], attrs.axis) if sizes.size else []
    if not attrs.keepdims:
        sections = [p.squeeze(attrs.axis) for p in sections]
    return from_elements(sections)


_INTEGERS = {"position": 0, "dims": 1, "sizes": 1}
"""Arguments that are integers, and their rank; one element stands for a number too."""


def _check_integers(name: str, what: str, kind: Type) -> None:
    """Check that the host reads an argument as a number or a vector of numbers."""
    fits = isinstance(kind, TensorType) and kind.dtype in ("int32", "int64")
    if fits and isinstance(kind, TensorType):
        rank, known_one = len(kind.shape), all(is_const(d, 1) for d in kind.shape)
        fits = rank == _INTEGERS[what] or (_INTEGERS[what] == 0 and known_one)
    if not fits:
        form = "a number" if _INTEGERS[what] == 0 else "a vector"
        fail(name, f"{what!r} must be {form} of int32 or int64, got {type_text(kind)}")


def _declare(
    name: str,
    arguments: str,
    relation: Callable[[Sequence[Type], Attrs | None], Type],
    reference: Callable[..., Any],
    result: str,
    attrs: type[Attrs] | None = None,
    hands_on: tuple[int, ...] = (),
    memory: Memory = Memory.KEEPS,
) -> None:
    names = tuple(arguments.split())

    def checked(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the result of the relation, after a check that positions and axes are integers."""
        for what, kind in zip(names, types, strict=True):
            if what in _INTEGERS:
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
            hands_on=hands_on,
            memory=memory,
            result=result,
        )
    )


# fmt: off
_declare("length", "sequence", lambda types, attrs: TensorType((), "int64"),
         lambda attrs, value: np.asarray(len(elements(value)), np.int64), "an int64 scalar",
         hands_on=(0,), memory=Memory.READS)
_declare("at", "sequence position", lambda types, attrs: _element("sequence.at", types[0]),
         _at, "one element", hands_on=(0,))
_declare("insert", "sequence value position", lambda types, attrs: types[0],
         _insert, "the sequence with `value` before that position", hands_on=(0, 1))
_declare("erase", "sequence position", lambda types, attrs: types[0],
         _erase, "the sequence without that element", hands_on=(0,))
_declare("stack", "sequence dims like", _stack_type, _stack,
         "the elements along a new first axis; of shape (0, *dims) where there are none",
         SequenceStackAttrs)
_declare("concat", "sequence", _concat_type,
         lambda attrs, value: np.concatenate(elements(value), attrs.axis),
         "the elements one after the other", SequenceConcatAttrs)
_declare("split", "data sizes", _split_type, _split,
         "parts of these extents", SequenceSplitAttrs)
# fmt: on


def empty(element: Type | None = None) -> Call:
    """Return a sequence without elements, of that type if nothing else determines it."""
    return Call(NIL, (), None, () if element is None else (element,))


def append(sequence: Expr, value: Expr) -> Call:
    """Return the sequence with one more element at its end."""
    return Call(CONS, (value, sequence))


def length(sequence: Expr) -> Call:
    """Return how many elements a sequence has."""
    return call("sequence.length", sequence)


def at(sequence: Expr, position: Expr) -> Call:
    """Return the element at a position."""
    return call("sequence.at", sequence, position)


def insert(sequence: Expr, value: Expr, position: Expr) -> Call:
    """Return the sequence with an element inserted before a position; its length means at
    the end.
    """
    return call("sequence.insert", sequence, value, position)


def erase(sequence: Expr, position: Expr) -> Call:
    """Return the sequence without an element."""
    return call("sequence.erase", sequence, position)


def stack(
    sequence: Expr, dims: Expr, like: Expr, length: PrimExpr | None = None, reverse: bool = False
) -> Call:
    """Return the elements along a new first axis, in order or the last first.

    `dims` is the shape of an element and `like` a tensor of its dtype, for an empty sequence.
    """
    attrs = SequenceStackAttrs(length, reverse)
    return call("sequence.stack", sequence, dims, like, attrs=attrs)


def concat(sequence: Expr, axis: int) -> Call:
    """Return the elements one after the other along an axis; there must be one."""
    return call("sequence.concat", sequence, attrs=SequenceConcatAttrs(axis))


def split(
    data: Expr, sizes: Expr, axis: int, keepdims: bool = True, extent: PrimExpr | None = None
) -> Call:
    """Return sections of a tensor along an axis; `extent` is their common extent, if they
    have one.
    """
    return call("sequence.split", data, sizes, attrs=SequenceSplitAttrs(axis, keepdims, extent))


__all__ = [
    "CONS", "LIST", "NIL", "append", "at", "concat", "elements", "empty", "erase", "from_elements",
    "insert", "length", "list_type", "split", "stack",
]  # fmt: skip
