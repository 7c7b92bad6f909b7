"""Elementwise functions composed of intrinsics; trigonometry, hyperbolics, logarithms.

See `ekiden.tir.transcendental`; half precision works in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.prim import PrimExpr, cast
from ekiden.te import Tensor
from ekiden.tir.transcendental import TRANSCENDENTAL_FUNCTIONS
from ekiden.topi.elementwise import elementwise, widen_half


def _unary_operator(name: str) -> Callable[[Tensor], Tensor]:
    function = TRANSCENDENTAL_FUNCTIONS[name]

    def compute_elementwise(x: Tensor) -> Tensor:
        return elementwise(x, lambda v: cast(function(_to_float(v)), _result_dtype(v)), name)

    compute_elementwise.__name__ = compute_elementwise.__qualname__ = name
    compute_elementwise.__doc__ = f"`{name}` of each element; integers as float32."
    return compute_elementwise


def _to_float(x: PrimExpr) -> PrimExpr:
    return widen_half(x) if x.dtype.startswith(("float", "bfloat")) else cast(x, "float32")


def _result_dtype(x: PrimExpr) -> str:
    return x.dtype if x.dtype.startswith(("float", "bfloat")) else "float32"


tan, asin, acos, atan = map(_unary_operator, ("tan", "asin", "acos", "atan"))
sinh, cosh, asinh, acosh, atanh = map(_unary_operator, ("sinh", "cosh", "asinh", "acosh", "atanh"))
log1p, log2, log10 = map(_unary_operator, ("log1p", "log2", "log10"))

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "log1p", "log2", "log10", "sinh",
    "tan",
]  # fmt: skip
