"""Relay types, under TVM's module name."""

from __future__ import annotations

from ekiden.ir.prim import AnyDim as Any
from ekiden.ir.prim import IntImm
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeKind,
    TypeRelation,
    TypeVar,
)
from ekiden.ir.type import RelayRefType as RefType


def scalar_type(dtype: str) -> TensorType:
    """Return the type of a tensor of rank 0."""
    return TensorType((), dtype)


def ShapeVar(name: str) -> TypeVar:  # noqa: N802 - TVM's name
    """Return a type variable that stands for a shape."""
    return TypeVar(name, TypeKind.SHAPE_VAR)


def is_dynamic(tensor_type: Type) -> bool:
    """Return whether a tensor type has a non-constant dimension."""
    return isinstance(tensor_type, TensorType) and any(
        not isinstance(d, IntImm) for d in tensor_type.shape
    )


__all__ = [
    "Any",
    "FuncType",
    "GlobalTypeVar",
    "IncompleteType",
    "RefType",
    "ShapeVar",
    "TensorType",
    "TupleType",
    "Type",
    "TypeCall",
    "TypeKind",
    "TypeRelation",
    "TypeVar",
    "is_dynamic",
    "scalar_type",
]
