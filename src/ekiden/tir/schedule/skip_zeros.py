"""The primitive skip_zeros: omit the terms of a sum that a remainder makes zero, as in transposed
convolution.

    for h, k: c[h] += (x[(h + k) // 2] if (h + k) % 2 == 0 else 0) * w[k]
    for h_rest, h, k: F[h, h_rest] += x[...] * w[2 * k + (-h) % 2]        h + 2 * h_rest for h

A condition `e % s == 0`, in which a reduction iterator k occurs once, holds for every s-th k only:
k becomes s * k + (the required residue of k modulo s), and the spatial iterators of e are split
into residue and quotient, so that all elements of one residue use the same k.

The omission is exact where the condition covers the whole term, and where the other factor of a
zero is certainly finite: an integer, or, by the program's declaration ("tir.fast_math" with "nnan
ninf"), no infinity and no NaN. Otherwise 0 * w is NaN where w is infinite, and the primitive proves
that each omitted w is a factor of another sum. No sum with an infinite w is finite: if all sums are
finite, all w are, and only zeros were omitted. A block behind the sums checks them, and recomputes
the sums in full where one is not finite, for whatever reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import Add, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.predicates import join_conjuncts
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.block_kinds import REDUCTION, require_kind
from ekiden.tir.schedule.finiteness_checks import NonFiniteFlags
from ekiden.tir.schedule.legality import (
    require_final_inputs,
    require_sole_writer,
    require_top_level_block,
    single_store,
)
from ekiden.tir.schedule.loops import require_unscheduled_loop
from ekiden.tir.schedule.program import ScheduleProgram, add_allocation, refuse, serial_loop
from ekiden.tir.schedule.zero_terms import (
    ConditionalTerm,
    ResidueSplit,
    match_conditional_term,
    nonfinite_factor_fault,
    select_or_zero,
    split_by_residue,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    IfThenElse,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import flatten_seq
from ekiden.tir.visitor import substitute as substitute_stmt


def skip_zeros(
    program: ScheduleProgram, realize: BlockRealize, lanes: int = 1
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.skip_zeros`."""
    step, name = "skip_zeros", realize.block.name
    if lanes < 1:
        refuse(f"{step} {name!r}: lanes above 0 expected, got {lanes}", realize)
    require_top_level_block(step, program, realize)
    require_kind(step, realize, REDUCTION)
    store = single_store(step, realize)
    require_sole_writer(step, program, realize, store.buffer)
    require_final_inputs(step, program, realize)
    nest = _require_unscheduled_nest(step, program, realize)
    term_condition = match_conditional_term(program, realize, _sum_term(step, realize, store))
    if term_condition is None:
        refuse(f"{step} {name!r}: no term of it is 0 by a condition", realize)
    phases = split_by_residue(realize.block, term_condition.conjuncts)
    if not phases.values:
        refuse(f"{step} {name!r}: no remainder says which of its terms are 0", realize)
    # Without another factor the omitted terms are exactly 0: there is nothing to check.
    if term_condition.other_factor is None:
        return program.replace(
            nest, _create_sum_nest(realize, store.buffer, None, phases, term_condition)
        ), []
    # 0 * infinity is NaN: leaving out zero terms is exact only if every omitted factor is finite,
    # which the sums themselves can show.
    why = nonfinite_factor_fault(realize, term_condition)
    if not why and not any(i.kind is IterKind.SPATIAL for i in realize.block.iter_vars):
        why = "it is a single sum"
    if why:
        refuse(f"{step} {name!r}: {why}", realize)
    sums = _create_sums_buffer(program, realize, store, phases)
    check_block = _FinitenessFallback(realize, store, sums, phases, lanes).create_block(
        program.fresh_block_name(f"{name}_whole")
    )
    stmt = flatten_seq(
        _create_sum_nest(realize, sums, _residue_indices(realize, phases), phases, term_condition),
        check_block,
    )
    return add_allocation(program.replace(nest, stmt), sums), [check_block.block.name]


def _require_unscheduled_nest(step: str, program: ScheduleProgram, realize: BlockRealize) -> Stmt:
    """Return the unscheduled loop nest of a block: one plain loop per iterator."""
    loops, nest = program.loops_above(realize), program.outermost_perfect_loop(realize)
    for loop in loops:
        require_unscheduled_loop(step, loop)
    extent_by_var = {s.loop_var: s.extent for s in loops if is_const(s.min, 0)}
    values = realize.iter_values
    extents = [extent_by_var.get(v) if isinstance(v, Var) else None for v in values]
    is_plain = len(set(values)) == len(loops) == len(values) and (not loops or nest is loops[0])
    for iterator, extent in zip(realize.block.iter_vars, extents, strict=True):
        is_plain &= extent is not None and Analyzer().can_prove_equal(extent, iterator.extent)
    if not is_plain or not is_const(realize.predicate, 1):
        refuse(f"{step} {realize.block.name!r}: something was done to its loops before", realize)
    return nest


def _sum_term(step: str, realize: BlockRealize, store: BufferStore) -> PrimExpr:
    """Return what is added to a sum that starts at 0."""
    update, init = match_update(store), realize.block.init
    is_zero = isinstance(init, BufferStore) and is_const(init.value, 0)
    if update is None or update[0] is not Add or not is_zero:
        refuse(f"{step} {realize.block.name!r}: it is no sum that begins at 0", realize)
    return update[1]


def _nest_over_iterators(
    iters: Sequence[IterVar], body: Callable[[dict[Var, PrimExpr]], Stmt]
) -> Stmt:
    """Return a statement in loops over iterators; `body` is passed their values."""
    loop_vars: dict[Var, PrimExpr] = {i.var: Var(i.var.name, i.var.dtype) for i in iters}
    stmt = body(loop_vars)
    for iter_var in reversed(iters):
        loop_var = loop_vars[iter_var.var]
        assert isinstance(loop_var, Var)
        stmt = serial_loop(loop_var, iter_var.extent, stmt)
    return stmt


def _residue_indices(realize: BlockRealize, phases: ResidueSplit) -> tuple[PrimExpr, ...]:
    """Return a sum's indices in the buffer of sums, in new iterators: residues first."""
    remainders = [remainder.var for remainder, _ in phases.spatial.values()]
    spatial = [i.var for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL]
    return (*remainders, *(phases.spatial[v][1].var if v in phases.spatial else v for v in spatial))


def _create_sums_buffer(
    program: ScheduleProgram, realize: BlockRealize, store: BufferStore, phases: ResidueSplit
) -> Buffer:
    spatial = [i for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL]
    shape = [remainder.extent for remainder, _ in phases.spatial.values()]
    shape += [phases.spatial[i.var][1].extent if i.var in phases.spatial else i.extent
              for i in spatial]  # fmt: skip
    name = program.fresh_buffer_name(f"{store.buffer.name}_sums")
    return Buffer(name, tuple(shape), store.buffer.dtype)


def _create_sum_nest(
    realize: BlockRealize,
    buffer: Buffer,
    target_indices: Sequence[PrimExpr] | None,
    phases: ResidueSplit,
    term_condition: ConditionalTerm,
) -> Stmt:
    """Return the block over the new iterators, residues first, in loops of its own; the sums go to
    `target_indices` of a buffer, or to their original elements.
    """
    block, simplify = realize.block, Analyzer().simplify
    store = block.body
    assert isinstance(store, BufferStore)
    quotients = {v: quotient for v, (_, quotient) in phases.spatial.items()} | phases.reduced
    iters = [remainder for remainder, _ in phases.spatial.values()]
    iters += [quotients.get(i.var, i) for i in block.iter_vars]
    indices = (
        [substitute(i, phases.values) for i in store.indices]
        if target_indices is None
        else target_indices
    )
    sum_indices = tuple(map(simplify, indices))
    term = select_or_zero(
        phases.term_conditions,
        substitute(term_condition.term(phases.required_residues), phases.values),
    )
    body = BufferStore(buffer, BufferLoad(buffer, sum_indices, buffer.dtype) + term, sum_indices)
    init = BufferStore(buffer, const(0, buffer.dtype), sum_indices)
    block_new = Block(block.name, tuple(iters), body, init, block.annotations)

    def bind_block(values: dict[Var, PrimExpr]) -> Stmt:
        inside = join_conjuncts(substitute(c, values) for c in phases.point_conditions)
        return BlockRealize(tuple(values[i.var] for i in iters), inside, block_new)

    return _nest_over_iterators(iters, bind_block)


class _FinitenessFallback:
    """The block that copies the sums to their destination, and recomputes them in full where one is
    not finite.
    """

    def __init__(
        self,
        realize: BlockRealize,
        store: BufferStore,
        sums: Buffer,
        phases: ResidueSplit,
        lanes: int,
    ) -> None:
        self.sums, self.phases, self.realize, self.store = sums, phases, realize, store
        iters = realize.block.iter_vars
        *self.outer, self.last = [i for i in iters if i.kind is IterKind.SPATIAL]
        self.reduce_loops = [i for i in iters if i.kind is IterKind.REDUCE]
        # Vectors need neighbours in memory: the last axis, and not one that residues split.
        is_row = store.indices[-1] is self.last.var and self.last.var not in phases.spatial
        last = self.last.var
        self.nonfinite_flags = NonFiniteFlags(
            last.name, last.dtype, self.last.extent, lanes if is_row else 1
        )

    def create_block(self, name: str) -> BlockRealize:
        """Return the block. It has no iterators: no other primitive transforms its body."""
        marks = self.nonfinite_flags
        body = flatten_seq(
            marks.emit_clear(),
            _nest_over_iterators(self.outer, self.copy_row),
            marks.emit_combine(),
            IfThenElse(marks.combined_flag > 0, self.recompute_all()),
        )
        fallback = Block(name, (), marks.allocate_around(Allocate(marks.any_flag, body)))
        return BlockRealize((), const(True), fallback)

    def copy_row(self, values: dict[Var, PrimExpr]) -> Stmt:
        """Return a row's copy to its destination with a finiteness flag per column."""

        def copy_element(column: PrimExpr) -> Stmt:
            """Copy one sum and set its column's flag."""
            values_at = {**values, self.last.var: column}
            value = BufferLoad(self.sums, self.sums_indices(values_at), self.sums.dtype)
            return flatten_seq(
                BufferStore(self.store.buffer, value, self.result_indices(values_at)),
                self.nonfinite_flags.emit_mark(column, value),
            )

        return self.nonfinite_flags.emit_row_loop(copy_element)

    def sums_indices(self, iter_values: dict[Var, PrimExpr]) -> tuple[PrimExpr, ...]:
        """Return the sum's indices for an element of the result."""
        steps = {v: remainder.extent for v, (remainder, _) in self.phases.spatial.items()}
        residues = [iter_values[v] % step for v, step in steps.items()]
        spatial = (*self.outer, self.last)
        quotients = [
            iter_values[i.var] // steps[i.var] if i.var in steps else iter_values[i.var]
            for i in spatial
        ]
        return tuple(map(Analyzer().simplify, (*residues, *quotients)))

    def result_indices(self, iter_values: dict[Var, PrimExpr]) -> tuple[PrimExpr, ...]:
        """Return an element's indices in the result."""
        return tuple(substitute(i, iter_values) for i in self.store.indices)

    def recompute_all(self) -> Stmt:
        """Return the recomputation of all sums with all terms."""
        zero = const(0, self.store.buffer.dtype)

        def recompute_row(values: dict[Var, PrimExpr]) -> Stmt:
            """Clear a row, then add every term to it, zero ones included."""

            def clear_element(column: PrimExpr) -> Stmt:
                iter_values = {**values, self.last.var: column}
                return BufferStore(self.store.buffer, zero, self.result_indices(iter_values))

            def add_terms(terms: dict[Var, PrimExpr]) -> Stmt:
                """Add one term of each sum of the row."""
                iter_values = {**values, **terms}
                return self.nonfinite_flags.emit_row_loop(
                    lambda at: substitute_stmt(self.store, {**iter_values, self.last.var: at})
                )

            return flatten_seq(
                self.nonfinite_flags.emit_row_loop(clear_element),
                _nest_over_iterators(self.reduce_loops, add_terms),
            )

        return _nest_over_iterators(self.outer, recompute_row)


__all__ = ["skip_zeros"]
