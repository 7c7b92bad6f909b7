"""Analysis of the type variables and dtypes of a program. Those of values are in
`ekiden.relay.visitor`.

TVM's functions take a module too, which nothing here needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ekiden.ir.module import IRModule
from ekiden.ir.type import FuncType, TensorType, Type, TypeVar
from ekiden.relay.expr import Expr, Function, TypeData
from ekiden.relay.visitor import annotated_types, post_order, type_post_order


def all_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return all type variables bound or used in an expression or type, in order."""
    return list(dict.fromkeys((*_bound_type_vars(expr), *_used_type_vars(expr))))


def bound_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the type parameters of functions, function types and data types, in the order met."""
    return list(dict.fromkeys(_bound_type_vars(expr)))


def free_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the free type variables of an expression or type, in order."""
    bound = set(_bound_type_vars(expr))
    return [v for v in dict.fromkeys(_used_type_vars(expr)) if v not in bound]


def all_dtypes(expr: Expr) -> set[str]:
    """Return the dtypes of all tensors in an expression's checked types. Needs inferred types."""
    kinds = (e.checked_type_or_none() for e in post_order(expr, into_functions=True))
    inside = (t for kind in kinds if kind is not None for t in type_post_order(kind))
    return {t.dtype for t in inside if isinstance(t, TensorType)}


def _iter_types(root: Expr | Type) -> Iterator[Type]:
    """Yield the type annotations in an expression (the type itself for a type); component types are
    not visited.
    """
    if isinstance(root, Type):
        yield root
        return
    for expr in post_order(root, into_functions=True):
        yield from annotated_types(expr)


def _bound_type_vars(root: Expr | Type) -> Iterator[TypeVar]:
    if isinstance(root, Expr):
        for expr in post_order(root, into_functions=True):
            if isinstance(expr, Function):
                yield from expr.type_params
    for kind in _type_components(_iter_types(root)):
        if isinstance(kind, FuncType):
            yield from kind.type_params
        elif isinstance(kind, TypeData):
            yield from kind.type_vars


def _used_type_vars(root: Expr | Type) -> Iterator[TypeVar]:
    for kind in _type_components(_iter_types(root)):
        if isinstance(kind, TypeVar):
            yield kind


def _type_components(kinds: Iterable[Type]) -> Iterator[Type]:
    for kind in kinds:
        yield from type_post_order(kind)
        if isinstance(kind, TypeData):
            for constructor in kind.constructors:
                yield from _type_components(constructor.inputs)
