"""Elementwise functions composed of intrinsics; trigonometry, hyperbolics, logarithms.

See `ekiden.tir.transcendental`; half precision works in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.prim import PrimExpr, cast
from ekiden.te import Tensor
from ekiden.tir.transcendental import FUNCTIONS
from ekiden.topi.elementwise import elementwise, wide


def _named(name: str) -> Callable[[Tensor], Tensor]:
    function = FUNCTIONS[name]

    def compute(x: Tensor) -> Tensor:
        return elementwise(x, lambda v: cast(function(_floating(v)), _result(v)), name)

    compute.__name__ = compute.__qualname__ = name
    compute.__doc__ = f"`{name}` of each element; integers as float32."
    return compute


def _floating(x: PrimExpr) -> PrimExpr:
    return wide(x) if x.dtype.startswith(("float", "bfloat")) else cast(x, "float32")


def _result(x: PrimExpr) -> str:
    return x.dtype if x.dtype.startswith(("float", "bfloat")) else "float32"


tan, asin, acos, atan = map(_named, ("tan", "asin", "acos", "atan"))
sinh, cosh, asinh, acosh, atanh = map(_named, ("sinh", "cosh", "asinh", "acosh", "atanh"))
log1p, log2, log10 = map(_named, ("log1p", "log2", "log10"))

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "log1p", "log2", "log10", "sinh",
    "tan",
]  # fmt: skip
