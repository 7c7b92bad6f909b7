"""Operators on each element."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ekiden.frontend.common.functions import atan2, expm1, fmod, is_negative, log1p
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex import bilinear, own, per_part
from ekiden.frontend.torch.converters import complex as of_complex
from ekiden.frontend.torch.node import Converter, Node, Operand, Row
from ekiden.frontend.torch.symbols import Scalar
from ekiden.ir.dtype import is_float, is_int, is_unsigned, itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def same(node: Node, value: Value, *_: object, **__: object) -> Result:
    """The input, in the dtype of the output."""
    return value if value.type.dtype == node.out_dtype else op.cast(node.of(value), node.out_dtype)


def _floats(node: Node, *values: Operand) -> list[Expr]:
    """Arguments as floats: integers become the output's dtype."""
    dtype = node.out_dtype if is_float(node.out_dtype) else "float32"
    return [node.of(v, dtype) for v in values]


def _unary(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node, x: function(node.of(x))


def _float_unary(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node, x: function(*_floats(node, x))


def _rounding(function: Callable[[Expr], Expr]) -> Converter:
    """Integers are whole."""
    return lambda node, x: x if not is_float(x.type.dtype) else function(node.of(x))


def _round(node: Node, x: Value, *, decimals: int = 0) -> Result:
    """To even; `decimals` before the point are powers of ten, as PyTorch scales by them."""
    if not is_float(x.type.dtype):
        return x
    data, scale = node.of(x), const(10.0 ** abs(decimals), x.type.dtype)
    if decimals == 0:
        return op.round(data)
    if decimals > 0:
        return op.divide(op.round(op.multiply(data, scale)), scale)
    return op.multiply(op.round(op.divide(data, scale)), scale)


def broadcast(node: Node, *values: Operand) -> None:
    """Learn what follows from the shapes of all inputs broadcasting together."""
    shapes = [v.type.shape for v in values if isinstance(v, Value)]
    for at, first in enumerate(shapes):
        for other in shapes[at + 1 :]:
            node.scope.broadcasts(first, other)


def _binary(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """In the dtype of the result."""

    def convert(node: Node, a: Operand, b: Operand) -> Expr:
        """Both operands in the dtype of the result, to which PyTorch promotes them before it
        computes.
        """
        broadcast(node, a, b)
        dtype = node.out_dtype
        return function(node.of(a, dtype), node.of(b, dtype))

    return convert


def _scaled(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(node: Node, a: Operand, b: Operand, alpha: Scalar = 1) -> Expr:
        """function(a, alpha * b); of truth values either."""
        broadcast(node, a, b)
        dtype = node.out_dtype
        if dtype == "bool":
            return op.logical_or(node.of(a, dtype), node.of(b, dtype))
        right = node.of(b, dtype)
        if not isinstance(alpha, (int, float)) or alpha != 1:
            right = op.multiply(right, node.of(alpha, dtype))
        return function(node.of(a, dtype), right)

    return convert


def _multiply(node: Node, a: Operand, b: Operand) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    both = op.logical_and if dtype == "bool" else op.multiply
    return both(node.of(a, dtype), node.of(b, dtype))


def _compare(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(node: Node, a: Operand, b: Operand) -> Expr:
        """In the dtype both promote to; truth values are compared as bytes."""
        broadcast(node, a, b)
        dtype = node.promoted(a, b)
        if dtype == "bool":
            dtype = "uint8"
        return function(node.of(a, dtype), node.of(b, dtype))

    return convert


def _divide(node: Node, a: Operand, b: Operand, rounding_mode: str | None = None) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    x, y = node.of(a, dtype), node.of(b, dtype)
    if rounding_mode is None:
        return op.divide(x, y)
    if rounding_mode == "trunc":
        return op.trunc_divide(x, y) if is_int(dtype) else op.trunc(op.divide(x, y))
    return _floor_divided(dtype, x, y)


def _floor_divided(dtype: str, x: Expr, y: Expr) -> Expr:
    """As Python's: the quotient of what the remainder leaves, rounded, one less where the signs
    differ; where y is 0 it is x / y. By infinity it is 0 or -1.
    """
    if not is_float(dtype):
        return op.floor_divide(x, y)
    rest, zero, one = fmod(dtype, x, y), const(0, dtype), const(1, dtype)
    quotient = op.divide(op.subtract(x, rest), y)
    quotient = op.where(_is_below(rest, y, zero), op.subtract(quotient, one), quotient)
    down = op.floor(quotient)
    is_next = op.greater(op.subtract(quotient, down), const(0.5, dtype))
    near = op.where(is_next, op.add(down, one), down)
    return op.where(op.equal(y, zero), op.divide(x, y), near)


def _is_below(rest: Expr, y: Expr, zero: Expr) -> Expr:
    """Where a remainder with the sign of what is divided has another sign than the divisor."""
    other_sign = op.not_equal(op.less(rest, zero), op.less(y, zero))
    return op.logical_and(op.not_equal(rest, zero), other_sign)


def _floor_divide(node: Node, a: Operand, b: Operand) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    return _floor_divided(dtype, node.of(a, dtype), node.of(b, dtype))


def _python_mod(dtype: str, x: Expr, y: Expr) -> Expr:
    """With the sign of the divisor."""
    if not is_float(dtype):
        return op.floor_mod(x, y)
    found = fmod(dtype, x, y)
    return op.where(_is_below(found, y, const(0, dtype)), op.add(found, y), found)


def _remainder(function: Callable[[str, Expr, Expr], Expr]) -> Converter:
    def convert(node: Node, a: Operand, b: Operand) -> Expr:
        """In the dtype of the result, which the function is told."""
        broadcast(node, a, b)
        dtype = node.out_dtype
        return function(dtype, node.of(a, dtype), node.of(b, dtype))

    return convert


def _power(node: Node, a: Operand, b: Operand) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    x = node.of(a, dtype)
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b == 2:
            return op.multiply(x, x)
        if b == 0.5 and is_float(dtype):
            return op.sqrt(x)
        if b == 1:
            return x
    if not is_float(dtype):
        return _integer_power(node, x, b, dtype)
    return op.power(x, node.of(b, dtype))


def _integer_power(node: Node, x: Expr, b: Operand, dtype: str) -> Expr:
    """By squaring, as numbers wrap around; a negative exponent leaves 1, -1 and 0."""
    y = node.of(b, dtype)  # of a number too large for it the lowest bits, which are not asked for
    one, zero = const(1, dtype), const(0, dtype)
    found, square = op.add(op.multiply(x, zero), one), x
    bits = 8 * itemsize(dtype) - (not is_unsigned(dtype))
    bits = int(b).bit_length() if isinstance(b, int) and b >= 0 else bits
    for bit in range(bits):
        taken = op.not_equal(op.bitwise_and(y, const(1 << bit, dtype)), zero)
        found = op.where(taken, op.multiply(found, square), found)
        square = op.multiply(square, square)
    if isinstance(b, int) and b >= 0:
        return found
    odd = op.not_equal(op.bitwise_and(y, one), zero)
    minus = op.subtract(zero, one)
    unit = op.where(op.equal(x, minus), op.where(odd, minus, one), zero)
    negative = op.where(op.equal(x, one), one, unit)
    return op.where(op.less(y, zero), negative, found)


def _where(node: Node, condition: Value, a: Operand, b: Operand) -> Expr:
    broadcast(node, condition, a, b)
    dtype = node.out_dtype
    return op.where(node.of(condition, "bool"), node.of(a, dtype), node.of(b, dtype))


def _clamp(node: Node, x: Value, low: Operand | None = None, high: Operand | None = None) -> Expr:
    dtype = node.out_dtype
    found = node.of(x, dtype)
    for bound, function in ((low, op.maximum), (high, op.minimum)):
        if bound is not None:
            broadcast(node, x, bound)
            found = function(found, node.of(bound, dtype))
    return found


def _extreme(
    function: Callable[[Expr, Expr], Expr], truths: Callable[[Expr, Expr], Expr]
) -> Converter:
    def convert(node: Node, a: Value, b: Value) -> Expr:
        """In the dtype of the result; of truth values by what the extreme means for them."""
        broadcast(node, a, b)
        dtype = node.out_dtype
        if dtype == "bool":
            return truths(node.of(a), node.of(b))
        return function(node.of(a, dtype), node.of(b, dtype))

    return convert


def _fextreme(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """The other where one is not a number."""

    def convert(node: Node, a: Value, b: Value) -> Expr:
        """As NumPy's fmax and fmin: a number wins over what is none."""
        broadcast(node, a, b)
        dtype = node.out_dtype
        x, y = node.of(a, dtype), node.of(b, dtype)
        if not is_float(dtype):
            return function(x, y)
        return op.where(op.isnan(x), y, op.where(op.isnan(y), x, function(x, y)))

    return convert


# Functions that are made of others.


def _expm1(node: Node, x: Value) -> Expr:
    (data,) = _floats(node, x)
    return expm1(data, node.out_dtype)


def _log1p(node: Node, x: Value) -> Expr:
    (data,) = _floats(node, x)
    return log1p(data, node.out_dtype)


def _atan2(node: Node, a: Operand, b: Operand) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    return atan2(node.of(a, dtype), node.of(b, dtype), dtype)


def _signbit(node: Node, x: Value) -> Expr:
    dtype = x.type.dtype
    if not is_float(dtype):
        return op.less(node.of(x), const(0, dtype))
    return is_negative(node.of(x), dtype)


def _copysign(node: Node, a: Operand, b: Operand) -> Expr:
    broadcast(node, a, b)
    dtype = node.out_dtype
    size = op.abs(node.of(a, dtype))
    return op.where(is_negative(node.of(b, dtype), dtype), op.negative(size), size)


def _sign(node: Node, x: Value) -> Result:
    """That of what is no number is 0, as PyTorch counts what it is above and below."""
    dtype = x.type.dtype
    if not is_float(dtype):
        return x if dtype == "bool" else op.sign(node.of(x))
    return op.where(op.isnan(node.of(x)), const(0, dtype), op.sign(node.of(x)))


def _abs(node: Node, x: Value) -> Result:
    return x if x.type.dtype == "bool" else op.abs(node.of(x))


def _reciprocal(node: Node, x: Value) -> Expr:
    (data,) = _floats(node, x)
    return op.divide(const(1, node.out_dtype), data)


def _logical(function: Callable[..., Expr]) -> Converter:
    return lambda node, *values: function(*(node.of(v, "bool") for v in values))


def _bitwise(bits: Callable[..., Expr], truths: Callable[..., Expr]) -> Converter:
    def convert(node: Node, *values: Operand) -> Expr:
        """On the bits, or of truth values on these."""
        broadcast(node, *values)
        dtype = node.out_dtype
        function = truths if dtype == "bool" else bits
        return function(*(node.of(v, dtype) for v in values))

    return convert


def _is(function: Callable[[Expr], Expr], otherwise: bool) -> Converter:
    def convert(node: Node, x: Value) -> Expr:
        """Of floats the question; of others the answer is known."""
        if is_float(x.type.dtype):
            return function(node.of(x))
        return op.full(const(otherwise), x.type.shape, dtype="bool")

    return convert


def _isinf_signed(greater: bool) -> Converter:
    def convert(node: Node, x: Value) -> Expr:
        """Whether it is infinity of that sign; integers never are."""
        if not is_float(x.type.dtype):
            return op.full(const(False), x.type.shape, dtype="bool")
        limit = np.inf if greater else -np.inf
        return op.equal(node.of(x), const(limit, x.type.dtype))

    return convert


# Activations.


def _relu(node: Node, x: Value) -> Expr:
    if is_float(x.type.dtype):
        return op.nn.relu(node.of(x))
    return op.maximum(node.of(x), const(0, x.type.dtype))


def _gelu(node: Node, x: Value, approximate: str = "none") -> Expr:
    dtype, data = node.out_dtype, node.of(x)
    if approximate == "tanh":
        cubic = op.multiply(const(0.044715, dtype), op.multiply(data, op.multiply(data, data)))
        inner = op.tanh(op.multiply(const((2 / math.pi) ** 0.5, dtype), op.add(data, cubic)))
    else:
        inner = op.erf(op.multiply(data, const(0.5**0.5, dtype)))
    return op.multiply(op.multiply(const(0.5, dtype), data), op.add(const(1, dtype), inner))


def _silu(node: Node, x: Value) -> Expr:
    (data,) = _floats(node, x)
    return op.multiply(data, op.sigmoid(data))


def _elu(
    node: Node, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Expr:
    dtype, data = node.out_dtype, node.of(x)
    zero = const(0, dtype)
    below = expm1(op.multiply(op.minimum(data, zero), const(input_scale, dtype)), dtype)
    found = op.where(op.greater(data, zero), data, op.multiply(const(alpha, dtype), below))
    return found if scale == 1 else op.multiply(found, const(scale, dtype))


def _leaky_relu(node: Node, x: Value, negative_slope: float = 0.01) -> Expr:
    return op.nn.leaky_relu(node.of(x), alpha=float(negative_slope))


def _rrelu(
    node: Node, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3,
    training: bool = False, generator: object = None,
) -> list[Expr | Value | None]:  # fmt: skip
    """In inference, where the slope is the middle of those that training draws."""
    if training:
        node.unsupported("slopes that are drawn, as training does")
    return [op.nn.leaky_relu(node.of(x), alpha=(float(lower) + float(upper)) / 2), noise]


def _softplus(node: Node, x: Value, beta: float = 1, threshold: float = 20) -> Expr:
    dtype, data = node.out_dtype, node.of(x)
    scaled = op.multiply(data, const(beta, dtype))
    zero = const(0, dtype)
    tail = log1p(op.exp(op.negative(op.abs(scaled))), dtype)
    soft = op.divide(op.add(op.maximum(scaled, zero), tail), const(beta, dtype))
    return op.where(op.greater(scaled, const(threshold, dtype)), data, soft)


def _hardtanh(node: Node, x: Value, low: Scalar = -1.0, high: Scalar = 1.0) -> Expr:
    return _clamp(node, x, low, high)


def _hardsigmoid_of(data: Expr, dtype: str) -> Expr:
    shifted = op.clip(op.add(data, const(3, dtype)), 0.0, 6.0)
    return op.divide(shifted, const(6, dtype))


def _hardsigmoid(node: Node, x: Value) -> Expr:
    return _hardsigmoid_of(node.of(x), node.out_dtype)


def _hardswish(node: Node, x: Value) -> Expr:
    data = node.of(x)
    return op.multiply(data, _hardsigmoid_of(data, node.out_dtype))


def _threshold(node: Node, x: Value, threshold: float, value: float) -> Expr:
    dtype, data = node.out_dtype, node.of(x)
    return op.where(op.less_equal(data, node.of(threshold, dtype)), node.of(value, dtype), data)


def _threshold_backward(node: Node, grad: Value, x: Value, threshold: float) -> Expr:
    dtype = node.out_dtype
    below = op.less_equal(node.of(x), node.of(threshold, x.type.dtype))
    return op.where(below, const(0, dtype), node.of(grad, dtype))


def _to_copy(node: Node, x: Value, **_: object) -> Result:
    dtype = node.out_dtype
    if x.type.dtype == dtype:
        return x
    data = node.of(x)
    if dtype == "bool":
        return op.not_equal(data, const(0, x.type.dtype))
    return op.cast(data, dtype)


def _convert(node: Node, x: Value, dtype: object) -> Result:
    return _to_copy(node, x)


# fmt: off
ROWS: tuple[Row, ...] = (
    ("add", _scaled(op.add), own(of_complex.summed(op.add))),
    ("sub", _scaled(op.subtract), own(of_complex.summed(op.subtract))),
    ("mul", _multiply, bilinear),
    ("div", _divide, own(of_complex.div)),
    ("true_divide", _divide, own(of_complex.div)),
    ("floor_divide", _floor_divide),
    ("remainder", _remainder(_python_mod)),
    ("fmod", _remainder(fmod)),
    ("pow", _power, own(of_complex.power)),
    ("maximum", _extreme(op.maximum, op.logical_or)),
    ("minimum", _extreme(op.minimum, op.logical_and)),
    ("fmax", _fextreme(op.maximum)),
    ("fmin", _fextreme(op.minimum)),
    ("atan2", _atan2),
    ("copysign", _copysign),
    ("where", _where, per_part),
    ("clamp", _clamp),
    ("clamp_min", lambda node, x, low: _clamp(node, x, low)),
    ("clamp_max", lambda node, x, high: _clamp(node, x, None, high)),
    ("eq", _compare(op.equal), own(of_complex.equal)),
    ("ne", _compare(op.not_equal), own(of_complex.unequal)),
    *((name, _compare(function)) for name, function in (
        ("lt", op.less), ("le", op.less_equal),
        ("gt", op.greater), ("ge", op.greater_equal))),
    *((name, _logical(function)) for name, function in (
        ("logical_and", op.logical_and), ("logical_or", op.logical_or),
        ("logical_xor", op.logical_xor), ("logical_not", op.logical_not))),
    ("bitwise_and", _bitwise(op.bitwise_and, op.logical_and)),
    ("bitwise_or", _bitwise(op.bitwise_or, op.logical_or)),
    ("bitwise_xor", _bitwise(op.bitwise_xor, op.logical_xor)),
    ("bitwise_not", _bitwise(op.bitwise_not, op.logical_not)),
    ("bitwise_left_shift", _binary(op.left_shift)),
    ("bitwise_right_shift", _binary(op.right_shift)),
    ("exp2", _float_unary(lambda x: op.power(op.full_like(x, const(2.0)), x))),
    ("exp", _float_unary(op.exp), own(of_complex.exp)),
    ("log", _float_unary(op.log), own(of_complex.log)),
    ("sqrt", _float_unary(op.sqrt), own(of_complex.sqrt)),
    *((name, _float_unary(function)) for name, function in (
        ("log2", op.log2), ("log10", op.log10),
        ("rsqrt", op.rsqrt), ("sin", op.sin), ("cos", op.cos), ("tan", op.tan),
        ("asin", op.asin), ("acos", op.acos), ("atan", op.atan), ("sinh", op.sinh),
        ("cosh", op.cosh), ("asinh", op.asinh), ("acosh", op.acosh), ("atanh", op.atanh),
        ("tanh", op.tanh), ("erf", op.erf), ("sigmoid", op.sigmoid))),
    *((name, _rounding(function)) for name, function in (
        ("floor", op.floor), ("ceil", op.ceil), ("trunc", op.trunc))),
    ("round", _round),
    ("neg", _unary(op.negative), per_part),
    ("abs", _abs, own(of_complex.absolute)),
    ("sign", _sign),
    ("signbit", _signbit),
    ("expm1", _expm1),
    ("log1p", _log1p),
    ("reciprocal", _reciprocal, own(of_complex.reciprocal)),
    ("isnan", _is(op.isnan, False)),
    ("isinf", _is(op.isinf, False)),
    ("isfinite", _is(op.isfinite, True)),
    ("isposinf", _isinf_signed(True)),
    ("isneginf", _isinf_signed(False)),
    ("relu", _relu),
    ("gelu", _gelu),
    ("silu", _silu),
    ("elu", _elu),
    ("leaky_relu", _leaky_relu),
    ("rrelu_with_noise_functional", _rrelu),
    ("softplus", _softplus),
    ("hardtanh", _hardtanh),
    ("hardsigmoid", _hardsigmoid),
    ("hardswish", _hardswish),
    ("threshold", _threshold),
    ("threshold_backward", _threshold_backward),
    ("_to_copy", _to_copy, own(of_complex.cast)),
    ("prims::convert_element_type", _convert),
    ("prims::fma", lambda node, a, b, c: op.add(op.multiply(node.of(a), node.of(b)), node.of(c))),
    *((name, same, per_part) for name in (
        "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "resolve_neg",
        "resolve_conj", "prims::copy_strided")),
    ("copy", lambda node, to, source, non_blocking=False: op.broadcast_to(
        node.of(source, node.out_dtype), to.type.shape)),
)
# fmt: on
