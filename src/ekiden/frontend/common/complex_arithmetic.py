"""Complex arithmetic for a Relay without complex dtypes: a complex tensor is a (real, imaginary)
pair.
"""

from __future__ import annotations

from ekiden.frontend.common.dft import ComplexParts
from ekiden.frontend.common.value import Value
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ComplexValue:
    """Complex tensor as a pair of real ones."""

    real: Value
    imaginary: Value


def complex_multiply(a: ComplexParts, b: ComplexParts) -> ComplexParts:
    """Emit the product of two complex tensors: (p r - q s, p s + q r)."""
    (p, q), (r, s) = a, b
    return (
        op.subtract(op.multiply(p, r), op.multiply(q, s)),
        op.add(op.multiply(p, s), op.multiply(q, r)),
    )


def complex_divide(a: ComplexParts, b: ComplexParts) -> ComplexParts:
    """Emit the quotient of two complex tensors: the product with the conjugate over the squared
    modulus.
    """
    c, d = b
    size = op.add(op.multiply(c, c), op.multiply(d, d))
    real, imaginary = complex_multiply(a, (c, op.negative(d)))
    return op.divide(real, size), op.divide(imaginary, size)


def complex_abs(a: Expr, b: Expr) -> Expr:
    """Emit sqrt(a a + b b), scaled by the larger part so that the squares do not overflow."""
    large = op.maximum(op.abs(a), op.abs(b))
    # A scale of 1 avoids 0 / 0 where both parts are 0.
    scale = op.where(op.greater(large, op.zeros_like(large)), large, op.ones_like(large))
    p, q = op.divide(a, scale), op.divide(b, scale)
    return op.multiply(scale, op.sqrt(op.add(op.multiply(p, p), op.multiply(q, q))))


def emit_complex_exp(a: Expr, b: Expr) -> ComplexParts:
    """Emit exp(a) (cos b + i sin b)."""
    size = op.exp(a)
    return op.multiply(size, op.cos(b)), op.multiply(size, op.sin(b))


def complex_polar_power(size: Expr, angle: Expr, exponent: float, dtype: str) -> ComplexParts:
    """Emit a real power of a number in polar form: r^p (cos p a + i sin p a)."""
    turned = op.multiply(angle, const(exponent, dtype))
    # sqrt is correctly rounded and one instruction; pow is neither.
    length = (
        op.sqrt(size)
        if exponent == _SQUARE_ROOT_EXPONENT
        else op.power(size, const(exponent, dtype))
    )
    return op.multiply(length, op.cos(turned)), op.multiply(length, op.sin(turned))


_SQUARE_ROOT_EXPONENT = 0.5


def complex_sin(a: Expr, b: Expr) -> ComplexParts:
    """Emit sin a cosh b + i cos a sinh b."""
    return op.multiply(op.sin(a), op.cosh(b)), op.multiply(op.cos(a), op.sinh(b))


def complex_cos(a: Expr, b: Expr) -> ComplexParts:
    """Emit cos a cosh b - i sin a sinh b."""
    return (
        op.multiply(op.cos(a), op.cosh(b)),
        op.negative(op.multiply(op.sin(a), op.sinh(b))),
    )


def complex_tanh(a: Expr, b: Expr) -> ComplexParts:
    """Return (t (1 + u u) + i u / cosh(a)^2) / (1 + t t u u) with t = tanh a and u = tan b; nothing
    overflows where a is large.
    """
    t, u, one = op.tanh(a), op.tan(b), op.ones_like(a)
    squares = op.multiply(u, u)
    size = op.add(one, op.multiply(op.multiply(t, t), squares))
    slope = op.divide(one, op.cosh(a))
    real = op.divide(op.multiply(t, op.add(one, squares)), size)
    return real, op.divide(op.multiply(u, op.multiply(slope, slope)), size)


def complex_tan(a: Expr, b: Expr) -> ComplexParts:
    """Emit tan z = -i tanh(i z)."""
    real, imaginary = complex_tanh(op.negative(b), a)
    return imaginary, op.negative(real)


def complex_sigmoid(a: Expr, b: Expr) -> ComplexParts:
    """Emit the sigmoid 1 / (1 + exp(-z))."""
    real, imaginary = emit_complex_exp(op.negative(a), op.negative(b))
    one = op.ones_like(a)
    return complex_divide((one, op.zeros_like(a)), (op.add(one, real), imaginary))
