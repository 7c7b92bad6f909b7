"""The primitives compute_at and reverse_compute_at, which move a block into an iteration of another
block's loop.

    compute_at(B, loop i of C)
        for i: B[i] = A[i] + 1                    for i:
        for i: C[i] = B[i] * 2            ->          B[i] = A[i] + 1
                                                      C[i] = B[i] * 2

The moved block runs over what one iteration of the loop reads (compute_at: the box) or has written
(reverse_compute_at). It may run for a point more than once, or not at all for points that nobody
reads: so it must be complete or a reduction, its inputs final, and no output of the program, unless
a reader reads all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import (
    Analyzer,
    IterMapLevel,
    detect_iter_map,
    injectivity_error,
    simplify_around_digits,
)
from ekiden.ir.prim import PrimExpr, Var, const, convert, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.range import Range
from ekiden.tir.access_regions import Access, bounding_region
from ekiden.tir.expr import Buffer
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.block_kinds import (
    COMPLETE,
    REDUCTION,
    UPDATE,
    classify_block,
    reduce_loops,
    require_kind,
)
from ekiden.tir.schedule.coverage_proofs import can_prove_covers
from ekiden.tir.schedule.iterator_ranges import solve_iterator_ranges
from ekiden.tir.schedule.legality import (
    find_rewriting_producer,
    num_iter_sum_values,
    require_final_inputs,
    require_sole_writer,
    require_top_level_block,
    require_unconditional,
    require_visible,
    written_box_in_iteration,
)
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_reads,
    block_writes,
    bound_analyzer,
    loop_ranges,
    refuse,
    serial_loop,
    to_index_dtype,
)
from ekiden.tir.stmt import BlockRealize, BufferStore, For, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.visitor import NO_OP, flatten_seq, pre_order_stmts


# Legal before: `realize` in any nest. After: loops ax0, ax1, ... of its own, iterators bound to
# needed.min + ax, and a predicate for what of that is not known to be in the domain. A range that
# reaches over the end of a buffer is so cut off here, once for all primitives that move blocks.
def create_moved_nest(
    realize: BlockRealize,
    ranges: Mapping[Var, Range],
    outer: Sequence[For],
    preserve_unit_loops: bool = False,
    condition: PrimExpr | None = None,
    inside: Sequence[tuple[PrimExpr, PrimExpr]] = (),
) -> Stmt:
    """Return the block in fresh loops over its iterators' required ranges, under a condition.

    For each (value, extent) of `inside`, 0 <= value < extent is known. An extent may depend on
    earlier iterators, as that of a prefix sum does.
    """
    analyzer = bound_analyzer(outer)
    loops: list[For] = []
    values: list[PrimExpr] = []
    predicate: PrimExpr = const(True) if condition is None else condition
    before: dict[Var, PrimExpr] = {}
    for n, iter_var in enumerate(realize.block.iter_vars):
        extent = (
            iter_var.extent if is_const(iter_var.extent) else substitute(iter_var.extent, before)
        )
        needed = ranges.get(iter_var.var, Range.from_min_extent(const(0), extent))
        # Loops over the whole domain stay in it.
        is_whole = is_const(needed.min, 0) and is_same_expr(needed.extent, extent)
        value = to_index_dtype(
            needed.min if is_whole else simplify_around_digits(needed.min, analyzer),
            iter_var.var.dtype,
        )
        if preserve_unit_loops or not is_const(needed.extent, 1):
            loop = serial_loop(Var(f"ax{n}", iter_var.var.dtype), needed.extent)
            analyzer.bind(loop.loop_var, 0, needed.extent)
            loops.append(loop)
            value = value + loop.loop_var
        is_known = is_whole or any(_is_bound_of(x, value, extent, analyzer) for x in inside)
        if not is_known:
            for within in (value >= 0, value < extent):
                if not analyzer.can_prove(within):
                    # The required box may exceed the domain (halo of a convolution at the border):
                    # the excess points are masked.
                    predicate = logical_and(predicate, within)
        values.append(value)
        before[iter_var.var] = value
    nest: Stmt = BlockRealize(tuple(values), predicate, realize.block)
    for loop in reversed(loops):
        nest = loop.with_fields(body=nest)
    return nest


def _is_bound_of(
    known_bound: tuple[PrimExpr, PrimExpr], value: PrimExpr, extent: PrimExpr, analyzer: Analyzer
) -> bool:
    """Return whether a known bound is about the given value and extent."""
    return analyzer.can_prove_equal(known_bound[0], value) and analyzer.can_prove_equal(
        known_bound[1], extent
    )


def _producer_domains(makers: Sequence[BlockRealize]) -> list[tuple[PrimExpr, PrimExpr]]:
    """Return (binding, extent) of the iterators of blocks that run unconditionally."""
    return [
        (value, iter_var.extent)
        for maker in makers
        if is_const(maker.predicate, 1)
        for iter_var, value in zip(maker.block.iter_vars, maker.iter_values, strict=True)
    ]


# An index that is one iterator plus a constant is turned around: v + 2 in [a, b) asks for v in
# [a - 2, b - 2). Any other asks for all of the iterator, which computes more and is never wrong.
def _required_iter_ranges(
    realize: BlockRealize, indices: Sequence[PrimExpr], needed: Sequence[Range]
) -> dict[Var, Range]:
    """Return the iterators' ranges that produce a part of the written buffer; an iterator whose
    index is not iterator + constant is left out and runs over its whole domain.
    """
    ranges: dict[Var, Range] = {}
    variables = {i.var for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL}
    for index, axis_range in zip(indices, needed, strict=True):
        inside = [v for v in free_vars(index) if v in variables]
        if len(inside) == 1 and inside[0] not in ranges:
            offset = substitute(index, {inside[0]: const(0)})
            if is_same_expr(index, inside[0]) or (
                is_const(offset) and is_same_expr(index, inside[0] + offset)
            ):
                ranges[inside[0]] = Range.from_min_extent(
                    axis_range.min - offset, axis_range.extent
                )
    return ranges


def _store_indices(realize: BlockRealize, buffer: Buffer) -> tuple[PrimExpr, ...]:
    stores = [s for s in pre_order_stmts(realize.block.body) if isinstance(s, BufferStore)]
    own = [s for s in stores if s.buffer is buffer]
    variables = {i.var for i in realize.block.iter_vars}
    if len(own) != 1 or not set(free_vars(*own[0].indices)) <= variables:
        return ()
    return own[0].indices


def compute_at(
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    preserve_unit_loops: bool = False,
    index: int = -1,
) -> PrimFunc:
    """See `Schedule.compute_at`."""
    step, name = "compute_at", realize.block.name
    require_top_level_block(step, program, realize)
    if program.is_inside(realize, loop):
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} is an ancestor of block {name!r}",
            realize,
        )
    for buffer in block_writes(realize.block):
        # Only what the loop reads is computed, but the caller of the function reads all of an
        # output.
        if program.is_param(buffer) and not _is_read_in_full(program, realize, buffer):
            refuse(f"{step} {name!r}: it is an output block, of {buffer.name!r}", realize)
        require_sole_writer(step, program, realize, buffer)
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_unconditional(step, realize)
    require_visible(step, program, realize, loop)
    require_final_inputs(step, program, realize)
    consumers = _require_consumers(step, program, realize, loop)
    outer = [*program.loops_above(loop), loop]
    ranges = _consumed_ranges(realize, loop, outer)
    nest = create_moved_nest(realize, ranges, outer, preserve_unit_loops)
    below = _split_at_producer(step, program, realize, loop, consumers, index)
    # The loop is an ancestor of the consumers only, so removing the old nest leaves its identity,
    # and `replace` finds it.
    without = ScheduleProgram(program.replace(program.outermost_perfect_loop(realize), NO_OP))
    return without.replace(loop.body, flatten_seq(*below[0], nest, *below[1]))


def _is_read_in_full(program: ScheduleProgram, realize: BlockRealize, buffer: Buffer) -> bool:
    """Return whether a reader surely reads every element of a buffer: at its own iterators, one for
    each axis, over the whole of it.
    """
    for reader in program.readers(buffer):
        domains = {i.var: i.dom for i in reader.block.iter_vars if i.dom is not None}
        for access in accesses_of_buffer(reader.block.body, buffer):
            if reader is realize or access.is_store or access.is_conditional or access.loops:
                continue
            if len({*access.indices}) == len(buffer.shape) and all(
                isinstance(index, Var)
                and index in domains
                and is_const(domains[index].min, 0)
                and is_same_expr(domains[index].extent, size)
                for index, size in zip(access.indices, buffer.shape, strict=True)
            ):
                return True
    return False


def _require_consumers(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For
) -> list[BlockRealize]:
    name = realize.block.name
    consumers: list[BlockRealize] = []
    for buffer in block_writes(realize.block):
        for reader in program.readers(buffer):
            if reader is realize:
                continue
            if not program.is_inside(reader, loop):
                refuse(
                    f"{step} {name!r}: it requires all the consumers of {buffer.name!r} in loop "
                    f"{loop.loop_var.name!r}, and block {reader.block.name!r} is outside",
                    reader,
                )
            consumers.append(reader)
    if not consumers:
        names = [b.name for b in block_writes(realize.block)]
        refuse(f"{step} {name!r}: loop {loop.loop_var.name!r} does not read {names}", loop)
    if not program.precedes(realize, loop):
        refuse(f"{step} {name!r}: the block does not come before the loop", realize)
    return consumers


def _consumed_ranges(realize: BlockRealize, loop: For, outer: Sequence[For]) -> dict[Var, Range]:
    ranges: dict[Var, Range] | None = None
    for buffer in block_writes(realize.block):
        touched = accesses_of_buffer(loop.body, buffer)
        if not touched:
            return {}
        indices = _store_indices(realize, buffer)
        if not indices and buffer.shape:
            return {}
        shared = [x for x in outer if _is_shared_by_threads(x, buffer)]
        unshared = [x for x in outer if x not in shared]
        touched = [
            Access(a.indices, (*shared, *a.loops), a.is_store, a.is_conditional, a.extents)
            for a in touched
        ]
        buffer_ranges = _required_iter_ranges(
            realize, indices, bounding_region(buffer, touched, unshared)
        )
        # A block with several results runs its iterators once for all: where the results need
        # different ranges, the whole domain is computed.
        if ranges is not None and not _same_ranges(ranges, buffer_ranges):
            return {}
        ranges = buffer_ranges
    return ranges or {}


def _is_shared_by_threads(loop: For, buffer: Buffer) -> bool:
    """Return whether a loop's iterations are threads that share one copy of a buffer, which then
    holds what all of them need.
    """
    axis = str((loop.annotations or {}).get("thread", ""))
    return axis.startswith("threadIdx") and buffer.scope.startswith("shared")


def _same_ranges(a: Mapping[Var, Range], b: Mapping[Var, Range]) -> bool:
    return a.keys() == b.keys() and all(
        is_same_expr(a[v].min, b[v].min) and is_same_expr(a[v].extent, b[v].extent) for v in a
    )


def _split_at_producer(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    consumers: Sequence[BlockRealize],
    index: int,
) -> tuple[list[Stmt], list[Stmt]]:
    """Return an iteration's statements before and after the moved block: it goes after what it
    reads and before what reads it.
    """
    statements = _body_statements(loop.body)
    first = min(
        n for n, s in enumerate(statements) if any(program.is_inside(c, s) for c in consumers)
    )
    position = _insertion_index(step, realize, index, 0, first, last=first)
    return list(statements[:position]), list(statements[position:])


def _body_statements(body: Stmt) -> tuple[Stmt, ...]:
    seq = getattr(body, "seq", None)
    return (body,) if seq is None else tuple(seq)


def _insertion_index(
    step: str, realize: BlockRealize, index: int, low: int, high: int, last: int
) -> int:
    """Return the requested position: -1 the last possible, -2 the first possible, or a number."""
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
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    preserve_unit_loops: bool = False,
    index: int = -1,
) -> PrimFunc:
    """See `Schedule.reverse_compute_at`."""
    step, name = "reverse_compute_at", realize.block.name
    require_top_level_block(step, program, realize)
    if program.is_inside(realize, loop):
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} is an ancestor of block {name!r}",
            realize,
        )
    kind = require_kind(step, realize, COMPLETE, REDUCTION)
    require_unconditional(step, realize)
    require_visible(step, program, realize, loop)
    for buffer in block_writes(realize.block):
        require_sole_writer(step, program, realize, buffer)
    if not program.precedes(loop, realize):
        refuse(f"{step} {name!r}: the block does not come after the loop", realize)
    changing = find_rewriting_producer(program, realize.block)
    if changing is not None:
        refuse(
            f"{step} {name!r}: what it reads depends on block {changing.block.name!r}, whose "
            "elements change from step to step",
            changing,
        )
    source = _require_source(step, program, realize, loop)
    _require_between(step, program, realize, loop, source)
    outer = [*program.loops_above(loop), loop]
    finished = _completion_condition(step, program, realize, loop, source, outer)
    ranges = _consumable_ranges(step, program, realize, loop, source, outer)
    domains = _producer_domains(program.writers(source))
    nest = create_moved_nest(realize, ranges, outer, preserve_unit_loops, finished, domains)
    # Unlike compute_at, nothing may be left out: no other block writes the consumer's output.
    _require_full_coverage(step, program, realize, nest, outer, kind)
    statements = _body_statements(loop.body)
    last = max(
        n
        for n, s in enumerate(statements)
        if any(program.is_inside(w, s) for w in program.writers(source))
    )
    position = _insertion_index(
        step, realize, index, last + 1, len(statements), last=len(statements)
    )
    without = ScheduleProgram(program.replace(program.outermost_perfect_loop(realize), NO_OP))
    return without.replace(
        loop.body, flatten_seq(*statements[:position], nest, *statements[position:])
    )


def _require_source(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For
) -> Buffer:
    """Return the buffer that the loop writes and the block reads."""
    name = realize.block.name
    candidates = [
        b
        for b in block_reads(realize.block)
        if b not in block_writes(realize.block)
        and any(program.is_inside(w, loop) for w in program.writers(b))
    ]
    if len(candidates) != 1:
        refuse(
            f"{step} {name!r}: loop {loop.loop_var.name!r} must write one of its inputs, it writes "
            f"{[b.name for b in candidates]}",
            realize,
        )
    for writer in program.writers(candidates[0]):
        if not program.is_inside(writer, loop):
            refuse(
                f"{step} {name!r}: {candidates[0].name!r} is written by {writer.block.name!r} "
                "outside "
                f"loop {loop.loop_var.name!r} too",
                writer,
            )
    return candidates[0]


def _require_between(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For, source: Buffer
) -> None:
    """Require that the block's other inputs are final before the loop and that nothing reads its
    output before it.
    """
    if program.is_trusted:
        return
    name = realize.block.name
    for buffer in block_reads(realize.block):
        if buffer is source or buffer in block_writes(realize.block):
            continue
        for writer in program.writers(buffer):
            if not program.precedes(writer, loop):
                refuse(
                    f"{step} {name!r}: {buffer.name!r}, which it reads, is written after the loop "
                    "began",
                    writer,
                )
    for buffer in block_writes(realize.block):
        for reader in program.readers(buffer):
            if reader is not realize and not program.precedes(realize, reader):
                refuse(
                    f"{step} {name!r}: block {reader.block.name!r} reads {buffer.name!r} before it",
                    reader,
                )
    if is_source_rewritten(program, realize, source):
        refuse(f"{step} {name!r}: {source.name!r} is written after the block", realize)


def is_source_rewritten(program: ScheduleProgram, realize: BlockRealize, source: Buffer) -> bool:
    """Return whether a block's input is written at or after it."""
    return any(not program.precedes(w, realize) for w in program.writers(source))


# A step of the loop leaves a sum finished if no loop around both reduces, but in the last step of
# those that do: from the first step on the sum is there, but not final, and would be read too
# early.
def _completion_condition(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    source: Buffer,
    outer: Sequence[For],
) -> PrimExpr:
    """Return the condition under which an iteration's writes are final: the last iteration of the
    reducing loops around it.

    Refuses where the loop itself reduces or a branch is in between.
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
        for loop_var_loop in reducing:
            # A consumer under a reduction loop may run only in its last iteration, when the sums
            # are complete.
            last = logical_and(last, loop_var_loop.loop_var.equal(loop_var_loop.extent - 1))
        ancestor = program.parent_of(writer)
        while ancestor is not None and ancestor is not loop:
            if isinstance(ancestor, IfThenElse):
                refuse(
                    f"{step} {realize.block.name!r}: block {writer.block.name!r} is under a branch",
                    writer,
                )
            ancestor = program.parent_of(ancestor)
    return last


def _consumable_ranges(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    source: Buffer,
    outer: Sequence[For],
) -> dict[Var, Range]:
    """Return the ranges that the block's iterators may cover once an iteration has written its part
    of the source.
    """
    name = realize.block.name
    reads = [a for a in accesses_of_buffer(realize.block.body, source) if not a.is_store]
    if not reads or any(not _same_access(reads[0], a) for a in reads) or reads[0].loops:
        refuse(f"{step} {name!r}: it must read {source.name!r} at its own iterators", realize)
    writers = program.writers(source)
    kinds = [classify_block(w.block).kind for w in writers]
    if kinds not in ([COMPLETE], [REDUCTION], [COMPLETE, UPDATE]):
        names = [w.block.name for w in writers]
        refuse(f"{step} {name!r}: {source.name!r} is written by all of {names}", writers[0])
    written_region = written_box_in_iteration(program, loop, source, writers[-1])
    if isinstance(written_region, str):
        refuse(f"{step} {name!r}: {written_region}", writers[-1])
    analyzer = bound_analyzer(outer)
    ranges = solve_iterator_ranges(
        realize.block.iter_vars, reads[0].indices, written_region, analyzer
    )
    if ranges is None or not (
        program.is_trusted
        or _are_reads_within(realize, reads[0].indices, written_region, ranges, outer)
    ):
        refuse(
            f"{step} {name!r}: no ranges of its iterators are known to read just what a step of "
            f"{loop.loop_var.name!r} has written of {source.name!r}",
            realize,
        )
    return ranges


def _are_reads_within(
    realize: BlockRealize,
    indices: Sequence[PrimExpr],
    box: Sequence[Range],
    ranges: Mapping[Var, Range],
    outer: Sequence[For],
) -> bool:
    """Return whether indices stay in a box when the iterators run over ranges."""
    analyzer = bound_analyzer(outer)
    values: dict[Var, PrimExpr] = {}
    for iter_var in realize.block.iter_vars:
        needed = ranges.get(iter_var.var, Range.from_min_extent(const(0), iter_var.extent))
        inside = Var(iter_var.var.name, iter_var.var.dtype)
        analyzer.bind(inside, 0, needed.extent)
        values[iter_var.var] = needed.min + inside
    for index, axis_range in zip(indices, box, strict=True):
        offset = analyzer.simplify(substitute(index, values) - axis_range.min)
        if not analyzer.can_prove(offset >= 0) or not analyzer.can_prove(
            offset < axis_range.extent
        ):
            return False
    return True


def _same_access(a: Access, b: Access) -> bool:
    return all(is_same_expr(x, y) for x, y in zip(a.indices, b.indices, strict=True))


# Moving to where something was written may lose points that nobody wrote in time, or meet some
# twice. A complete block may run twice for a point, a sum may not.
def _require_full_coverage(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    nest: Stmt,
    outer: Sequence[For],
    kind: str,
) -> None:
    """Require that the moved block runs for every value of its iterators, and a reduction exactly
    once.
    """
    if program.is_trusted:
        return
    name = realize.block.name
    loops = list(outer)
    inner = nest
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    assert isinstance(inner, BlockRealize)
    values = [v for v in inner.iter_values if not is_const(v)]
    ranges = loop_ranges(loops)
    iter_map = detect_iter_map(values, ranges, check_level=IterMapLevel.SURJECTIVE)
    if iter_map.errors:
        refuse(
            f"{step} {name!r}: it is not known to run for every point: {iter_map.errors[0]}",
            realize,
        )
    analyzer = bound_analyzer(())
    sums = iter(iter_map.indices)
    for iter_var, value in zip(inner.block.iter_vars, inner.iter_values, strict=True):
        low, size = value, const(1)
        if not is_const(value):
            total = next(sums)
            low, size = convert(total.base), num_iter_sum_values(total)
        if not analyzer.can_prove(low <= 0) or not can_prove_covers(
            low, size, iter_var.extent, analyzer
        ):
            refuse(
                f"{step} {name!r}: it would run for a part of {iter_var.var.name!r} only", realize
            )
    # A complete block may be recomputed at a point; a reduction that ran twice would add its terms
    # twice.
    if kind == REDUCTION:
        loop_vars = {s.loop_var for s in loops if not is_const(s.extent, 1)}
        fault = injectivity_error(values, ranges, loop_vars)
        if fault is not None:
            refuse(f"{step} {name!r}: its sum would take in some steps twice: {fault}", realize)
        spatial = set(
            free_vars(
                *(
                    v
                    for i, v in zip(inner.block.iter_vars, inner.iter_values, strict=True)
                    if i.kind is IterKind.SPATIAL
                )
            )
        )
        both = [s.loop_var.name for s in reduce_loops(inner, loops) if s.loop_var in spatial]
        if both:
            refuse(f"{step} {name!r}: loop {both[0]!r} would be spatial and reduced", realize)
