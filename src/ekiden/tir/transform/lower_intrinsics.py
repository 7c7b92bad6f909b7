"""Write intrinsics that no code generator knows in terms of those that all do.

log2(x)   ->   log(x) * 1.4426950408889634
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Intrinsic, PrimExpr, Select, const
from ekiden.tir.expr import broadcast
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.visitor import ExprRewriter, all_expressions


def _number(value: float, like: PrimExpr) -> PrimExpr:
    return broadcast(const(value, dt.element(like.dtype)), dt.lanes(like.dtype))


def _call(op: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(op, *args, dtype=args[0].dtype)


def _exp2(x: PrimExpr) -> PrimExpr:
    return _call("pow", _number(2.0, x), x)


def _exp10(x: PrimExpr) -> PrimExpr:
    return _call("pow", _number(10.0, x), x)


def _log2(x: PrimExpr) -> PrimExpr:
    return _call("log", x) * _number(math.log2(math.e), x)


def _log10(x: PrimExpr) -> PrimExpr:
    return _call("log", x) * _number(math.log10(math.e), x)


def _tan(x: PrimExpr) -> PrimExpr:
    return _call("sin", x) / _call("cos", x)


def _cosh(x: PrimExpr) -> PrimExpr:
    return (_call("exp", x) + _call("exp", -x)) * _number(0.5, x)


def _sinh(x: PrimExpr) -> PrimExpr:
    """(exp(x) - exp(-x)) / 2; near 0, where that cancels, x + x**3 / 6 + x**5 / 120."""
    square = x * x
    near = x + x * square * (_number(1 / 6, x) + square * _number(1 / 120, x))
    far = (_call("exp", x) - _call("exp", -x)) * _number(0.5, x)
    return Select(_call("abs", x) < _number(0.25, x), near, far, x.dtype)


def _fmod(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    return x - _call("trunc", x / y) * y


# fmt: off
LOWERED: dict[str, Callable[..., PrimExpr]] = {
    "likely": lambda x: x,
    "exp2": _exp2, "exp10": _exp10, "log2": _log2, "log10": _log10,
    "tan": _tan, "cosh": _cosh, "sinh": _sinh, "fmod": _fmod,
}
# fmt: on


def _change(e: PrimExpr) -> PrimExpr:
    if isinstance(e, Intrinsic) and e.op in LOWERED:
        return LOWERED[e.op](*e.args)
    return e


def lower_intrinsics(func: PrimFunc) -> PrimFunc:
    """The function without the intrinsics of LOWERED."""
    used = (e.op for e in all_expressions(func.body) if isinstance(e, Intrinsic))
    if LOWERED.keys().isdisjoint(used):
        return func
    return func.with_fields(body=ExprRewriter(_change).visit(func.body))
