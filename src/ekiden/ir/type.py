"""Types of Relay programs.

Tensors, tuples, functions, type variables, ADT instances, references, holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ekiden.ir.node import Node, node
from ekiden.ir.prim import ExprLike, PrimExpr, convert


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


@node("relay.TensorType")
class TensorType(Type):
    """A tensor.

    Each dimension is an int64 expression: IntImm, SizeVar, arithmetic on them, or AnyDim.
    """

    shape: tuple[PrimExpr, ...]
    dtype: str = "float32"


@node("relay.TupleType")
class TupleType(Type):
    """A tuple of fields."""

    fields: tuple[Type, ...]


@node("relay.TypeVar")
class TypeVar(Type):
    """A type parameter; identity is its meaning."""

    name_hint: str
    kind: TypeKind = TypeKind.TYPE


@node("relay.GlobalTypeVar")
class GlobalTypeVar(Type):
    """The name of an algebraic data type."""

    name_hint: str
    kind: TypeKind = TypeKind.ADT_HANDLE


@node("relay.FuncType")
class FuncType(Type):
    """A function type, possibly polymorphic."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = ()


@node("relay.TypeCall")
class TypeCall(Type):
    """An algebraic data type applied to arguments: `List[Tensor[(), float32]]`."""

    func: Type
    args: tuple[Type, ...]


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
