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
from ekiden.ir.intrinsic import row_of
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.kernels.cpu.loops import product
from ekiden.kernels.gpu.lanes import Lanes, accesses_of, coordinates
from ekiden.target import Target
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Ramp
from ekiden.tir.stmt import Block, BufferStore, For, ForKind, IterKind, Stmt
from ekiden.tir.transform.vectorize_loops import Vectorizer

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
    given = [(e.producer.shape, e.indices) for e in reads]
    return near_at(given, axes, extents, min([most, *widths]), _conditions(value))


def near_lanes(block: Block, target: Target, threads: int) -> Lanes | None:
    """The axes of a computation, from one on, along which neighbours are one access of a target
    whose threads run together; None where there are none, or fewer such than its units have
    threads."""
    body, axes = block.body, list(block.iter_vars)
    is_plain = all(i.kind is IterKind.SPATIAL for i in axes) and isinstance(body, BufferStore)
    if target.thread_warp_size == 1 or not is_plain:
        return None
    assert isinstance(body, BufferStore)
    nodes = post_order(body.value)
    if any(isinstance(e, Intrinsic) and row_of(e.op).effects for e in nodes):
        return None
    loads, stores = accesses_of(body)
    accesses = [(buffer.shape, at) for buffer, at in (*loads, *stores)]
    most = most_near(target, *(buffer.dtype for buffer, _ in (*loads, *stores)))
    whole = simplify(product([i.extent for i in axes])) if axes else const(1)
    conditions = _conditions(body.value)
    for first in range(len(axes)) if most > 1 else ():
        extents = [i.extent for i in axes[first:]]
        lanes = near_at(accesses, [i.var for i in axes[first:]], extents, most, conditions)
        if isinstance(whole, IntImm) and whole.value < lanes * threads * target.cores:
            return None
        if lanes > 1:
            return Lanes(first, lanes)
    return None


def _conditions(value: PrimExpr) -> list[PrimExpr]:
    """Under which parts of an expression are evaluated."""
    found = [e for e in post_order(value) if isinstance(e, Intrinsic)]
    return [e.args[0] for e in found if e.op == "if_then_else"]


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


__all__ = ["most_near", "near_at", "near_in", "near_lanes", "reads_of", "together"]
