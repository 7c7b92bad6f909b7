"""What is known of the values of a row: none is above the row's maximum, and none of its powers is
above their sum.

exp(x - most), most = max of x    exp(min(x - most, 0)), a power that is at most 1 and needs no
                                  care for large ones
power / total, total = sum of     a product by the reciprocal, which is the row's, and what that is
powers                            off by: processors divide one vector in five cycles or more, and
                                  make six such steps in three
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
from ekiden.te.inline import post_order_tensors, rebuilt
from ekiden.te.reducer import Reduce, ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import broadcast


def with_known_values(expr: PrimExpr, extents: Mapping[Var, PrimExpr], target: Target) -> PrimExpr:
    """The expression with what is known of rows. The powers of what its row's maximum was taken off
    are capped at 1, which they never pass: `exp(min(d, 0))` for `exp(d)`; their quotients by their
    sum are products where a target multiplies and adds in one step. `extents` are of the variables
    that run from 0 on, but for those of reductions."""

    def change(e: PrimExpr) -> PrimExpr:
        """A power or a quotient, if it is of such values."""
        if isinstance(e, Intrinsic) and _row_of_power(e, extents) is not None:
            return power_at_most_one(e.args[0])
        if isinstance(e, Div) and has_fma and _is_share(e, extents):
            return _corrected_quotient(e.a, e.b)
        return e

    has_fma = target.has("fma")
    return rewrite(expr, change)


def tensors_with_known_values(outputs: Sequence[Tensor], target: Target) -> list[Tensor]:
    """The same of all computations that outputs are made of, before any of them is scheduled."""
    made = (t.op for t in post_order_tensors(outputs))
    extents = {a.var: a.extent for op in made if isinstance(op, ComputeOp) for a in op.axis}
    return rebuilt(outputs, lambda body: with_known_values(body, extents, target))


def power_at_most_one(x: PrimExpr) -> PrimExpr:
    """exp(x) for an x that is known not to be above 0, said so that it takes fewer steps; NaN
    stays."""
    zero = broadcast(const(0.0, dt.element(x.dtype)), dt.lanes(x.dtype))
    return call_intrin("exp", minimum(x, zero), dtype=x.dtype)


def _row_of_power(e: PrimExpr, extents: Mapping[Var, PrimExpr]) -> Var | None:
    """What runs along the row if an expression is e to the power of something less the maximum of
    its row."""
    if not isinstance(e, Intrinsic) or e.op != "exp" or not isinstance(e.args[0], Sub):
        return None
    return _row("max", e.args[0].b, e.args[0].a, extents)


def _is_share(quotient: Div, extents: Mapping[Var, PrimExpr]) -> bool:
    """Whether a quotient is of one of a row's powers and their sum, which has one of 1: it is
    between 0 and 1, or NaN. A row along the last axis: the quotients of a vector have one
    reciprocal."""
    power = quotient.a
    if not isinstance(power, ProducerLoad) or power.dtype not in ("float32", "float64"):
        return False
    op, along = power.producer.op, _row("sum", quotient.b, power, extents)
    if not isinstance(op, ComputeOp) or along is None:
        return False
    axes = {a.var: a.extent for a in op.axis}
    row = _row_of_power(op.body[power.producer.value_index], axes)
    return op.axis[-1].var is row and power.indices[-1] is along


def _corrected_quotient(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a / b by 1 / b: that product is off by an ulp or so, and what it leaves of a is known to the
    last bit. Rounded as a division is (Markstein, "Computation of elementary functions on the IBM
    RISC System/6000 processor", 1990), but for subnormal results, which may be off in their last
    bit."""
    reciprocal = const(1.0, a.dtype) / b
    about = a * reciprocal
    left = call_intrin("fma", about, const(0.0, a.dtype) - b, a, dtype=a.dtype)
    return call_intrin("fma", left, reciprocal, about, dtype=a.dtype)


def _row(
    kind: str, reduced: PrimExpr, value: PrimExpr, extents: Mapping[Var, PrimExpr]
) -> Var | None:
    """The variable along which an expression is a reduction ("max", "sum") of a value, over all
    that the value is asked for; None if it is none."""
    load, x = _uncast(reduced), _uncast(value)
    if not isinstance(load, ProducerLoad) or not isinstance(load.producer.op, ComputeOp):
        return None
    op = load.producer.op
    body = op.body[load.producer.value_index]
    if not isinstance(body, Reduce) or body.kind != kind or len(body.axis) != 1:
        return None
    (along,) = body.axis
    place = {a.var: i for a, i in zip(op.axis, load.indices, strict=True)}
    source = _uncast(body.source)

    def runs_along(e: Var) -> bool:
        """Whether a variable has the values that the reduction is over."""
        extent = e.extent if isinstance(e, ReduceAxis) else extents.get(e)
        return extent is not None and prove_equal(extent, along.extent)

    inside = dict.fromkeys(e for e in post_order(x) if isinstance(e, Var))
    found = (
        e
        for e in inside
        if e.dtype == along.dtype and not any(e is p for p in place.values()) and runs_along(e)
        if structural_equal(substitute(source, {**place, along: e}), x)
    )
    return next(found, None)


def _uncast(e: PrimExpr) -> PrimExpr:
    """What a wider float was made of."""
    while isinstance(e, Cast) and dt.is_float(e.dtype) and dt.is_float(e.value.dtype):
        e = e.value
    return e


__all__ = ["tensors_with_known_values", "with_known_values"]
