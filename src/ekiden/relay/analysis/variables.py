"""Type variables and dtypes of a program. Those of values are in `ekiden.relay.visitor`.

TVM's functions take a module too, which nothing here needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ekiden.ir.module import IRModule
from ekiden.ir.type import FuncType, TensorType, Type, TypeVar
from ekiden.relay.expr import Expr, Function, TypeData
from ekiden.relay.visitor import post_order, type_post_order, types_in


def all_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return all type variables bound or used in an expression or type, in order."""
    return list(dict.fromkeys((*_bound(expr), *_used(expr))))


def bound_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the type parameters of functions, function types and data types, in the order met."""
    return list(dict.fromkeys(_bound(expr)))


def free_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the free type variables of an expression or type, in order."""
    bound = set(_bound(expr))
    return [v for v in dict.fromkeys(_used(expr)) if v not in bound]


def all_dtypes(expr: Expr) -> set[str]:
    """Return the dtypes of all tensors in an expression's checked types. Needs inferred types."""
    kinds = (e.checked_type_or_none() for e in post_order(expr, into_functions=True))
    inside = (t for kind in kinds if kind is not None for t in type_post_order(kind))
    return {t.dtype for t in inside if isinstance(t, TensorType)}


def _types(root: Expr | Type) -> Iterator[Type]:
    """Yield the type annotations in an expression (the type itself for a type); component types are
    not visited.
    """
    if isinstance(root, Type):
        yield root
        return
    for expr in post_order(root, into_functions=True):
        yield from types_in(expr)


def _bound(root: Expr | Type) -> Iterator[TypeVar]:
    if isinstance(root, Expr):
        for expr in post_order(root, into_functions=True):
            if isinstance(expr, Function):
                yield from expr.type_params
    for kind in _components(_types(root)):
        if isinstance(kind, FuncType):
            yield from kind.type_params
        elif isinstance(kind, TypeData):
            yield from kind.type_vars


def _used(root: Expr | Type) -> Iterator[TypeVar]:
    for kind in _components(_types(root)):
        if isinstance(kind, TypeVar):
            yield kind


def _components(kinds: Iterable[Type]) -> Iterator[Type]:
    for kind in kinds:
        yield from type_post_order(kind)
        if isinstance(kind, TypeData):
            for constructor in kind.constructors:
                yield from _components(constructor.inputs)
