"""Detection of clip bounds, common subexpressions and linear equations (TVM's `arith.pattern`)."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith.analyzer import Analyzer
from ekiden.arith.canonical import CanonicalForm
from ekiden.arith.int_set import SymbolicBound
from ekiden.arith.linear import LinearForm, ceil_div, nonnegative_forms
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    AnyDim,
    BinaryExpr,
    Min,
    Not,
    PrimExpr,
    Sub,
    Var,
    const,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import chain_operands, children, literal_fields, post_order

_NEGATED_COMPARISON: dict[type[PrimExpr], type[BinaryExpr]] = {
    LT: GE,
    GE: LT,
    LE: GT,
    GT: LE,
    EQ: NE,
}


def _normalize_comparisons(condition: PrimExpr) -> list[PrimExpr]:
    """Normalise a condition to a list of comparisons: `not (a > b)` to `a <= b`, `min(a, b) > c` to
    both.
    """
    comparisons: list[PrimExpr] = []
    pending = chain_operands(condition, And)
    while pending:
        e = pending.pop(0)
        match e:
            case Not(a=BinaryExpr() as inner) if type(inner) in _NEGATED_COMPARISON:
                pending.insert(0, _NEGATED_COMPARISON[type(inner)](inner.a, inner.b))
            case GT(a=Min() as both, b=end) | GE(a=Min() as both, b=end):
                pending[:0] = [type(e)(both.a, end), type(e)(both.b, end)]
            case And():
                pending[:0] = [e.a, e.b]
            case _:
                comparisons.append(e)
    return comparisons


def detect_clip_bound(expr: PrimExpr, variables: Sequence[Var]) -> list[SymbolicBound]:
    """Return [low, high] for each variable such that a condition holds; None for no bound.

    The list is empty if some conjunct of the condition is not linear in one of the variables alone
    with a number as factor.
    """
    ends: dict[Var, list[SymbolicBound]] = {v: [None, None] for v in variables}
    analyzer = Analyzer()
    for comparison in _normalize_comparisons(expr):
        forms = nonnegative_forms(comparison, variables)
        if forms is None:
            return []
        for form in forms:
            # A condition on two variables bounds neither of them alone.
            if len(form.coefficients) != 1:
                return []
            _update_clip_bound(ends, form, analyzer)
    return [end for v in variables for end in ends[v]]


def _update_clip_bound(
    ends: dict[Var, list[SymbolicBound]], form: LinearForm, analyzer: Analyzer
) -> None:
    ((var, scale),) = form.coefficients.items()
    low, high = ends[var]
    if scale > 0:
        lower = analyzer.simplify(ceil_div(fold_binary(Sub, 0, form.base), scale))
        ends[var][0] = lower if low is None else analyzer.simplify(maximum(low, lower))
    else:
        upper = analyzer.simplify(form.base // -scale)
        ends[var][1] = upper if high is None else analyzer.simplify(minimum(high, upper))


def detect_common_subexpr(expr: PrimExpr, threshold: int) -> dict[PrimExpr, int]:
    """Return the subexpressions that occur at least `threshold` times, with their counts.

    Each counts as often as its parents are read; variables and numbers do not count.
    """
    keys: dict[int, tuple[object, ...]] = {}
    number: dict[tuple[object, ...], int] = {}
    samples: dict[int, PrimExpr] = {}
    counts: dict[int, int] = {}
    # Value numbering: equal nodes over equally numbered children have one number. A shared node is
    # one object, so how often it is read is the sum over those that read it, roots before leaves.
    order = post_order(expr)
    uses: dict[int, int] = {id(expr): 1}
    for e in reversed(order):
        for inner in children(e):
            uses[id(inner)] = uses.get(id(inner), 0) + uses[id(e)]
    for e in order:
        # Two variables of one name are two: a leaf without a value is told apart by what it is.
        own = id(e) if isinstance(e, (Var, AnyDim)) else literal_fields(e)
        key = (type(e), own, *(keys[id(c)] for c in children(e)))
        name = number.setdefault(key, len(number))
        keys[id(e)] = (name,)
        samples.setdefault(name, e)
        counts[name] = counts.get(name, 0) + uses[id(e)]
    return {
        samples[n]: c
        for n, c in counts.items()
        if c >= threshold and not isinstance(samples[n], Var) and children(samples[n])
    }


def detect_linear_equation(expr: PrimExpr, variables: Sequence[Var]) -> list[PrimExpr]:
    """Return [c0, c1, ..., base] with expr = c0 * variables[0] + ... + base, or [] if it is not
    linear.

    Factors may be expressions; the list is empty if the expression is not linear.
    """
    return LinearDecomposition().decompose(expr, variables)


# A factor may be an expression (n of n * i), unlike in `linear.LinearForm`, whose factors are
# numbers: a polynomial has the factor of any variable at hand.
class LinearDecomposition(CanonicalForm):
    """Decomposition of a canonical form by variables."""

    def decompose(self, expr: PrimExpr, variables: Sequence[Var]) -> list[PrimExpr]:
        """Return the factors and the base, as `detect_linear_equation`."""
        remaining = dict(self._to_poly(expr))
        factors: list[PrimExpr] = []
        numbers = [self._variable_atom(v) for v in variables]
        for number in numbers:
            slope: dict[tuple[int, ...], int] = {}
            for monomial in list(remaining):
                if number in monomial:
                    cofactor = list(monomial)
                    cofactor.remove(number)
                    slope[tuple(cofactor)] = remaining.pop(monomial)
            # A factor that has another of the variables makes the product bilinear.
            if any(self._uses_any(atom, numbers) for m in slope for atom in m):
                return []
            factors.append(self._poly_to_expr(slope, expr.dtype) if slope else const(0, expr.dtype))
        if any(self._uses_any(atom, numbers) for m in remaining for atom in m):
            return []
        return [
            *factors,
            self._poly_to_expr(remaining, expr.dtype) if remaining else const(0, expr.dtype),
        ]

    def _uses_any(self, atom: int, numbers: Sequence[int]) -> bool:
        return any(atom == n or self._depends_on(atom, n) for n in numbers)


__all__ = ["detect_clip_bound", "detect_common_subexpr", "detect_linear_equation"]
