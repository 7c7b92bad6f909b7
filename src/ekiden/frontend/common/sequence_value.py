"""Sequences and optional values during import.

A sequence whose length is known is a list of values: taking an element, adding one, joining them
all cost nothing at run time, and elements may differ in rank. One that is carried by a loop or
comes out of a branch is a list of the program (see ekiden.relay.op.sequence): its elements are
tensors of one rank, computed by kernels as all tensors; what walks over the list is a function of
the runtime in C, so that programs with sequences run without Python.

An optional value is the value itself or `Absent`, which is known at import.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type, TypeCall
from ekiden.relay.expr import Expr
from ekiden.relay.op import sequence
from ekiden.topi.shape import equal


def joined(a: Type, b: Type) -> Type | None:
    """What two types have in common; None for tensors that are not of one rank and dtype."""
    match a, b:
        case TensorType(), TensorType() if a.dtype == b.dtype and len(a.shape) == len(b.shape):
            return TensorType(tuple(map(_joined_dim, a.shape, b.shape)), a.dtype)
        case TypeCall(), TypeCall() if a.func == b.func:
            args = _joined_all(a.args, b.args)
            return None if args is None else TypeCall(a.func, args)
        case TupleType(), TupleType():
            fields = _joined_all(a.fields, b.fields)
            return None if fields is None else TupleType(fields)
    return None


def _joined_all(first: Sequence[Type], other: Sequence[Type]) -> tuple[Type, ...] | None:
    if len(first) != len(other):
        return None
    found = [joined(a, b) for a, b in zip(first, other, strict=True)]
    return None if None in found else tuple(k for k in found if k is not None)


def _joined_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    is_one = not isinstance(a, AnyDim) and not isinstance(b, AnyDim) and equal(a, b)
    return a if is_one else AnyDim()


class NoTensor(Value):
    """A value that is no tensor: what needs one is told so."""

    __slots__ = ()
    what = "a value that is no tensor"

    def __getattribute__(self, name: str) -> object:
        """`type` is asked for by what takes tensors alone."""
        if name == "type":
            raise Unsupported(f"expected a tensor, got {self.what}")
        return super().__getattribute__(name)


class MapValue(NoTensor):
    """A list of dictionaries, one for each row of a matrix: what its columns are called."""

    __slots__ = ("keys",)
    what = "a sequence of maps"

    def __init__(self, expr: Expr, keys: Sequence[int | str]) -> None:
        self.array = self.symbols = self.hint = None
        self.expr, self.keys = expr, tuple(keys)

    @property
    def kind(self) -> Type:
        """The type of the matrix."""
        assert self.expr is not None
        return self.expr.checked_type


class Absent(NoTensor):
    """An optional value that is not there."""

    __slots__ = ()
    what = "an optional value that is absent"

    def __init__(self) -> None:
        self.array = self.symbols = self.hint = self.expr = None

    @property
    def kind(self) -> Type:
        """The empty tuple stands for it in messages."""
        return TupleType(())


class SequenceValue(NoTensor):
    """A sequence: `items` where its length is known, else a list of the program as `expr`, of
    `element`s.
    """

    __slots__ = ("dtype", "element", "items")
    what = "a sequence"

    def __init__(
        self,
        items: Sequence[Value] | None = None,
        expr: Expr | None = None,
        element: TensorType | None = None,
        dtype: str = "float32",
    ) -> None:
        """`dtype` is that of the elements of an empty sequence."""
        self.array = self.symbols = self.hint = None
        self.items = None if items is None else tuple(items)
        self.expr, self.element, self.dtype = expr, element, dtype

    @property
    def kind(self) -> Type:
        """The type of the list that it is, or would be."""
        return sequence.list_type(self.joined())

    def joined(self) -> TensorType:
        """The type under which all elements can be seen. Raises Unsupported if there is none."""
        if self.items is None:
            assert self.element is not None
            return self.element
        if not self.items:
            return self.element or TensorType((), self.dtype)
        kinds: list[Type] = [v.type for v in self.items]
        if self.element is not None:
            kinds.append(self.element)
        found = reduce(_joined_or_fail, kinds)
        assert isinstance(found, TensorType)
        return found


def _joined_or_fail(a: Type, b: Type) -> Type:
    found = joined(a, b)
    if found is None:
        raise Unsupported(
            "the elements of a sequence whose length is not known at import must have one rank "
            "and type"
        )
    return found


def sequence_of(expr: Expr, kind: TypeCall) -> SequenceValue:
    """A list of the program as a value."""
    (element,) = kind.args
    assert isinstance(element, TensorType)
    return SequenceValue(expr=expr, element=element)
