"""Predicates of blocks: their parts, and what of them is about the points that are written.

A loop over k that is split into 3 leaves over steps, which a predicate cuts off:

for i, k0, k1 in grid(n, (m + 2) // 3, 3):
    with block("sum"):
        vi, vk = spatial(n, i), reduce(m, k0 * 3 + k1)
        where(k0 * 3 + k1 < m)            # the end of the sum: all points of vi are written
"""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.arith import simplify
from ekiden.ir.prim import LT, And, IntImm, PrimExpr, const, is_const, logical_and
from ekiden.ir.prim_visitor import same, substitute
from ekiden.tir.stmt import BlockRealize, IterKind

__all__ = ["conditions", "conjunction", "init_conditions"]


def conditions(predicate: PrimExpr) -> list[PrimExpr]:
    """The parts of a conjunction."""
    if is_const(predicate):
        return [] if predicate.value else [predicate]  # type: ignore[attr-defined]
    found: list[PrimExpr] = []
    stack = [predicate]
    while stack:
        e = stack.pop()
        if isinstance(e, And):
            stack.extend((e.b, e.a))
        else:
            found.append(e)
    return found


def conjunction(parts: Iterable[PrimExpr]) -> PrimExpr:
    """All of them."""
    total: PrimExpr = const(True)
    for each in parts:
        total = logical_and(total, each)
    return total


def init_conditions(realize: BlockRealize) -> list[PrimExpr]:
    """The conditions under which a sum is begun: those of the block, but that a reduced iterator is
    below its extent, which leaves out steps of sums and no point. A sum of nothing is begun, too.
    """
    return [c for c in conditions(realize.predicate) if not _is_end_of_sum(c, realize)]


def _is_end_of_sum(condition: PrimExpr, realize: BlockRealize) -> bool:
    if not isinstance(condition, LT):
        return False
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    return any(
        _are_equal(condition.b, substitute(each.extent, values))
        and _are_equal(condition.a, values[each.var])
        for each in realize.block.iter_vars
        if each.kind is IterKind.REDUCE
    )


def _are_equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two expressions are equal; written alike, or constants, without a proof."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    return same(a, b) or is_const(simplify(a - b), 0)
