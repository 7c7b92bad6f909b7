"""How many neighbours in memory a thread of a device may read or write as one.

They begin at a multiple of their number, and nothing tells them apart: an expression over tensors
reads neighbours, or the same, whatever else its axes are. Where memory itself begins, a kernel asks
(`codegen.near`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import Analyzer, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Intrinsic, PrimExpr, Select, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.target import Target
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Ramp
from ekiden.tir.stmt import For, ForKind, Stmt
from ekiden.tir.transform.vectorize_loops import Vectorizer
from ekiden.topi.rule.loops import product
from ekiden.topi.rule.thread_lanes import coordinates

NEAR_BYTES = 16
"""Of one access."""
ABILITY = "near_memory"
WIDTHS = (16, 8, 4, 2)
Access: TypeAlias = tuple[Sequence[PrimExpr], Sequence[PrimExpr]]
"""The shape of what is accessed, and where."""


def most_near(target: Target, *dtypes: str) -> int:
    """Elements that a target's threads access as one, at most, of all of some types."""
    has_none = not target.has(ABILITY) or any(dt.is_small(d) or d == "bool" for d in dtypes)
    return 1 if has_none else max(1, NEAR_BYTES // max(map(dt.itemsize, dtypes)))


def reads_of(value: PrimExpr) -> list[ProducerLoad]:
    """What an expression over tensors reads."""
    return [e for e in post_order(value) if isinstance(e, ProducerLoad)]


def near_in(value: PrimExpr, axes: Sequence[Var], extents: Sequence[PrimExpr], most: int) -> int:
    """Of what an expression over tensors reads, by axes that are counted through; 1 where none is
    one access, or where a condition is not the same for all of them."""
    reads = reads_of(value)
    widths = [NEAR_BYTES // dt.itemsize(e.dtype) for e in reads if not dt.is_small(e.dtype)]
    if len(widths) < len(reads):
        return 1
    conditions = [
        e.condition if isinstance(e, Select) else e.args[0]
        for e in post_order(value)
        if isinstance(e, Select) or (isinstance(e, Intrinsic) and e.op == "if_then_else")
    ]
    given = [(e.producer.shape, e.indices) for e in reads]
    return near_at(given, axes, extents, min(most, *widths), conditions)


def near_at(
    accesses: Iterable[Access],
    axes: Sequence[Var],
    extents: Sequence[PrimExpr],
    most: int,
    conditions: Sequence[PrimExpr] = (),
) -> int:
    """Of accesses."""
    size = simplify(product(extents)) if extents else const(1)
    first, lane = Var("first"), Var("lane")
    for lanes in WIDTHS:
        if lanes > most or not is_const(simplify(size % lanes), 0):
            continue
        at = dict(zip(axes, coordinates(first * lanes + lane, extents), strict=True))
        is_same = all(lane not in free_vars(simplify(substitute(c, at))) for c in conditions)
        if is_same and all(_is_near(access, at, lane, lanes) for access in accesses):
            return lanes
    return 1


def _is_near(access: Access, at: Mapping[Var, PrimExpr], lane: Var, lanes: int) -> bool:
    flat: PrimExpr = const(0)
    for index, extent in zip(access[1], access[0], strict=True):
        flat = flat * extent + index
    analyzer = Analyzer()
    analyzer.bind(lane, 0, lanes)
    here = analyzer.simplify(substitute(flat, dict(at)))
    if lane not in free_vars(here):
        return True
    index = Vectorizer(lane, const(0), lanes).expr(here)
    if not isinstance(index, Ramp) or not is_const(simplify(index.stride), 1):
        return False
    known = Analyzer().modular_set(index.base)
    return bool(known.coeff % lanes == known.base % lanes == 0)


def together(lane: Var, count: int, body: Stmt) -> Stmt:
    """The body for so many values of a lane from 0 on, at once."""
    return For(lane, const(0), const(count), ForKind.VECTORIZED, body, {"lanes": count})


__all__ = ["ABILITY", "NEAR_BYTES", "most_near", "near_at", "near_in", "reads_of", "together"]
