"""Proofs that tiles, whose number is rounded up, cover a range."""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir.prim import FloorDiv, IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import post_order, rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr


# The Analyzer's polynomials know of (n + 5) // 6 that it is a quotient, not how it lies beside n.
# What is used here is a // c >= (a - (c - 1)) / c: for a term k * c * (a // c) of the difference, k
# * (a - (c - 1)) is no more, and linear.
def can_prove_covers(low: PrimExpr, size: PrimExpr, end: PrimExpr, analyzer: Analyzer) -> bool:
    """Return whether low + size >= end is provable, also where size consists of tiles rounded up:
    (n + 5) // 6 * 6 >= n.
    """
    total = analyzer.simplify(low + size - end)
    if analyzer.can_prove(total >= 0):
        return True
    for e in post_order(total):
        if not isinstance(e, FloorDiv) or not isinstance(e.b, IntImm) or e.b.value <= 0:
            continue
        tiles = Var("tiles")
        with_tiles = _substitute_subexpr(total, e, tiles)
        count, step = analyzer.coefficient(with_tiles, tiles), int(e.b.value)
        if count is not None and count > 0 and count % step == 0:
            # a // s >= (a - (s - 1)) / s: replacing the quotient by that bound removes the
            # rounding, which the prover cannot see through.
            lower_bound = substitute_expr(with_tiles, {tiles: const(0)}) + (e.a - (step - 1)) * (
                count // step
            )
            return analyzer.can_prove(lower_bound >= 0)
    return False


def _substitute_subexpr(e: PrimExpr, old: PrimExpr, new: PrimExpr) -> PrimExpr:
    return rewrite(e, lambda x: new if x is old else x)


__all__ = ["can_prove_covers"]
