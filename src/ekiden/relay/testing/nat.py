"""Conversion of the Peano numbers of `nat.rly` from and to Python."""

from __future__ import annotations

from ekiden.relay.expr import Constructor, Expr
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.prelude import Prelude


def nat_constructors(prelude: Prelude) -> tuple[Constructor, Constructor]:
    """Return the constructors `zero` and `succ`."""
    _, zero, succ = prelude.mod.get_type("nat")
    assert isinstance(zero, Constructor) and isinstance(succ, Constructor)
    return zero, succ


def count(prelude: Prelude, n: object) -> int:
    """Return the number that a Peano value represents."""
    zero, _ = nat_constructors(prelude)
    number = 0
    while isinstance(n, ConstructorValue) and n.tag != zero.tag:
        number, n = number + 1, n.fields[0]
    return number


def make_nat_value(prelude: Prelude, n: int) -> ConstructorValue:
    """Return the Peano value of a number."""
    zero, succ = nat_constructors(prelude)
    value = ConstructorValue(zero)
    for _ in range(n):
        value = ConstructorValue(succ, (value,))
    return value


def make_nat_expr(prelude: Prelude, n: int) -> Expr:
    """Return an expression of a number's Peano value."""
    zero, succ = nat_constructors(prelude)
    expr: Expr = zero()
    for _ in range(n):
        expr = succ(expr)
    return expr


__all__ = ["count", "make_nat_expr", "make_nat_value"]
