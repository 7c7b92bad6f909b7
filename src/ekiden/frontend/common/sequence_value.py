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
from ekiden.topi.dimensions import are_equal_dims


def join_types(a: Type, b: Type) -> Type | None:
    """Return the least upper bound of two types; None for tensors of different rank or dtype."""
    match a, b:
        case TensorType(), TensorType() if a.dtype == b.dtype and len(a.shape) == len(b.shape):
            return TensorType(tuple(map(_join_dims, a.shape, b.shape)), a.dtype)
        case TypeCall(), TypeCall() if a.func == b.func:
            args = _join_type_lists(a.args, b.args)
            return None if args is None else TypeCall(a.func, args)
        case TupleType(), TupleType():
            fields = _join_type_lists(a.fields, b.fields)
            return None if fields is None else TupleType(fields)
    return None


def _join_type_lists(first: Sequence[Type], second: Sequence[Type]) -> tuple[Type, ...] | None:
    """Join two lists of types pairwise; None where their lengths or a pair do not match."""
    if len(first) != len(second):
        return None
    common_types = [join_types(a, b) for a, b in zip(first, second, strict=True)]
    return None if None in common_types else tuple(k for k in common_types if k is not None)


def _join_dims(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return a dimension that both share, else an unknown one."""
    is_one = not isinstance(a, AnyDim) and not isinstance(b, AnyDim) and are_equal_dims(a, b)
    return a if is_one else AnyDim()


class NonTensorValue(Value):
    """Value other than a tensor; operations that need a tensor raise Unsupported."""

    __slots__ = ()
    description = "a value that is no tensor"

    def __getattribute__(self, name: str) -> object:
        """Raise Unsupported for `type`, which only operations on tensors read."""
        if name == "type":
            raise Unsupported(f"expected a tensor, got {self.description}")
        return super().__getattribute__(name)


class MapValue(NonTensorValue):
    """List of dictionaries, one per row of a matrix whose columns are named by `keys` (ONNX
    ZipMap).
    """

    __slots__ = ("keys",)
    description = "a sequence of maps"

    def __init__(self, expr: Expr, keys: Sequence[int | str]) -> None:
        self.array = self.symbols = self.hint = None
        self.expr, self.keys = expr, tuple(keys)

    @property
    def relay_type(self) -> Type:
        """Return the type of the matrix."""
        assert self.expr is not None
        return self.expr.checked_type


class AbsentValue(NonTensorValue):
    """Absent optional value (ONNX Optional)."""

    __slots__ = ()
    description = "an optional value that is absent"

    def __init__(self) -> None:
        self.array = self.symbols = self.hint = self.expr = None

    @property
    def relay_type(self) -> Type:
        """Return the empty tuple type, which stands for an absent value in messages."""
        return TupleType(())


class SequenceValue(NonTensorValue):
    """Sequence: Python `items` where its length is known, else a run-time list `expr` with elements
    of type `element`.
    """

    __slots__ = ("dtype", "element", "items")
    description = "a sequence"

    def __init__(
        self,
        items: Sequence[Value] | None = None,
        expr: Expr | None = None,
        element: TensorType | None = None,
        dtype: str = "float32",
    ) -> None:
        """Initialize the sequence; `dtype` is that of the elements of an empty one."""
        self.array = self.symbols = self.hint = None
        self.items = None if items is None else tuple(items)
        self.expr, self.element, self.dtype = expr, element, dtype

    @property
    def relay_type(self) -> Type:
        """Return the type of the run-time list that represents it."""
        return sequence.list_type(self.common_element_type())

    def common_element_type(self) -> TensorType:
        """Return the common type of all elements."""
        if self.items is None:
            assert self.element is not None
            return self.element
        if not self.items:
            return self.element or TensorType((), self.dtype)
        kinds: list[Type] = [v.type for v in self.items]
        if self.element is not None:
            kinds.append(self.element)
        common = reduce(_require_common_type, kinds)
        assert isinstance(common, TensorType)
        return common


def _require_common_type(a: Type, b: Type) -> Type:
    """Return the common type of two elements; raise Unsupported without one."""
    common = join_types(a, b)
    if common is None:
        raise Unsupported(
            "the elements of a sequence whose length is not known at import must have one rank "
            "and type"
        )
    return common


def to_sequence_value(expr: Expr, kind: TypeCall) -> SequenceValue:
    """Return a run-time list as a value."""
    (element,) = kind.args
    assert isinstance(element, TensorType)
    return SequenceValue(expr=expr, element=element)
