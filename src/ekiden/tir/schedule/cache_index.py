"""The primitive cache_index: precompute a block's index expressions."""

from __future__ import annotations

from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.prim import Div, FloorDiv, FloorMod, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.cache import find_insertion_point, iterators_in, require_valid_scope
from ekiden.tir.schedule.compute_at import create_moved_nest
from ekiden.tir.schedule.legality import require_top_level_block
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    add_allocation,
    block_reads,
    block_writes,
    refuse,
    replace_accesses,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, IterKind, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import flatten_seq

Indices = tuple[PrimExpr, ...]


def cache_index(
    program: ScheduleProgram, realize: BlockRealize, storage_scope: str, cse_thresh: int = 0
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_index`."""
    step, name = "cache_index", realize.block.name
    require_top_level_block(step, program, realize)
    require_valid_scope(step, realize, storage_scope)
    func, block_names = program.func, []
    for index in _repeated_indices(realize, cse_thresh):
        func, block = _cache_one_index(ScheduleProgram(func), name, index, storage_scope)
        block_names.append(block)
    if not block_names:
        refuse(f"{step} {name!r}: it has no index to compute", realize)
    return func, block_names


def _repeated_indices(realize: BlockRealize, threshold: int) -> list[PrimExpr]:
    """Return the indices that are more than an iterator and occur more than `threshold` times."""
    own = {i.var for i in realize.block.iter_vars}
    groups: list[list[PrimExpr]] = []
    for buffer in dict.fromkeys((*block_reads(realize.block), *block_writes(realize.block))):
        for index in (i for a in accesses_of_buffer(realize.block, buffer) for i in a.indices):
            index_vars = set(free_vars(index))
            if (
                isinstance(index, Var)
                or not index_vars
                or not index_vars <= own
                or not _is_speculatable(index)
            ):
                continue
            group_of_index = next(
                (group for group in groups if is_same_expr(group[0], index)), None
            )
            if group_of_index is None:
                groups.append([index])
            else:
                group_of_index.append(index)
    return [group[0] for group in groups if len(group) > threshold]


def _is_speculatable(index: PrimExpr) -> bool:
    """Return whether an index is arithmetic that may be evaluated where the block does not run (no
    division by a variable, no effects, no loads).
    """
    for e in post_order(index):
        # The index is computed over the iterators' whole domain, hence also at points that the
        # block's predicate excludes.
        divides = isinstance(e, (Div, FloorDiv, FloorMod)) and not is_const(e.b)
        acts = isinstance(e, Intrinsic) and INTRINSICS[e.op].has_effects
        if divides or acts or isinstance(e, BufferLoad):
            return False
    return True


def _cache_one_index(
    program: ScheduleProgram, name: str, index: PrimExpr, scope: str
) -> tuple[PrimFunc, str]:
    """Return the program with one index computed before the block, and the name of the computing
    block.
    """
    realize = program.blocks[name]
    iters = iterators_in(realize, [index])
    shape = tuple(i.extent for i in iters)
    new = Buffer(program.fresh_buffer_name("index_var"), shape, index.dtype, scope)
    copies = tuple(IterVar(Var(i.var.name, i.var.dtype), i.extent, IterKind.SPATIAL) for i in iters)
    copy_vars = tuple(c.var for c in copies)
    values: dict[Var, PrimExpr] = {i.var: c.var for i, c in zip(iters, copies, strict=True)}
    body = BufferStore(new, substitute(index, values), copy_vars)
    copy = BlockRealize(
        copy_vars, const(True), Block(program.fresh_block_name(new.name), copies, body)
    )
    insertion_point = find_insertion_point(program, realize, [])
    func = program.replace(
        insertion_point, flatten_seq(create_moved_nest(copy, {}, ()), insertion_point)
    )
    after = ScheduleProgram(func)
    block: Stmt = after.blocks[name].block
    cached_index = BufferLoad(new, tuple(i.var for i in iters), index.dtype)

    def load_cached(indices: Indices) -> Indices:
        return tuple(cached_index if is_same_expr(i, index) else i for i in indices)

    for buffer in dict.fromkeys((*block_reads(realize.block), *block_writes(realize.block))):
        block = replace_accesses(block, buffer, buffer, load_cached)
    return add_allocation(after.replace(after.blocks[name].block, block), new), copy.block.name


__all__ = ["cache_index"]
