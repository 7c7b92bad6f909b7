"""The primitive partition_by_conditions: cut a loop by where the conditions in a block hold.

    for t in 8: for p in 7: for k in 3:                  a border of zeros in tiles of seven pixels
        y[t*7 + p] += (x[t*7 + p + k - 1] if 0 <= t*7 + p + k - 1 < 56 else 0) * w[k]
    -> partition_by_conditions(y, t)
    for t in 1: ... (x[p + k - 1] if 0 <= p + k - 1 ...) * w[k]          block y_edge
    for t in 6: ... x[t*7 + p + k + 6] * w[k]                            block y
    for t in 1: ... (x[p + k + 48] if p + k + 48 < 56 ...) * w[k]        block y_edge_1

This is index set splitting (Griebl, Feautrier and Lengauer, 2000). Sizes that are known are
enumerated; of a linear condition on a loop of unknown extent, `c * i + rest >= 0`, the iterations
in which it holds for all iterations of the loops inside are computed:

    i >= ceil(-min(rest) / c)  for c > 0,      i <= floor(min(rest) / -c)  for c < 0

Proved: a condition is left out of a block only if it holds at all points of its iterators, which in
a region run over the region only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ekiden.arith import Analyzer, evaluate, simplify
from ekiden.ir.prim import (
    IntImm,
    PrimExpr,
    SizeVar,
    Var,
    const,
    is_const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.predicates import split_conjuncts
from ekiden.tir.schedule.legality import require_top_level_block
from ekiden.tir.schedule.linear_conditions import (
    LinearCondition,
    linear_condition,
    match_select,
    value_range,
    without_conjuncts,
)
from ekiden.tir.schedule.loops import (
    copy_with_fresh_names,
    require_unscheduled_loop,
    substitute_and_simplify,
)
from ekiden.tir.schedule.program import (
    PART_EXTENT_BOUND_ANNOTATION,
    PART_OF_ANNOTATION,
    ScheduleProgram,
    bound_analyzer,
    loops_between,
    refuse,
    serial_loop,
    to_index_dtype,
)
from ekiden.tir.schedule.zero_terms import MAX_ENUMERATED_POINTS
from ekiden.tir.stmt import Block, BlockRealize, For, IterKind, IterVar, PrimFunc, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator, all_exprs, flatten_seq, pre_order_stmts
from ekiden.tir.visitor import substitute as substitute_stmt

PARTITION = "partition_by_conditions"
MAX_REGIONS = 32
"""Maximum number of regions of a loop: each is a copy of its body."""
EDGE_SUFFIX, INNER_SUFFIX = "_edge", "_inner"
"""Suffixes of blocks in regions where some condition does not always hold, and where all do."""

Outcomes = tuple[bool | None, ...]
"""For each condition: whether it holds in all iterations, in none (False), or in some (None)."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """A conjunct of a condition in a block, and the same in loop variables."""

    conjunct: PrimExpr
    at_loops: PrimExpr


@dataclass(frozen=True, slots=True)
class _Region:
    """Consecutive iterations of a loop, and what is known of its conditions in all of them."""

    begin: PrimExpr
    extent: PrimExpr
    outcomes: Outcomes
    parts: Mapping[Var, tuple[int, int]]
    """Inner loops over parts of equal size: the first part's begin, and the size."""

    def bounds_of(
        self, value: PrimExpr, loop: For, inner: Sequence[For]
    ) -> tuple[PrimExpr, PrimExpr] | None:
        """Return (least value, number of values) of an iterator's binding in the region; None where
        the binding does not depend on the loop, or not in a way that is known.
        """
        region = loop.with_fields(min=self.begin, extent=self.extent)
        loops = [region]
        for s in inner:
            part = self.parts.get(s.loop_var)
            if part is None:
                loops.append(s)
            elif value is s.loop_var:
                return const(part[0], value.dtype), self.extent * part[1]
        if loop.loop_var not in free_vars(value):
            return None
        bounds = value_range(value, loops)
        # Iterators have a range of their own, which knows no loop.
        if bounds is None or not all(isinstance(v, SizeVar) for v in free_vars(*bounds)):
            return None
        low, high = (to_index_dtype(e, value.dtype) for e in bounds)
        return low, simplify(high - low)

    @property
    def is_symbolic(self) -> bool:
        """Return whether bounds were computed and not enumerated."""
        return not (isinstance(self.begin, IntImm) and isinstance(self.extent, IntImm))

    @property
    def is_inner(self) -> bool:
        """Return whether all conditions are decided."""
        return None not in self.outcomes


def partition_by_conditions(
    program: ScheduleProgram, realize: BlockRealize, loop: For
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.partition_by_conditions`."""
    name, loop_name = realize.block.name, loop.loop_var.name
    require_top_level_block(PARTITION, program, realize)
    require_unscheduled_loop(PARTITION, loop)
    if not program.is_inside(realize, loop):
        refuse(f"{PARTITION} {name!r}: the block is not in loop {loop_name!r}", loop)
    inner = loops_between(loop, realize, program)[1:]
    moving = {loop.loop_var}
    for inner_loop in inner:
        if moving & set(free_vars(inner_loop.min, inner_loop.extent)):
            moving.add(inner_loop.loop_var)
    conditions = [
        c for c in _conditions_of(realize) if not moving.isdisjoint(free_vars(c.at_loops))
    ]
    if not conditions:
        refuse(f"{PARTITION} {name!r}: no condition in it depends on loop {loop_name!r}", realize)
    points = _Enumeration.create(loop, inner, conditions)
    regions = (
        _symbolic_regions(program, realize, loop, inner, conditions)
        if points is None
        else points.regions()
    )
    if len(regions) > MAX_REGIONS:
        refuse(
            f"{PARTITION} {name!r}: loop {loop_name!r} has {len(regions)} regions, at most "
            f"{MAX_REGIONS} are copied",
            loop,
        )
    analyzer = bound_analyzer(program.loops_above(loop))
    used_names, statements, names = set(program.blocks), [], []
    keeper = next((region for region in regions if region.is_inner), regions[0])
    for region in regions:
        body: Stmt = _region_body(realize, loop, region, conditions, inner, analyzer)
        suffix = ""
        if region is not keeper:
            suffix = _unused_suffix(
                loop, INNER_SUFFIX if region.is_inner else EDGE_SUFFIX, used_names
            )
            body = copy_with_fresh_names(body, suffix)
        statements.append(body)
        names.append(name + suffix)
    return program.replace(loop, flatten_seq(*statements)), names


def _conditions_of(realize: BlockRealize) -> list[_Condition]:
    """Return the conjuncts of the conditions of the expressions in a block."""
    variables = (i.var for i in realize.block.iter_vars)
    values = dict(zip(variables, realize.iter_values, strict=True))
    conjuncts: dict[int, PrimExpr] = {}
    for e in all_exprs(realize.block.body):
        select = match_select(e)
        if select is not None:
            conjuncts.update((id(c), c) for c in split_conjuncts(select[0]))
    return [_Condition(c, substitute(c, values)) for c in conjuncts.values()]


class _Enumeration:
    """The values of a loop and of the loops inside that conditions depend on, all of them known."""

    def __init__(self, loop: For, inner: Sequence[For], conditions: Sequence[_Condition]) -> None:
        assert isinstance(loop.extent, IntImm)
        self.loop, self.inner = loop, inner
        self.extent = loop.extent.value
        variables = [s.loop_var for s in (loop, *inner)]
        self.linear = [
            linear_condition(c.at_loops, [v for v in variables if v in free_vars(c.at_loops)])
            for c in conditions
        ]

    @staticmethod
    def create(
        loop: For, inner: Sequence[For], conditions: Sequence[_Condition]
    ) -> _Enumeration | None:
        """Return the enumeration; None where an extent is not known, or there are too many."""
        enumerated = {loop.loop_var}
        if not (isinstance(loop.extent, IntImm) and is_const(loop.min, 0)):
            return None
        for inner_loop in inner:
            bounds = free_vars(inner_loop.min, inner_loop.extent)
            if all(v is loop.loop_var for v in bounds):
                enumerated.add(inner_loop.loop_var)
        used = {v for c in conditions for v in free_vars(c.at_loops)}
        if not used <= enumerated or loop.extent.value * len(conditions) > MAX_ENUMERATED_POINTS:
            return None
        points = _Enumeration(loop, [s for s in inner if s.loop_var in enumerated], conditions)
        return (
            points if all(form is not None and form.is_static for form in points.linear) else None
        )

    def regions(self) -> list[_Region]:
        """Return the regions: neighbours of the same outcomes, whose loops have the same extents,
        are one, unless a condition holds in some of the iterations inside only.
        """
        moved = [s for s in self.inner if free_vars(s.min, s.extent)]
        boxes = [self.ranges_inside(t) for t in range(self.extent)]
        outcomes = [self.outcomes_at(t, box) for t, box in enumerate(boxes)]

        def merging_key(t: int) -> object:
            extents = tuple(boxes[t][s.loop_var][1] for s in moved)
            return (outcomes[t], extents, t if None in outcomes[t] else -1)

        regions = []
        for _, group in groupby(range(self.extent), merging_key):
            members = list(group)
            first = members[0]
            parts = {}
            for s in moved:
                begin, size = boxes[first][s.loop_var]
                if all(boxes[t][s.loop_var][0] == begin + size * (t - first) for t in members):
                    parts[s.loop_var] = begin, size
            dtype = self.loop.loop_var.dtype
            extent = const(len(members), dtype)
            regions.append(_Region(const(first, dtype), extent, outcomes[first], parts))
        return regions

    def ranges_inside(self, t: int) -> dict[Var, tuple[int, int]]:
        """Return (begin, extent) of the inner loops in one iteration of the loop."""
        at = {self.loop.loop_var: t}
        return {
            s.loop_var: (int(evaluate(s.min, at)), int(evaluate(s.extent, at))) for s in self.inner
        }

    def outcomes_at(self, t: int, box: Mapping[Var, tuple[int, int]]) -> Outcomes:
        """Return the outcomes of the conditions in one iteration of the loop."""
        ranges = {v: (low, low + size - 1) for v, (low, size) in box.items()}
        ranges[self.loop.loop_var] = (t, t)
        outcomes: list[bool | None] = []
        for form in self.linear:
            assert form is not None
            low, high = form.static_range(ranges)
            outcomes.append(True if low >= 0 else False if high < 0 else None)
        return tuple(outcomes)


def _symbolic_regions(
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    inner: Sequence[For],
    conditions: Sequence[_Condition],
) -> list[_Region]:
    """Partition a loop into at most three regions: the middle, in which all linear conditions hold,
    and the iterations before and after it.
    """
    name, var = realize.block.name, loop.loop_var
    above = program.loops_above(loop)
    analyzer = bound_analyzer(above)
    begin, end = loop.min, loop.min + loop.extent
    for condition in conditions:
        form, min_value = _min_value(name, loop, inner, condition)
        is_begin, bound = form.bound(var, min_value)
        begin, end = (maximum(begin, bound), end) if is_begin else (begin, minimum(end, bound))
    last = loop.min + loop.extent
    # All iterations of a short loop may be before the middle, or behind it. Extents are differences
    # of the same points, so that the regions are seen to be disjoint.
    begin = analyzer.simplify(minimum(begin, last))
    end = analyzer.simplify(maximum(begin, end))
    mixed, decided = (None,) * len(conditions), (True,) * len(conditions)
    bounds = ((loop.min, begin, mixed), (begin, end, decided), (end, last, mixed))
    regions = [
        _Region(low, analyzer.simplify(high - low), outcomes, {}) for low, high, outcomes in bounds
    ]
    return [region for region in regions if not is_const(region.extent, 0)]


def _min_value(
    name: str, loop: For, inner: Sequence[For], condition: _Condition
) -> tuple[LinearCondition, PrimExpr]:
    """Return a condition's linear form, and the least value of its terms other than the loop's."""
    used = set(free_vars(condition.at_loops))
    inside = [s for s in inner if s.loop_var in used]
    form = linear_condition(condition.at_loops, [loop.loop_var, *(s.loop_var for s in inside)])
    if form is None or not form.scales[loop.loop_var]:
        refuse(f"{PARTITION} {name!r}: {condition.at_loops} is not linear in its loops", loop)
    min_value, variables = form.rest, {loop.loop_var, *(s.loop_var for s in inner)}
    for s in inside:
        if not variables.isdisjoint(free_vars(s.min, s.extent)):
            refuse(f"{PARTITION} {name!r}: the range of loop {s.loop_var.name!r} varies", loop)
        scale = form.scales[s.loop_var]
        min_value = min_value + scale * (s.min if scale > 0 else s.min + s.extent - 1)
    return form, min_value


# Regions.


def _region_body(
    realize: BlockRealize,
    loop: For,
    region: _Region,
    conditions: Sequence[_Condition],
    inner: Sequence[For],
    analyzer: Analyzer,
) -> For:
    """Return the loop over a region, in which decided conditions are left out of the block."""
    body = _BlockReplacer(realize, _restricted(realize, loop, region, conditions, inner)).visit(
        loop.body
    )
    var = Var(loop.loop_var.name, loop.loop_var.dtype)
    is_unit = is_const(region.extent, 1)
    step: PrimExpr = const(0, var.dtype) if is_unit else var
    for inner_var, (begin, size) in region.parts.items():
        body = _LoopNormalizer(inner_var, step * size + begin, size).visit(body)
    analyzer.bind(var, 0, region.extent)
    body = substitute_and_simplify(body, {loop.loop_var: region.begin + step}, analyzer)
    return serial_loop(var, region.extent, body)


# A block computes the same at every point of its iterators, whatever loops are around it: other
# primitives make loops over all of them. So a condition may be left out of it only if the iterators
# have no point where it does not hold: those that the loop moves begin where the region does.
def _restricted(
    realize: BlockRealize,
    loop: For,
    region: _Region,
    conditions: Sequence[_Condition],
    inner: Sequence[For],
) -> BlockRealize:
    """Return the block whose spatial iterators run over a region only, without the conditions that
    are decided there.
    """
    block, values, moved = realize.block, list(realize.iter_values), {}
    iters = list(block.iter_vars)
    for n, (i, value) in enumerate(zip(iters, values, strict=True)):
        bounds = None if i.kind is not IterKind.SPATIAL else region.bounds_of(value, loop, inner)
        if bounds is not None:
            low, extent = bounds
            # Of a split that rounds up, the last iterations are behind the iterator's range.
            if not Analyzer().can_prove(low + extent <= i.extent):
                extent = simplify(minimum(low + extent, i.extent) - low)
            iters[n] = IterVar(Var(i.var.name, i.var.dtype), extent, i.kind)
            values[n] = value - low
            moved[i.var] = iters[n].var + low
    extents = {i.var: i.extent for i in iters}
    decided = {
        id(c.conjunct): outcome
        for c, outcome in zip(conditions, region.outcomes, strict=True)
        if outcome is not None
        and (
            _holds_by_construction(c, realize, loop, inner)
            if region.is_symbolic
            else _is_decided(substitute(c.conjunct, moved), outcome, extents)
        )
    }
    if not decided:
        return realize
    body = ExprRewriter(lambda e: without_conjuncts(e, decided)).visit(block.body)
    init = None if block.init is None else substitute_stmt(block.init, moved)
    new = Block(block.name, tuple(iters), substitute_stmt(body, moved), init, block.annotations)
    return realize.with_fields(iter_values=tuple(values), block=new)


def _is_decided(condition: PrimExpr, outcome: bool, extents: Mapping[Var, PrimExpr]) -> bool:
    """Return whether a condition has an outcome at all points of iterators of known extents."""
    form = linear_condition(condition, [v for v in extents if v in free_vars(condition)])
    sizes = {v: e.value for v, e in extents.items() if isinstance(e, IntImm)}
    if form is None or not form.is_static or not form.scales.keys() <= sizes.keys():
        return False
    low, high = form.static_range({v: (0, sizes[v] - 1) for v in form.scales})
    return low >= 0 if outcome else high < 0


def _holds_by_construction(
    condition: _Condition, realize: BlockRealize, loop: For, inner: Sequence[For]
) -> bool:
    """Return whether the points of a block's iterators in the middle region are those for which its
    bounds were computed: each iterator is the loop, or the whole of a loop inside.
    """
    loops = {s.loop_var: s for s in inner}
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    for i, value in pairs:
        if i.var not in free_vars(condition.conjunct):
            continue
        if value is loop.loop_var and i.kind is IterKind.SPATIAL:
            continue
        inner_loop = loops.get(value) if isinstance(value, Var) else None
        if inner_loop is None or not is_const(inner_loop.min, 0):
            return False
        if not Analyzer().can_prove_equal(inner_loop.extent, i.extent):
            return False
    return True


class _BlockReplacer(StmtMutator):
    """A mutator that replaces one block."""

    def __init__(self, old: BlockRealize, new: BlockRealize) -> None:
        self._old, self._new = old, new

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        return self._new if stmt is self._old else stmt


class _LoopNormalizer(StmtMutator):
    """Mutator that rebases a loop over equal tiles to begin at 0."""

    def __init__(self, var: Var, begin: PrimExpr, size: int) -> None:
        self._var, self._begin, self._size = var, begin, size

    def visit_for(self, stmt: For) -> Stmt:
        """Rebase the loop if it is the tiled one; otherwise visit its body."""
        if stmt.loop_var is not self._var:
            return stmt.with_fields(body=self.visit(stmt.body))
        var = Var(stmt.loop_var.name, stmt.loop_var.dtype)
        body = substitute_and_simplify(stmt.body, {stmt.loop_var: self._begin + var}, Analyzer())
        annotations = {
            k: v
            for k, v in (stmt.annotations or {}).items()
            if k not in (PART_OF_ANNOTATION, PART_EXTENT_BOUND_ANNOTATION)
        }
        size = const(self._size, var.dtype)
        return For(var, const(0, var.dtype), size, stmt.kind, body, annotations or None)


def _unused_suffix(loop: For, suffix: str, used_names: set[str]) -> str:
    """Return the suffix, numbered if a block's name with it is used; its names are used then."""
    names = [s.name for s in pre_order_stmts(loop) if isinstance(s, Block)]
    candidates = (suffix if n == 0 else f"{suffix}_{n}" for n in range(len(used_names) + 1))
    unused = next(c for c in candidates if used_names.isdisjoint(name + c for name in names))
    used_names.update(name + unused for name in names)
    return unused


__all__ = ["partition_by_conditions"]
