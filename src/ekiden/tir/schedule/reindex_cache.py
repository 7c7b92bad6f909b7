"""The primitives reindex_cache_read and reindex_cache_write: reindex, transform_layout and
set_scope as one atomic primitive.
"""

from __future__ import annotations

from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.expr import Buffer
from ekiden.tir.index_map import IndexMap
from ekiden.tir.schedule.cache import (
    common_access_indices,
    iterators_in,
    reindex,
    resolve_buffer_and_side,
    set_scope,
)
from ekiden.tir.schedule.layout import transform_layout
from ekiden.tir.schedule.program import ScheduleProgram, block_inputs, block_writes, refuse
from ekiden.tir.stmt import BlockRealize, PrimFunc


def reindex_cache_read(
    program: ScheduleProgram,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: IndexMap,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.reindex_cache_read`."""
    step = "reindex_cache_read"
    side = ("read", read_buffer_index) if isinstance(read_buffer_index, int) else read_buffer_index
    layout = _restrict_index_map(step, realize, side, index_map)
    func, (copy,) = reindex(program, realize, side)
    second = ScheduleProgram(func)
    third = ScheduleProgram(transform_layout(second, second.blocks[copy], ("write", 0), layout))
    return set_scope(third, third.blocks[copy], 0, storage_scope), [copy]


def reindex_cache_write(
    program: ScheduleProgram,
    realize: BlockRealize,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
    index_map: IndexMap,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.reindex_cache_write`."""
    step = "reindex_cache_write"
    named = isinstance(write_buffer_index, int)
    side = ("write", write_buffer_index) if named else write_buffer_index
    layout = _restrict_index_map(step, realize, side, index_map)  # type: ignore[arg-type]
    func, (copy,) = reindex(program, realize, side)  # type: ignore[arg-type]
    second = ScheduleProgram(func)
    third = ScheduleProgram(transform_layout(second, second.blocks[copy], ("read", 0), layout))
    (cache_buffer,) = block_inputs(third.blocks[copy].block)
    writer = third.blocks[realize.block.name]
    assert cache_buffer in block_writes(writer.block)
    return set_scope(third, writer, cache_buffer, storage_scope), [copy]


def _restrict_index_map(
    step: str,
    realize: BlockRealize,
    side: tuple[str, int] | str | Buffer,
    index_map: IndexMap,
) -> IndexMap:
    """Return the index map restricted to the iterators that index the buffer."""
    name, iters = realize.block.name, realize.block.iter_vars
    map_indices = index_map.initial_indices
    if len(map_indices) != len(iters):
        refuse(
            f"{step} {name!r}: it has {len(iters)} iterators, the map takes {len(map_indices)}",
            realize,
        )
    old, _ = resolve_buffer_and_side(step, realize, side)
    used = iterators_in(realize, common_access_indices(step, realize, old))
    used_indices = tuple(v for v, i in zip(map_indices, iters, strict=True) if i in used)
    # reindex gives the copy one axis per used iterator; an index over another iterator has no axis
    # to map.
    for var in free_vars(*index_map.final_indices):
        if var in map_indices and var not in used_indices:
            refuse(f"{step} {name!r}: {old.name!r} is not indexed by {var.name!r}", realize)
    return IndexMap(used_indices, index_map.final_indices)


__all__ = ["reindex_cache_read", "reindex_cache_write"]
