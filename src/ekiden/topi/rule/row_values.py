"""What is known of the values of a row: none is above the row's maximum.

exp(x - most), most = max of x    exp(min(x - most, 0)), a power that is at most 1 and needs no
                                  care for large ones
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith import prove_equal
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Intrinsic, PrimExpr, Sub, Var, const, minimum
from ekiden.ir.prim_visitor import post_order, rewrite, substitute
from ekiden.ir.structural import structural_equal
from ekiden.te.reducer import Reduce, ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad


def below_maximum(expr: PrimExpr, extents: Mapping[Var, PrimExpr]) -> PrimExpr:
    """The expression with the powers of what its row's maximum was taken off capped at 1, which
    they never pass: `exp(min(d, 0))` for `exp(d)`. `extents` are of the variables that run from 0
    on, but for those of reductions."""

    def change(e: PrimExpr) -> PrimExpr:
        """A power, if it is of such a difference."""
        if isinstance(e, Intrinsic) and e.op == "exp" and _is_below_maximum(e.args[0], extents):
            return call_intrin("exp", minimum(e.args[0], const(0.0, e.dtype)), dtype=e.dtype)
        return e

    return rewrite(expr, change)


def _is_below_maximum(difference: PrimExpr, extents: Mapping[Var, PrimExpr]) -> bool:
    """Whether something is taken off an expression that is the maximum of the same expression along
    an axis, over all that the expression is asked for."""
    if not isinstance(difference, Sub):
        return False
    x, most = _uncast(difference.a), _uncast(difference.b)
    if not isinstance(most, ProducerLoad) or not isinstance(most.producer.op, ComputeOp):
        return False
    op = most.producer.op
    body = op.body[most.producer.value_index]
    if not isinstance(body, Reduce) or body.kind != "max" or len(body.axis) != 1:
        return False
    (along,) = body.axis
    place = {a.var: i for a, i in zip(op.axis, most.indices, strict=True)}
    source = _uncast(body.source)

    def runs_along(e: Var) -> bool:
        """Whether a variable has the values that the maximum is over."""
        extent = e.extent if isinstance(e, ReduceAxis) else extents.get(e)
        return extent is not None and prove_equal(extent, along.extent)

    return any(
        runs_along(e) and structural_equal(substitute(source, {**place, along: e}), x)
        for e in post_order(x)
        if isinstance(e, Var) and e.dtype == along.dtype and not any(e is p for p in place.values())
    )


def _uncast(e: PrimExpr) -> PrimExpr:
    """What a wider float was made of."""
    while isinstance(e, Cast) and dt.is_float(e.dtype) and dt.is_float(e.value.dtype):
        e = e.value
    return e


__all__ = ["below_maximum"]
