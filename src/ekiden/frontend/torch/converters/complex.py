"""Operators that give or take complex numbers: arithmetic of the pairs of their parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.frontend.common.complex import (
    Complex,
    divided,
    exponential,
    modulus,
    multiplied,
)
from ekiden.frontend.common.functions import atan2
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts
from ekiden.frontend.torch.complex import none_real, own, parts_of
from ekiden.frontend.torch.node import Found, Node, Row, Rule
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim


def summed(function: Callable[[Expr, Expr], Expr]) -> Rule:
    """Return the rule of a + alpha * b or a - alpha * b."""

    def rule(node: Node, a: object, b: object, alpha: object = 1) -> Found:
        """Return a op (alpha * b) in parts, in the shape of the result."""
        left_parts, right_parts = parts_of(node, a), parts_of(node, b)
        if alpha != 1:
            right_parts = multiplied(right_parts, parts_of(node, alpha))
        shape = node.out_shape  # a number alone has the shape of neither
        real, imaginary = (function(x, y) for x, y in zip(left_parts, right_parts, strict=True))
        return _broadcast(node, real, shape), _broadcast(node, imaginary, shape)

    return rule


def _broadcast(node: Node, value: Expr, shape: Sequence[Dim]) -> Expr:
    same = len(node.typed(value).shape) == len(shape)
    return value if same else op.broadcast_to(value, tuple(shape))


def div(node: Node, a: object, b: object) -> Found:
    """Return a / b; by a real number, part by part."""
    numerator, (c, d) = parts_of(node, a), parts_of(node, b)
    if not isinstance(b, (Complex, complex)):
        return op.divide(numerator[0], c), op.divide(numerator[1], c)
    return divided(numerator, (c, d))


def reciprocal(node: Node, x: Complex) -> Found:
    """Return 1 / x."""
    return div(node, 1.0, x)


def absolute(node: Node, x: Complex) -> Result:
    """Return the modulus of each element."""
    return modulus(node.of(x.real), node.of(x.imaginary))


def angle(node: Node, x: Complex) -> Result:
    """Return the argument of each element, in [-pi, pi]."""
    return atan2(node.of(x.imaginary), node.of(x.real), node.part_dtype)


def sgn(node: Node, x: Complex) -> Found:
    """Return each element divided by its modulus; 0 for 0."""
    size = modulus(node.of(x.real), node.of(x.imaginary))
    # Division by 1 instead of 0: sgn(0) is 0, not NaN.
    none = op.equal(size, op.zeros_like(size))
    by = op.where(none, op.ones_like(size), size)
    return op.divide(node.of(x.real), by), op.divide(node.of(x.imaginary), by)


def _polar(node: Node, size: Value, angle: Value) -> Found:
    r, t = node.of(size), node.of(angle)
    return op.multiply(r, op.cos(t)), op.multiply(r, op.sin(t))


def exp(node: Node, x: Complex) -> Found:
    """exp(a) (cos b + i sin b)."""
    return exponential(node.of(x.real), node.of(x.imaginary))


def log(node: Node, x: Complex) -> Found:
    """Return log |x| + i arg(x)."""
    a, b = node.of(x.real), node.of(x.imaginary)
    return op.log(modulus(a, b)), atan2(b, a, node.part_dtype)


def sqrt(node: Node, x: Complex) -> Found:
    """Return the principal square root, by half the argument."""
    a, b = node.of(x.real), node.of(x.imaginary)
    half = const(0.5, node.part_dtype)
    r, t = op.sqrt(modulus(a, b)), op.multiply(atan2(b, a, node.part_dtype), half)
    return op.multiply(r, op.cos(t)), op.multiply(r, op.sin(t))


def power(node: Node, x: Complex, exponent: object) -> Found:
    """Return a whole power of at least 1, by repeated squaring. Raises Unsupported for other
    exponents.
    """
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or exponent < 1:
        raise Unsupported(f"a complex number to the power of {exponent!r}")
    base, count = parts_of(node, x), int(exponent)
    result: Parts | None = None
    # Binary exponentiation: log2(n) squarings.
    while count:
        if count & 1:
            result = base if result is None else multiplied(result, base)
        count >>= 1
        base = multiplied(base, base) if count else base
    assert result is not None
    return result


def _conj(node: Node, x: Complex) -> Found:
    return x.real, op.negative(node.of(x.imaginary))


def equal(node: Node, a: object, b: object) -> Result:
    """Return whether both parts are equal."""
    (p, q), (r, s) = parts_of(node, a), parts_of(node, b)
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def unequal(node: Node, a: object, b: object) -> Result:
    """Return whether either part differs."""
    (p, q), (r, s) = parts_of(node, a), parts_of(node, b)
    return op.logical_or(op.not_equal(p, r), op.not_equal(q, s))


def _made(node: Node, real: Value, imaginary: Value) -> Found:
    shape = node.out_shape
    x, y = (op.broadcast_to(node.of(v), tuple(shape)) for v in (real, imaginary))
    return x, y


def _as_real(node: Node, x: Complex) -> Result:
    return op.stack([node.of(x.real), node.of(x.imaginary)], axis=-1)


def _as_complex(node: Node, x: Value) -> Found:
    axis = len(x.type.shape) - 1
    real, imaginary = (op.take(node.of(x), const(i, "int64"), axis=axis) for i in range(2))
    return real, imaginary


def cast(node: Node, x: object, *_: object, **__: object) -> Found:
    """Return the numbers in another dtype; to a real dtype, the real part."""
    real, imaginary = parts_of(node, x)
    if not node.is_complex:
        return op.cast(real, node.out_dtype)
    shape = tuple(node.out_shape)
    return real, op.broadcast_to(imaginary, shape) if not isinstance(x, Complex) else imaginary


def filled(node: Node, *args: object, **__: object) -> Found:
    """Return the result of `full` and its kin, whose fill value is the last argument."""
    number = complex(args[-1])  # type: ignore[call-overload]
    shape, dtype = tuple(node.out_shape), node.part_dtype
    return op.full(const(number.real, dtype), shape), op.full(const(number.imag, dtype), shape)


def zeros(node: Node, *_: object, **__: object) -> Found:
    """Zeros."""
    return filled(node, 0.0)


def ones(node: Node, *_: object, **__: object) -> Found:
    """Ones."""
    return filled(node, 1.0)


def _angle_of_real(node: Node, x: Value) -> Result:
    """Pi below 0; NaN stays."""
    data = node.of(x, node.out_dtype)
    zero = op.zeros_like(data)
    angle_value = op.where(op.less(data, zero), op.full_like(data, const(math.pi)), zero)
    # The comparison with 0 is false for NaN, which must propagate.
    return op.where(op.isnan(data), data, angle_value)


def _sign(node: Node, x: Value) -> Result:
    return op.sign(node.of(x))


def _itself(node: Node, x: Value) -> Result:
    return x


ROWS: tuple[Row, ...] = (
    ("angle", _angle_of_real, own(angle)),
    ("sgn", _sign, own(sgn)),
    ("_conj", _itself, own(_conj)),
    ("_conj_physical", _itself, own(_conj)),
    ("conj_physical", _itself, own(_conj)),
    ("complex", none_real, own(_made)),
    ("polar", none_real, own(_polar)),
    ("view_as_complex", none_real, own(_as_complex)),
    ("view_as_real", none_real, own(_as_real)),
)
