"""Loops as recursive functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.type import Type
from ekiden.relay.expr import Expr, Function, If, Let, Tuple, Var


def while_loop(
    cond: Callable[..., Expr],
    loop_vars: Sequence[Expr],
    loop_bodies: Callable[..., Sequence[Expr]],
) -> Expr:
    """Return a recursive function from the initial values of `loop_vars` to the tuple of their
    final ones.

        while_loop(lambda i: i < n, [i], lambda i: [i + 1])
        -> let %while_loop = fn (%i) { if (%i < %n) { %while_loop(%i + 1) } else { (%i,) } };
           %while_loop

    Args:
        cond: Computes from the variables whether to continue.
        loop_vars: The loop variables; each has an annotation or an inferred type.
        loop_bodies: Computes the next values from the variables.
    """
    loop = Var("while_loop")
    fresh = [_fresh_var(v, number) for number, v in enumerate(loop_vars)]
    again = loop(*loop_bodies(*fresh))
    body = If(cond(*fresh), again, Tuple(tuple(fresh)))
    # A Let of a function is recursive: the loop may call itself by its variable.
    return Let(loop, Function(tuple(fresh), body), loop)


def _fresh_var(loop_var: Expr, number: int) -> Var:
    name = loop_var.name_hint if isinstance(loop_var, Var) else f"arg{number}"
    kind: Type | None = loop_var.type_annotation if isinstance(loop_var, Var) else None
    return Var(name, kind if kind is not None else loop_var.checked_type_or_none())


__all__ = ["while_loop"]
