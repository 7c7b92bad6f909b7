"""Primitives that insert a copy of a buffer between blocks: cache_read, cache_write, reindex; and
those that set how a buffer is stored: set_scope, storage_align.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.ir.range import Range
from ekiden.tir.access_regions import Access, bounding_region
from ekiden.tir.expr import SCOPES, Buffer, BufferLoad
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.block_kinds import COMPLETE, REDUCTION, UPDATE, reduce_loops, require_kind
from ekiden.tir.schedule.compute_at import create_moved_nest
from ekiden.tir.schedule.inline import partial_domain_fault
from ekiden.tir.schedule.legality import (
    require_sole_writer,
    require_top_level_block,
    require_unconditional,
    written_region,
)
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    add_allocation,
    block_inputs,
    block_reads,
    block_writes,
    refuse,
    replace_accesses,
    replace_buffer,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from ekiden.tir.visitor import conditional_nodes, flatten_seq, pre_order_stmts


def resolve_buffer(
    step: str,
    realize: BlockRealize,
    which: int | str | Buffer,
    buffers: Sequence[Buffer],
    verb: str,
) -> Buffer:
    """Return a buffer of a block selected by number, name or itself."""
    name = realize.block.name
    names = [b.name for b in buffers]
    if isinstance(which, int) and not isinstance(which, bool):
        if not 0 <= which < len(buffers):
            refuse(f"{step} {name!r}: it {verb} {names}, there is no number {which}", realize)
        return buffers[which]
    wanted_name = which.name if isinstance(which, Buffer) else which
    for buffer in buffers:
        if buffer is which or buffer.name == wanted_name:
            return buffer
    refuse(f"{step} {name!r}: it {verb} {names}, not {wanted_name!r}", realize)


def require_valid_scope(step: str, realize: BlockRealize, scope: str) -> None:
    """Refuse an unknown memory scope."""
    if scope not in SCOPES:
        refuse(
            f"{step} {realize.block.name!r}: expected a scope of {', '.join(SCOPES)}, got "
            f"{scope!r}",
            realize,
        )


def _copy_block(name: str, target: Buffer, source: Buffer) -> BlockRealize:
    """Return the block target[v] = source[v] over the whole buffer."""
    iters = tuple(
        IterVar(Var(f"v{n}", d.dtype), d, IterKind.SPATIAL) for n, d in enumerate(source.shape)
    )
    indices = tuple(i.var for i in iters)
    body = BufferStore(target, BufferLoad(source, indices, source.dtype), indices)
    return BlockRealize(indices, const(True), Block(name, iters, body))


def _copy_nest(copy: BlockRealize, box: Sequence[Range], outer: Sequence[For]) -> Stmt:
    ranges = {i.var: r for i, r in zip(copy.block.iter_vars, box, strict=True)}
    return create_moved_nest(copy, ranges, outer)


def _contains_any(program: ScheduleProgram, root: Stmt, blocks: Sequence[BlockRealize]) -> bool:
    return any(program.is_inside(b, root) for b in blocks)


def find_insertion_point(program: ScheduleProgram, s: Stmt, apart: Sequence[BlockRealize]) -> Stmt:
    """Return the outermost loop or block around a statement, in its scope, that contains none of
    the blocks in `apart`.
    """
    path = program.path_to(s)
    for n, ancestor in enumerate(path):
        if isinstance(ancestor, (Block, Allocate, LetStmt, SeqStmt)):
            continue
        inside_block = any(isinstance(p, Block) for p in path[n:])
        if not inside_block and not _contains_any(program, ancestor, apart):
            return ancestor
    return s


def cache_read(
    program: ScheduleProgram,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
    consumer_blocks: Sequence[BlockRealize] | None = None,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_read`."""
    step, name = "cache_read", realize.block.name
    require_top_level_block(step, program, realize)
    require_valid_scope(step, realize, storage_scope)
    old = resolve_buffer(step, realize, read_buffer_index, block_inputs(realize.block), "reads")
    writers = program.writers(old)
    users = list(consumer_blocks or ()) or [x for x in program.readers(old) if x not in writers]
    for user in users:
        if old not in block_reads(user.block):
            refuse(f"{step} {name!r}: block {user.block.name!r} does not read {old.name!r}", user)
    users.sort(key=program.position)
    # The copy stands before the first reader, as far out as no writer is inside: between the last
    # write and the first read. What it takes is the region that is read in one step of the loops
    # around that place.
    insertion_point = find_insertion_point(program, users[0], writers)
    outer = program.loops_above(insertion_point)
    for user in users:
        # The innermost of the loops is enough: who is inside it is inside those around it.
        if any(not program.is_inside(user, s) for s in outer[-1:]):
            refuse(
                f"{step} {name!r}: block {user.block.name!r} reads {old.name!r} outside loop "
                f"{outer[-1].loop_var.name!r}, where it is written",
                user,
            )
    for user in writers:
        if not program.precedes(user, insertion_point):
            refuse(
                f"{step} {name!r}: block {user.block.name!r} writes {old.name!r} after it is read",
                user,
            )
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer_name(label), old.shape, old.dtype, storage_scope)
    copy = _copy_block(program.fresh_block_name(label), new, old)
    nest = _copy_nest(
        copy, bounding_region(old, _accesses_below(program, users, old, outer), outer), outer
    )
    func = program.func
    func = ScheduleProgram(func).replace(insertion_point, flatten_seq(nest, insertion_point))
    for user in users:
        # Analysed anew: the edit before has replaced the statements around the block.
        after = ScheduleProgram(func)
        block = after.blocks[user.block.name].block
        func = after.replace(block, replace_buffer(block, old, new))
    return add_allocation(func, new), [copy.block.name]


def _accesses_below(
    program: ScheduleProgram, users: Sequence[BlockRealize], buffer: Buffer, outer: Sequence[For]
) -> list[Access]:
    """Return the accesses of blocks to a buffer, with the loops below the outer ones."""
    outer_vars = {s.loop_var for s in outer}
    uses: list[Access] = []
    for user in users:
        between = tuple(s for s in program.loops_above(user) if s.loop_var not in outer_vars)
        uses.extend(
            Access(a.indices, (*between, *a.loops), a.is_store, a.is_conditional)
            for a in accesses_of_buffer(user, buffer)
        )
    return uses


def cache_write(
    program: ScheduleProgram,
    realize: BlockRealize,
    write_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
    consumer_blocks: Sequence[BlockRealize] | None = None,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_write`."""
    step, name = "cache_write", realize.block.name
    require_top_level_block(step, program, realize)
    require_valid_scope(step, realize, storage_scope)
    old = resolve_buffer(step, realize, write_buffer_index, block_writes(realize.block), "writes")
    require_kind(step, realize, COMPLETE, REDUCTION, UPDATE)
    require_sole_writer(step, program, realize, old)
    consumers = list(consumer_blocks or ())
    for user in consumers:
        if old not in block_reads(user.block) or not program.precedes(realize, user):
            refuse(
                f"{step} {name!r}: block {user.block.name!r} does not read {old.name!r} after it",
                user,
            )
    # Readers that are no consumers go on reading the old buffer, so that the copy back must stand
    # before them; consumers read the new one, and stand anywhere behind in the same loops.
    other_readers = [x for x in program.readers(old) if x is not realize and x not in consumers]
    insertion_point = find_insertion_point(program, realize, other_readers)
    outer = program.loops_above(insertion_point)
    if reduce_loops(realize, outer):
        refuse(f"{step} {name!r}: it is not finished where {old.name!r} is read", realize)
    for user in consumers:
        if outer and not program.is_inside(user, outer[-1]):
            refuse(
                f"{step} {name!r}: block {user.block.name!r} is outside loop "
                f"{outer[-1].loop_var.name!r}",
                user,
            )
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer_name(label), old.shape, old.dtype, storage_scope)
    box = written_region(program, insertion_point, old, realize)
    if isinstance(box, str):
        # Unknown what is written: all is copied back. That is harmless for an intermediate, whose
        # other elements nobody may read; the rest of an output is its caller's and stays.
        if outer or program.is_param(old):
            refuse(f"{step} {name!r}: {box}", realize)
        box = [Range.from_min_extent(const(0), d) for d in old.shape]
    copy = _copy_block(program.fresh_block_name(label), old, new)
    nest = _copy_nest(copy, box, outer)
    func = program.replace(insertion_point, flatten_seq(insertion_point, nest))
    for user in (realize, *consumers):
        after = ScheduleProgram(func)
        block = after.blocks[user.block.name].block
        func = after.replace(block, replace_buffer(block, old, new))
    return add_allocation(func, new), [copy.block.name]


def cache_inplace(
    program: ScheduleProgram,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_inplace`."""
    step, name = "cache_inplace", realize.block.name
    require_top_level_block(step, program, realize)
    require_valid_scope(step, realize, storage_scope)
    own = tuple(b for b in block_reads(realize.block) if b in block_writes(realize.block))
    old = resolve_buffer(step, realize, read_buffer_index, own, "reads and writes")
    other_users = [x for x in (*program.writers(old), *program.readers(old)) if x is not realize]
    insertion_point = find_insertion_point(program, realize, other_users)
    outer = program.loops_above(insertion_point)
    box = written_region(program, insertion_point, old, realize)
    if isinstance(box, str):
        refuse(f"{step} {name!r}: {box}", realize)
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer_name(label), old.shape, old.dtype, storage_scope)
    begin, end = program.fresh_block_name(label), program.fresh_block_name(f"{old.name}_back")
    # The box read may exceed the box written: elements that the block only reads must be in the
    # copy, but must not be written back.
    read_box = bounding_region(old, _accesses_below(program, [realize], old, outer), outer)
    func = program.replace(
        insertion_point,
        flatten_seq(
            _copy_nest(_copy_block(begin, new, old), read_box, outer),
            insertion_point,
            _copy_nest(_copy_block(end, old, new), box, outer),
        ),
    )
    after = ScheduleProgram(func)
    block = after.blocks[name].block
    func = after.replace(block, replace_buffer(block, old, new))
    return add_allocation(func, new), [begin, end]


def reindex(
    program: ScheduleProgram, realize: BlockRealize, buffer: tuple[str, int] | str | Buffer
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.reindex`."""
    old, writes = resolve_buffer_and_side("reindex", realize, buffer)
    if writes:
        return _reindex_write(program, realize, old)
    return _reindex_read(program, realize, old)


def resolve_buffer_and_side(
    step: str, realize: BlockRealize, buffer: tuple[str, int] | str | Buffer | int
) -> tuple[Buffer, bool]:
    """Return a buffer and whether it is written; selected by ("read" or "write", number), by name,
    or itself.
    """
    reads, writes = block_inputs(realize.block), block_writes(realize.block)
    if isinstance(buffer, (tuple, list)):
        side, number = buffer
        if side not in ("read", "write"):
            refuse(
                f"{step} {realize.block.name!r}: expected ('read', n) or ('write', n), got "
                f"{side!r}",
                realize,
            )
        candidates = reads if side == "read" else writes
        return resolve_buffer(step, realize, number, candidates, f"{side}s"), side == "write"
    if isinstance(buffer, int):
        return resolve_buffer(step, realize, buffer, reads, "reads"), False
    buffer_found = resolve_buffer(step, realize, buffer, (*reads, *writes), "touches")
    return buffer_found, buffer_found in writes


def common_access_indices(step: str, realize: BlockRealize, buffer: Buffer) -> tuple[PrimExpr, ...]:
    """Return the single tuple of indices, over iterators alone, at which a block accesses
    a buffer.
    """
    name = realize.block.name
    block_accesses = accesses_of_buffer(realize.block, buffer)
    variables = {i.var for i in realize.block.iter_vars}
    for access in block_accesses:
        if not all(
            is_same_expr(a, b)
            for a, b in zip(access.indices, block_accesses[0].indices, strict=True)
        ):
            refuse(f"{step} {name!r}: it accesses {buffer.name!r} at different elements", realize)
        if not set(free_vars(*access.indices)) <= variables:
            refuse(f"{step} {name!r}: {buffer.name!r} is not indexed by iterators alone", realize)
    return block_accesses[0].indices


def iterators_in(realize: BlockRealize, indices: Sequence[PrimExpr]) -> list[IterVar]:
    """Return the block iterators that occur in indices."""
    used = set(free_vars(*indices))
    return [i for i in realize.block.iter_vars if i.var in used]


def require_unguarded_reads(step: str, realize: BlockRealize, buffer: Buffer) -> None:
    """Refuse a block that loads from the buffer only under a condition: elsewhere the load may be
    out of range.
    """
    for s in pre_order_stmts(realize.block):
        if not isinstance(s, BufferStore):
            continue
        order = post_order(s.value)
        guarded = conditional_nodes(s.value, order)
        for e in order:
            if isinstance(e, BufferLoad) and e.buffer is buffer and id(e) in guarded:
                refuse(
                    f"{step} {realize.block.name!r}: it reads {buffer.name!r} under a condition",
                    realize,
                )


def _reindex_read(
    program: ScheduleProgram, realize: BlockRealize, old: Buffer
) -> tuple[PrimFunc, list[str]]:
    step, name = "reindex", realize.block.name
    require_top_level_block(step, program, realize)
    indices = common_access_indices(step, realize, old)
    require_unconditional(step, realize)
    # The copy loads unconditionally: a load that the block guards may be out of range.
    require_unguarded_reads(step, realize, old)
    iters = iterators_in(realize, indices)
    for writer in program.writers(old):
        if not program.precedes(writer, realize):
            refuse(f"{step} {name!r}: {old.name!r} is written after it is read", writer)
    new, copies, var_map = _create_reindexed_buffer(program, old, iters)
    source = tuple(substitute(i, var_map) for i in indices)
    copy_vars = tuple(c.var for c in copies)
    body = BufferStore(new, BufferLoad(old, source, old.dtype), copy_vars)
    copy = BlockRealize(
        copy_vars, const(True), Block(program.fresh_block_name(new.name), copies, body)
    )
    insertion_point = find_insertion_point(program, realize, program.writers(old))
    nest = create_moved_nest(copy, {}, ())
    func = program.replace(insertion_point, flatten_seq(nest, insertion_point))
    return _redirect_to_reindexed(func, name, old, new, iters), [copy.block.name]


def _create_reindexed_buffer(
    program: ScheduleProgram, old: Buffer, iters: Sequence[IterVar]
) -> tuple[Buffer, tuple[IterVar, ...], dict[Var, PrimExpr]]:
    """Return the new buffer, the copy block's iterators over it, and the map from old iterators to
    those.
    """
    shape = tuple(i.extent for i in iters)
    new = Buffer(program.fresh_buffer_name(f"{old.name}_reindex"), shape, old.dtype)
    copies = tuple(IterVar(Var(i.var.name, i.var.dtype), i.extent, IterKind.SPATIAL) for i in iters)
    var_map: dict[Var, PrimExpr] = {i.var: c.var for i, c in zip(iters, copies, strict=True)}
    return new, copies, var_map


def _redirect_to_reindexed(
    func: PrimFunc, name: str, old: Buffer, new: Buffer, iters: Sequence[IterVar]
) -> PrimFunc:
    after = ScheduleProgram(func)
    block = after.blocks[name].block
    indices = tuple(i.var for i in iters)
    func = after.replace(block, replace_accesses(block, old, new, lambda _: indices))
    return add_allocation(func, new)


def _reindex_write(
    program: ScheduleProgram, realize: BlockRealize, old: Buffer
) -> tuple[PrimFunc, list[str]]:
    step, name = "reindex", realize.block.name
    require_top_level_block(step, program, realize)
    indices = common_access_indices(step, realize, old)
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_unconditional(step, realize)
    require_sole_writer(step, program, realize, old)
    # The copy back covers the whole domain: a point that the block skips would be undefined.
    fault = partial_domain_fault(program, realize)
    if fault is not None:
        refuse(f"{step} {name!r}: it is not known to run for all its iterators: {fault}", realize)
    readers = [x for x in program.readers(old) if x is not realize]
    insertion_point = find_insertion_point(program, realize, readers)
    if program.loops_above(insertion_point):
        refuse(f"{step} {name!r}: {old.name!r} is read in the same loops", realize)
    iters = iterators_in(realize, indices)
    new, copies, var_map = _create_reindexed_buffer(program, old, iters)
    copy_vars = tuple(c.var for c in copies)
    target = tuple(substitute(i, var_map) for i in indices)
    body = BufferStore(old, BufferLoad(new, copy_vars, old.dtype), target)
    copy = BlockRealize(
        copy_vars, const(True), Block(program.fresh_block_name(new.name), copies, body)
    )
    func = program.replace(
        insertion_point, flatten_seq(insertion_point, create_moved_nest(copy, {}, ()))
    )
    return _redirect_to_reindexed(func, name, old, new, iters), [copy.block.name]


def set_scope(
    program: ScheduleProgram,
    realize: BlockRealize,
    buffer_index: int | str | Buffer,
    storage_scope: str,
) -> PrimFunc:
    """See `Schedule.set_scope`."""
    step, name = "set_scope", realize.block.name
    require_valid_scope(step, realize, storage_scope)
    old = resolve_buffer(step, realize, buffer_index, block_writes(realize.block), "writes")
    if program.is_param(old):
        refuse(f"{step} {name!r}: {old.name!r} is an output", realize)
    if old.scope == storage_scope:
        return program.func
    # Buffers are compared by identity, so a changed scope is a new buffer, replaced at every
    # access.
    new = old.with_fields(scope=storage_scope)
    return program.func.with_fields(body=replace_buffer(program.func.body, old, new))


def storage_align(
    program: ScheduleProgram,
    realize: BlockRealize,
    buffer_index: int | str | Buffer,
    axis: int,
    factor: int,
    offset: int,
) -> PrimFunc:
    """See `Schedule.storage_align`."""
    step, name = "storage_align", realize.block.name
    written_buffers = block_writes(realize.block)
    buffer = resolve_buffer(step, realize, buffer_index, written_buffers, "writes")
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an argument, whose strides are given", realize)
    rank = len(buffer.shape)
    if not -rank <= axis < rank:
        refuse(f"{step} {name!r}: {buffer.name!r} has {rank} axes, no axis {axis}", realize)
    if factor <= 0:
        refuse(f"{step} {name!r}: the factor must be positive, got {factor}", realize)
    number = next(n for n, b in enumerate(written_buffers) if b is buffer)
    notes = dict(realize.block.annotations or {})
    alignments = [tuple(x) for x in notes.get("buffer_dim_align", ())]  # type: ignore[attr-defined]
    # A later alignment of the same axis replaces the earlier one, as in TVM.
    other_alignments = [x for x in alignments if x[:2] != (number, axis % rank)]
    notes["buffer_dim_align"] = (*other_alignments, (number, axis % rank, factor, offset))
    return program.replace(realize.block, realize.block.with_fields(annotations=notes))
