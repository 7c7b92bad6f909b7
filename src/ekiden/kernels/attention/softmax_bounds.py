"""Rewrites that use known bounds of a softmax row: no value exceeds its maximum, no exponential its
sum.

    exp(x - most), most = max of x    exp(min(x - most, 0)), a power that is at most 1 and needs no
                                      care for large ones
    power / total, total = sum of     a product by the reciprocal, which is the row's, and what that
    powers                            is off by: processors divide one vector in five cycles or
                                      more, and make six such steps in three
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import prove_equal
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Div, Intrinsic, PrimExpr, Sub, Var, const, minimum
from ekiden.ir.prim_visitor import post_order, rewrite, substitute
from ekiden.ir.structural import structural_equal
from ekiden.target import Target
from ekiden.te.inline import post_order_tensors, rewrite_tensors
from ekiden.te.reducer import Reduce, ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import broadcast


def rewrite_with_row_bounds(
    expr: PrimExpr, extents: Mapping[Var, PrimExpr], target: Target
) -> PrimExpr:
    """Simplify an expression by the bounds of softmax rows.

    The argument of exp after subtracting the row's maximum is capped at 0, which it never exceeds:
    `exp(min(d, 0))` for `exp(d)`; quotients by the row's sum become products where the target has
    FMA. `extents` are those of the variables that run from 0 on, except reductions.
    """

    def rewrite_bounded(e: PrimExpr) -> PrimExpr:
        """Rewrite an exponential or a quotient with known bounds."""
        if isinstance(e, Intrinsic) and _match_softmax_numerator(e, extents) is not None:
            return exp_of_nonpositive(e.args[0])
        if isinstance(e, Div) and has_fma and _is_probability(e, extents):
            return _divide_with_correction(e.a, e.b)
        return e

    has_fma = target.has("fma")
    return rewrite(expr, rewrite_bounded)


def apply_row_bounds(outputs: Sequence[Tensor], target: Target) -> list[Tensor]:
    """Return the outputs with softmax bounds applied to every computation, before any is
    scheduled.
    """
    ops = (t.op for t in post_order_tensors(outputs))
    extents = {a.var: a.extent for op in ops if isinstance(op, ComputeOp) for a in op.axis}
    return rewrite_tensors(outputs, lambda body: rewrite_with_row_bounds(body, extents, target))


def exp_of_nonpositive(x: PrimExpr) -> PrimExpr:
    """Return exp(x) for x <= 0, which needs no overflow handling; NaN is preserved."""
    zero = broadcast(const(0.0, dt.element_dtype(x.dtype)), dt.lanes(x.dtype))
    return call_intrin("exp", minimum(x, zero), dtype=x.dtype)


def _match_softmax_numerator(e: PrimExpr, extents: Mapping[Var, PrimExpr]) -> Var | None:
    """Return the row variable if an expression is exp(value - row maximum), else None."""
    if not isinstance(e, Intrinsic) or e.op != "exp" or not isinstance(e.args[0], Sub):
        return None
    return _match_row_reduction("max", e.args[0].b, e.args[0].a, extents)


def _is_probability(quotient: Div, extents: Mapping[Var, PrimExpr]) -> bool:
    """Return whether a quotient is an exponential over its row's sum, hence in [0, 1] or NaN. The
    row must run along the last axis, so that a vector has one reciprocal.
    """
    power = quotient.a
    if not isinstance(power, ProducerLoad) or power.dtype not in ("float32", "float64"):
        return False
    op, along = power.producer.op, _match_row_reduction("sum", quotient.b, power, extents)
    if not isinstance(op, ComputeOp) or along is None:
        return False
    axes = {a.var: a.extent for a in op.axis}
    row = _match_softmax_numerator(op.body[power.producer.value_index], axes)
    return op.axis[-1].var is row and power.indices[-1] is along


def _divide_with_correction(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return a / b as a times a reciprocal, with one correction step.

    The product is off by about an ulp, and the remainder is exact with FMA. Rounded as a division
    is (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor",
    1990), except that subnormal results may be off in their last bit.
    """
    reciprocal = const(1.0, a.dtype) / b
    about = a * reciprocal
    # The FMA rounds a - about * b only once: its quotient corrects the estimate.
    remainder = call_intrin("fma", about, const(0.0, a.dtype) - b, a, dtype=a.dtype)
    return call_intrin("fma", remainder, reciprocal, about, dtype=a.dtype)


def _match_row_reduction(
    kind: str, reduced: PrimExpr, value: PrimExpr, extents: Mapping[Var, PrimExpr]
) -> Var | None:
    """Return the variable along which an expression reduces a value ("max" or "sum") over its whole
    domain, or None.
    """
    load, x = _strip_float_casts(reduced), _strip_float_casts(value)
    if not isinstance(load, ProducerLoad) or not isinstance(load.producer.op, ComputeOp):
        return None
    op = load.producer.op
    body = op.body[load.producer.value_index]
    if not isinstance(body, Reduce) or body.kind != kind or len(body.axis) != 1:
        return None
    (along,) = body.axis
    index_by_axis = {a.var: i for a, i in zip(op.axis, load.indices, strict=True)}
    source = _strip_float_casts(body.source)

    def has_reduction_extent(e: Var) -> bool:
        """Return whether a variable has the reduction's domain."""
        extent = e.extent if isinstance(e, ReduceAxis) else extents.get(e)
        return extent is not None and prove_equal(extent, along.extent)

    inside = dict.fromkeys(e for e in post_order(x) if isinstance(e, Var))
    candidates = (
        e
        for e in inside
        if e.dtype == along.dtype
        and not any(e is p for p in index_by_axis.values())
        and has_reduction_extent(e)
        if structural_equal(substitute(source, {**index_by_axis, along: e}), x)
    )
    return next(candidates, None)


def _strip_float_casts(e: PrimExpr) -> PrimExpr:
    """Return an expression without its outer casts between floats."""
    while isinstance(e, Cast) and dt.is_float(e.dtype) and dt.is_float(e.value.dtype):
        e = e.value
    return e


__all__ = ["apply_row_bounds", "rewrite_with_row_bounds"]
