"""Analysis for `skip_zeros` and `skip_turns`: which terms of a sum are conditionally zero, and the
residue classes of the iterators of those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import product
from math import prod

from ekiden.arith import Analyzer, evaluate
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    EQ,
    FloorMod,
    IntImm,
    Intrinsic,
    Mul,
    PrimExpr,
    Select,
    Var,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import BufferLoad
from ekiden.tir.predicates import join_conjuncts, split_conjuncts
from ekiden.tir.schedule.block_kinds import COMPLETE, classify_block
from ekiden.tir.schedule.program import ScheduleProgram, block_writes
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, IterKind, IterVar, PrimFunc

MAX_ENUMERATED_POINTS = 1 << 14
"""Maximum number of points of the conditions' iterators that are enumerated."""
FINITE_MATH_FLAGS = {"nnan", "ninf"}
"""Flags of tir.fast_math that together assume finite numbers."""


@dataclass(frozen=True)
class ConditionalTerm:
    """A term that is 0, or has a zero factor, unless all `parts` hold.

    term: builds the term under the conditions that must be tested. partner: the other factor; None
    where there is none or it is certainly finite.
    """

    conjuncts: list[PrimExpr]
    term: Callable[[list[PrimExpr]], PrimExpr]
    other_factor: PrimExpr | None = None


def match_conditional_term(
    program: ScheduleProgram, realize: BlockRealize, term: PrimExpr
) -> ConditionalTerm | None:
    """Return how a term is conditional: as a whole, by a factor, or by the computation of a factor;
    None if it is not.
    """
    choice = _match_select_or_zero(term)
    if choice is not None:
        value = choice[1]
        return ConditionalTerm(choice[0], lambda tested: select_or_zero(tested, value))
    if not isinstance(term, Mul):
        return None
    # For floats 0 * x is NaN where x is infinite or NaN, so the other factor matters unless
    # fast-math flags rule that out.
    exact = not dt.is_float(term.dtype) or _assumes_finite_math(program.func)
    for factor, other_factor in ((term.a, term.b), (term.b, term.a)):
        partner = None if exact else other_factor
        own = _match_select_or_zero(factor)
        if own is not None:
            return _conditional_product(own[0], own[1], other_factor, partner)
        producer_conditions = _producer_conditions(program, realize, factor)
        if producer_conditions is not None:
            return ConditionalTerm(producer_conditions, lambda _: term, partner)
    return None


def _conditional_product(
    conditions_of_factor: list[PrimExpr],
    value: PrimExpr,
    other_factor: PrimExpr,
    partner: PrimExpr | None,
) -> ConditionalTerm:
    return ConditionalTerm(
        conditions_of_factor, lambda tested: select_or_zero(tested, value) * other_factor, partner
    )


def _match_select_or_zero(e: PrimExpr) -> tuple[list[PrimExpr], PrimExpr] | None:
    """Return (conditions, value) of `value if conditions else 0`, or None."""
    match e:
        case Intrinsic(op="if_then_else", args=(condition, value, otherwise)):
            pass
        case Select(condition=condition, true_value=value, false_value=otherwise):
            pass
        case _:
            return None
    return (split_conjuncts(condition), value) if is_const(otherwise, 0) else None


def select_or_zero(tested: list[PrimExpr], value: PrimExpr) -> PrimExpr:
    """Return the value where all conditions hold, else 0."""
    return if_then_else(join_conjuncts(tested), value, const(0, value.dtype)) if tested else value


def _producer_conditions(
    program: ScheduleProgram, realize: BlockRealize, factor: PrimExpr
) -> list[PrimExpr] | None:
    """Return the conditions without which the producer of the element that a factor reads stored 0,
    or None.
    """
    if not isinstance(factor, BufferLoad) or program.is_param(factor.buffer):
        return None
    writers = program.writers(factor.buffer)
    if len(writers) != 1 or not program.precedes(writers[0], realize):
        return None
    block = writers[0].block
    if classify_block(block).kind != COMPLETE or not isinstance(block.body, BufferStore):
        return None
    choice = _match_select_or_zero(block.body.value)
    at = [i for i in block.body.indices if isinstance(i, Var)]
    if choice is None or len(set(at)) != len(factor.indices):
        return None
    values = dict(zip(at, factor.indices, strict=True))
    return [substitute(c, values) for c in choice[0]]


def _assumes_finite_math(func: PrimFunc) -> bool:
    return set(str((func.attrs or {}).get("tir.fast_math", "")).split()) >= FINITE_MATH_FLAGS


@dataclass
class ResidueSplit:
    """The split of iterators by residue: each spatial one into (residue, quotient), a reduced one
    into its required residue and the quotient.
    """

    values: dict[Var, PrimExpr] = field(default_factory=dict)
    """Old iterators as expressions of the new ones."""
    spatial: dict[Var, tuple[IterVar, IterVar]] = field(default_factory=dict)
    reduced: dict[Var, IterVar] = field(default_factory=dict)
    required_residues: list[PrimExpr] = field(default_factory=list)
    """Residue conditions on old iterators that do not always hold."""
    point_conditions: list[PrimExpr] = field(default_factory=list)
    """Conditions for a point to be inside the result."""
    term_conditions: list[PrimExpr] = field(default_factory=list)
    """Conditions for a term to contribute."""


def split_by_residue(block: Block, conditions_of_term: Sequence[PrimExpr]) -> ResidueSplit:
    """Return the residue split, solving one condition after the other that has a reduced iterator
    of its own.
    """
    phases = ResidueSplit()
    phases.required_residues = [
        condition
        for condition in conditions_of_term
        if not _solve_condition(block, condition, phases)
    ]
    return phases


def _solve_condition(block: Block, condition: PrimExpr, phases: ResidueSplit) -> bool:
    match condition:
        case EQ(a=FloorMod(a=e, b=IntImm(value=step)), b=IntImm(value=residue)) if step > 1:
            pass
        case _:
            return False
    used, own = set(free_vars(e)), {i.var: i for i in block.iter_vars}
    if not used <= set(own) or used & set(phases.values):
        return False
    scales = {v: Analyzer().coefficient(e, v) for v in used}
    reduced = [v for v in own if own[v].kind is IterKind.REDUCE and scales.get(v) in (1, -1)]
    if None in scales.values() or not reduced:
        return False
    (var, *_), zero = reduced, {}
    for var_of_scale, scale in scales.items():
        if own[var_of_scale].kind is IterKind.SPATIAL and scale is not None and scale % step:
            zero[var_of_scale] = _split_spatial(own[var_of_scale], step, phases)
    zero[var] = const(0, var.dtype)
    # scale * k + others = rest modulo step, and scale is its own inverse
    other_terms = substitute(e, zero)
    must = (const(residue, e.dtype) - other_terms) * (scales[var] or 0) % step
    _stride_reduced(own[var], step, Analyzer().simplify(must), phases)
    return True


def _stride_reduced(iterator: IterVar, step: int, must: PrimExpr, phases: ResidueSplit) -> None:
    """Replace a reduced iterator by every step-th value from its required residue on."""
    var, extent, simplify = iterator.var, iterator.extent, Analyzer().simplify
    less = simplify((extent + (step - 1)) // step)
    phases.reduced[var] = IterVar(Var(var.name, var.dtype), less, iterator.kind)
    phases.values[var] = phases.reduced[var].var * step + must
    # The last multiple may be beyond the extent for some residues.
    if not is_const(simplify(extent % step), 0):
        phases.term_conditions.append(phases.values[var] < extent)


def _split_spatial(iterator: IterVar, step: int, phases: ResidueSplit) -> PrimExpr:
    """Split a spatial iterator into residue and quotient; return the residue."""
    var, extent, simplify = iterator.var, iterator.extent, Analyzer().simplify
    name = f"{var.name}_phase"
    # a step may be huge where padding cuts most results off: remainders beyond them have none
    phases_with_results = min(step, extent.value) if isinstance(extent, IntImm) else step
    remainder = IterVar(Var(name, var.dtype), const(phases_with_results, var.dtype), iterator.kind)
    count = simplify((extent + (step - 1)) // step)
    quotient = IterVar(Var(var.name, var.dtype), count, iterator.kind)
    phases.spatial[var] = remainder, quotient
    phases.values[var] = quotient.var * step + remainder.var
    # The last quotient has no element for some residues.
    if not is_const(simplify(extent % step), 0):
        phases.point_conditions.append(phases.values[var] < extent)
    return remainder.var


def nonfinite_factor_fault(realize: BlockRealize, term_condition: ConditionalTerm) -> str:
    """Return why the other factor of zeros might be infinite although all sums are finite, or "" if
    it cannot: each omitted factor must be in another sum.
    """
    partner, block = term_condition.other_factor, realize.block
    if not isinstance(partner, BufferLoad) or partner.buffer in block_writes(block):
        return f"0 times {partner} is not known to be 0"
    used, extents = set(free_vars(*partner.indices)), {i.var: i.extent for i in block.iter_vars}
    for group in group_by_shared_vars(term_condition.conjuncts):
        variables = list(dict.fromkeys(v for p in group for v in free_vars(p)))
        sizes = [extents.get(v) for v in variables]
        counts = [n.value for n in sizes if isinstance(n, IntImm)]
        if len(counts) != len(sizes):
            return "the sizes of its conditions are not known"
        if prod(counts) > MAX_ENUMERATED_POINTS:
            return f"its conditions have more than {MAX_ENUMERATED_POINTS} points"
        if not _is_every_point_used(group, variables, counts, used):
            return f"some elements of {partner.buffer.name!r} are only in terms that are left out"
    return ""


def group_by_shared_vars(conditions_of_term: Sequence[PrimExpr]) -> list[list[PrimExpr]]:
    """Return the conditions grouped so that groups share no variables."""
    groups: list[tuple[set[Var], list[PrimExpr]]] = []
    for condition in conditions_of_term:
        variables, together, apart = set(free_vars(condition)), [condition], []
        for group_vars, group_conditions in groups:
            if group_vars & variables:
                variables, together = variables | group_vars, [*group_conditions, *together]
            else:
                apart.append((group_vars, group_conditions))
        groups = [*apart, (variables, together)]
    return [together for _, together in groups]


def _is_every_point_used(
    group: Sequence[PrimExpr], variables: Sequence[Var], counts: Sequence[int], used: set[Var]
) -> bool:
    """Return whether for all values of the used variables some values of the others satisfy the
    conditions.
    """
    satisfied: dict[tuple[int, ...], bool] = {}
    for point in product(*map(range, counts)):
        values = dict(zip(variables, point, strict=True))
        key = tuple(n for v, n in values.items() if v in used)
        satisfied[key] = satisfied.get(key, False) or all(evaluate(p, values) for p in group)
    return all(satisfied.values())


def true_fraction(conditions_of_term: Sequence[PrimExpr], extents: Mapping[Var, PrimExpr]) -> float:
    """Return the fraction of points at which the conditions hold, from 0 to 1; a group with too
    many points to enumerate, or an unknown number, counts as 1.
    """
    share = 1.0
    for group in group_by_shared_vars(conditions_of_term):
        variables = list(dict.fromkeys(v for p in group for v in free_vars(p)))
        sizes = [extents.get(v) for v in variables]
        counts = [n.value for n in sizes if isinstance(n, IntImm)]
        if len(counts) < len(sizes) or not 0 < prod(counts) <= MAX_ENUMERATED_POINTS:
            continue
        points = [dict(zip(variables, at, strict=True)) for at in product(*map(range, counts))]
        held = sum(all(evaluate(p, at) for p in group) for at in points)
        share *= held / len(points)
    return share


__all__ = [
    "ConditionalTerm",
    "ResidueSplit",
    "match_conditional_term",
    "nonfinite_factor_fault",
    "select_or_zero",
    "split_by_residue",
    "true_fraction",
]
