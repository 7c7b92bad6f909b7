"""Converters of complex tensors: arithmetic on pairs of real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.frontend.common.complex_arithmetic import (
    ComplexValue,
    complex_abs,
    complex_divide,
    complex_multiply,
    emit_complex_exp,
)
from ekiden.frontend.common.dft import ComplexParts
from ekiden.frontend.common.float_functions import atan2
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import complex_parts, custom_complex_rule, reject_real
from ekiden.frontend.torch.node import ComplexResult, ComplexRule, ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim


def add_rule(function: Callable[[Expr, Expr], Expr]) -> ComplexRule:
    """Return the rule of a + alpha * b or a - alpha * b."""

    def rule(node: FxNode, a: object, b: object, alpha: object = 1) -> ComplexResult:
        """Emit a op (alpha * b) part by part, in the result's shape."""
        left_parts, right_parts = complex_parts(node, a), complex_parts(node, b)
        if alpha != 1:
            right_parts = complex_multiply(right_parts, complex_parts(node, alpha))
        shape = node.out_shape  # a number alone has the shape of neither
        real, imaginary = (function(x, y) for x, y in zip(left_parts, right_parts, strict=True))
        return _broadcast_part(node, real, shape), _broadcast_part(node, imaginary, shape)

    return rule


def _broadcast_part(node: FxNode, value: Expr, shape: Sequence[Dim]) -> Expr:
    same = len(node.tensor_type_of(value).shape) == len(shape)
    return value if same else op.broadcast_to(value, tuple(shape))


def complex_div(node: FxNode, a: object, b: object) -> ComplexResult:
    """Emit a / b; a real divisor divides each part."""
    numerator, (c, d) = complex_parts(node, a), complex_parts(node, b)
    if not isinstance(b, (ComplexValue, complex)):
        return op.divide(numerator[0], c), op.divide(numerator[1], c)
    return complex_divide(numerator, (c, d))


def complex_reciprocal(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Emit 1 / x."""
    return complex_div(node, 1.0, x)


def complex_modulus(node: FxNode, x: ComplexValue) -> Result:
    """Emit the modulus of each element."""
    return complex_abs(node.to_expr(x.real), node.to_expr(x.imaginary))


def complex_angle(node: FxNode, x: ComplexValue) -> Result:
    """Emit the argument of each element, in [-pi, pi]."""
    return atan2(node.to_expr(x.imaginary), node.to_expr(x.real), node.part_dtype)


def complex_sgn(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Emit each element over its modulus; 0 for 0."""
    size = complex_abs(node.to_expr(x.real), node.to_expr(x.imaginary))
    # Division by 1 instead of 0: sgn(0) is 0, not NaN.
    none = op.equal(size, op.zeros_like(size))
    by = op.where(none, op.ones_like(size), size)
    return op.divide(node.to_expr(x.real), by), op.divide(node.to_expr(x.imaginary), by)


def _polar(node: FxNode, size: Value, angle: Value) -> ComplexResult:
    r, t = node.to_expr(size), node.to_expr(angle)
    return op.multiply(r, op.cos(t)), op.multiply(r, op.sin(t))


def complex_exp(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Emit exp(a) (cos b + i sin b)."""
    return emit_complex_exp(node.to_expr(x.real), node.to_expr(x.imaginary))


def complex_log(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Emit log |x| + i arg(x)."""
    a, b = node.to_expr(x.real), node.to_expr(x.imaginary)
    return op.log(complex_abs(a, b)), atan2(b, a, node.part_dtype)


def complex_sqrt(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Emit the principal square root, in polar form."""
    a, b = node.to_expr(x.real), node.to_expr(x.imaginary)
    half = const(0.5, node.part_dtype)
    r, t = op.sqrt(complex_abs(a, b)), op.multiply(atan2(b, a, node.part_dtype), half)
    return op.multiply(r, op.cos(t)), op.multiply(r, op.sin(t))


def complex_power(node: FxNode, x: ComplexValue, exponent: object) -> ComplexResult:
    """Emit a positive integer power by binary exponentiation."""
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or exponent < 1:
        raise Unsupported(f"a complex number to the power of {exponent!r}")
    base, count = complex_parts(node, x), int(exponent)
    result: ComplexParts | None = None
    # Binary exponentiation: log2(n) squarings.
    while count:
        if count & 1:
            result = base if result is None else complex_multiply(result, base)
        count >>= 1
        # The square after the last bit would not be used.
        base = complex_multiply(base, base) if count else base
    assert result is not None
    return result


def _conj(node: FxNode, x: ComplexValue) -> ComplexResult:
    return x.real, op.negative(node.to_expr(x.imaginary))


def complex_equal(node: FxNode, a: object, b: object) -> Result:
    """Emit whether both parts are equal."""
    (p, q), (r, s) = complex_parts(node, a), complex_parts(node, b)
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def complex_not_equal(node: FxNode, a: object, b: object) -> Result:
    """Emit whether either part differs."""
    (p, q), (r, s) = complex_parts(node, a), complex_parts(node, b)
    return op.logical_or(op.not_equal(p, r), op.not_equal(q, s))


def _make_complex(node: FxNode, real: Value, imaginary: Value) -> ComplexResult:
    shape = node.out_shape
    x, y = (op.broadcast_to(node.to_expr(v), tuple(shape)) for v in (real, imaginary))
    return x, y


def _as_real(node: FxNode, x: ComplexValue) -> Result:
    return op.stack([node.to_expr(x.real), node.to_expr(x.imaginary)], axis=-1)


def _as_complex(node: FxNode, x: Value) -> ComplexResult:
    axis = len(x.type.shape) - 1
    real, imaginary = (op.take(node.to_expr(x), const(i, "int64"), axis=axis) for i in range(2))
    return real, imaginary


def complex_cast(node: FxNode, x: object, *_: object, **__: object) -> ComplexResult:
    """Convert to another dtype; a real dtype keeps the real part."""
    real, imaginary = complex_parts(node, x)
    if not node.is_complex:
        return op.cast(real, node.out_dtype)
    shape = tuple(node.out_shape)
    # The imaginary part of a real input is a scalar 0, which needs the result's shape.
    return real, op.broadcast_to(imaginary, shape) if not isinstance(x, ComplexValue) else imaginary


def complex_full(node: FxNode, *args: object, **__: object) -> ComplexResult:
    """Convert `full` and its relatives, whose fill value is the last argument."""
    number = complex(args[-1])  # type: ignore[call-overload]
    shape, dtype = tuple(node.out_shape), node.part_dtype
    return op.full(const(number.real, dtype), shape), op.full(const(number.imag, dtype), shape)


def complex_zeros(node: FxNode, *_: object, **__: object) -> ComplexResult:
    """Emit complex zeros."""
    return complex_full(node, 0.0)


def complex_ones(node: FxNode, *_: object, **__: object) -> ComplexResult:
    """Emit complex ones."""
    return complex_full(node, 1.0)


def _angle_of_real(node: FxNode, x: Value) -> Result:
    """Emit pi below 0 and 0 above; NaN is propagated."""
    data = node.to_expr(x, node.out_dtype)
    zero = op.zeros_like(data)
    angle_value = op.where(op.less(data, zero), op.full_like(data, const(math.pi)), zero)
    # The comparison with 0 is false for NaN, which must propagate.
    return op.where(op.isnan(data), data, angle_value)


def _sign(node: FxNode, x: Value) -> Result:
    return op.sign(node.to_expr(x))


def _identity(node: FxNode, x: Value) -> Result:
    return x


ROWS: tuple[ConverterRow, ...] = (
    ("angle", _angle_of_real, custom_complex_rule(complex_angle)),
    ("sgn", _sign, custom_complex_rule(complex_sgn)),
    ("_conj", _identity, custom_complex_rule(_conj)),
    ("_conj_physical", _identity, custom_complex_rule(_conj)),
    ("conj_physical", _identity, custom_complex_rule(_conj)),
    ("complex", reject_real, custom_complex_rule(_make_complex)),
    ("polar", reject_real, custom_complex_rule(_polar)),
    ("view_as_complex", reject_real, custom_complex_rule(_as_complex)),
    ("view_as_real", reject_real, custom_complex_rule(_as_real)),
)
