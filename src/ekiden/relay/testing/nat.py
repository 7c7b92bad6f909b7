"""Natural numbers of `nat.rly` from and to Python."""

from __future__ import annotations

from ekiden.relay.expr import Constructor, Expr
from ekiden.relay.prelude import Prelude
from ekiden.relay.values import ConstructorValue


def constructors(prelude: Prelude) -> tuple[Constructor, Constructor]:
    """`zero` and `succ`."""
    _, zero, succ = prelude.mod.get_type("nat")
    assert isinstance(zero, Constructor) and isinstance(succ, Constructor)
    return zero, succ


def count(prelude: Prelude, n: object) -> int:
    """The number that a value is."""
    zero, _ = constructors(prelude)
    found = 0
    while isinstance(n, ConstructorValue) and n.tag != zero.tag:
        found, n = found + 1, n.fields[0]
    return found


def make_nat_value(prelude: Prelude, n: int) -> ConstructorValue:
    """The value that a number is."""
    zero, succ = constructors(prelude)
    made = ConstructorValue(zero)
    for _ in range(n):
        made = ConstructorValue(succ, (made,))
    return made


def make_nat_expr(prelude: Prelude, n: int) -> Expr:
    """An expression with that value."""
    zero, succ = constructors(prelude)
    made: Expr = zero()
    for _ in range(n):
        made = succ(made)
    return made


__all__ = ["count", "make_nat_expr", "make_nat_value"]
