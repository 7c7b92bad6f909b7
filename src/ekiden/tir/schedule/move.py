"""Primitives that move a block to a step of another's loop: compute_at and reverse_compute_at.

compute_at(B, loop i of C)

    for i: B[i] = A[i] + 1                    for i:
    for i: C[i] = B[i] * 2            ->          B[i] = A[i] + 1
                                                  C[i] = B[i] * 2

The moved block runs over what one step of the loop needs (compute_at: the box that is read) or has
made (reverse_compute_at). It may run for a point more than once, or not at all for points that
nobody needs: so it must be complete or a reduction, its inputs final, and no output of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map, determines, simplify_around_digits
from ekiden.ir.prim import PrimExpr, Var, const, convert, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.range import Range
from ekiden.tir.expr import Buffer
from ekiden.tir.reduction import same_expr
from ekiden.tir.regions import Access, region
from ekiden.tir.schedule.check import (
    exact_box,
    first_changing,
    reached,
    reaches,
    require_final_inputs,
    require_no_conditions,
    require_outermost,
    require_sole_writer,
)
from ekiden.tir.schedule.kinds import (
    COMPLETE,
    REDUCTION,
    UPDATE,
    kind_of,
    reduce_loops,
    require_kind,
)
from ekiden.tir.schedule.program import (
    Program,
    accesses,
    bound_analyzer,
    indexed,
    ranges_of,
    read,
    refuse,
    serial,
    written,
)
from ekiden.tir.schedule.ranges import iterator_ranges
from ekiden.tir.stmt import BlockRealize, BufferStore, For, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.visitor import NOTHING, sequence, walk


# Legal before: `realize` in any nest. After: loops ax0, ax1, ... of its own, iterators bound to
# needed.min + ax, and a predicate for what of that is not known to be in the domain. A range that
# reaches over the end of a buffer is so cut off here, once for all primitives that move blocks.
def moved_nest(
    realize: BlockRealize,
    ranges: Mapping[Var, Range],
    outer: Sequence[For],
    preserve_unit_loops: bool = False,
    condition: PrimExpr | None = None,
    inside: Sequence[tuple[PrimExpr, PrimExpr]] = (),
) -> Stmt:
    """The block in loops of its own over the ranges its iterators need, under a condition. Of what
    is `inside`, (value, extent), it is known that 0 <= value < extent. An extent may depend on the
    iterators before it, as that of a sum over the elements up to this one.
    """
    analyzer = bound_analyzer(outer)
    loops: list[For] = []
    values: list[PrimExpr] = []
    predicate: PrimExpr = const(True) if condition is None else condition
    before: dict[Var, PrimExpr] = {}
    for n, each in enumerate(realize.block.iter_vars):
        extent = each.extent if is_const(each.extent) else substitute(each.extent, before)
        needed = ranges.get(each.var, Range.from_min_extent(const(0), extent))
        value = indexed(simplify_around_digits(needed.min, analyzer), each.var.dtype)
        if preserve_unit_loops or not is_const(needed.extent, 1):
            loop = serial(Var(f"ax{n}", each.var.dtype), needed.extent)
            analyzer.bind(loop.loop_var, 0, needed.extent)
            loops.append(loop)
            value = value + loop.loop_var
        if not any(_is_both(known, value, extent, analyzer) for known in inside):
            for within in (value >= 0, value < extent):
                if not analyzer.can_prove(within):
                    predicate = logical_and(predicate, within)
        values.append(value)
        before[each.var] = value
    nest: Stmt = BlockRealize(tuple(values), predicate, realize.block)
    for loop in reversed(loops):
        nest = loop.with_fields(body=nest)
    return nest


def _is_both(
    known: tuple[PrimExpr, PrimExpr], value: PrimExpr, extent: PrimExpr, analyzer: Analyzer
) -> bool:
    """Whether what is known is known of a value and an extent."""
    return analyzer.can_prove_equal(known[0], value) and analyzer.can_prove_equal(known[1], extent)


def _domains(makers: Sequence[BlockRealize]) -> list[tuple[PrimExpr, PrimExpr]]:
    """What iterators of blocks are bound to, and their extents; of blocks that always run."""
    return [
        (value, each.extent)
        for maker in makers
        if is_const(maker.predicate, 1)
        for each, value in zip(maker.block.iter_vars, maker.iter_values, strict=True)
    ]


# An index that is one iterator plus a constant is turned around: v + 2 in [a, b) asks for v in
# [a - 2, b - 2). Any other asks for all of the iterator, which computes more and is never wrong.
def _required(
    realize: BlockRealize, indices: Sequence[PrimExpr], needed: Sequence[Range]
) -> dict[Var, Range]:
    """What the iterators must run over to make a part of the written buffer: all of it where an
    index is more than an iterator.
    """
    known: dict[Var, Range] = {}
    variables = {i.var for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL}
    for index, each in zip(indices, needed, strict=True):
        inside = [v for v in free_vars(index) if v in variables]
        if len(inside) == 1 and inside[0] not in known:
            offset = substitute(index, {inside[0]: const(0)})
            if same_expr(index, inside[0]) or (
                is_const(offset) and same_expr(index, inside[0] + offset)
            ):
                known[inside[0]] = Range.from_min_extent(each.min - offset, each.extent)
    return known


def _output_indices(realize: BlockRealize, buffer: Buffer) -> tuple[PrimExpr, ...]:
    stores = [s for s in walk(realize.block.body) if isinstance(s, BufferStore)]
    own = [s for s in stores if s.buffer is buffer]
    variables = {i.var for i in realize.block.iter_vars}
    if len(own) != 1 or not set(free_vars(*own[0].indices)) <= variables:
        return ()
    return own[0].indices


def compute_at(
    program: Program,
    realize: BlockRealize,
    loop: For,
    preserve_unit_loops: bool = False,
    index: int = -1,
) -> PrimFunc:
    """See `Schedule.compute_at`."""
    step, name = "compute_at", realize.block.name
    require_outermost(step, program, realize)
    if program.is_inside(realize, loop):
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} is an ancestor of block {name!r}",
            realize,
        )
    for buffer in written(realize.block):
        if program.is_param(buffer):
            refuse(f"{step} {name!r}: it is an output block, of {buffer.name!r}", realize)
        require_sole_writer(step, program, realize, buffer)
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_no_conditions(step, realize)
    require_final_inputs(step, program, realize)
    consumers = _consumers(step, program, realize, loop)
    outer = [*program.loops_above(loop), loop]
    ranges = _needed_ranges(realize, loop, outer)
    nest = moved_nest(realize, ranges, outer, preserve_unit_loops)
    below = _place_before(step, program, realize, loop, consumers, index)
    without = Program(program.replace(program.nest(realize), NOTHING))
    return without.replace(loop.body, sequence(*below[0], nest, *below[1]))


def _consumers(step: str, program: Program, realize: BlockRealize, loop: For) -> list[BlockRealize]:
    name = realize.block.name
    found: list[BlockRealize] = []
    for buffer in written(realize.block):
        for reader in program.readers(buffer):
            if reader is realize:
                continue
            if not program.is_inside(reader, loop):
                refuse(
                    f"{step} {name!r}: it requires all the consumers of {buffer.name!r} in loop "
                    f"{loop.loop_var.name!r}, and block {reader.block.name!r} is outside",
                    reader,
                )
            found.append(reader)
    if not found:
        names = [b.name for b in written(realize.block)]
        refuse(f"{step} {name!r}: loop {loop.loop_var.name!r} does not read {names}", loop)
    if not program.before(realize, loop):
        refuse(f"{step} {name!r}: the block does not come before the loop", realize)
    return found


def _needed_ranges(realize: BlockRealize, loop: For, outer: Sequence[For]) -> dict[Var, Range]:
    ranges: dict[Var, Range] | None = None
    for buffer in written(realize.block):
        touched = accesses(loop.body, buffer)
        if not touched:
            return {}
        indices = _output_indices(realize, buffer)
        if not indices and buffer.shape:
            return {}
        shared = [x for x in outer if _shares(x, buffer)]
        kept = [x for x in outer if x not in shared]
        touched = [
            Access(a.indices, (*shared, *a.loops), a.is_store, a.conditional, a.extents)
            for a in touched
        ]
        one = _required(realize, indices, region(buffer, touched, kept))
        if ranges is not None and not _same_ranges(ranges, one):
            return {}
        ranges = one
    return ranges or {}


def _shares(loop: For, buffer: Buffer) -> bool:
    """Whether the steps of a loop are threads that see one copy of a buffer: then it holds what
    all of them need.
    """
    axis = str((loop.annotations or {}).get("thread", ""))
    return axis.startswith("threadIdx") and buffer.scope.startswith("shared")


def _same_ranges(a: Mapping[Var, Range], b: Mapping[Var, Range]) -> bool:
    return a.keys() == b.keys() and all(
        same_expr(a[v].min, b[v].min) and same_expr(a[v].extent, b[v].extent) for v in a
    )


def _place_before(
    step: str,
    program: Program,
    realize: BlockRealize,
    loop: For,
    consumers: Sequence[BlockRealize],
    index: int,
) -> tuple[list[Stmt], list[Stmt]]:
    """The statements of a step before and after the moved block: it goes after what it reads and
    before what reads it.
    """
    statements = _statements(loop.body)
    first = min(
        n for n, s in enumerate(statements) if any(program.is_inside(c, s) for c in consumers)
    )
    at = _chosen(step, realize, index, 0, first, last=first)
    return list(statements[:at]), list(statements[at:])


def _statements(body: Stmt) -> tuple[Stmt, ...]:
    seq = getattr(body, "seq", None)
    return (body,) if seq is None else tuple(seq)


def _chosen(step: str, realize: BlockRealize, index: int, low: int, high: int, last: int) -> int:
    """The position asked for: -1 the last possible, -2 the first possible, or a number."""
    if index == -1:
        return last
    if index == -2:
        return low
    if not low <= index <= high:
        refuse(
            f"{step} {realize.block.name!r}: index must be from {low} to {high}, -1 or -2, got "
            f"{index}",
            realize,
        )
    return index


def reverse_compute_at(
    program: Program,
    realize: BlockRealize,
    loop: For,
    preserve_unit_loops: bool = False,
    index: int = -1,
) -> PrimFunc:
    """See `Schedule.reverse_compute_at`."""
    step, name = "reverse_compute_at", realize.block.name
    require_outermost(step, program, realize)
    if program.is_inside(realize, loop):
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} is an ancestor of block {name!r}",
            realize,
        )
    kind = require_kind(step, realize, COMPLETE, REDUCTION)
    require_no_conditions(step, realize)
    for buffer in written(realize.block):
        require_sole_writer(step, program, realize, buffer)
    if not program.before(loop, realize):
        refuse(f"{step} {name!r}: the block does not come after the loop", realize)
    changing = first_changing(program, realize.block)
    if changing is not None:
        refuse(
            f"{step} {name!r}: what it reads depends on block {changing.block.name!r}, whose "
            "elements change from step to step",
            changing,
        )
    source = _source(step, program, realize, loop)
    _require_between(step, program, realize, loop, source)
    outer = [*program.loops_above(loop), loop]
    finished = _finished(step, program, realize, loop, source, outer)
    ranges = _given_ranges(step, program, realize, loop, source, outer)
    known = _domains(program.writers(source))
    nest = moved_nest(realize, ranges, outer, preserve_unit_loops, finished, known)
    _require_every_point(step, program, realize, nest, outer, kind)
    statements = _statements(loop.body)
    last = max(
        n
        for n, s in enumerate(statements)
        if any(program.is_inside(w, s) for w in program.writers(source))
    )
    at = _chosen(step, realize, index, last + 1, len(statements), last=len(statements))
    without = Program(program.replace(program.nest(realize), NOTHING))
    return without.replace(loop.body, sequence(*statements[:at], nest, *statements[at:]))


def _source(step: str, program: Program, realize: BlockRealize, loop: For) -> Buffer:
    """The buffer between the loop and the block."""
    name = realize.block.name
    made = [
        b
        for b in read(realize.block)
        if b not in written(realize.block)
        and any(program.is_inside(w, loop) for w in program.writers(b))
    ]
    if len(made) != 1:
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} must write one of its inputs, it writes "
            f"{[b.name for b in made]}",
            realize,
        )
    for writer in program.writers(made[0]):
        if not program.is_inside(writer, loop):
            refuse(
                f"{step} {name!r}: {made[0].name!r} is written by {writer.block.name!r} outside "
                f"loop {loop.loop_var.name!r} too",
                writer,
            )
    return made[0]


def _require_between(
    step: str, program: Program, realize: BlockRealize, loop: For, source: Buffer
) -> None:
    """The block's other inputs are there before the loop; nothing touches what it writes before
    it does.
    """
    name = realize.block.name
    for buffer in read(realize.block):
        if buffer is source or buffer in written(realize.block):
            continue
        for writer in program.writers(buffer):
            if not program.before(writer, loop):
                refuse(
                    f"{step} {name!r}: {buffer.name!r}, which it reads, is written after the loop "
                    "began",
                    writer,
                )
    for buffer in written(realize.block):
        for reader in program.readers(buffer):
            if reader is not realize and not program.before(realize, reader):
                refuse(
                    f"{step} {name!r}: block {reader.block.name!r} reads {buffer.name!r} before it",
                    reader,
                )
    if buffers_rewritten(program, realize, source):
        refuse(f"{step} {name!r}: {source.name!r} is written after the block", realize)


def buffers_rewritten(program: Program, realize: BlockRealize, source: Buffer) -> bool:
    """Whether a block's input is written at or after it."""
    return any(not program.before(w, realize) for w in program.writers(source))


# A step of the loop leaves a sum finished if no loop around both reduces, but in the last step of
# those that do: from the first step on the sum is there, but not final, and would be read too
# early.
def _finished(
    step: str,
    program: Program,
    realize: BlockRealize,
    loop: For,
    source: Buffer,
    outer: Sequence[For],
) -> PrimExpr:
    """When what a step wrote is final: in the last step of the reducing loops around it. The loop
    itself must not reduce, and no second step write the element otherwise.
    """
    last: PrimExpr = const(True)
    for writer in program.writers(source):
        reducing = reduce_loops(writer, outer)
        if loop in reducing or any(not is_const(s.min, 0) for s in reducing):
            refuse(
                f"{step} {realize.block.name!r}: block {writer.block.name!r} is not finished in a "
                f"step of {loop.loop_var.name!r}",
                writer,
            )
        for each in reducing:
            last = logical_and(last, each.loop_var.equal(each.extent - 1))
        at = program.parent(writer)
        while at is not None and at is not loop:
            if isinstance(at, IfThenElse):
                refuse(
                    f"{step} {realize.block.name!r}: block {writer.block.name!r} is under a branch",
                    writer,
                )
            at = program.parent(at)
    return last


def _given_ranges(
    step: str,
    program: Program,
    realize: BlockRealize,
    loop: For,
    source: Buffer,
    outer: Sequence[For],
) -> dict[Var, Range]:
    """What the block's iterators may run over once a step has written its part of the source."""
    name = realize.block.name
    reads = [a for a in accesses(realize.block.body, source) if not a.is_store]
    if not reads or any(not _same_access(reads[0], a) for a in reads) or reads[0].loops:
        refuse(f"{step} {name!r}: it must read {source.name!r} at its own iterators", realize)
    writers = program.writers(source)
    kinds = [kind_of(w.block).kind for w in writers]
    if kinds not in ([COMPLETE], [REDUCTION], [COMPLETE, UPDATE]):
        names = [w.block.name for w in writers]
        refuse(f"{step} {name!r}: {source.name!r} is written by all of {names}", writers[0])
    given = exact_box(program, loop, source, writers[-1])
    if isinstance(given, str):
        refuse(f"{step} {name!r}: {given}", writers[-1])
    analyzer = bound_analyzer(outer)
    ranges = iterator_ranges(realize.block.iter_vars, reads[0].indices, given, analyzer)
    if ranges is None or not _reads_within(realize, reads[0].indices, given, ranges, outer):
        refuse(
            f"{step} {name!r}: no ranges of its iterators are known to read just what a step of "
            f"{loop.loop_var.name!r} has written of {source.name!r}",
            realize,
        )
    return ranges


def _reads_within(
    realize: BlockRealize,
    indices: Sequence[PrimExpr],
    box: Sequence[Range],
    ranges: Mapping[Var, Range],
    outer: Sequence[For],
) -> bool:
    """Whether indices stay in a box when the iterators run over ranges."""
    analyzer = bound_analyzer(outer)
    values: dict[Var, PrimExpr] = {}
    for each in realize.block.iter_vars:
        needed = ranges.get(each.var, Range.from_min_extent(const(0), each.extent))
        inside = Var(each.var.name, each.var.dtype)
        analyzer.bind(inside, 0, needed.extent)
        values[each.var] = needed.min + inside
    for index, part in zip(indices, box, strict=True):
        offset = analyzer.simplify(substitute(index, values) - part.min)
        if not analyzer.can_prove(offset >= 0) or not analyzer.can_prove(offset < part.extent):
            return False
    return True


def _same_access(a: Access, b: Access) -> bool:
    return all(same_expr(x, y) for x, y in zip(a.indices, b.indices, strict=True))


# Moving to where something was written may lose points that nobody wrote in time, or meet some
# twice. A complete block may run twice for a point, a sum may not.
def _require_every_point(
    step: str,
    program: Program,
    realize: BlockRealize,
    nest: Stmt,
    outer: Sequence[For],
    kind: str,
) -> None:
    """The moved block must run for every value of its iterators (a sum: once)."""
    name = realize.block.name
    loops = list(outer)
    at = nest
    while isinstance(at, For):
        loops.append(at)
        at = at.body
    assert isinstance(at, BlockRealize)
    values = [v for v in at.iter_values if not is_const(v)]
    ranges = ranges_of(loops)
    found = detect_iter_map(values, ranges, check_level=IterMapLevel.SURJECTIVE)
    if found.errors:
        refuse(
            f"{step} {name!r}: it is not known to run for every point: {found.errors[0]}", realize
        )
    analyzer = bound_analyzer(())
    sums = iter(found.indices)
    for each, value in zip(at.block.iter_vars, at.iter_values, strict=True):
        low, size = value, const(1)
        if not is_const(value):
            total = next(sums)
            low, size = convert(total.base), reached(total)
        if not analyzer.can_prove(low <= 0) or not reaches(low, size, each.extent, analyzer):
            refuse(f"{step} {name!r}: it would run for a part of {each.var.name!r} only", realize)
    if kind == REDUCTION:
        wanted = {s.loop_var for s in loops if not is_const(s.extent, 1)}
        fault = determines(values, ranges, wanted)
        if fault is not None:
            refuse(f"{step} {name!r}: its sum would take in some steps twice: {fault}", realize)
        spatial = set(
            free_vars(
                *(
                    v
                    for i, v in zip(at.block.iter_vars, at.iter_values, strict=True)
                    if i.kind is IterKind.SPATIAL
                )
            )
        )
        both = [s.loop_var.name for s in reduce_loops(at, loops) if s.loop_var in spatial]
        if both:
            refuse(f"{step} {name!r}: loop {both[0]!r} would be spatial and reduced", realize)
