"""Linear forms, bound deduction, and Fourier-Motzkin elimination for linear inequalities.

Names follow TVM's arith: deduce_bound, solve_linear_inequalities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.arith.analyzer import Analyzer
from ekiden.arith.int_set import (
    EMPTY_SET,
    UNBOUNDED_SET,
    IntervalSet,
    SymbolicBound,
    eval_set,
    interval,
)
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    IntImm,
    Mul,
    PrimExpr,
    Sub,
    Var,
    const,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import chain_operands, children, post_order
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LinearForm:
    """Linear form, coefficients[v] * v + ... + base; no requested variable occurs in base."""

    coefficients: Mapping[Var, int]
    base: PrimExpr

    def add(self, other: LinearForm, scale: int = 1) -> LinearForm:
        """Return self + scale * other."""
        coefficients = dict(self.coefficients)
        for var, coefficient in other.coefficients.items():
            coefficients[var] = coefficients.get(var, 0) + scale * coefficient
        base = fold_binary(Add, self.base, other.base * scale)
        return LinearForm({v: c for v, c in coefficients.items() if c}, base)

    def scale_by(self, scale: int) -> LinearForm:
        """Return scale * self."""
        return LinearForm({v: c * scale for v, c in self.coefficients.items()}, self.base * scale)


# Written over expressions and not over the Analyzer's polynomials, since the base has to stay an
# expression that a caller may show, and no range of anything is known here.
def extract_linear_form(expr: PrimExpr, variables: Sequence[Var]) -> LinearForm | None:
    """Return an expression as a linear form over variables, or None if it is not linear in them."""
    variable_set = set(variables)
    done: dict[int, LinearForm | None] = {}
    for node in post_order(expr):
        done[id(node)] = _node_form(node, [done[id(c)] for c in children(node)], variable_set)
    return done[id(expr)]


def _node_form(
    e: PrimExpr, inside: list[LinearForm | None], variables: set[Var]
) -> LinearForm | None:
    if isinstance(e, Var) and e in variables:
        return LinearForm({e: 1}, const(0, e.dtype))
    forms = [f for f in inside if f is not None]
    if len(forms) < len(inside):
        return None
    # A node without the variables is part of the base unchanged, whatever its kind.
    if not any(f.coefficients for f in forms):
        return LinearForm({}, e)
    match e:
        case Add():
            return forms[0].add(forms[1])
        case Sub():
            return forms[0].add(forms[1], -1)
        case Mul(a=IntImm(value=scale)):
            return forms[1].scale_by(scale)
        case Mul(b=IntImm(value=scale)):
            return forms[0].scale_by(scale)
    return None


# Over whole numbers a < b is b - a - 1 >= 0: everything below is of the one form `form >= 0`. NE
# has none, as it is two halves that are not both.
def nonnegative_forms(condition: PrimExpr, variables: Sequence[Var]) -> list[LinearForm] | None:
    """Return linear forms that are >= 0 exactly where an integer comparison holds, or None."""
    if not isinstance(condition, (LT, LE, GT, GE, EQ)):
        return None
    a, b = extract_linear_form(condition.a, variables), extract_linear_form(condition.b, variables)
    if a is None or b is None:
        return None
    minus_one = LinearForm({}, const(-1, condition.a.dtype))
    match condition:
        case LT():
            return [b.add(a, -1).add(minus_one)]
        case LE():
            return [b.add(a, -1)]
        case GT():
            return [a.add(b, -1).add(minus_one)]
        case GE():
            return [a.add(b, -1)]
        case _:
            return [a.add(b, -1), b.add(a, -1)]


def ceil_div(value: PrimExpr, divisor: int) -> PrimExpr:
    """Return the quotient rounded up, for a positive divisor."""
    return value if divisor == 1 else (value + (divisor - 1)) // divisor


def deduce_bound(
    var: Var,
    condition: PrimExpr,
    hint_map: Mapping[Var, IntervalSet | Range],
    relax_map: Mapping[Var, IntervalSet | Range],
) -> IntervalSet:
    """Deduce an interval of `var` in which a condition holds for all values of the `relax_map`
    variables.

    The condition is a conjunction of comparisons linear in `var` with numbers as factors. For a
    conjunct that is not, or that is not known to hold, no value is known: the set is nothing.
    `hint_map` has ranges of further variables, by which bounds are simplified.
    """
    analyzer = Analyzer()
    for hinted, domain in hint_map.items():
        if isinstance(domain, Range):
            analyzer.bind(hinted, domain)
    low: SymbolicBound = None
    high: SymbolicBound = None
    for conjunct in chain_operands(condition, And):
        forms = nonnegative_forms(conjunct, [var])
        if not forms:
            return EMPTY_SET
        for form in forms:
            scale = form.coefficients.get(var, 0)
            # The lowest value of the base over `relax_map` is the strictest: scale * var + base >=
            # 0 then holds for all of the others.
            base_min = eval_set(form.base, relax_map, analyzer.simplify).min_value
            if base_min is None or (scale == 0 and not analyzer.can_prove(base_min >= 0)):
                return EMPTY_SET
            if scale == 0:
                continue
            if scale > 0:
                bound = analyzer.simplify(ceil_div(fold_binary(Sub, 0, base_min), scale))
                low = bound if low is None else analyzer.simplify(maximum(low, bound))
            else:
                upper_bound = analyzer.simplify(base_min // -scale)
                high = (
                    upper_bound if high is None else analyzer.simplify(minimum(high, upper_bound))
                )
    return UNBOUNDED_SET if low is None and high is None else interval(low, high)


@dataclass(frozen=True, slots=True)
class IntGroupBounds:
    """Bounds lower <= coef * var <= upper of one variable, and the values that coef * var
    equals.
    """

    coef: int
    lower: tuple[PrimExpr, ...]
    equal: tuple[PrimExpr, ...]
    upper: tuple[PrimExpr, ...]

    def find_best_range(self, analyzer: Analyzer | None = None) -> Range | None:
        """Return the tightest range of the variable, or None if a bound is missing."""
        solver = Analyzer() if analyzer is None else analyzer
        # An equality bounds from both sides.
        lows, highs = [*self.equal, *self.lower], [*self.equal, *self.upper]
        if not lows or not highs:
            return None
        low = solver.simplify(_tightest_bound([ceil_div(e, self.coef) for e in lows], True))
        high = solver.simplify(_tightest_bound([e // self.coef for e in highs], False))
        return Range.from_min_extent(low, solver.simplify(high - low + 1))


def _tightest_bound(values: Sequence[PrimExpr], is_lower: bool) -> PrimExpr:
    total = values[0]
    for value in values[1:]:
        total = maximum(total, value) if is_lower else minimum(total, value)
    return total


@dataclass(slots=True)
class InequalitySolution:
    """Solution of inequalities: bounds of each variable over later ones, and residual relations."""

    bounds: dict[Var, IntGroupBounds] = field(default_factory=dict)
    relations: list[PrimExpr] = field(default_factory=list)


def solve_linear_inequalities(
    variables: Sequence[Var],
    inequalities: Sequence[PrimExpr],
    ranges: Mapping[Var, Range] | None = None,
) -> InequalitySolution:
    """Solve linear inequalities by Fourier-Motzkin elimination.

    Variables are eliminated in order: the bounds of one may name those after it. Every solution of
    the system is within the bounds; over whole numbers they may hold a little more. What is not
    linear, and what remains without the variables, is in `relations`.
    """
    analyzer = Analyzer()
    solution = InequalitySolution()
    system: list[LinearForm] = []
    for var, domain in (ranges or {}).items():
        analyzer.bind(var, domain)
        system += nonnegative_forms(var >= domain.min, variables) or ()
        system += nonnegative_forms(var < domain.min + domain.extent, variables) or ()
    for conjunct in (clause for e in inequalities for clause in chain_operands(e, And)):
        forms = nonnegative_forms(conjunct, variables)
        if forms is None:
            solution.relations.append(conjunct)
        else:
            system += forms
    # Fourier-Motzkin: the number of inequalities may square with each variable; systems of loops
    # are small.
    for var in variables:
        system = _eliminate_var(var, system, solution, analyzer)
    for form in system:
        # All variables are eliminated: a provable condition is dropped; any other one may make the
        # system infeasible, so it is returned.
        remains = analyzer.simplify(fold_binary(GE, form.base, 0))
        if not (isinstance(remains, IntImm) and remains.value):
            solution.relations.append(remains)
    return solution


def _eliminate_var(
    var: Var, system: Sequence[LinearForm], solution: InequalitySolution, analyzer: Analyzer
) -> list[LinearForm]:
    """Record the bounds of a variable, and return the system without it."""
    positive = [f for f in system if f.coefficients.get(var, 0) > 0]
    negative = [f for f in system if f.coefficients.get(var, 0) < 0]
    # One coefficient for all bounds of the variable, so that none needs a division.
    coef = math.lcm(*(abs(f.coefficients[var]) for f in (*positive, *negative)), 1)
    lower = [_bound_expr(f, var, coef, -1, analyzer) for f in positive]
    upper = [_bound_expr(f, var, coef, 1, analyzer) for f in negative]
    solution.bounds[var] = _group_bounds(coef, lower, upper)
    remaining = [f for f in system if var not in f.coefficients]
    for above in positive:
        for below in negative:
            a, b = above.coefficients[var], -below.coefficients[var]
            # Scaled so that the variable cancels: (b / gcd) * above + (a / gcd) * below.
            common = math.gcd(a, b)
            # The number of forms may grow quadratically per variable; index systems have few of
            # them.
            remaining.append(
                _normalize_form(above.scale_by(b // common).add(below, a // common), analyzer)
            )
    return remaining


def _bound_expr(form: LinearForm, var: Var, coef: int, sign: int, analyzer: Analyzer) -> PrimExpr:
    """Return the lower (sign -1) or upper (sign 1) bound of coef * var."""
    scale = coef // abs(form.coefficients[var]) * sign
    total = form.base * scale
    for variable, coefficient in form.coefficients.items():
        if variable is not var:
            total = total + variable * (coefficient * scale)
    return analyzer.simplify(total)


def _group_bounds(
    coef: int, lower: Sequence[PrimExpr], upper: Sequence[PrimExpr]
) -> IntGroupBounds:
    # A bound that is both the lower and the upper one is an equality.
    texts = {str(e) for e in lower} & {str(e) for e in upper}
    equal = {str(e): e for e in lower if str(e) in texts}
    return IntGroupBounds(
        coef,
        tuple({str(e): e for e in lower if str(e) not in texts}.values()),
        tuple(equal.values()),
        tuple({str(e): e for e in upper if str(e) not in texts}.values()),
    )


def _normalize_form(form: LinearForm, analyzer: Analyzer) -> LinearForm:
    """Divide a form by the gcd of its coefficients, rounding the base to the tighter side."""
    base = analyzer.simplify(form.base)
    common = math.gcd(*form.coefficients.values())
    if common <= 1 or not isinstance(base, IntImm):
        return LinearForm(form.coefficients, base)
    scales = {v: c // common for v, c in form.coefficients.items()}
    # The base is rounded down: over whole numbers c * f + b >= 0 is f + floor(b / c) >= 0.
    return LinearForm(scales, const(base.value // common, base.dtype))


def solve_inequalities_to_range(
    variables: Sequence[Var],
    inequalities: Sequence[PrimExpr],
    ranges: Mapping[Var, Range] | None = None,
) -> tuple[dict[Var, Range], list[PrimExpr]]:
    """Return the range of each variable bounded on both sides, and the residual conditions."""
    solution = solve_linear_inequalities(variables, inequalities, ranges)
    best_ranges = {v: b.find_best_range() for v, b in solution.bounds.items()}
    return {v: r for v, r in best_ranges.items() if r is not None}, solution.relations


__all__ = [
    "InequalitySolution",
    "IntGroupBounds",
    "LinearForm",
    "deduce_bound",
    "extract_linear_form",
    "solve_inequalities_to_range",
    "solve_linear_inequalities",
]
