"""Reduction primitives for any commutative operator: decompose_reduction, merge_reduction, rfactor.

    with block: init: C[i] = 0;  C[i] = C[i] + A[i, k]

    decompose_reduction    the init as a block of its own, before a loop:
                           C[i] = 0;  C[i] += A[i, k]
    merge_reduction        the reverse
    rfactor (over k0 of k = k0 * 4 + k1)
        for i, k0: with block: init: P[k0, i] = 0;  for k1: P[k0, i] += A[i, k0 * 4 + k1]
        for i, k0: with block: init: C[i] = 0;      C[i] += P[k0, i]

so that the iterations of k0, now spatial in the first block, can run concurrently.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import injectivity_error, simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, fold_binary, is_const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.predicates import init_conditions, join_conjuncts, split_conjuncts
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.block_kinds import (
    COMPLETE,
    REDUCTION,
    UPDATE,
    reduce_loops,
    require_kind,
    spatial_values,
)
from ekiden.tir.schedule.legality import (
    require_sole_writer,
    require_top_level_block,
    single_store,
    written_region,
)
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    add_allocation,
    block_reads,
    bound_analyzer,
    determining_vars,
    loop_ranges,
    loops_between,
    refuse,
    serial_loop,
    substitute_loop_vars,
    uses_any_var,
    wrap_in_loops,
)
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import NO_OP, flatten_seq
from ekiden.tir.visitor import substitute as substitute_stmt


def _spatial_conditions(step: str, realize: BlockRealize, reduced: set[Var]) -> PrimExpr:
    """Return the part of a predicate that does not involve reduced loops, without the bound of the
    reduction; refuse a condition that mixes both.
    """
    spatial_conditions: list[PrimExpr] = []
    for condition in init_conditions(realize):
        used = set(free_vars(condition))
        if not used & reduced:
            spatial_conditions.append(condition)
        elif used - reduced:
            refuse(
                f"{step} {realize.block.name!r}: its condition mixes reduced and other loops",
                realize,
            )
    return join_conjuncts(spatial_conditions)


def decompose_reduction(
    program: ScheduleProgram, realize: BlockRealize, loop: For
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.decompose_reduction`."""
    step, block = "decompose_reduction", realize.block
    name = block.name
    if block.init is None:
        refuse(f"{step} {name!r}: the block is not a reduction", realize)
    require_top_level_block(step, program, realize)
    require_kind(step, realize, REDUCTION)
    if not program.is_inside(realize, loop):
        refuse(f"{step} {name!r}: the block is not in loop {loop.loop_var.name!r}", loop)
    above = program.loops_above(loop)
    outside = [s.loop_var.name for s in reduce_loops(realize, above)]
    if outside:
        refuse(f"{step} {name!r}: loops {outside} outside {loop.loop_var.name!r} reduce too", loop)
    inner = loops_between(loop, realize, program)
    reduced = {s.loop_var for s in reduce_loops(realize, inner)}
    spatial_vars = set(free_vars(*spatial_values(realize)))
    both = [v.name for v in reduced & spatial_vars]
    if both:
        refuse(f"{step} {name!r}: loop {both[0]!r} is both spatial and reduced", realize)
    for inner_loop in inner:
        if inner_loop.loop_var in reduced and inner_loop.kind is ForKind.THREAD_BINDING:
            refuse(
                f"{step} {name!r}: threads of {(inner_loop.annotations or {})['thread']} "
                "reduce it, each"
                " from the init on",
                inner_loop,
            )
    # Loops of one step outside may be part of an index; they reduce nothing.
    units = [s for s in above if is_const(s.extent, 1)]
    _require_first_step(step, realize, [*units, *inner])
    predicate = _spatial_conditions(step, realize, reduced)
    # Each point is set once, then summed once.
    loop_vars = {s.loop_var for s in inner if not is_const(s.extent, 1)}
    fault = injectivity_error(
        [v for v in realize.iter_values if not is_const(v)],
        loop_ranges(inner),
        determining_vars(inner, loop_vars),
    )
    if fault is not None:
        refuse(
            f"{step} {name!r}: it is not known to run once for each step of its loops: {fault}",
            realize,
        )
    init_name, nest = _init_nest(program, realize, inner, spatial_vars, predicate)
    # The loop is looked up again by variable: after the edit it is another object.
    update = ScheduleProgram(program.replace(block, block.with_fields(init=None)))
    update_loop = update.loops[loop.loop_var]
    return update.replace(update_loop, flatten_seq(nest, update_loop)), [init_name]


def _require_first_step(step: str, realize: BlockRealize, inner: Sequence[For]) -> None:
    """Refuse a block whose loops do not begin its reduction, such as a later region of a loop that
    was cut: its init never runs there.
    """
    for iterator, first in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if iterator.kind is not IterKind.REDUCE:
            continue
        value = first
        # From the innermost loop outwards, since a range may depend on the loops around it.
        for loop in reversed(inner):
            value = substitute(value, {loop.loop_var: loop.min})
        if not is_const(simplify(value), 0):
            refuse(
                f"{step} {realize.block.name!r}: another block begins the reduction over "
                f"{iterator.var.name!r}",
                realize,
            )


def _init_nest(
    program: ScheduleProgram,
    realize: BlockRealize,
    inner: Sequence[For],
    spatial_vars: set[Var],
    predicate: PrimExpr,
) -> tuple[str, Stmt]:
    """Return the init as a block of its own in the spatial loops, with its name."""
    block = realize.block
    assert block.init is not None
    # The range of a loop over parts depends on the loop that counts them, which no iterator uses.
    needed = set(spatial_vars)
    for loop in reversed(inner):
        if loop.loop_var in needed:
            needed.update(free_vars(loop.min, loop.extent))
    spatial_loops = [s for s in inner if s.loop_var in needed]
    renamed: dict[Var, PrimExpr] = {
        s.loop_var: Var(f"{s.loop_var.name}_init", s.loop_var.dtype) for s in spatial_loops
    }
    pairs = [
        (i, v)
        for i, v in zip(block.iter_vars, realize.iter_values, strict=True)
        if i.kind is IterKind.SPATIAL
    ]
    iters: dict[Var, PrimExpr] = {i.var: Var(f"{i.var.name}_init", i.var.dtype) for i, _ in pairs}
    init_name = program.fresh_block_name(f"{block.name}_init")
    new = Block(
        init_name,
        tuple(IterVar(_as_var(iters[i.var]), i.extent, i.kind) for i, _ in pairs),
        substitute_stmt(block.init, iters),
    )
    nest: Stmt = BlockRealize(
        tuple(substitute(v, renamed) for _, v in pairs), substitute(predicate, renamed), new
    )
    for loop in reversed(spatial_loops):
        # A vector of sums begins as a vector; other kinds are decided for the sum alone.
        kind = loop.kind if loop.kind in (ForKind.VECTORIZED, ForKind.UNROLLED) else ForKind.SERIAL
        notes = None if kind is ForKind.SERIAL else loop.annotations
        low, extent = substitute(loop.min, renamed), substitute(loop.extent, renamed)
        nest = For(_as_var(renamed[loop.loop_var]), low, extent, kind, nest, notes)
    return init_name, nest


def _as_var(e: PrimExpr) -> Var:
    assert isinstance(e, Var)
    return e


def merge_reduction(program: ScheduleProgram, init: BlockRealize, update: BlockRealize) -> PrimFunc:
    """See `Schedule.merge_reduction`."""
    step, name = "merge_reduction", update.block.name
    require_top_level_block(step, program, init)
    require_top_level_block(step, program, update)
    require_kind(step, init, COMPLETE)
    require_kind(step, update, UPDATE)
    start, store = single_store(step, init), single_store(step, update)
    buffer = store.buffer
    if start.buffer is not buffer:
        refuse(
            f"{step} {name!r}: block {init.block.name!r} writes {start.buffer.name!r}, the sum "
            f"{buffer.name!r}",
            init,
        )
    # A merged init runs later than before, so it may depend on nothing.
    if free_vars(start.value) or any(block_reads(init.block)):
        refuse(f"{step} {name!r}: block {init.block.name!r} does not set a constant", init)
    if not program.precedes(init, update):
        refuse(f"{step} {name!r}: block {init.block.name!r} does not come before it", init)
    around, first, second = _lowest_common_loops(program, init, update)
    for user in program.writers(buffer) + program.readers(buffer):
        if user not in (init, update) and not program.precedes(update, user):
            refuse(f"{step} {name!r}: block {user.block.name!r} uses {buffer.name!r} before", user)
    shared = [s.loop_var.name for s in reduce_loops(update, around)]
    if shared:
        refuse(f"{step} {name!r}: loops {shared}, which reduce, are around both blocks", update)
    # Elements that only the init wrote would be lost with it.
    _require_same_written_box(step, program, (init, first), (update, second), buffer)
    loops = loops_between(second, update, program)
    _require_single_reduction(step, update, loops)
    body = start.with_fields(indices=store.indices)
    block = update.block.with_fields(init=body)
    func = program.replace(update.block, block)
    after = ScheduleProgram(func)
    return after.replace(after.outermost_perfect_loop(after.blocks[init.block.name]), NO_OP)


def _lowest_common_loops(
    program: ScheduleProgram, a: Stmt, b: Stmt
) -> tuple[list[For], Stmt, Stmt]:
    """Return the loops around both of two statements, and the statements below them that contain
    each.
    """
    x, y = program.path_to(a), program.path_to(b)
    n = next(n for n, (p, q) in enumerate(zip(x, y, strict=False)) if p is not q)
    return [s for s in x[:n] if isinstance(s, For)], x[n], y[n]


def _require_same_written_box(
    step: str,
    program: ScheduleProgram,
    init: tuple[BlockRealize, Stmt],
    update: tuple[BlockRealize, Stmt],
    buffer: Buffer,
) -> None:
    """Require that the init sets exactly the elements that the update accumulates."""
    name = update[0].block.name
    boxes = [written_region(program, root, buffer, realize) for realize, root in (init, update)]
    for box, (realize, _) in zip(boxes, (init, update), strict=True):
        if isinstance(box, str):
            refuse(f"{step} {name!r}: {box}", realize)
    analyzer = bound_analyzer(program.loops_above(init[0]))
    for axis, (a, b) in enumerate(zip(*boxes, strict=True)):
        same = analyzer.can_prove_equal(a.min, b.min)
        if not same or not analyzer.can_prove_equal(a.extent, b.extent):
            refuse(
                f"{step} {name!r}: block {init[0].block.name!r} does not set what it sums up "
                f"(axis {axis} of {buffer.name!r})",
                init[0],
            )


def _require_single_reduction(step: str, update: BlockRealize, loops: Sequence[For]) -> None:
    """Require that each point's reduction runs once per iteration and starts where all reduction
    iterators are 0.
    """
    name = update.block.name
    reduced = {s.loop_var for s in reduce_loops(update, loops)}
    both = [v.name for v in free_vars(*spatial_values(update)) if v in reduced]
    if both:
        refuse(f"{step} {name!r}: loop {both[0]!r} is both spatial and reduced", update)
    loop_vars = {s.loop_var for s in loops if not is_const(s.extent, 1)}
    values = [v for v in update.iter_values if not is_const(v)]
    fault = injectivity_error(values, loop_ranges(loops), loop_vars)
    if fault is not None:
        refuse(
            f"{step} {name!r}: it is not known to run once for each step of its loops: {fault}",
            update,
        )
    analyzer = bound_analyzer(loops)
    start: dict[Var, PrimExpr] = {s.loop_var: s.min for s in loops}
    for i, v in zip(update.block.iter_vars, update.iter_values, strict=True):
        if i.kind is IterKind.REDUCE and not is_const(analyzer.simplify(substitute(v, start)), 0):
            refuse(f"{step} {name!r}: its sum does not begin at 0", update)


def rfactor(program: ScheduleProgram, loop: For, factor_axis: int) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.rfactor`."""
    step, var = "rfactor", loop.loop_var
    blocks = program.outermost_blocks(loop)
    if len(blocks) != 1:
        names = [b.block.name for b in blocks]
        refuse(f"{step} {var.name!r}: expected one block in the loop, got {names}", loop)
    realize = blocks[0]
    name = realize.block.name
    require_top_level_block(step, program, realize)
    require_kind(step, realize, REDUCTION)
    store = single_store(step, realize)
    require_sole_writer(step, program, realize, store.buffer)
    nest = program.outermost_perfect_loop(realize)
    loops = loops_between(nest, realize, program)
    if var in free_vars(*spatial_values(realize)):
        refuse(f"{step} {var.name!r}: block {name!r} is spatial in it", realize)
    if loop not in reduce_loops(realize, loops):
        refuse(f"{step} {var.name!r}: block {name!r} does not reduce over it", realize)
    reduced = reduce_loops(realize, loops)
    if reduce_loops(realize, program.loops_above(nest)):
        refuse(f"{step} {var.name!r}: block {name!r} reduces over loops further out", realize)
    spatial_vars = set(free_vars(*spatial_values(realize)))
    for reduced_loop in reduced:
        if reduced_loop.loop_var in spatial_vars:
            refuse(
                f"{step}: loop {reduced_loop.loop_var.name!r} is both spatial and reduced", realize
            )
        if not is_const(reduced_loop.min, 0):
            refuse(f"{step}: loop {reduced_loop.loop_var.name!r} must start at 0", reduced_loop)
    _require_single_reduction(step, realize, loops)
    rank = len(store.buffer.shape)
    if not -rank - 1 <= factor_axis <= rank:
        refuse(
            f"{step} {var.name!r}: factor_axis must be from {-rank - 1} to {rank}, got "
            f"{factor_axis}",
            loop,
        )
    axis = factor_axis % (rank + 1)
    # One partial result per iteration of the loop: these are independent, so the loop may then be
    # parallel, vectorised or bound to threads.
    shape = (*store.buffer.shape[:axis], loop.extent, *store.buffer.shape[axis:])
    partial = Buffer(
        program.fresh_buffer_name(f"{store.buffer.name}_rf"), shape, store.buffer.dtype
    )
    factored_blocks = _FactoredReduction(
        step, program, realize, store, loop, reduced, partial, axis
    )
    spatial_loops = [s for s in loops if s not in reduced]
    first = wrap_in_loops(loops, factored_blocks.partial_block())
    second = _wrap_in_fresh_loops(spatial_loops, loop, factored_blocks.combining_block())
    func = program.replace(nest, flatten_seq(first, second))
    return add_allocation(func, partial), [factored_blocks.partial_block_name]


def _wrap_in_fresh_loops(spatial: Sequence[For], loop: For, body: Stmt) -> Stmt:
    """Wrap a body in copies of the spatial loops and the factored one with fresh variables."""
    loops = [*spatial, loop]
    names: dict[Var, PrimExpr] = {s.loop_var: Var(s.loop_var.name, s.loop_var.dtype) for s in loops}
    body = substitute_loop_vars(body, names)
    for loop_to_copy in reversed(loops):
        new = _as_var(names[loop_to_copy.loop_var])
        low, extent = substitute(loop_to_copy.min, names), substitute(loop_to_copy.extent, names)
        body = serial_loop(new, extent, body).with_fields(min=low)
    return body


# With P[k0, i] = sum over k1 and C[i] = sum over k0 of P: the same terms in another order. That is
# exact for integers, minima and maxima; sums of floats round differently, which asking for rfactor
# accepts. A condition on reduced loops becomes a choice of the identity in the first block, whose
# steps all run then; one on the others stays the predicate of both.
class _FactoredReduction:
    """The two blocks that rfactor turns a reduction into."""

    def __init__(
        self,
        step: str,
        program: ScheduleProgram,
        realize: BlockRealize,
        store: BufferStore,
        loop: For,
        reduced: Sequence[For],
        partial: Buffer,
        axis: int,
    ) -> None:
        self.realize, self.store, self.loop = realize, store, loop
        self.reduced, self.partial, self.axis = reduced, partial, axis
        self.partial_block_name = program.fresh_block_name(f"{realize.block.name}_rf")
        update = match_update(store)
        if update is None:
            refuse(
                f"{step} {loop.loop_var.name!r}: block {realize.block.name!r} is not a sum, "
                "product, minimum or maximum of one value",
                realize,
            )
        self.op, self.value = update
        init = realize.block.init
        assert isinstance(init, BufferStore)
        self.identity = init.value
        names = {s.loop_var for s in reduced}
        self.inner_loops = [c for c in split_conjuncts(realize.predicate) if uses_any_var(c, names)]
        self.outer_loops = [
            c for c in split_conjuncts(realize.predicate) if not uses_any_var(c, names)
        ]
        for condition in self.inner_loops:
            if set(free_vars(condition)) - names:
                refuse(
                    f"{step}: the condition of block {realize.block.name!r} mixes reduced and "
                    "other loops",
                    realize,
                )

    def _insert_factor_index(
        self, indices: Sequence[PrimExpr], inserted: PrimExpr
    ) -> tuple[PrimExpr, ...]:
        return (*indices[: self.axis], inserted, *indices[self.axis :])

    def partial_block(self) -> BlockRealize:
        """Return the block of partial sums over the other reduced loops, one per iteration of the
        factored loop.
        """
        block = self.realize.block
        spatial = [
            (i, v)
            for i, v in zip(block.iter_vars, self.realize.iter_values, strict=True)
            if i.kind is IterKind.SPATIAL
        ]
        names: dict[Var, PrimExpr] = {i.var: Var(i.var.name, i.var.dtype) for i, _ in spatial}
        loops = {s.loop_var: Var(f"v{s.loop_var.name}", s.loop_var.dtype) for s in self.reduced}
        values: dict[Var, PrimExpr] = dict(names)
        as_iters: dict[Var, PrimExpr] = dict(loops)
        for i, v in zip(block.iter_vars, self.realize.iter_values, strict=True):
            if i.kind is IterKind.REDUCE:
                values[i.var] = substitute(v, as_iters)
        factor = loops[self.loop.loop_var]
        iters = [IterVar(factor, self.loop.extent, IterKind.SPATIAL)]  # TVM's order
        iters.extend(IterVar(_as_var(names[i.var]), i.extent, i.kind) for i, _ in spatial)
        inner_reduced = [s for s in self.reduced if s is not self.loop]
        iters.extend(IterVar(loops[s.loop_var], s.extent, IterKind.REDUCE) for s in inner_reduced)
        indices = tuple(substitute(i, values) for i in self.store.indices)
        partial_indices = self._insert_factor_index(indices, factor)
        value = substitute(self.value, values)
        if self.inner_loops:
            condition = substitute(join_conjuncts(self.inner_loops), as_iters)
            # The predicate's reduction part becomes a select: a masked term contributes the
            # identity, so that every partial result is defined.
            value = if_then_else(condition, value, self.identity)
        init: Stmt | None = BufferStore(self.partial, self.identity, partial_indices)
        if inner_reduced:
            value = fold_binary(
                self.op, BufferLoad(self.partial, partial_indices, self.partial.dtype), value
            )
        else:
            # No other loop is reduced: each partial result is a single term.
            init = None
        bound = (self.loop.loop_var, *(v for _, v in spatial), *(s.loop_var for s in inner_reduced))
        sums = BufferStore(self.partial, value, partial_indices)
        block_rf = Block(self.partial_block_name, tuple(iters), sums, init, block.annotations)
        return BlockRealize(bound, join_conjuncts(self.outer_loops), block_rf)

    def combining_block(self) -> BlockRealize:
        """Return the block that sums the partial results over the factored loop."""
        block = self.realize.block
        pairs = [
            (i, v)
            for i, v in zip(block.iter_vars, self.realize.iter_values, strict=True)
            if i.kind is IterKind.SPATIAL
        ]
        factor = Var(f"v{self.loop.loop_var.name}", self.loop.loop_var.dtype)
        iters = (IterVar(factor, self.loop.extent, IterKind.REDUCE), *(i for i, _ in pairs))
        value = BufferLoad(
            self.partial, self._insert_factor_index(self.store.indices, factor), self.partial.dtype
        )
        own = BufferLoad(self.store.buffer, self.store.indices, self.partial.dtype)
        body = self.store.with_fields(value=fold_binary(self.op, own, value))
        new = block.with_fields(iter_vars=iters, body=body)
        bound = (self.loop.loop_var, *(v for _, v in pairs))
        return BlockRealize(bound, join_conjuncts(self.outer_loops), new)
