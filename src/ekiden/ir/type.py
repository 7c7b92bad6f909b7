"""Types of Relay programs.

Tensors, tuples, functions, type variables, ADT instances, references, holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ekiden.ir.node import Node, freeze, node
from ekiden.ir.prim import ExprLike, IntImm, PrimExpr, convert


class Type(Node):
    """Base of all types."""

    __slots__ = ()


class TypeKind(IntEnum):
    """What a type variable stands for (TVM's numbers)."""

    TYPE = 0
    SHAPE_VAR = 1
    BASE_TYPE = 2
    CONSTRAINT = 4
    ADT_HANDLE = 5
    TYPE_DATA = 6
    Type = 0
    ShapeVar = 1
    BaseType = 2
    Constraint = 4
    AdtHandle = 5
    TypeData = 6


@node("relay.TensorType")
class TensorType(Type):
    """A tensor.

    Each dimension is an int64 expression: IntImm, SizeVar, arithmetic on them, or AnyDim.
    """

    shape: tuple[PrimExpr, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """A shape may be any sequence of ints and expressions."""
        shape = self.shape
        if type(shape) is not tuple or any(not isinstance(d, PrimExpr) for d in shape):
            freeze(self, shape=tuple(convert(d, "int64") for d in shape))

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The shape as ints. Raises ValueError when a dimension is no constant."""
        found = tuple(d.value for d in self.shape if isinstance(d, IntImm))
        if len(found) < len(self.shape):
            raise ValueError(f"concrete_shape: not every dimension of {self!r} is a constant")
        return found


@node("relay.TupleType")
class TupleType(Type):
    """A tuple of fields."""

    fields: tuple[Type, ...]

    def __post_init__(self) -> None:
        """The fields may be any sequence."""
        freeze(self, fields=tuple(self.fields))


@node("relay.TypeVar")
class TypeVar(Type):
    """A type parameter; identity is its meaning."""

    name_hint: str
    kind: TypeKind = TypeKind.TYPE

    def __call__(self, *args: Type) -> TypeCall:
        """`self[args]`"""
        return TypeCall(self, args)


@node("relay.GlobalTypeVar")
class GlobalTypeVar(Type):
    """The name of an algebraic data type."""

    name_hint: str
    kind: TypeKind = TypeKind.ADT_HANDLE

    def __call__(self, *args: Type) -> TypeCall:
        """`self[args]`"""
        return TypeCall(self, args)


@node("relay.FuncType")
class FuncType(Type):
    """A function type, possibly polymorphic."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = ()

    def __post_init__(self) -> None:
        """The parameters may be any sequences."""
        params = self.type_params
        freeze(self, arg_types=tuple(self.arg_types), type_params=tuple(params or ()))


@node("relay.TypeCall")
class TypeCall(Type):
    """An algebraic data type applied to arguments: `List[Tensor[(), float32]]`."""

    func: Type
    args: tuple[Type, ...]

    def __post_init__(self) -> None:
        """The arguments may be any sequence."""
        freeze(self, args=tuple(self.args))


@node("relay.RefType")
class RelayRefType(Type):
    """A mutable reference."""

    value: Type


@node("relay.IncompleteType")
class IncompleteType(Type):
    """A hole that type inference fills; prints as `_`."""

    kind: TypeKind = TypeKind.TYPE


@node("relay.StorageType")
class StorageType(Type):
    """The type of a buffer made by `memory.alloc_storage`."""


def tensor_type(shape: Sequence[ExprLike], dtype: str = "float32") -> TensorType:
    """A TensorType from Python ints and expressions."""
    return TensorType(tuple(convert(d, "int64") for d in shape), dtype)
