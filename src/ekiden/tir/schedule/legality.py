"""Proof obligations of schedule primitives: iterations of a loop touch disjoint elements, an
iteration writes what it reads, inputs are final.

Proofs are about boxes and digits. What one iteration touches of a buffer is a box
(`tir.access_regions`), an over-estimate; what a block writes is only used where it is exactly a box
(`written_region`). `schedule.disjoint_iterations` proves that iterations are disjoint. So:

    require_permutable    each sum's first step stays first, ordered steps stay in order; no other
                          step sees what another one wrote
    require_concurrent    steps write elements of their own, or each has a buffer of its own
    uncovered_read_fault  the box written in a step holds the box read in it
    require_final_inputs  what is read is not written again later

What cannot be proved is refused, with the reason. Steps of a trusted program skip these proofs
(`ScheduleProgram.is_trusted`): none of them decides the form of a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, IterSum, image_box, injectivity_error
from ekiden.ir.prim import EQ, GE, LT, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.ir.range import Range
from ekiden.tir.access_regions import Access, bounding_region
from ekiden.tir.expr import Buffer
from ekiden.tir.predicates import split_conjuncts
from ekiden.tir.reduction import is_same_expr, match_reduction
from ekiden.tir.schedule.block_kinds import (
    COMPLETE,
    OPAQUE,
    ORDERED,
    REDUCTION,
    UPDATE,
    classify_block,
    ordered_values,
    reduce_loops,
    reduce_values,
    require_kind,
    spatial_values,
    stores_with_loops,
)
from ekiden.tir.schedule.coverage_proofs import can_prove_covers
from ekiden.tir.schedule.disjoint_iterations import overlap_fault
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_reads,
    block_writes,
    bound_analyzer,
    determining_vars,
    free_vars_of_block,
    loop_ranges,
    loops_between,
    refuse,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    IterKind,
    SeqStmt,
    Stmt,
)
from ekiden.tir.visitor import is_no_op, sub_statements

# Predicates.


# A guard cuts off points that are not in the block's domain at all: they were made by a split that
# rounds up. A block under guards alone still runs for all its iterators.
def split_domain_guards(realize: BlockRealize) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """Return the conditions of a block's predicate that only bound an iterator to its domain, and
    the remaining conditions.
    """
    if is_const(realize.predicate):
        return [], split_conjuncts(realize.predicate)
    analyzer = Analyzer()
    guards: list[PrimExpr] = []
    remaining: list[PrimExpr] = []
    pairs = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    for condition in split_conjuncts(realize.predicate):
        inside = any(_is_domain_guard(condition, v, i.extent, analyzer) for i, v in pairs)
        (guards if inside else remaining).append(condition)
    return guards, remaining


def _is_domain_guard(e: PrimExpr, value: PrimExpr, extent: PrimExpr, analyzer: Analyzer) -> bool:
    """Return whether a condition is `value < extent` or `0 <= value`, up to moving terms."""
    if isinstance(e, LT):
        return analyzer.can_prove_equal(e.b - e.a, extent - value)
    if isinstance(e, GE):
        return analyzer.can_prove_equal(e.a - e.b, value)
    return False


def require_top_level_block(step: str, program: ScheduleProgram, realize: BlockRealize) -> None:
    """Refuse a nested block, whose buffers the enclosing blocks may touch as well."""
    ancestor: Stmt | None = program.parent_of(realize)
    while ancestor is not None:
        if isinstance(ancestor, Block):
            refuse(f"{step} {realize.block.name!r}: it is inside block {ancestor.name!r}", realize)
        ancestor = program.parent_of(ancestor)


# A block that uses the region of a loop's iteration (`read_at`) is bound to that loop.
def require_visible(
    step: str, program: ScheduleProgram, realize: BlockRealize, place: Stmt
) -> None:
    """Refuse to move a block to a place at which a loop variable or a buffer that it uses is not
    defined.
    """
    around = program.path_to(place)
    loop_vars = {s.loop_var for s in around if isinstance(s, For)}
    for var in free_vars_of_block(realize.block):
        if var in program.loops and var not in loop_vars:
            refuse(
                f"{step} {realize.block.name!r}: it uses loop {var.name!r}, which is not around "
                "the new place",
                realize,
            )
    visible = {s.buffer for s in around if isinstance(s, Allocate)}
    allocated = {s.buffer for s in program.path_to(realize) if isinstance(s, Allocate)}
    for buffer in (*block_reads(realize.block), *block_writes(realize.block)):
        if buffer in allocated and buffer not in visible:
            refuse(
                f"{step} {realize.block.name!r}: {buffer.name!r} is not allocated around the new "
                "place",
                realize,
            )


def require_unconditional(step: str, realize: BlockRealize) -> None:
    """Refuse a block that runs only under a condition of its own."""
    extra_conditions = split_domain_guards(realize)[1]
    if extra_conditions:
        names = ", ".join(sorted({v.name for e in extra_conditions for v in free_vars(e)}))
        refuse(f"{step} {realize.block.name!r}: it runs only under a condition on {names}", realize)


# Steps of a loop.


def require_permutable(
    step: str, program: ScheduleProgram, chain: Sequence[For], order: Sequence[For] = ()
) -> None:
    """Refuse unless the iterations of a chain of loops may run in any order within the loops'
    ranges, or in that of the same loops nested in another `order`.
    """
    if program.is_trusted:
        return
    leaves = program.outermost_blocks(chain[-1].body)
    _require_only_blocks(step, chain[-1])
    for leaf in leaves:
        kind = require_kind(step, leaf, COMPLETE, REDUCTION, UPDATE, *([ORDERED] if order else []))
        if kind == ORDERED:
            _require_steps_in_order(step, program, leaf, chain, order)
        # Complete blocks store the same values in any order; a sum must begin with its init.
        if kind == REDUCTION and reduce_loops(leaf, chain):
            _require_reduction_order(step, program, leaf, chain)
    if len(leaves) > 1:
        _require_disjoint_shared_buffers(step, program, chain, leaves)


# Two runs of an ordered block touch a common element only if they are at one place in the spatial
# iterators (`block_kinds`). If these tell all loops but those that the block is ordered over, such
# runs differ in the ordered loops alone, and as long as these keep their places to each other,
# which of the two comes first stays.
def _require_steps_in_order(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    chain: Sequence[For],
    order: Sequence[For],
) -> None:
    """Refuse unless the steps of an ordered block keep their order at every point of its spatial
    iterators.
    """
    name = realize.block.name
    loops = loops_between(chain[0], realize, program)
    ordered = _ordered_loop_vars(realize, loops)
    before, after = ([s for s in nest if s.loop_var in ordered] for nest in (chain, order))
    if before != after:
        names = [s.loop_var.name for s in before]
        refuse(f"{step}: block {name!r} is ordered over loops {names}, which keep order", realize)
    others = {s.loop_var for s in chain if not is_const(s.extent, 1)} - ordered
    values = [v for v in spatial_values(realize) if not is_const(v)]
    fault = injectivity_error(values, loop_ranges(loops), determining_vars(loops, others))
    if fault is not None:
        refuse(
            f"{step}: steps of the ordered block {name!r} may change places: {fault}",
            realize,
        )


def _ordered_loop_vars(realize: BlockRealize, loops: Sequence[For]) -> set[Var]:
    """Return the variables of loops that a block's ordered iterators depend on, those that count
    the parts of such a loop among them.
    """
    ordered = set(free_vars(*ordered_values(realize)))
    for loop in reversed(loops):
        if loop.loop_var in ordered:
            ordered.update(free_vars(loop.min, loop.extent))
    return ordered & {s.loop_var for s in loops}


def _require_only_blocks(step: str, loop: For) -> None:
    """Refuse statements outside blocks: they have no iterators to reason with."""
    stack = [loop.body]
    while stack:
        s = stack.pop()
        if isinstance(s, BlockRealize) or is_no_op(s):
            continue
        if not isinstance(s, (For, SeqStmt, Allocate, IfThenElse)):
            refuse(
                f"{step}: loop {loop.loop_var.name!r} holds a statement outside blocks, of which "
                "nothing is known",
                s,
            )
        stack.extend(sub_statements(s))


# A reduction block runs its init where all its reduction iterators are 0, and the schedule may not
# know which step of the loops that is. So (1) no loop may be both, or the sum of one point would
# begin in the middle of another's; (2) each step of the loops is one step of the sum, else the init
# runs twice; (3) the first step of the loops is the one with zeros. Sums of floats are taken in any
# order, as everywhere in the field: what is kept is which terms there are, not how they round.
def _require_reduction_order(
    step: str, program: ScheduleProgram, realize: BlockRealize, chain: Sequence[For]
) -> None:
    """Check that the first iteration of each point's sum, which runs its init, stays first."""
    name = realize.block.name
    loops = loops_between(chain[0], realize, program)
    reduced = {s.loop_var for s in reduce_loops(realize, loops)}
    both = [v.name for v in free_vars(*spatial_values(realize)) if v in reduced]
    if both:
        refuse(f"{step}: loop {both[0]!r} is both spatial and reduced in block {name!r}", realize)
    for condition in split_conjuncts(realize.predicate):
        used = {v for v in free_vars(condition) if v in program.loops}
        if used & reduced and not used <= reduced:
            refuse(
                f"{step}: the condition of block {name!r} mixes reduced and other loops", realize
            )
    values = [v for v in realize.iter_values if not is_const(v)]
    loop_vars = {s.loop_var for s in loops if not is_const(s.extent, 1)}
    fault = injectivity_error(values, loop_ranges(loops), determining_vars(loops, loop_vars))
    if fault is not None:
        refuse(
            f"{step}: block {name!r} is not known to run once for each step of its loops: {fault}",
            realize,
        )
    start: dict[Var, PrimExpr] = {s.loop_var: s.min for s in loops}
    analyzer = Analyzer()
    # The init runs where all reduction iterators are 0, so that point must come first in the new
    # order, too.
    for value in reduce_values(realize):
        first = analyzer.simplify(substitute_expr(value, start))
        if not is_const(first, 0) and not analyzer.can_prove(first > 0):
            refuse(f"{step}: the sum of block {name!r} does not begin with its first step", realize)


# Two ways to be right: in each step the maker comes first and covers what the others read (then it
# does not matter that the buffer is one for all steps), or steps touch elements of their own.
def _require_disjoint_shared_buffers(
    step: str, program: ScheduleProgram, chain: Sequence[For], leaves: Sequence[BlockRealize]
) -> None:
    """Refuse unless each iteration writes what it reads before reading it, for buffers that one
    block under the chain writes and another touches.
    """
    for buffer in dict.fromkeys(b for leaf in leaves for b in block_writes(leaf.block)):
        touching = [
            x for x in leaves if buffer in block_writes(x.block) or buffer in block_reads(x.block)
        ]
        if len(touching) > 1:
            fault = _carried_dependence_fault(program, chain, buffer, touching)
            if fault is not None and not _are_iterations_disjoint(program, chain, buffer):
                refuse(
                    f"{step}: blocks {touching[0].block.name!r} and {touching[-1].block.name!r} "
                    f"share {buffer.name!r} across steps of {chain[-1].loop_var.name!r}: {fault}",
                    touching[-1],
                )


# [COMPLETE, UPDATE] is a sum whose init was taken apart (decompose_reduction): the first block of
# two covers the elements, so that what the second adds to is of this step.
def _carried_dependence_fault(
    program: ScheduleProgram, chain: Sequence[For], buffer: Buffer, touching: Sequence[BlockRealize]
) -> str | None:
    """Return why an iteration may read what another one wrote (a loop-carried dependence); None if
    it writes all it reads.
    """
    makers = [x for x in touching if buffer in block_writes(x.block)]
    kinds = [classify_block(x.block).kind for x in makers]
    if kinds not in ([COMPLETE], [REDUCTION], [COMPLETE, UPDATE]):
        return f"it is written by {[x.block.name for x in makers]}"
    if touching[0] is not makers[0]:
        return f"block {touching[0].block.name!r} reads it before it is written"
    carried = [s.loop_var.name for s in reduce_loops(makers[-1], chain)]
    if carried:
        return f"the sum of {makers[-1].block.name!r} runs over {carried}"
    return uncovered_read_fault(program, chain[-1], buffer, makers[0])


def uncovered_read_fault(
    program: ScheduleProgram, loop: For, buffer: Buffer, maker: BlockRealize
) -> str | None:
    """Return why an iteration of a loop may read an element of a buffer that the maker, in the same
    iteration, has not written; None if it cannot.
    """
    if program.is_trusted:
        return None
    outer = [*program.loops_above(loop), loop]
    written_region = written_box_in_iteration(program, loop, buffer, maker)
    if isinstance(written_region, str):
        return written_region
    needed = bounding_region(buffer, accesses_of_buffer(loop.body, buffer), outer)
    analyzer = bound_analyzer(outer)
    for axis, (a, b, dim) in enumerate(zip(written_region, needed, buffer.shape, strict=True)):
        # No element is outside the axis: covering it as a whole is enough, too.
        starts = analyzer.can_prove(a.min <= b.min) or analyzer.can_prove(a.min <= 0)
        ends = can_prove_covers(a.min, a.extent, b.min + b.extent, analyzer)
        if not starts or not (ends or can_prove_covers(a.min, a.extent, dim, analyzer)):
            return (
                f"block {maker.block.name!r} is not known to write all that is read (axis {axis})"
            )
    return None


def written_box_in_iteration(
    program: ScheduleProgram, loop: For, buffer: Buffer, maker: BlockRealize
) -> list[Range] | str:
    """Return exactly what a block writes of a buffer in one iteration of a loop, or why that is
    unknown.
    """
    return written_region(program, loop.body, buffer, maker)


# Unlike `region`, which may hold more than is touched, this is used to show that something *was*
# written: so one store, no condition, all iterators, and indices that fill a box without gaps.
def written_region(
    program: ScheduleProgram, root: Stmt, buffer: Buffer, maker: BlockRealize
) -> list[Range] | str:
    """Return exactly what a block inside a statement writes of a buffer each time the statement
    runs, or why that is unknown.
    """
    name = maker.block.name
    # Without the init, which stores to the same element: one store has to remain.
    update = maker.with_fields(block=maker.block.with_fields(init=None))
    stores = [a for a in accesses_of_buffer(update, buffer) if a.is_store]
    if len(stores) != 1:
        return f"block {name!r} writes {buffer.name!r} in {len(stores)} places"
    (store,) = stores
    fault = (
        None if program.is_trusted else _partial_write_fault(program, root, maker, store, buffer)
    )
    if fault is not None:
        return fault
    ranges = loop_ranges((*loops_between(root, maker, program), *store.loops))
    image = image_box(store.indices, ranges)
    if isinstance(image, str):
        return f"what block {name!r} writes of {buffer.name!r} is no box: {image}"
    return [Range.from_min_extent(low, size) for low, size in image]


def _partial_write_fault(
    program: ScheduleProgram, root: Stmt, maker: BlockRealize, store: Access, buffer: Buffer
) -> str | None:
    """Return why a block inside a statement may store to a part of its box only; None if it runs
    for all its iterators.
    """
    name = maker.block.name
    conditions = split_domain_guards(maker)[1]
    if (
        store.is_conditional
        or _is_conditional(program, maker, root)
        or not all(_holds_in_first_step(c, program, root, maker, store.indices) for c in conditions)
    ):
        return f"block {name!r} writes {buffer.name!r} under a condition"
    if not _masks_only_buffer_end(maker, buffer):
        return f"block {name!r} does not run for all its iterators"
    return None


# Each step of a loop that the indices do not depend on would write the same elements: the first one
# alone writes all of them.
def _holds_in_first_step(
    condition: PrimExpr,
    program: ScheduleProgram,
    root: Stmt,
    maker: BlockRealize,
    indices: Sequence[PrimExpr],
) -> bool:
    """Return whether a condition is that a loop inside `root` around a block, which indices do not
    depend on, is in its first step, and the loop has one.
    """
    if not isinstance(condition, EQ):
        return False
    loops = loops_between(root, maker, program)
    moving = set(free_vars(*indices))
    for loop in reversed(loops):
        if loop.loop_var in moving:
            moving.update(free_vars(loop.min, loop.extent))
    analyzer = bound_analyzer(program.loops_above(maker))
    return any(
        loop.loop_var not in moving
        and is_same_expr(condition.a, loop.loop_var)
        and is_same_expr(condition.b, loop.min)
        and analyzer.can_prove(loop.extent > 0)
        for loop in loops
    )


def num_iter_sum_values(total: IterSum) -> PrimExpr:
    """Return the number of distinct values of a dense iterator sum."""
    size: PrimExpr = const(1)
    for split in total.args:
        size = size * split.extent
    return size


def _is_conditional(program: ScheduleProgram, s: Stmt, root: Stmt) -> bool:
    """Return whether a branch is between a statement and one of its ancestors."""
    ancestor: Stmt | None = s
    while ancestor is not None:
        if isinstance(ancestor, IfThenElse):
            return True
        if ancestor is root:
            return False
        ancestor = program.parent_of(ancestor)
    return False


def _masks_only_buffer_end(maker: BlockRealize, buffer: Buffer) -> bool:
    """Return whether the points that a block's predicate masks have no elements in the buffer."""
    if not split_domain_guards(maker)[0]:
        return True
    stores = [s for s, _ in stores_with_loops(maker.block) if s.buffer is buffer]
    analyzer = Analyzer()
    sizes = {i.var: i.extent for i in maker.block.iter_vars if i.kind is IterKind.SPATIAL}
    return all(
        isinstance(i, Var) and i in sizes and analyzer.can_prove_equal(sizes[i], dim)
        for s in stores
        for i, dim in zip(s.indices, buffer.shape, strict=True)
        if not is_const(i)
    )


def _are_iterations_disjoint(
    program: ScheduleProgram, chain: Sequence[For], buffer: Buffer
) -> bool:
    """Return whether the iterations of a chain of loops touch disjoint elements."""
    return overlap_fault(program, chain[-1], buffer, {s.loop_var for s in chain}, chain) is None


def is_bound_within_block(annotations: Mapping[str, object] | None) -> bool:
    """Return whether a loop's annotations bind it to threads of a thread block, which can
    synchronise.
    """
    return str((annotations or {}).get("thread", "")).startswith("threadIdx")


def require_concurrent(
    step: str, program: ScheduleProgram, loop: For, lanes: bool = False, together: bool = False
) -> None:
    """Refuse unless the iterations of a loop may run concurrently: as threads, as vector lanes
    (`lanes`), or as threads that combine what they reduce (`together`).
    """
    if program.is_trusted:
        return
    _require_only_blocks(step, loop)
    if is_const(loop.extent, 1):
        return
    leaves = program.outermost_blocks(loop.body)
    var = loop.loop_var
    combined: set[Buffer] = set()
    for leaf in leaves:
        require_kind(step, leaf, COMPLETE, REDUCTION, UPDATE, ORDERED)
        if var in _ordered_loop_vars(leaf, loops_between(loop, leaf, program)):
            refuse(f"{step} {var.name!r}: block {leaf.block.name!r} is ordered over it", leaf)
        if var not in free_vars(*reduce_values(leaf)):
            continue
        if not together:
            refuse(f"{step} {var.name!r}: block {leaf.block.name!r} reduces over it", leaf)
        _require_combinable_reduction(step, program, loop, leaf)
        combined.update(block_writes(leaf.block))
    for buffer in dict.fromkeys(b for leaf in leaves for b in block_writes(leaf.block)):
        if buffer in combined:
            continue
        fault = overlap_fault(program, loop, buffer, {var}, [loop])
        if fault is None:
            continue
        # Overlapping writes are still safe where the buffer can be private: CompactBufferAllocation
        # then allocates it per iteration.
        private = privatization_fault(program, loop, buffer, leaves)
        if private is None and lanes:
            private = _lane_vector_fault(program, loop, buffer)
        if private is not None:
            maker = next(x for x in leaves if buffer in block_writes(x.block))
            refuse(
                f"{step} {var.name!r}: two steps may write one element of {buffer.name!r}: {fault}"
                f" ({private})",
                maker,
            )


# A sum whose init is another block has no value that each thread may begin with.
def _require_combinable_reduction(
    step: str, program: ScheduleProgram, loop: For, realize: BlockRealize
) -> None:
    """Refuse unless threads may combine their partial results of a block over a loop and no other
    block in the loop reads the partial results.
    """
    name, var = realize.block.name, loop.loop_var
    if match_reduction(realize.block) is None:
        why = "its init is another block" if realize.block.init is None else "its update is no sum"
        refuse(f"{step} {var.name!r}: block {name!r} reduces over it, and {why}", realize)
    if var in free_vars(*spatial_values(realize)):
        refuse(f"{step} {var.name!r}: block {name!r} is both spatial and reduced in it", realize)
    for buffer in block_writes(realize.block):
        for leaf in program.outermost_blocks(loop.body):
            touched = (*block_reads(leaf.block), *block_writes(leaf.block))
            if leaf is not realize and buffer in touched:
                refuse(
                    f"{step} {var.name!r}: block {leaf.block.name!r} in the loop uses"
                    f" {buffer.name!r}, whose sum runs over it",
                    leaf,
                )


def _lane_vector_fault(program: ScheduleProgram, loop: For, buffer: Buffer) -> str | None:
    """Return why an iteration's private buffer cannot be a vector with a lane per iteration; None
    if it can.
    """
    outer = [*program.loops_above(loop), loop]
    touched = accesses_of_buffer(loop.body, buffer)
    box = bounding_region(buffer, touched, outer)
    analyzer = bound_analyzer(outer)
    for access in touched:
        for index, axis_range in zip(access.indices, box, strict=True):
            if loop.loop_var in free_vars(analyzer.simplify(index - axis_range.min)):
                return "its steps use different places of a buffer of their own"
    return None


def privatization_fault(
    program: ScheduleProgram, loop: For, buffer: Buffer, leaves: Sequence[BlockRealize]
) -> str | None:
    """Return why a buffer cannot be private to each iteration; None if it can."""
    if program.is_param(buffer):
        return "it is an argument"
    touching = [
        x for x in leaves if buffer in block_writes(x.block) or buffer in block_reads(x.block)
    ]
    if len(touching) < len({id(x) for x in program.writers(buffer) + program.readers(buffer)}):
        return f"it is used outside loop {loop.loop_var.name!r} too"
    return _carried_dependence_fault(program, [loop], buffer, touching)


# What makes it right to compute a block later, or again, or for some points only.
def require_final_inputs(step: str, program: ScheduleProgram, realize: BlockRealize) -> None:
    """Refuse unless everything a block reads was written for the last time before it: then its
    values do not depend on when it runs after that.
    """
    if program.is_trusted:
        return
    name = realize.block.name
    for buffer in block_reads(realize.block):
        if buffer in block_writes(realize.block):
            continue
        for writer in program.writers(buffer):
            is_first = writer is realize or program.precedes(writer, realize)
            if not is_first and not _touches_disjoint_elements(program, buffer, writer, realize):
                refuse(
                    f"{step} {name!r}: block {writer.block.name!r} writes {buffer.name!r}, which "
                    "it reads, again later",
                    writer,
                )
    changing = find_rewriting_producer(program, realize.block)
    if changing is not None:
        refuse(
            f"{step} {name!r}: what it reads depends on block {changing.block.name!r}, whose "
            "elements change from step to step",
            changing,
        )


def _touches_disjoint_elements(
    program: ScheduleProgram, buffer: Buffer, writer: BlockRealize, reader: BlockRealize
) -> bool:
    """Return whether a writer and a reader touch disjoint elements in each iteration of the common
    loops around them and around all readers of the reader's results.

    A recurrence does: it reads elements of earlier iterations. The reader's position within an
    iteration does not matter then.
    """
    users = [writer, *(r for result in block_writes(reader.block) for r in program.readers(result))]
    around = [program.loops_above(u) for u in users]
    common = [
        s for s in program.loops_above(reader) if all(_contains_loop(s, loops) for loops in around)
    ]
    if not common:
        return False
    touched = accesses_of_buffer(common[-1].body, buffer)
    if any(a.extents is not None for a in touched):
        return False
    analyzer = bound_analyzer(common)
    loads, stores = (
        bounding_region(buffer, [a for a in touched if a.is_store is is_store], common)
        for is_store in (False, True)
    )
    return any(
        analyzer.can_prove(a.min + a.extent <= b.min)
        or analyzer.can_prove(b.min + b.extent <= a.min)
        for a, b in zip(loads, stores, strict=True)
    )


def _contains_loop(loop: For, loops: Sequence[For]) -> bool:
    return any(other is loop for other in loops)


# Blocks of most kinds give an element one value, however often they run. An ordered block, or an
# opaque one in a loop (a rolling buffer), gives the same place another value in each step.
def find_rewriting_producer(program: ScheduleProgram, block: Block) -> BlockRealize | None:
    """Return a block, among the transitive producers of what a block reads, that writes an element
    more than once with different values (a rolling buffer, a scatter); None if there is none.
    """
    if program.is_trusted:
        return None
    visited: set[Buffer] = set(block_writes(block))
    pending = [b for b in block_reads(block) if b not in visited]
    while pending:
        buffer = pending.pop()
        if buffer in visited:
            continue
        visited.add(buffer)
        for writer in program.writers(buffer):
            kind = classify_block(writer.block).kind
            if kind in (OPAQUE, ORDERED) and not _runs_once(program, writer):
                return writer
            pending.extend(block_reads(writer.block))
    return None


def _runs_once(program: ScheduleProgram, realize: BlockRealize) -> bool:
    """Return whether a block is in no loop, so that its writes are final once it is done."""
    return not realize.block.iter_vars and not any(
        isinstance(s, (For, Block)) for s in program.path_to(realize)
    )


def require_sole_writer(
    step: str, program: ScheduleProgram, realize: BlockRealize, buffer: Buffer
) -> None:
    """Refuse where another block (the tail of a split, an init) writes a part of a buffer's
    elements.
    """
    names = [x.block.name for x in program.writers(buffer)]
    if len(names) != 1:
        refuse(
            f"{step} {realize.block.name!r}: it is no complete block: {buffer.name!r} is written "
            f"by all of {names}",
            realize,
        )


def single_store(step: str, realize: BlockRealize) -> BufferStore:
    """Return the single store a block consists of; refuse any other block."""
    body = realize.block.body
    if not isinstance(body, BufferStore) or body.predicate is not None:
        refuse(
            f"{step} {realize.block.name!r}: expected a single store, got {type(body).__name__}",
            realize,
        )
    return body


def require_distinct_iterators(step: str, name: str, indices: Sequence[PrimExpr]) -> list[Var]:
    """Return indices that are distinct iterators; refuse any others."""
    variables = [i for i in indices if isinstance(i, Var)]
    if len(set(variables)) != len(indices):
        refuse(f"{step} {name!r}: its elements must be indexed by distinct iterators")
    return variables
