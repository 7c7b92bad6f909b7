"""Primitives that put a copy of a buffer between blocks: cache_read, cache_write, reindex; and
those that say how a buffer is kept: set_scope, storage_align.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.ir.range import Range
from ekiden.tir.expr import SCOPES, Buffer, BufferLoad
from ekiden.tir.reduction import same_expr
from ekiden.tir.regions import Access, region
from ekiden.tir.schedule.check import (
    box_of,
    require_no_conditions,
    require_outermost,
    require_sole_writer,
)
from ekiden.tir.schedule.inline import partial_domain
from ekiden.tir.schedule.kinds import COMPLETE, REDUCTION, UPDATE, reduce_loops, require_kind
from ekiden.tir.schedule.move import moved_nest
from ekiden.tir.schedule.program import (
    Program,
    accesses,
    allocated,
    inputs,
    read,
    refuse,
    replace_accesses,
    replace_buffer,
    written,
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
from ekiden.tir.visitor import guarded_nodes, sequence, walk


def pick_buffer(
    step: str, realize: BlockRealize, which: int | str | Buffer, many: Sequence[Buffer], what: str
) -> Buffer:
    """A buffer of a block by number, name or itself."""
    name = realize.block.name
    names = [b.name for b in many]
    if isinstance(which, int) and not isinstance(which, bool):
        if not 0 <= which < len(many):
            refuse(f"{step} {name!r}: it {what} {names}, there is no number {which}", realize)
        return many[which]
    wanted = which.name if isinstance(which, Buffer) else which
    for each in many:
        if each is which or each.name == wanted:
            return each
    refuse(f"{step} {name!r}: it {what} {names}, not {wanted!r}", realize)


def check_scope(step: str, realize: BlockRealize, scope: str) -> None:
    """Refuses a scope that does not exist."""
    if scope not in SCOPES:
        refuse(
            f"{step} {realize.block.name!r}: expected a scope of {', '.join(SCOPES)}, got "
            f"{scope!r}",
            realize,
        )


def _copy_block(name: str, target: Buffer, source: Buffer) -> BlockRealize:
    """target[v] = source[v], over all of it."""
    iters = tuple(
        IterVar(Var(f"v{n}", d.dtype), d, IterKind.SPATIAL) for n, d in enumerate(source.shape)
    )
    at = tuple(i.var for i in iters)
    body = BufferStore(target, BufferLoad(source, at, source.dtype), at)
    return BlockRealize(at, const(True), Block(name, iters, body))


def _copy_nest(copy: BlockRealize, box: Sequence[Range], outer: Sequence[For]) -> Stmt:
    ranges = {i.var: r for i, r in zip(copy.block.iter_vars, box, strict=True)}
    return moved_nest(copy, ranges, outer)


def _holds(program: Program, root: Stmt, blocks: Sequence[BlockRealize]) -> bool:
    return any(program.is_inside(b, root) for b in blocks)


def outermost(program: Program, s: Stmt, apart: Sequence[BlockRealize]) -> Stmt:
    """The outermost loop or block around a statement, in its scope, that holds none of `apart`."""
    path = program.path(s)
    for n, each in enumerate(path):
        if isinstance(each, (Block, Allocate, LetStmt, SeqStmt)):
            continue
        inside_block = any(isinstance(p, Block) for p in path[n:])
        if not inside_block and not _holds(program, each, apart):
            return each
    return s


def cache_read(
    program: Program,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
    consumer_blocks: Sequence[BlockRealize] | None = None,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_read`."""
    step, name = "cache_read", realize.block.name
    require_outermost(step, program, realize)
    check_scope(step, realize, storage_scope)
    old = pick_buffer(step, realize, read_buffer_index, inputs(realize.block), "reads")
    writers = program.writers(old)
    users = list(consumer_blocks or ()) or [x for x in program.readers(old) if x not in writers]
    for each in users:
        if old not in read(each.block):
            refuse(f"{step} {name!r}: block {each.block.name!r} does not read {old.name!r}", each)
    users.sort(key=program.position)
    # The copy stands before the first reader, as far out as no writer is inside: between the last
    # write and the first read. What it takes is the region that is read in one step of the loops
    # around that place.
    place = outermost(program, users[0], writers)
    outer = program.loops_above(place)
    for each in users:
        # The innermost of the loops is enough: who is inside it is inside those around it.
        if any(not program.is_inside(each, s) for s in outer[-1:]):
            refuse(
                f"{step} {name!r}: block {each.block.name!r} reads {old.name!r} outside loop "
                f"{outer[-1].loop_var.name!r}, where it is written",
                each,
            )
    for each in writers:
        if not program.before(each, place):
            refuse(
                f"{step} {name!r}: block {each.block.name!r} writes {old.name!r} after it is read",
                each,
            )
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer(label), old.shape, old.dtype, storage_scope)
    copy = _copy_block(program.fresh_block(label), new, old)
    nest = _copy_nest(copy, region(old, _uses(program, users, old, outer), outer), outer)
    func = program.func
    func = Program(func).replace(place, sequence(nest, place))
    for each in users:
        after = Program(func)
        block = after.blocks[each.block.name].block
        func = after.replace(block, replace_buffer(block, old, new))
    return allocated(func, new), [copy.block.name]


def _uses(
    program: Program, users: Sequence[BlockRealize], buffer: Buffer, outer: Sequence[For]
) -> list[Access]:
    """How blocks access a buffer, with the loops below the given ones."""
    known = {s.loop_var for s in outer}
    found: list[Access] = []
    for each in users:
        between = tuple(s for s in program.loops_above(each) if s.loop_var not in known)
        found.extend(
            Access(a.indices, (*between, *a.loops), a.is_store, a.conditional)
            for a in accesses(each, buffer)
        )
    return found


def cache_write(
    program: Program,
    realize: BlockRealize,
    write_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
    consumer_blocks: Sequence[BlockRealize] | None = None,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_write`."""
    step, name = "cache_write", realize.block.name
    require_outermost(step, program, realize)
    check_scope(step, realize, storage_scope)
    old = pick_buffer(step, realize, write_buffer_index, written(realize.block), "writes")
    require_kind(step, realize, COMPLETE, REDUCTION, UPDATE)
    require_sole_writer(step, program, realize, old)
    consumers = list(consumer_blocks or ())
    for each in consumers:
        if old not in read(each.block) or not program.before(realize, each):
            refuse(
                f"{step} {name!r}: block {each.block.name!r} does not read {old.name!r} after it",
                each,
            )
    # Readers that are no consumers go on reading the old buffer, so that the copy back must stand
    # before them; consumers read the new one, and stand anywhere behind in the same loops.
    others = [x for x in program.readers(old) if x is not realize and x not in consumers]
    place = outermost(program, realize, others)
    outer = program.loops_above(place)
    if reduce_loops(realize, outer):
        refuse(f"{step} {name!r}: it is not finished where {old.name!r} is read", realize)
    for each in consumers:
        if outer and not program.is_inside(each, outer[-1]):
            refuse(
                f"{step} {name!r}: block {each.block.name!r} is outside loop "
                f"{outer[-1].loop_var.name!r}",
                each,
            )
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer(label), old.shape, old.dtype, storage_scope)
    box = box_of(program, place, old, realize)
    if isinstance(box, str):
        # Unknown what is written: all is copied back. That is harmless for an intermediate, whose
        # other elements nobody may read; the rest of an output is its caller's and stays.
        if outer or program.is_param(old):
            refuse(f"{step} {name!r}: {box}", realize)
        box = [Range.from_min_extent(const(0), d) for d in old.shape]
    copy = _copy_block(program.fresh_block(label), old, new)
    nest = _copy_nest(copy, box, outer)
    func = program.replace(place, sequence(place, nest))
    for each in (realize, *consumers):
        after = Program(func)
        block = after.blocks[each.block.name].block
        func = after.replace(block, replace_buffer(block, old, new))
    return allocated(func, new), [copy.block.name]


def cache_inplace(
    program: Program,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer = 0,
    storage_scope: str = "global",
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.cache_inplace`."""
    step, name = "cache_inplace", realize.block.name
    require_outermost(step, program, realize)
    check_scope(step, realize, storage_scope)
    own = tuple(b for b in read(realize.block) if b in written(realize.block))
    old = pick_buffer(step, realize, read_buffer_index, own, "reads and writes")
    others = [x for x in (*program.writers(old), *program.readers(old)) if x is not realize]
    place = outermost(program, realize, others)
    outer = program.loops_above(place)
    box = box_of(program, place, old, realize)
    if isinstance(box, str):
        refuse(f"{step} {name!r}: {box}", realize)
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer(label), old.shape, old.dtype, storage_scope)
    begin, end = program.fresh_block(label), program.fresh_block(f"{old.name}_back")
    taken = region(old, _uses(program, [realize], old, outer), outer)
    func = program.replace(
        place,
        sequence(
            _copy_nest(_copy_block(begin, new, old), taken, outer),
            place,
            _copy_nest(_copy_block(end, old, new), box, outer),
        ),
    )
    after = Program(func)
    block = after.blocks[name].block
    func = after.replace(block, replace_buffer(block, old, new))
    return allocated(func, new), [begin, end]


def reindex(
    program: Program, realize: BlockRealize, buffer: tuple[str, int] | str | Buffer
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.reindex`."""
    old, writes = pick_side("reindex", realize, buffer)
    if writes:
        return _reindex_write(program, realize, old)
    return _reindex_read(program, realize, old)


def pick_side(
    step: str, realize: BlockRealize, buffer: tuple[str, int] | str | Buffer | int
) -> tuple[Buffer, bool]:
    """A buffer given as ("read" or "write", number), "read"/"write" forms by name, or itself; and
    whether it is written.
    """
    reads, writes = inputs(realize.block), written(realize.block)
    if isinstance(buffer, (tuple, list)):
        side, number = buffer
        if side not in ("read", "write"):
            refuse(
                f"{step} {realize.block.name!r}: expected ('read', n) or ('write', n), got "
                f"{side!r}",
                realize,
            )
        many = reads if side == "read" else writes
        return pick_buffer(step, realize, number, many, f"{side}s"), side == "write"
    if isinstance(buffer, int):
        return pick_buffer(step, realize, buffer, reads, "reads"), False
    found = pick_buffer(step, realize, buffer, (*reads, *writes), "touches")
    return found, found in writes


def pattern_of(step: str, realize: BlockRealize, buffer: Buffer) -> tuple[PrimExpr, ...]:
    """The one tuple of indices, over iterators alone, at which a block accesses a buffer."""
    name = realize.block.name
    found = accesses(realize.block, buffer)
    variables = {i.var for i in realize.block.iter_vars}
    for each in found:
        if not all(same_expr(a, b) for a, b in zip(each.indices, found[0].indices, strict=True)):
            refuse(f"{step} {name!r}: it accesses {buffer.name!r} at different elements", realize)
        if not set(free_vars(*each.indices)) <= variables:
            refuse(f"{step} {name!r}: {buffer.name!r} is not indexed by iterators alone", realize)
    return found[0].indices


def used_iters(realize: BlockRealize, indices: Sequence[PrimExpr]) -> list[IterVar]:
    """The iterators of a block that indices are made of."""
    used = set(free_vars(*indices))
    return [i for i in realize.block.iter_vars if i.var in used]


def _require_unguarded(step: str, realize: BlockRealize, buffer: Buffer) -> None:
    """A load that only happens under a condition may be out of range elsewhere."""
    for s in walk(realize.block):
        if not isinstance(s, BufferStore):
            continue
        order = post_order(s.value)
        guarded = guarded_nodes(s.value, order)
        for e in order:
            if isinstance(e, BufferLoad) and e.buffer is buffer and id(e) in guarded:
                refuse(
                    f"{step} {realize.block.name!r}: it reads {buffer.name!r} under a condition",
                    realize,
                )


def _reindex_read(
    program: Program, realize: BlockRealize, old: Buffer
) -> tuple[PrimFunc, list[str]]:
    step, name = "reindex", realize.block.name
    require_outermost(step, program, realize)
    indices = pattern_of(step, realize, old)
    require_no_conditions(step, realize)
    _require_unguarded(step, realize, old)
    iters = used_iters(realize, indices)
    for writer in program.writers(old):
        if not program.before(writer, realize):
            refuse(f"{step} {name!r}: {old.name!r} is written after it is read", writer)
    new, copies, at = _reindexed(program, old, iters)
    source = tuple(substitute(i, at) for i in indices)
    made = tuple(c.var for c in copies)
    body = BufferStore(new, BufferLoad(old, source, old.dtype), made)
    copy = BlockRealize(made, const(True), Block(program.fresh_block(new.name), copies, body))
    place = outermost(program, realize, program.writers(old))
    nest = moved_nest(copy, {}, ())
    func = program.replace(place, sequence(nest, place))
    return _with_reindexed(func, name, old, new, iters), [copy.block.name]


def _reindexed(
    program: Program, old: Buffer, iters: Sequence[IterVar]
) -> tuple[Buffer, tuple[IterVar, ...], dict[Var, PrimExpr]]:
    """The new buffer, iterators of a block over it, and what the old ones are in it."""
    shape = tuple(i.extent for i in iters)
    new = Buffer(program.fresh_buffer(f"{old.name}_reindex"), shape, old.dtype)
    copies = tuple(IterVar(Var(i.var.name, i.var.dtype), i.extent, IterKind.SPATIAL) for i in iters)
    at: dict[Var, PrimExpr] = {i.var: c.var for i, c in zip(iters, copies, strict=True)}
    return new, copies, at


def _with_reindexed(
    func: PrimFunc, name: str, old: Buffer, new: Buffer, iters: Sequence[IterVar]
) -> PrimFunc:
    after = Program(func)
    block = after.blocks[name].block
    at = tuple(i.var for i in iters)
    func = after.replace(block, replace_accesses(block, old, new, lambda _: at))
    return allocated(func, new)


def _reindex_write(
    program: Program, realize: BlockRealize, old: Buffer
) -> tuple[PrimFunc, list[str]]:
    step, name = "reindex", realize.block.name
    require_outermost(step, program, realize)
    indices = pattern_of(step, realize, old)
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_no_conditions(step, realize)
    require_sole_writer(step, program, realize, old)
    fault = partial_domain(program, realize)
    if fault is not None:
        refuse(f"{step} {name!r}: it is not known to run for all its iterators: {fault}", realize)
    readers = [x for x in program.readers(old) if x is not realize]
    place = outermost(program, realize, readers)
    if program.loops_above(place):
        refuse(f"{step} {name!r}: {old.name!r} is read in the same loops", realize)
    iters = used_iters(realize, indices)
    new, copies, at = _reindexed(program, old, iters)
    made = tuple(c.var for c in copies)
    target = tuple(substitute(i, at) for i in indices)
    body = BufferStore(old, BufferLoad(new, made, old.dtype), target)
    copy = BlockRealize(made, const(True), Block(program.fresh_block(new.name), copies, body))
    func = program.replace(place, sequence(place, moved_nest(copy, {}, ())))
    return _with_reindexed(func, name, old, new, iters), [copy.block.name]


def set_scope(
    program: Program, realize: BlockRealize, buffer_index: int | str | Buffer, storage_scope: str
) -> PrimFunc:
    """See `Schedule.set_scope`."""
    step, name = "set_scope", realize.block.name
    check_scope(step, realize, storage_scope)
    old = pick_buffer(step, realize, buffer_index, written(realize.block), "writes")
    if program.is_param(old):
        refuse(f"{step} {name!r}: {old.name!r} is an output", realize)
    if old.scope == storage_scope:
        return program.func
    new = old.with_fields(scope=storage_scope)
    return program.func.with_fields(body=replace_buffer(program.func.body, old, new))


def storage_align(
    program: Program,
    realize: BlockRealize,
    buffer_index: int | str | Buffer,
    axis: int,
    factor: int,
    offset: int,
) -> PrimFunc:
    """See `Schedule.storage_align`."""
    step, name = "storage_align", realize.block.name
    many = written(realize.block)
    buffer = pick_buffer(step, realize, buffer_index, many, "writes")
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an argument, whose strides are given", realize)
    rank = len(buffer.shape)
    if not -rank <= axis < rank:
        refuse(f"{step} {name!r}: {buffer.name!r} has {rank} axes, no axis {axis}", realize)
    if factor <= 0:
        refuse(f"{step} {name!r}: the factor must be positive, got {factor}", realize)
    number = next(n for n, b in enumerate(many) if b is buffer)
    notes = dict(realize.block.annotations or {})
    given = [tuple(x) for x in notes.get("buffer_dim_align", ())]  # type: ignore[attr-defined]
    kept = [x for x in given if x[:2] != (number, axis % rank)]
    notes["buffer_dim_align"] = (*kept, (number, axis % rank, factor, offset))
    return program.replace(realize.block, realize.block.with_fields(annotations=notes))
