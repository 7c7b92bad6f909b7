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
from ekiden.topi.shape import Dim


def summed(function: Callable[[Expr, Expr], Expr]) -> Rule:
    """The sum or difference; `alpha` is a factor of the second."""

    def rule(node: Node, a: object, b: object, alpha: object = 1) -> Found:
        """left + alpha * right in parts, in the shape of the result."""
        left, right = parts_of(node, a), parts_of(node, b)
        if alpha != 1:
            right = multiplied(right, parts_of(node, alpha))
        shape = node.out_shape  # a number alone has the shape of neither
        real, imaginary = (function(x, y) for x, y in zip(left, right, strict=True))
        return _broadcast(node, real, shape), _broadcast(node, imaginary, shape)

    return rule


def _broadcast(node: Node, value: Expr, shape: Sequence[Dim]) -> Expr:
    same = len(node.typed(value).shape) == len(shape)
    return value if same else op.broadcast_to(value, tuple(shape))


def div(node: Node, a: object, b: object) -> Found:
    """By a real number part by part."""
    left, (c, d) = parts_of(node, a), parts_of(node, b)
    if not isinstance(b, (Complex, complex)):
        return op.divide(left[0], c), op.divide(left[1], c)
    return divided(left, (c, d))


def reciprocal(node: Node, x: Complex) -> Found:
    """1 / x."""
    return div(node, 1.0, x)


def absolute(node: Node, x: Complex) -> Result:
    """The size of each."""
    return modulus(node.of(x.real), node.of(x.imaginary))


def angle(node: Node, x: Complex) -> Result:
    """The angle of each, from -pi to pi."""
    return atan2(node.of(x.imaginary), node.of(x.real), node.part_dtype)


def sgn(node: Node, x: Complex) -> Found:
    """Each by its size; 0 of 0."""
    size = modulus(node.of(x.real), node.of(x.imaginary))
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
    """The logarithm of the size, and the angle."""
    a, b = node.of(x.real), node.of(x.imaginary)
    return op.log(modulus(a, b)), atan2(b, a, node.part_dtype)


def sqrt(node: Node, x: Complex) -> Found:
    """By half of the angle: the root on the right."""
    a, b = node.of(x.real), node.of(x.imaginary)
    half = const(0.5, node.part_dtype)
    r, t = op.sqrt(modulus(a, b)), op.multiply(atan2(b, a, node.part_dtype), half)
    return op.multiply(r, op.cos(t)), op.multiply(r, op.sin(t))


def power(node: Node, x: Complex, exponent: object) -> Found:
    """A whole power above 0, by squares. Raises Unsupported for others."""
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or exponent < 1:
        raise Unsupported(f"a complex number to the power of {exponent!r}")
    base, count = parts_of(node, x), int(exponent)
    found: Parts | None = None
    while count:
        if count & 1:
            found = base if found is None else multiplied(found, base)
        count >>= 1
        base = multiplied(base, base) if count else base
    assert found is not None
    return found


def _conj(node: Node, x: Complex) -> Found:
    return x.real, op.negative(node.of(x.imaginary))


def equal(node: Node, a: object, b: object) -> Result:
    """Whether both parts are equal."""
    (p, q), (r, s) = parts_of(node, a), parts_of(node, b)
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def unequal(node: Node, a: object, b: object) -> Result:
    """Whether a part differs."""
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
    """To another dtype: of what becomes real, the real part."""
    real, imaginary = parts_of(node, x)
    if not node.is_complex:
        return op.cast(real, node.out_dtype)
    shape = tuple(node.out_shape)
    return real, op.broadcast_to(imaginary, shape) if not isinstance(x, Complex) else imaginary


def filled(node: Node, *args: object, **__: object) -> Found:
    """`full` and what is like it, whose number comes last."""
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
    found = op.where(op.less(data, zero), op.full_like(data, const(math.pi)), zero)
    return op.where(op.isnan(data), data, found)


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
