"""Type variables that are instantiated by functions or references, which cannot be copied between
devices.

    def @id[A](%x: A) -> A { %x }        @id(%x) of a tensor: A may be copied
    def @id[A](%x: A) -> A { %x }        @id(fn (%y) { ... }): A may not, whoever else calls @id

The code of a generic function is one for all types. A copy of a value of type `A` in it copies data
and tensors, but neither a closure, which computes where it was compiled for, nor a reference, which
others hold too. A type variable that stands for such a type, or for one that holds it, in any call
is bound to one place in all of its function (`device_domains`); who calls wraps functions that are
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import FuncType, RelayRefType, Type, TypeVar
from ekiden.relay.expr import Call
from ekiden.relay.visitor import type_post_order


def _type_instantiations(exprs: Iterable[RelayExpr]) -> Iterator[tuple[TypeVar, Type]]:
    """Yield (type variable, type argument) for every call of a polymorphic function."""
    for expr in exprs:
        if not isinstance(expr, Call) or not expr.type_args:
            continue
        called = expr.op.checked_type_or_none()
        if isinstance(called, FuncType):
            yield from zip(called.type_params, expr.type_args, strict=False)


def uncopyable_type_variables(exprs: Iterable[RelayExpr]) -> set[TypeVar]:
    """Return the type variables that a call instantiates by a function or a reference, directly or
    through other type variables.
    """
    bound: set[TypeVar] = set()
    through: dict[TypeVar, list[TypeVar]] = {}
    waiting: list[TypeVar] = []
    for variable, kind in _type_instantiations(exprs):
        for component in type_post_order(kind):
            # Neither a closure nor a reference has a meaning on another device: identity would be
            # lost by copying.
            if isinstance(component, (FuncType, RelayRefType)):
                waiting.append(variable)
            elif isinstance(component, TypeVar):
                through.setdefault(component, []).append(variable)
    while waiting:
        variable = waiting.pop()
        if variable not in bound:
            bound.add(variable)
            # Transitive closure: a variable that stands for a bound one is bound too.
            waiting += through.get(variable, ())
    return bound


__all__ = ["uncopyable_type_variables"]
