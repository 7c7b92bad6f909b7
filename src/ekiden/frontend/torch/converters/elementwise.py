"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.frontend.common import float_functions
from ekiden.frontend.common.converters.elementwise import ElementwiseRow as Elementwise
from ekiden.frontend.common.converters.elementwise import PromotionKind, elementwise_rows
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import bilinear_rule, custom_complex_rule, per_part_rule
from ekiden.frontend.torch.converters import complex as of_complex
from ekiden.frontend.torch.node import ComplexRule, Converter, ConverterRow, FxNode, Operand
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir.dtype import is_float, is_int
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def identity_cast(node: FxNode, value: Value, *_: object, **__: object) -> Result:
    """Return the input, cast to the output's dtype."""
    return (
        value
        if value.type.dtype == node.out_dtype
        else op.cast(node.to_expr(value), node.out_dtype)
    )


def _float_dtype(node: FxNode) -> str:
    """Return the dtype that float functions compute in; integers convert to the output's."""
    return node.out_dtype if is_float(node.out_dtype) else "float32"


def _unary_converter(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node, x: function(node.to_expr(x))


def _multiply_add(a: Expr, b: Expr, c: Expr) -> Expr:
    return op.add(op.multiply(a, b), c)


def _float_unary_converter(row: Elementwise) -> Converter:
    def convert(node: FxNode, x: Value) -> Expr:
        dtype = _float_dtype(node)
        return row.emit(dtype, node.to_expr(x, dtype))

    return convert


def _rounding_converter(row: Elementwise) -> Converter:
    return lambda node, x: row.emit(x.type.dtype, node.to_expr(x))


def _round(node: FxNode, x: Value, *, decimals: int = 0) -> Result:
    """Convert round, half to even; `decimals` scales by powers of ten, as in PyTorch."""
    if not is_float(x.type.dtype):
        return x
    data, scale = node.to_expr(x), const(10.0 ** abs(decimals), x.type.dtype)
    if decimals == 0:
        return op.round(data)
    if decimals > 0:
        return op.divide(op.round(op.multiply(data, scale)), scale)
    return op.multiply(op.round(op.divide(data, scale)), scale)


def require_broadcast(node: FxNode, *values: Operand) -> None:
    """Require the shapes of all inputs to broadcast, which may refine their dimensions."""
    shapes = [v.type.shape for v in values if isinstance(v, Value)]
    for index, first in enumerate(shapes):
        for second in shapes[index + 1 :]:
            node.scope.require_broadcastable(first, second)


def _binary_converter(function: Callable[[str, Expr, Expr], Expr]) -> Converter:
    """Return the converter of a function of a dtype and two operands."""

    def convert(node: FxNode, a: Operand, b: Operand) -> Expr:
        """Convert both operands in the result's dtype, to which PyTorch promotes them first."""
        require_broadcast(node, a, b)
        dtype = node.out_dtype
        return function(dtype, node.to_expr(a, dtype), node.to_expr(b, dtype))

    return convert


def _alpha_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(node: FxNode, a: Operand, b: Operand, alpha: Scalar = 1) -> Expr:
        """Emit function(a, alpha * b); for bools logical or."""
        require_broadcast(node, a, b)
        dtype = node.out_dtype
        if dtype == "bool":
            # The sum of booleans is their disjunction in PyTorch.
            return op.logical_or(node.to_expr(a, dtype), node.to_expr(b, dtype))
        right = node.to_expr(b, dtype)
        if not isinstance(alpha, (int, float)) or alpha != 1:
            right = op.multiply(right, node.to_expr(alpha, dtype))
        return function(node.to_expr(a, dtype), right)

    return convert


def _compare_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(node: FxNode, a: Operand, b: Operand) -> Expr:
        """Compare in the promoted dtype; bools as bytes."""
        require_broadcast(node, a, b)
        # Comparing in the output's dtype, bool, would lose the values.
        dtype = node.promoted_dtype(a, b)
        if dtype == "bool":
            dtype = "uint8"
        return function(node.to_expr(a, dtype), node.to_expr(b, dtype))

    return convert


def _convert_div(node: FxNode, a: Operand, b: Operand, rounding_mode: str | None = None) -> Expr:
    require_broadcast(node, a, b)
    dtype = node.out_dtype
    x, y = node.to_expr(a, dtype), node.to_expr(b, dtype)
    if rounding_mode is None:
        return op.divide(x, y)
    if rounding_mode == "trunc":
        return op.trunc_divide(x, y) if is_int(dtype) else op.trunc(op.divide(x, y))
    return _floor_divide(dtype, x, y)


def _floor_divide(dtype: str, x: Expr, y: Expr) -> Expr:
    """Emit Python's floor division: (x - fmod(x, y)) / y, rounded, less 1 where the signs differ.

    For y = 0 it is x / y; by infinity it is 0 or -1.
    """
    if not is_float(dtype):
        return op.floor_divide(x, y)
    remainder, zero, one = float_functions.fmod(x, y, dtype), const(0, dtype), const(1, dtype)
    quotient = op.divide(op.subtract(x, remainder), y)
    quotient = op.where(
        float_functions.nonzero_signs_differ(remainder, y, dtype),
        op.subtract(quotient, one),
        quotient,
    )
    down = op.floor(quotient)
    is_next = op.greater(op.subtract(quotient, down), const(0.5, dtype))
    # The quotient is within rounding of an integer: ATen corrects a floor that is one too low.
    near = op.where(is_next, op.add(down, one), down)
    return op.where(op.equal(y, zero), op.divide(x, y), near)


def _convert_pow(node: FxNode, a: Operand, b: Operand) -> Expr:
    require_broadcast(node, a, b)
    dtype = node.out_dtype
    x = node.to_expr(a, dtype)
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        # Exact, and cheaper than pow.
        if b == 2:
            return op.multiply(x, x)
        if b == 0.5 and is_float(dtype):
            return op.sqrt(x)
        if b == 1:
            return x
    return op.power(x, node.to_expr(b, dtype))


def _where(node: FxNode, condition: Value, a: Operand, b: Operand) -> Expr:
    require_broadcast(node, condition, a, b)
    dtype = node.out_dtype
    return op.where(node.to_expr(condition, "bool"), node.to_expr(a, dtype), node.to_expr(b, dtype))


def _clamp(node: FxNode, x: Value, low: Operand | None = None, high: Operand | None = None) -> Expr:
    dtype = node.out_dtype
    clamped = node.to_expr(x, dtype)
    # The lower bound first: where min > max, PyTorch returns max.
    for bound, function in ((low, op.maximum), (high, op.minimum)):
        if bound is not None:
            require_broadcast(node, x, bound)
            clamped = function(clamped, node.to_expr(bound, dtype))
    return clamped


def _nan_ignoring_extremum(
    function: Callable[[Expr, Expr], Expr],
) -> Callable[[str, Expr, Expr], Expr]:
    """Return fmax or fmin on operands of a dtype: a number wins over NaN (IEEE 754-2008 maxNum)."""

    def extreme(dtype: str, x: Expr, y: Expr) -> Expr:
        """Return the extremum of two values, which prefers numbers to NaN."""
        if not is_float(dtype):
            return function(x, y)
        # IEEE 754-2008 maxNum and minNum: a number wins over NaN.
        return op.where(op.isnan(x), y, op.where(op.isnan(y), x, function(x, y)))

    return extreme


# Functions that are made of others.


def _signbit(node: FxNode, x: Value) -> Expr:
    dtype = x.type.dtype
    if not is_float(dtype):
        return op.less(node.to_expr(x), const(0, dtype))
    return float_functions.signbit(node.to_expr(x), dtype)


def _copysign(dtype: str, x: Expr, y: Expr) -> Expr:
    size = op.abs(x)
    # The sign bit decides, not a comparison: -0.0 counts as negative.
    return op.where(float_functions.signbit(y, dtype), op.negative(size), size)


def _sign(node: FxNode, x: Value) -> Result:
    """Convert sign; NaN has the sign 0, as in PyTorch."""
    dtype = x.type.dtype
    if not is_float(dtype):
        return x if dtype == "bool" else op.sign(node.to_expr(x))
    return op.where(op.isnan(node.to_expr(x)), const(0, dtype), op.sign(node.to_expr(x)))


def _abs(node: FxNode, x: Value) -> Result:
    return x if x.type.dtype == "bool" else op.abs(node.to_expr(x))


def _logical_converter(row: Elementwise) -> Converter:
    return lambda node, *values: row.function(*(node.to_expr(v, "bool") for v in values))


def _float_test_converter(function: Callable[[Expr], Expr], otherwise: bool) -> Converter:
    def convert(node: FxNode, x: Value) -> Expr:
        """Test float elements; for other dtypes the answer is constant."""
        if is_float(x.type.dtype):
            return function(node.to_expr(x))
        return op.full(const(otherwise), x.type.shape, dtype="bool")

    return convert


def _signed_isinf_converter(greater: bool) -> Converter:
    def convert(node: FxNode, x: Value) -> Expr:
        """Emit whether an element is the infinity of that sign; integers never are."""
        if not is_float(x.type.dtype):
            return op.full(const(False), x.type.shape, dtype="bool")
        limit = np.inf if greater else -np.inf
        return op.equal(node.to_expr(x), const(limit, x.type.dtype))

    return convert


# Activations.


def _exp2(node: FxNode, x: Value) -> Expr:
    data = node.to_expr(x, _float_dtype(node))
    return op.power(op.full_like(data, const(2.0)), data)


def _relu(node: FxNode, x: Value) -> Expr:
    if is_float(x.type.dtype):
        return op.nn.relu(node.to_expr(x))
    return op.maximum(node.to_expr(x), const(0, x.type.dtype))


def _gelu(node: FxNode, x: Value, approximate: str = "none") -> Expr:
    return float_functions.gelu(node.to_expr(x), node.out_dtype, approximate == "tanh")


def _elu(
    node: FxNode, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Expr:
    return float_functions.elu(node.to_expr(x), node.out_dtype, alpha, scale, input_scale)


def _leaky_relu(node: FxNode, x: Value, negative_slope: float = 0.01) -> Expr:
    return op.nn.leaky_relu(node.to_expr(x), alpha=float(negative_slope))


def _rrelu(
    node: FxNode, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3,
    training: bool = False, generator: object = None,
) -> list[Expr | Value | None]:  # fmt: skip
    """Convert rrelu in inference: the slope is the mean of the training range."""
    if training:
        node.reject("slopes that are drawn, as training does")
    return [op.nn.leaky_relu(node.to_expr(x), alpha=(float(lower) + float(upper)) / 2), noise]


def _softplus(node: FxNode, x: Value, beta: float = 1, threshold: float = 20) -> Expr:
    dtype, data = node.out_dtype, node.to_expr(x)
    scaled = op.multiply(data, const(beta, dtype))
    soft = op.divide(float_functions.softplus(scaled, dtype), const(beta, dtype))
    # Above the threshold softplus is the identity to within rounding, and exp would overflow.
    return op.where(op.greater(scaled, const(threshold, dtype)), data, soft)


def _hardtanh(node: FxNode, x: Value, low: Scalar = -1.0, high: Scalar = 1.0) -> Expr:
    return _clamp(node, x, low, high)


def _hardsigmoid(node: FxNode, x: Value) -> Expr:
    return float_functions.hard_sigmoid(node.to_expr(x), node.out_dtype)


def _threshold(node: FxNode, x: Value, threshold: float, value: float) -> Expr:
    dtype, data = node.out_dtype, node.to_expr(x)
    return op.where(
        op.less_equal(data, node.to_expr(threshold, dtype)), node.to_expr(value, dtype), data
    )


def _threshold_backward(node: FxNode, grad: Value, x: Value, threshold: float) -> Expr:
    dtype = node.out_dtype
    below = op.less_equal(node.to_expr(x), node.to_expr(threshold, x.type.dtype))
    return op.where(below, const(0, dtype), node.to_expr(grad, dtype))


def _to_copy(node: FxNode, x: Value, **_: object) -> Result:
    dtype = node.out_dtype
    if x.type.dtype == dtype:
        return x
    data = node.to_expr(x)
    if dtype == "bool":
        # A cast to bool tests for nonzero: 0.5 is true.
        return op.not_equal(data, const(0, x.type.dtype))
    return op.cast(data, dtype)


def _convert(node: FxNode, x: Value, dtype: object) -> Result:
    return _to_copy(node, x)


_PROMOTION_CONVERTERS: Mapping[PromotionKind, Callable[[Elementwise], Converter]] = {
    PromotionKind.SAME: lambda row: _binary_converter(row.emit),
    PromotionKind.FLOAT: _float_unary_converter,
    PromotionKind.INTEGER_IDENTITY: _rounding_converter,
    PromotionKind.COMPARISON: lambda row: _compare_converter(row.function),
    PromotionKind.LOGICAL: _logical_converter,
}
"""How operands of rows that other formats have too are promoted."""
_COMPLEX_RULES: Mapping[str, Callable[[Converter], ComplexRule]] = {
    "mul": bilinear_rule,
    "eq": custom_complex_rule(of_complex.complex_equal),
    "ne": custom_complex_rule(of_complex.complex_not_equal),
    "exp": custom_complex_rule(of_complex.complex_exp),
    "log": custom_complex_rule(of_complex.complex_log),
    "sqrt": custom_complex_rule(of_complex.complex_sqrt),
    "reciprocal": custom_complex_rule(of_complex.complex_reciprocal),
}
"""What those do to complex numbers."""


def _shared_row(name: str, row: Elementwise) -> ConverterRow:
    convert = _PROMOTION_CONVERTERS[row.kind](row)
    return (name, convert, _COMPLEX_RULES[name]) if name in _COMPLEX_RULES else (name, convert)


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    *(_shared_row(name, row) for name, _, row in elementwise_rows("torch")),
    ("add", _alpha_converter(op.add), custom_complex_rule(of_complex.add_rule(op.add))),
    ("sub", _alpha_converter(op.subtract), custom_complex_rule(of_complex.add_rule(op.subtract))),
    ("div", _convert_div, custom_complex_rule(of_complex.complex_div)),
    ("true_divide", _convert_div, custom_complex_rule(of_complex.complex_div)),
    ("floor_divide", _binary_converter(_floor_divide)),
    ("pow", _convert_pow, custom_complex_rule(of_complex.complex_power)),
    ("fmax", _binary_converter(_nan_ignoring_extremum(op.maximum))),
    ("fmin", _binary_converter(_nan_ignoring_extremum(op.minimum))),
    ("copysign", _binary_converter(_copysign)),
    ("where", _where, per_part_rule),
    ("clamp", _clamp),
    ("clamp_min", lambda node, x, low: _clamp(node, x, low)),
    ("clamp_max", lambda node, x, high: _clamp(node, x, None, high)),
    ("bitwise_not", lambda node, x: (
        op.logical_not if x.type.dtype == "bool" else op.bitwise_not)(node.to_expr(x))),
    ("bitwise_left_shift", _binary_converter(lambda _, x, y: op.left_shift(x, y))),
    ("bitwise_right_shift", _binary_converter(lambda _, x, y: op.right_shift(x, y))),
    ("exp2", _exp2),
    ("log2", lambda node, x: op.log2(node.to_expr(x, _float_dtype(node)))),
    ("log10", lambda node, x: op.log10(node.to_expr(x, _float_dtype(node)))),
    ("round", _round),
    ("neg", _unary_converter(op.negative), per_part_rule),
    ("abs", _abs, custom_complex_rule(of_complex.complex_modulus)),
    ("sign", _sign),
    ("signbit", _signbit),
    ("isnan", _float_test_converter(op.isnan, False)),
    ("isinf", _float_test_converter(op.isinf, False)),
    ("isfinite", _float_test_converter(op.isfinite, True)),
    ("isposinf", _signed_isinf_converter(True)),
    ("isneginf", _signed_isinf_converter(False)),
    ("relu", _relu),
    ("gelu", _gelu),
    ("elu", _elu),
    ("leaky_relu", _leaky_relu),
    ("rrelu_with_noise_functional", _rrelu),
    ("softplus", _softplus),
    ("hardtanh", _hardtanh),
    ("hardsigmoid", _hardsigmoid),
    ("threshold", _threshold),
    ("threshold_backward", _threshold_backward),
    ("_to_copy", _to_copy, custom_complex_rule(of_complex.complex_cast)),
    ("prims::convert_element_type", _convert),
    ("prims::fma", lambda node, *abc: _multiply_add(*map(node.to_expr, abc))),
    *((name, identity_cast, per_part_rule) for name in (
        "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "resolve_neg",
        "resolve_conj", "prims::copy_strided")),
    ("copy", lambda node, to, source, non_blocking=False: op.broadcast_to(
        node.to_expr(source, node.out_dtype), to.type.shape)),
)
# fmt: on
