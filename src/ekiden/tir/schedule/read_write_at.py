"""The primitives read_at and write_at: buffers of exactly the size that an iteration of a loop
reads or writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.range import Range
from ekiden.tir.access_regions import Access, bounding_region
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.schedule.block_kinds import COMPLETE, REDUCTION, reduce_loops, require_kind
from ekiden.tir.schedule.cache import require_valid_scope, resolve_buffer
from ekiden.tir.schedule.first_use import copy_on_first_use
from ekiden.tir.schedule.legality import require_sole_writer, written_region
from ekiden.tir.schedule.program import (
    PART_OF_ANNOTATION,
    ScheduleProgram,
    accesses_of_buffer,
    block_inputs,
    block_writes,
    bound_analyzer,
    refuse,
    replace_accesses,
    serial_loop,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import flatten_seq


def read_at(
    program: ScheduleProgram,
    loop: For,
    realize: BlockRealize,
    read_buffer_index: int | str | Buffer,
    storage_scope: str,
    pad: int = 0,
    first_use: BlockRealize | None = None,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.read_at`."""
    step, name = "read_at", realize.block.name
    require_valid_scope(step, realize, storage_scope)
    if not program.is_inside(realize, loop):
        refuse(f"{step} {name!r}: the block is not in loop {loop.loop_var.name!r}", loop)
    old = resolve_buffer(step, realize, read_buffer_index, block_inputs(realize.block), "reads")
    if any(program.is_inside(x, loop) for x in program.writers(old)):
        refuse(f"{step} {name!r}: {old.name!r} is written in loop {loop.loop_var.name!r}", loop)
    outer = [*program.loops_above(loop), loop]
    analyzer = bound_analyzer(outer)
    inside = {a.loop_var for a in outer}
    touched = [_extend_part_loops(a, inside) for a in accesses_of_buffer(loop.body, old)]
    box = bounding_region(old, touched, outer)
    lows = [analyzer.simplify(r.min) for r in box]
    sizes = [analyzer.simplify(r.extent) for r in box]
    if any(v in inside for e in sizes for v in free_vars(e)):
        refuse(f"{step} {name!r}: steps read parts of {old.name!r} that differ in size", loop)
    shape = (*sizes[:-1], analyzer.simplify(sizes[-1] + pad))
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer_name(label), shape, old.dtype, storage_scope)
    if first_use is not None:
        region = [Range.from_min_extent(low, size) for low, size in zip(lows, sizes, strict=True)]
        return copy_on_first_use(program, loop, first_use, old, new, region)
    copy = _create_copy_nest(program.fresh_block_name(label), new, old, sizes, lows)
    body = Allocate(new, flatten_seq(copy, _redirect_to_region_buffer(loop.body, old, new, lows)))
    return program.replace(loop.body, body), [copy_block_name(copy)]


def write_at(
    program: ScheduleProgram,
    loop: For,
    realize: BlockRealize,
    write_buffer_index: int | str | Buffer,
    storage_scope: str,
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.write_at`."""
    step, name, var = "write_at", realize.block.name, loop.loop_var.name
    require_valid_scope(step, realize, storage_scope)
    if not program.is_inside(realize, loop):
        refuse(f"{step} {name!r}: the block is not in loop {var!r}", loop)
    old = resolve_buffer(step, realize, write_buffer_index, block_writes(realize.block), "writes")
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_sole_writer(step, program, realize, old)
    for reader in program.readers(old):
        if reader is not realize and program.is_inside(reader, loop):
            refuse(f"{step} {name!r}: {old.name!r} is read in loop {var!r}", reader)
    outer = [*program.loops_above(loop), loop]
    if reduce_loops(realize, outer):
        refuse(f"{step} {name!r}: it is not finished in a step of loop {var!r}", loop)
    box = written_region(program, loop.body, old, realize)
    if isinstance(box, str):
        refuse(f"{step} {name!r}: {box}", realize)
    analyzer = bound_analyzer(outer)
    lows = [analyzer.simplify(r.min) for r in box]
    sizes = [analyzer.simplify(r.extent) for r in box]
    if any(s.loop_var in free_vars(*sizes) for s in outer):
        refuse(f"{step} {name!r}: steps write parts of {old.name!r} that differ in size", loop)
    label = f"{old.name}_{storage_scope}".replace(".", "_")
    new = Buffer(program.fresh_buffer_name(label), tuple(sizes), old.dtype, storage_scope)
    nothing = [const(0)] * len(sizes)
    copy = _create_copy_nest(program.fresh_block_name(label), old, new, sizes, nothing, lows)
    body = Allocate(new, flatten_seq(_redirect_to_region_buffer(loop.body, old, new, lows), copy))
    return program.replace(loop.body, body), [copy_block_name(copy)]


def _redirect_to_region_buffer(
    root: Stmt, old: Buffer, new: Buffer, lows: Sequence[PrimExpr]
) -> Stmt:
    """Redirect accesses of a buffer to the buffer of its region that begins at `lows`."""

    def subtract_lows(indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        return tuple(Analyzer().simplify(i - low) for i, low in zip(indices, lows, strict=True))

    return replace_accesses(root, old, new, subtract_lows)


def _extend_part_loops(access: Access, outer: set[Var]) -> Access:
    """Widen each partial loop of an access to its full extent, unless an outer loop selects the
    part.
    """
    loops: list[For] = []
    for loop in access.loops:
        full_extent = (loop.annotations or {}).get(PART_OF_ANNOTATION)
        if full_extent is not None and outer.isdisjoint(free_vars(loop.min)):
            size = const(full_extent) if isinstance(full_extent, int) else full_extent
            assert isinstance(size, PrimExpr)
            loop = loop.with_fields(min=const(0), extent=size)
        loops.append(loop)
    return Access(
        access.indices, tuple(loops), access.is_store, access.is_conditional, access.extents
    )


def _create_copy_nest(
    name: str,
    to: Buffer,
    source: Buffer,
    sizes: Sequence[PrimExpr],
    from_: Sequence[PrimExpr],
    into: Sequence[PrimExpr] = (),
) -> Stmt:
    """Return the nest to[into + i] = source[from_ + i]; an empty `into` means 0."""
    iters = tuple(IterVar(Var(f"v{n}"), s, IterKind.SPATIAL) for n, s in enumerate(sizes))
    indices = tuple(i.var for i in iters)
    first, last = (_add_lows(lows, indices) for lows in (from_, into or [const(0)] * len(indices)))
    body = BufferStore(to, BufferLoad(source, first, source.dtype), last)
    loops = tuple(Var(f"ax{n}") for n in range(len(sizes)))
    nest: Stmt = BlockRealize(loops, const(True), Block(name, iters, body))
    for var, size in zip(reversed(loops), reversed(sizes), strict=True):
        nest = serial_loop(var, size, nest)
    return nest


def _add_lows(lows: Sequence[PrimExpr], variables: Sequence[Var]) -> tuple[PrimExpr, ...]:
    return tuple(v if is_const(low, 0) else low + v for low, v in zip(lows, variables, strict=True))


def copy_block_name(nest: Stmt) -> str:
    """Return the name of the block in a loop nest."""
    while isinstance(nest, For):
        nest = nest.body
    assert isinstance(nest, BlockRealize)
    return nest.block.name


__all__ = ["read_at", "write_at"]
