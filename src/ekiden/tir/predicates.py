"""Predicates of blocks: their conjuncts, and which of them restrict spatial points rather than
reduction steps.

A reduction loop over k split by 3 has a partial last iteration, which a predicate masks:

    for i, k0, k1 in grid(n, (m + 2) // 3, 3):
        with block("sum"):
            vi, vk = spatial(n, i), reduce(m, k0 * 3 + k1)
            where(k0 * 3 + k1 < m)            # the end of the sum: all points of vi are written
"""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.arith import simplify
from ekiden.ir.prim import LT, And, IntImm, PrimExpr, const, is_const, logical_and
from ekiden.ir.prim_visitor import chain_operands, is_same_expr, substitute
from ekiden.tir.stmt import BlockRealize, IterKind

__all__ = ["init_conditions", "join_conjuncts", "split_conjuncts"]


def split_conjuncts(predicate: PrimExpr) -> list[PrimExpr]:
    """Return the conjuncts of a predicate."""
    is_true = isinstance(predicate, IntImm) and predicate.value != 0
    return [] if is_true else chain_operands(predicate, And)


def join_conjuncts(conjuncts: Iterable[PrimExpr]) -> PrimExpr:
    """Return the conjunction of conditions."""
    total: PrimExpr = const(True)
    for conjunct in conjuncts:
        total = logical_and(total, conjunct)
    return total


def init_conditions(realize: BlockRealize) -> list[PrimExpr]:
    """Return the conditions under which a reduction is initialised.

    Those are the block's, except that a reduced iterator is below its extent: that one masks
    reduction steps, not points. An empty reduction is initialised, too.
    """
    return [c for c in split_conjuncts(realize.predicate) if not _is_reduction_bound(c, realize)]


def _is_reduction_bound(condition: PrimExpr, realize: BlockRealize) -> bool:
    if not isinstance(condition, LT):
        return False
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    return any(
        _prove_equal_exprs(condition.b, substitute(iter_var.extent, values))
        and _prove_equal_exprs(condition.a, values[iter_var.var])
        for iter_var in realize.block.iter_vars
        if iter_var.kind is IterKind.REDUCE
    )


def _prove_equal_exprs(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two expressions are equal; identical ones and constants need no proof."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    return is_same_expr(a, b) or is_const(simplify(a - b), 0)
