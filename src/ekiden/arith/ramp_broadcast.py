"""Simplification of arithmetic on Ramp and Broadcast vectors to arithmetic on their scalars.

Ramp(x, 1, 4) + Ramp(y, 2, 4)              Ramp(x + y, 3, 4)
Ramp(x, 4, 4) // Broadcast(2, 4)           Ramp(x // 2, 2, 4)
Ramp(x * 8 + 1, 1, 4) % Broadcast(8, 4)    Ramp(1, 1, 4)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.ir.node import NODE_TYPES
from ekiden.ir.prim import BinaryExpr, IntImm, PrimExpr, const, fold_binary
from ekiden.runtime.lazy_dataclass import dataclass

ModularSetOf = Callable[[PrimExpr], tuple[int, int]]
"""Function that returns the modular set (coeff, base) of an integer expression, as
Analyzer.modular_set.
"""


@dataclass(frozen=True, slots=True)
class _AffineVector:
    """Affine vector base, base + stride, ... (Ramp); stride None is a Broadcast."""

    base: PrimExpr
    stride: PrimExpr | None
    lanes: object

    def to_node(self) -> PrimExpr:
        """Return the Ramp node, or a Broadcast for stride 0."""
        if self.stride is None or prim.is_const(self.stride, 0):
            return NODE_TYPES["tir.Broadcast"](self.base, self.lanes)  # type: ignore[call-arg,return-value]
        return NODE_TYPES["tir.Ramp"](self.base, self.stride, self.lanes)  # type: ignore[call-arg,return-value]

    @property
    def stride_or_zero(self) -> PrimExpr:
        """Return the stride; 0 of a broadcast."""
        return const(0, self.base.dtype) if self.stride is None else self.stride


def _match_affine_vector(e: PrimExpr) -> _AffineVector | None:
    if e.type_key == "tir.Broadcast":
        return _AffineVector(e.value, None, e.lanes)  # type: ignore[attr-defined]
    if e.type_key == "tir.Ramp":
        return _AffineVector(e.base, e.stride, e.lanes)  # type: ignore[attr-defined]
    return None


def fold_vector_op(e: PrimExpr, modular: ModularSetOf) -> PrimExpr | None:
    """Fold an operation on two affine vectors into one, or return None."""
    if not isinstance(e, BinaryExpr) or not dt.lanes_suffix(e.dtype):
        return None
    a, b = _match_affine_vector(e.a), _match_affine_vector(e.b)
    if a is None or b is None:
        return None
    # Any operation on equal lanes is one scalar operation.
    if a.stride is None and b.stride is None:
        return _AffineVector(fold_binary(type(e), a.base, b.base), None, a.lanes).to_node()
    # Lanes of floats are rounded one by one: base + n * stride is no exact line.
    if not dt.is_int(a.base.dtype):
        return None
    match e:
        case prim.Add() | prim.Sub():
            kind = type(e)
            stride = fold_binary(kind, a.stride_or_zero, b.stride_or_zero)
            return _AffineVector(fold_binary(kind, a.base, b.base), stride, a.lanes).to_node()
        case prim.Mul():
            line, scale = (a, b.base) if b.stride is None else (b, a.base)
            # The product of two lines is quadratic in the lane.
            if a.stride is not None and b.stride is not None:
                return None
            return _AffineVector(line.base * scale, line.stride_or_zero * scale, a.lanes).to_node()
        case prim.FloorDiv() | prim.FloorMod() if b.stride is None:
            return _divide_affine_vector(e, a, b, modular)
    return None


def _divide_affine_vector(
    e: BinaryExpr, a: _AffineVector, b: _AffineVector, modular: ModularSetOf
) -> PrimExpr | None:
    """Divide an affine vector by a constant, or take its remainder; None where the result is not
    affine.

    It is one where the stride is a multiple, or where no lane of a base with a known remainder
    reaches the next multiple.
    """
    divisor, stride, is_quotient = b.base, a.stride, isinstance(e, prim.FloorDiv)
    if not isinstance(divisor, IntImm) or not isinstance(stride, IntImm) or divisor.value <= 0:
        return None
    size, step = divisor.value, stride.value
    # Each step moves the quotient by a whole number, and the remainder not at all.
    if step % size == 0:
        quotient = const(step // size, stride.dtype) if is_quotient else None
        return _AffineVector(fold_binary(type(e), a.base, divisor), quotient, a.lanes).to_node()
    coeff, first = modular(a.base)
    # What is known of the base: its remainder by `coeff`, of which this common divisor is of use.
    modulus = size if coeff == 0 else math.gcd(coeff, size)
    residue = first % modulus
    # No lane crosses a multiple of the divisor: quotients are equal, remainders a line.
    if step > 0 and isinstance(a.lanes, int) and residue + step * (a.lanes - 1) < modulus:
        base = fold_binary(type(e), a.base, divisor)
        if not is_quotient and modulus == size:
            base = const(residue, a.base.dtype)
        return _AffineVector(base, None if is_quotient else stride, a.lanes).to_node()
    if not is_quotient and modulus == size and not prim.is_const(a.base, residue):
        line = _AffineVector(const(residue, a.base.dtype), stride, a.lanes)
        return prim.FloorMod(line.to_node(), e.b, e.dtype)
    return None


__all__ = ["fold_vector_op"]
