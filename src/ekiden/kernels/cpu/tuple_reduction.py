"""Reductions with user-defined or tuple reducers."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, const
from ekiden.kernels.cpu.loops import (
    LoopAxis,
    NestAccesses,
    estimated_product,
    parallel_outer_loops,
    serial_loops,
)
from ekiden.te.prim_func import emit_stores
from ekiden.te.reducer import CommReducer
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, BufferStore, Stmt
from ekiden.tir.visitor import flatten_seq


def emit_tuple_reduction(
    targets: Sequence[tuple[Buffer, PrimExpr]],
    reducer: CommReducer,
    sources: Sequence[PrimExpr],
    axes: Sequence[LoopAxis],
    reduced: Sequence[LoopAxis],
) -> Stmt:
    """Emit the loop nest of a user-defined reduction, one element at a time with scalar
    accumulators, the outer axes in parallel.

    Args:
        targets: The outputs' buffers and indices, in order.
        reducer: What combines two tuples.
        sources: The values that are combined.
        axes: The spatial loops.
        reduced: The loops of the reduction.
    """
    zero_index = (const(0),)
    totals = [Buffer(f"total_{n}", (const(1),), s.dtype, "register") for n, s in enumerate(sources)]
    starts = zip(totals, reducer.identity_element, strict=True)
    begin = [BufferStore(t, e, zero_index) for t, e in starts]
    # All values are computed before the first store: each may depend on every total.
    update = emit_stores(totals, reducer.combine([t[0] for t in totals], sources), zero_index)
    finish = [BufferStore(b, t[0], (i,)) for (b, i), t in zip(targets, totals, strict=True)]
    body: Stmt = flatten_seq(*begin, serial_loops(reduced, update), *finish)
    for total in totals:
        body = Allocate(total, body)
    loads = len(NestAccesses([], list(sources)).loads)
    work = estimated_product([a.extent for a in reduced]) * max(1, loads)
    return parallel_outer_loops(list(axes), work, body)
