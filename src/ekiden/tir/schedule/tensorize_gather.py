"""The part of a tile's sum whose elements of one factor are looked up in a table.

    for k in 128: d[i, j] += a[i, k] * b[k, j]
    for n in 16:  d[i, j] += a[i, table[n]] * b[128 + n, j]

Proved: the second nest continues the sums of the first (its init never runs), one element of the
table, which neither rows nor columns move, gives the index, and a step of the loop is one of the
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden.ir.prim import Cast, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite, substitute
from ekiden.tir.expr import BufferLoad
from ekiden.tir.schedule.block_kinds import reduce_values
from ekiden.tir.schedule.program import refuse
from ekiden.tir.schedule.tensorize_tile import TENSORIZE_PRIMITIVE, substituted_store
from ekiden.tir.stmt import BlockRealize
from ekiden.tir.tensor_intrin.micro import GatherLoop, SumLoop

if TYPE_CHECKING:
    from ekiden.tir.schedule.tensorize_matmul import MatmulTileBuilder


def match_gather(tile: MatmulTileBuilder, realize: BlockRealize) -> GatherLoop | None:
    """Return the loop of a further part of a tile's sum that looks its elements up; None if it
    has no iterations.
    """
    step = f"{TENSORIZE_PRIMITIVE}: block {realize.block.name!r}"
    loop, *inner = tile.nest.gather_loops
    if is_const(loop.extent, 0):
        return None
    _require_continuation(tile, realize)
    x, y = tile.match_factors(substituted_store(realize), realize)
    if x.load.buffer is not tile.a.load.buffer or y.load.buffer is not tile.b.load.buffer:
        refuse(f"{step} multiplies elements of other buffers", realize)
    flat_a, flat_b = x.index, y.index
    index = _match_lookup(tile, flat_a, realize)
    assert isinstance(index.value, BufferLoad)
    lookup_index = Var("place", index.dtype)
    linear = tile.analyzer.simplify(rewrite(flat_a, lambda e: lookup_index if e is index else e))
    zeros = {s.loop_var: const(0) for s in tile.nest.gather_loops}
    if loop.loop_var in free_vars(linear):
        refuse(f"{step} moves beside what it looks up", realize)
    start = tile.analyzer.simplify(substitute(linear, {**zeros, lookup_index: const(0)}))
    first = tile.analyzer.simplify(substitute(tile.a.index, tile.tile_origin))
    if not tile.analyzer.can_prove_equal(start, first):
        refuse(
            f"{step} looks up what does not count from the rows of {x.load.buffer.name!r}",
            realize,
        )
    table = tile.flat_index_of(index.value)
    if not is_const(tile.stride_along(table, loop.loop_var), 1):
        refuse(f"{step} skips elements of the table {index.value.buffer.name!r}", loop)
    words = [
        SumLoop(
            s.extent,
            tile.stride_along(linear, s.loop_var),
            tile.stride_along(flat_b, s.loop_var),
        )
        for s in inner
    ]
    return GatherLoop(
        loop.extent,
        index.value.buffer,
        tile.analyzer.simplify(substitute(table, zeros)),
        tile.stride_along(linear, lookup_index),
        tile.analyzer.simplify(substitute(flat_b, {**zeros, tile.column: const(0)})),
        tile.stride_along(flat_b, loop.loop_var),
        tuple(words),
    )


def _require_continuation(tile: MatmulTileBuilder, realize: BlockRealize) -> None:
    """Require that a block continues the sums of the first: the same elements, and no init."""
    store = substituted_store(realize)
    same = store.buffer is tile.sums and all(
        map(tile.analyzer.can_prove_equal, store.indices, tile.indices)
    )
    if not same or not any(tile.analyzer.can_prove(v > 0) for v in reduce_values(realize)):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: block {realize.block.name!r} does not continue the sums "
            f"of {tile.nest.sum.block.name!r}",
            realize,
        )


def _match_lookup(tile: MatmulTileBuilder, flat: PrimExpr, realize: BlockRealize) -> Cast:
    """Return the element of a table, cast to an index, by which a flat index is looked up."""
    lookups = [
        e for e in post_order(flat) if isinstance(e, Cast) and isinstance(e.value, BufferLoad)
    ]
    moving = {tile.row, tile.column, *(s.loop_var for s in tile.nest.gather_loops[1:])}
    if len(lookups) != 1 or moving & set(free_vars(lookups[0])):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected block {realize.block.name!r} to look its element "
            f"up at one element of a table, there are {len(lookups)}",
            realize,
        )
    return lookups[0]


__all__ = ["match_gather"]
