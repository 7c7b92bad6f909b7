"""A primitive on sums: the terms that a remainder makes zero are left out.

    for h, k: c[h] += (x[(h + k) // 2] if (h + k) % 2 == 0 else 0) * w[k]

    for h_rest, h, k: F[h, h_rest] += x[...] * w[2 * k + (-h) % 2]        h + 2 * h_rest for h

A condition `e % s == 0`, in which a reduction iterator k stands once, holds for every s-th k alone:
k becomes s * k + (what k must be modulo s), and the spatial iterators of e are cut into their
remainders and the rest, so that all elements of one remainder take the same k.

What is left out is exact where the condition is over the whole term, and where a factor that is 0
has a partner that is a number whatever is computed: an integer, or, by the word of the program
("tir.fast_math" with "nnan ninf"), no infinity and no NaN. Otherwise 0 * w is NaN where w is
infinite, and the step proves that each w that is left out somewhere is a factor of another sum.
Then no sum is finite that such a w went into: if all sums are finite, all w are, and nothing was
left out but zeros. A block behind the sums looks at them, and computes the sums in full where one
is not finite, be it for its own reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import Add, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.predicates import conjunction
from ekiden.tir.reduction import update_of
from ekiden.tir.schedule.check import (
    require_final_inputs,
    require_outermost,
    require_sole_writer,
    single_store,
)
from ekiden.tir.schedule.finite import Marks
from ekiden.tir.schedule.kinds import REDUCTION, require_kind
from ekiden.tir.schedule.loops import require_plain
from ekiden.tir.schedule.program import Program, allocated, refuse, serial
from ekiden.tir.schedule.zero_terms import (
    Conditional,
    Phases,
    chosen,
    conditional,
    phases_of,
    why_inexact,
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
from ekiden.tir.visitor import sequence
from ekiden.tir.visitor import substitute as substitute_stmt


def skip_zeros(
    program: Program, realize: BlockRealize, lanes: int = 1
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.skip_zeros`."""
    step, name = "skip_zeros", realize.block.name
    if lanes < 1:
        refuse(f"{step} {name!r}: lanes above 0 expected, got {lanes}", realize)
    require_outermost(step, program, realize)
    require_kind(step, realize, REDUCTION)
    store = single_store(step, realize)
    require_sole_writer(step, program, realize, store.buffer)
    require_final_inputs(step, program, realize)
    nest = _plain_nest(step, program, realize)
    found = conditional(program, realize, _term(step, realize, store))
    if found is None:
        refuse(f"{step} {name!r}: no term of it is 0 by a condition", realize)
    phases = phases_of(realize.block, found.parts)
    if not phases.values:
        refuse(f"{step} {name!r}: no remainder says which of its terms are 0", realize)
    if found.partner is None:
        return program.replace(nest, _summed(realize, store.buffer, None, phases, found)), []
    why = why_inexact(realize, found)
    if not why and not any(i.kind is IterKind.SPATIAL for i in realize.block.iter_vars):
        why = "it is a single sum"
    if why:
        refuse(f"{step} {name!r}: {why}", realize)
    sums = _sums_buffer(program, realize, store, phases)
    whole = _Whole(realize, store, sums, phases, lanes).block(program.fresh_block(f"{name}_whole"))
    made = sequence(_summed(realize, sums, _places(realize, phases), phases, found), whole)
    return allocated(program.replace(nest, made), sums), [whole.block.name]


def _plain_nest(step: str, program: Program, realize: BlockRealize) -> Stmt:
    """The loops of a block to which nothing was done: one for each iterator."""
    loops, nest = program.loops_above(realize), program.nest(realize)
    for each in loops:
        require_plain(step, each)
    known = {s.loop_var: s.extent for s in loops if is_const(s.min, 0)}
    values = realize.iter_values
    extents = [known.get(v) if isinstance(v, Var) else None for v in values]
    is_plain = len(set(values)) == len(loops) == len(values) and (not loops or nest is loops[0])
    for iterator, extent in zip(realize.block.iter_vars, extents, strict=True):
        is_plain &= extent is not None and Analyzer().can_prove_equal(extent, iterator.extent)
    if not is_plain or not is_const(realize.predicate, 1):
        refuse(f"{step} {realize.block.name!r}: something was done to its loops before", realize)
    return nest


def _term(step: str, realize: BlockRealize, store: BufferStore) -> PrimExpr:
    """What is added to a sum that begins at 0."""
    update, init = update_of(store), realize.block.init
    is_zero = isinstance(init, BufferStore) and is_const(init.value, 0)
    if update is None or update[0] is not Add or not is_zero:
        refuse(f"{step} {realize.block.name!r}: it is no sum that begins at 0", realize)
    return update[1]


def _in_loops(iters: Sequence[IterVar], body: Callable[[dict[Var, PrimExpr]], Stmt]) -> Stmt:
    """A statement in loops over iterators; `body` is given what each of them is."""
    at: dict[Var, PrimExpr] = {i.var: Var(i.var.name, i.var.dtype) for i in iters}
    made = body(at)
    for each in reversed(iters):
        loop_var = at[each.var]
        assert isinstance(loop_var, Var)
        made = serial(loop_var, each.extent, made)
    return made


def _places(realize: BlockRealize, phases: Phases) -> tuple[PrimExpr, ...]:
    """Where a sum lies among the others, by new iterators: remainders first."""
    remainders = [remainder.var for remainder, _ in phases.spatial.values()]
    spatial = [i.var for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL]
    return (*remainders, *(phases.spatial[v][1].var if v in phases.spatial else v for v in spatial))


def _sums_buffer(
    program: Program, realize: BlockRealize, store: BufferStore, phases: Phases
) -> Buffer:
    spatial = [i for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL]
    shape = [remainder.extent for remainder, _ in phases.spatial.values()]
    shape += [phases.spatial[i.var][1].extent if i.var in phases.spatial else i.extent
              for i in spatial]  # fmt: skip
    name = program.fresh_buffer(f"{store.buffer.name}_sums")
    return Buffer(name, tuple(shape), store.buffer.dtype)


def _summed(
    realize: BlockRealize,
    buffer: Buffer,
    places: Sequence[PrimExpr] | None,
    phases: Phases,
    found: Conditional,
) -> Stmt:
    """The block over the new iterators, remainders first, in loops of its own; its sums go to the
    `places`, of new iterators, of a buffer, or to where they went."""
    block, simplify = realize.block, Analyzer().simplify
    store = block.body
    assert isinstance(store, BufferStore)
    rests = {v: rest for v, (_, rest) in phases.spatial.items()} | phases.reduced
    iters = [remainder for remainder, _ in phases.spatial.values()]
    iters += [rests.get(i.var, i) for i in block.iter_vars]
    indices = [substitute(i, phases.values) for i in store.indices] if places is None else places
    at = tuple(map(simplify, indices))
    term = chosen(phases.taken, substitute(found.term(phases.asked), phases.values))
    body = BufferStore(buffer, BufferLoad(buffer, at, buffer.dtype) + term, at)
    init = BufferStore(buffer, const(0, buffer.dtype), at)
    made = Block(block.name, tuple(iters), body, init, block.annotations)

    def realized(values: dict[Var, PrimExpr]) -> Stmt:
        inside = conjunction(substitute(c, values) for c in phases.inside)
        return BlockRealize(tuple(values[i.var] for i in iters), inside, made)

    return _in_loops(iters, realized)


class _Whole:
    """The block that takes the sums over, and computes them in full where one is not finite."""

    def __init__(
        self, realize: BlockRealize, store: BufferStore, sums: Buffer, phases: Phases, lanes: int
    ) -> None:
        self.sums, self.phases, self.realize, self.store = sums, phases, realize, store
        iters = realize.block.iter_vars
        *self.outer, self.last = [i for i in iters if i.kind is IterKind.SPATIAL]
        self.reduced = [i for i in iters if i.kind is IterKind.REDUCE]
        is_row = store.indices[-1] is self.last.var and self.last.var not in phases.spatial
        last = self.last.var
        self.marks = Marks(last.name, last.dtype, self.last.extent, lanes if is_row else 1)

    def block(self, name: str) -> BlockRealize:
        """It has no iterators: no other step looks inside."""
        marks = self.marks
        body = sequence(
            marks.cleared(),
            _in_loops(self.outer, self.taken_over),
            marks.gathered(),
            IfThenElse(marks.flag > 0, self.in_full()),
        )
        made = Block(name, (), marks.within(Allocate(marks.any, body)))
        return BlockRealize((), const(True), made)

    def taken_over(self, values: dict[Var, PrimExpr]) -> Stmt:
        """A row of sums to where they belong, and for each place whether one is not finite."""

        def taken(at: PrimExpr) -> Stmt:
            """One sum, and the mark of its column."""
            here = {**values, self.last.var: at}
            value = BufferLoad(self.sums, self.place(here), self.sums.dtype)
            return sequence(
                BufferStore(self.store.buffer, value, self.indices(here)),
                self.marks.marked(at, value),
            )

        return self.marks.row(taken)

    def place(self, here: dict[Var, PrimExpr]) -> tuple[PrimExpr, ...]:
        """Where the sum of a place of the result lies."""
        steps = {v: remainder.extent for v, (remainder, _) in self.phases.spatial.items()}
        first = [here[v] % step for v, step in steps.items()]
        spatial = (*self.outer, self.last)
        rest = [here[i.var] // steps[i.var] if i.var in steps else here[i.var] for i in spatial]
        return tuple(map(Analyzer().simplify, (*first, *rest)))

    def indices(self, here: dict[Var, PrimExpr]) -> tuple[PrimExpr, ...]:
        """Of a place of the result."""
        return tuple(substitute(i, here) for i in self.store.indices)

    def in_full(self) -> Stmt:
        """All terms of all sums."""
        zero = const(0, self.store.buffer.dtype)

        def of_row(values: dict[Var, PrimExpr]) -> Stmt:
            """A row set to zero, then every term added to it, those with zeros too."""

            def cleared(at: PrimExpr) -> Stmt:
                here = {**values, self.last.var: at}
                return BufferStore(self.store.buffer, zero, self.indices(here))

            def added(terms: dict[Var, PrimExpr]) -> Stmt:
                """One term of each sum of the row."""
                known = {**values, **terms}
                return self.marks.row(
                    lambda at: substitute_stmt(self.store, {**known, self.last.var: at})
                )

            return sequence(self.marks.row(cleared), _in_loops(self.reduced, added))

        return _in_loops(self.outer, of_row)


__all__ = ["skip_zeros"]
