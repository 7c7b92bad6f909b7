"""Complex numbers, of which Relay has none: a tensor of them is the pair of its parts."""

from __future__ import annotations

from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.late_methods import dataclass


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers."""

    real: Value
    imaginary: Value


def multiplied(a: Parts, b: Parts) -> Parts:
    """The product of numbers."""
    (p, q), (r, s) = a, b
    return (
        op.subtract(op.multiply(p, r), op.multiply(q, s)),
        op.add(op.multiply(p, s), op.multiply(q, r)),
    )


def divided(a: Parts, b: Parts) -> Parts:
    """The quotient of numbers."""
    c, d = b
    size = op.add(op.multiply(c, c), op.multiply(d, d))
    real, imaginary = multiplied(a, (c, op.negative(d)))
    return op.divide(real, size), op.divide(imaginary, size)


def modulus(a: Expr, b: Expr) -> Expr:
    """sqrt(a a + b b), of what squares have no room for too."""
    large = op.maximum(op.abs(a), op.abs(b))
    scale = op.where(op.greater(large, op.zeros_like(large)), large, op.ones_like(large))
    p, q = op.divide(a, scale), op.divide(b, scale)
    return op.multiply(scale, op.sqrt(op.add(op.multiply(p, p), op.multiply(q, q))))


def exponential(a: Expr, b: Expr) -> Parts:
    """exp(a) (cos b + i sin b)."""
    size = op.exp(a)
    return op.multiply(size, op.cos(b)), op.multiply(size, op.sin(b))
