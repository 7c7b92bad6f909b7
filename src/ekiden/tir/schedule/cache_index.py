"""The primitive cache_index: precompute a block's index expressions."""

from __future__ import annotations

from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.prim import Div, FloorDiv, FloorMod, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import same_expr
from ekiden.tir.schedule.cache import check_scope, outermost, used_iters
from ekiden.tir.schedule.check import require_outermost
from ekiden.tir.schedule.compute_at import moved_nest
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses,
    read,
    refuse,
    replace_accesses,
    with_allocation,
    written,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, IterKind, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import sequence

Indices = tuple[PrimExpr, ...]


def cache_index(
    program: ScheduleProgram, realize: BlockRealize, storage_scope: str, cse_thresh: int = 0
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_index`."""
    step, name = "cache_index", realize.block.name
    require_outermost(step, program, realize)
    check_scope(step, realize, storage_scope)
    func, block_names = program.func, []
    for index in _indices_to_cache(realize, cse_thresh):
        func, block = _with_cached_index(ScheduleProgram(func), name, index, storage_scope)
        block_names.append(block)
    if not block_names:
        refuse(f"{step} {name!r}: it has no index to compute", realize)
    return func, block_names


def _indices_to_cache(realize: BlockRealize, threshold: int) -> list[PrimExpr]:
    """Return the indices that are more than an iterator and occur more than `threshold` times."""
    own = {i.var for i in realize.block.iter_vars}
    groups: list[list[PrimExpr]] = []
    for buffer in dict.fromkeys((*read(realize.block), *written(realize.block))):
        for index in (i for a in accesses(realize.block, buffer) for i in a.indices):
            index_vars = set(free_vars(index))
            if (
                isinstance(index, Var)
                or not index_vars
                or not index_vars <= own
                or not _is_safe(index)
            ):
                continue
            group_of_index = next((group for group in groups if same_expr(group[0], index)), None)
            if group_of_index is None:
                groups.append([index])
            else:
                group_of_index.append(index)
    return [group[0] for group in groups if len(group) > threshold]


def _is_safe(index: PrimExpr) -> bool:
    """Return whether an index is arithmetic that may be evaluated where the block does not run (no
    division by a variable, no effects, no loads).
    """
    for e in post_order(index):
        # The index is computed over the iterators' whole domain, hence also at points that the
        # block's predicate excludes.
        divides = isinstance(e, (Div, FloorDiv, FloorMod)) and not is_const(e.b)
        acts = isinstance(e, Intrinsic) and INTRINSICS[e.op].effects
        if divides or acts or isinstance(e, BufferLoad):
            return False
    return True


def _with_cached_index(
    program: ScheduleProgram, name: str, index: PrimExpr, scope: str
) -> tuple[PrimFunc, str]:
    """Return the program with one index computed before the block, and the name of the computing
    block.
    """
    realize = program.blocks[name]
    iters = used_iters(realize, [index])
    shape = tuple(i.extent for i in iters)
    new = Buffer(program.fresh_buffer("index_var"), shape, index.dtype, scope)
    copies = tuple(IterVar(Var(i.var.name, i.var.dtype), i.extent, IterKind.SPATIAL) for i in iters)
    copy_vars = tuple(c.var for c in copies)
    values: dict[Var, PrimExpr] = {i.var: c.var for i, c in zip(iters, copies, strict=True)}
    body = BufferStore(new, substitute(index, values), copy_vars)
    copy = BlockRealize(copy_vars, const(True), Block(program.fresh_block(new.name), copies, body))
    insertion_point = outermost(program, realize, [])
    func = program.replace(insertion_point, sequence(moved_nest(copy, {}, ()), insertion_point))
    after = ScheduleProgram(func)
    block: Stmt = after.blocks[name].block
    cached_index = BufferLoad(new, tuple(i.var for i in iters), index.dtype)

    def moved(indices: Indices) -> Indices:
        return tuple(cached_index if same_expr(i, index) else i for i in indices)

    for buffer in dict.fromkeys((*read(realize.block), *written(realize.block))):
        block = replace_accesses(block, buffer, buffer, moved)
    return with_allocation(after.replace(after.blocks[name].block, block), new), copy.block.name


__all__ = ["cache_index"]
