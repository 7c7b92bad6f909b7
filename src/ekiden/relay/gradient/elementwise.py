"""Gradients of elementwise operators, for y = f(x) and output gradient g.

    g_x = g * f'(x), by y where that is cheaper:  exp' = y,  tanh' = 1 - y^2,  sigmoid' = y (1 - y)

Of two arguments that broadcast, each gets the sum over the axes along which it was repeated. Where
f has a corner, one subgradient is taken: 0 at 0 for relu and abs, that of the inside for a clip at
its ends. Of equals, maximum and minimum give all to the first (PyTorch gives a half to each).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.gradient.helpers import scalar_like, sum_to_shape, tensor_type_of
from ekiden.relay.op.gradient import register_gradient

Expr = RelayExpr


def _one_minus(x: Expr) -> Expr:
    return op.subtract(scalar_like(1.0, x), x)


def _square(x: Expr) -> Expr:
    return op.multiply(x, x)


# In functions, which type checkers read when they know the operators.
# fmt: off
def _unary_rules() -> dict[str, Callable[[Expr, Expr, Expr], Expr]]:
    return {
        "negative": lambda x, y, g: op.negative(g),
        "abs":      lambda x, y, g: op.multiply(g, op.sign(x)),
        "exp":      lambda x, y, g: op.multiply(g, y),
        "log":      lambda x, y, g: op.divide(g, x),
        "sqrt":     lambda x, y, g: op.divide(op.multiply(g, scalar_like(0.5, x)), y),
        "rsqrt": lambda x, y, g: op.multiply(op.multiply(g, scalar_like(-0.5, x)), op.divide(y, x)),
        "sigmoid":  lambda x, y, g: op.multiply(g, op.multiply(y, _one_minus(y))),
        "tanh":     lambda x, y, g: op.multiply(g, op.subtract(scalar_like(1.0, x), _square(y))),
        "sin":      lambda x, y, g: op.multiply(g, op.cos(x)),
        "cos":      lambda x, y, g: op.negative(op.multiply(g, op.sin(x))),
        "erf":      lambda x, y, g: op.multiply(
                        g, op.multiply(scalar_like(2 / math.sqrt(math.pi), x),
                                       op.exp(op.negative(_square(x))))),
        "nn.relu":  lambda x, y, g: op.where(
                        op.greater(x, scalar_like(0.0, x)), g, op.zeros_like(g)),
        "copy":     lambda x, y, g: g,
        # composed where the operator is there
        "tan":      lambda x, y, g: op.multiply(g, op.add(scalar_like(1.0, x), _square(y))),
        "cosh":     lambda x, y, g: op.multiply(g, op.sinh(x)),
        "sinh":    lambda x, y, g: op.multiply(g, op.sqrt(op.add(scalar_like(1.0, x), _square(y)))),
        "asin":     lambda x, y, g: op.multiply(
                        g, op.rsqrt(op.subtract(scalar_like(1.0, x), _square(x)))),
        "acos":     lambda x, y, g: op.negative(
                        op.multiply(g, op.rsqrt(op.subtract(scalar_like(1.0, x), _square(x))))),
        "atan":     lambda x, y, g: op.divide(g, op.add(scalar_like(1.0, x), _square(x))),
        "asinh":  lambda x, y, g: op.multiply(g, op.rsqrt(op.add(scalar_like(1.0, x), _square(x)))),
        "acosh":    lambda x, y, g: op.multiply(
                        g, op.rsqrt(op.subtract(_square(x), scalar_like(1.0, x)))),
        "atanh":    lambda x, y, g: op.divide(g, op.subtract(scalar_like(1.0, x), _square(x))),
        "log2":     lambda x, y, g: op.divide(g, op.multiply(x, scalar_like(math.log(2), x))),
        "log10":    lambda x, y, g: op.divide(g, op.multiply(x, scalar_like(math.log(10), x))),
    }


def _binary_rules() -> dict[str, Callable[[Expr, Expr, Expr, Expr], tuple[Expr, Expr]]]:
    return {
        "add":      lambda a, b, y, g: (g, g),
        "subtract": lambda a, b, y, g: (g, op.negative(g)),
        "multiply": lambda a, b, y, g: (op.multiply(g, b), op.multiply(g, a)),
        "divide":   lambda a, b, y, g: (
                        op.divide(g, b), op.negative(op.divide(op.multiply(g, y), b))),
        "power":    lambda a, b, y, g: (
                        _power_base_gradient(a, b, g), _power_exponent_gradient(a, b, y, g)),
        "maximum":  lambda a, b, y, g: (
                        _mask_gradient(op.greater_equal(a, b), g),
                        _mask_gradient(op.less(a, b), g)),
        "minimum":  lambda a, b, y, g: (
                        _mask_gradient(op.less_equal(a, b), g),
                        _mask_gradient(op.greater(a, b), g)),
        "mod":      lambda a, b, y, g: (g, op.divide(op.multiply(g, op.subtract(y, a)), b)),
        "floor_mod": lambda a, b, y, g: (g, op.divide(op.multiply(g, op.subtract(y, a)), b)),
    }
# fmt: on


UNARY_GRADIENTS = _unary_rules()
"""Gradients of unary operators."""
BINARY_GRADIENTS = _binary_rules()
"""Gradients of broadcasting binary operators; for ties of maximum and minimum, the first operand
gets all.
"""

ZERO_GRADIENT_OPS = (
    "ceil floor round sign trunc zeros_like ones_like shape_of ndarray_size zeros ones arange "
    "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_not "
    "logical_xor bitwise_and bitwise_or bitwise_xor argmax argmin isnan isinf isfinite all any "
    "floor_divide dyn.zeros dyn.ones"
).split()
"""Operators whose gradient is zero almost everywhere."""


def _mask_gradient(condition: Expr, grad: Expr) -> Expr:
    return op.where(condition, grad, op.zeros_like(grad))


def _power_base_gradient(a: Expr, b: Expr, g: Expr) -> Expr:
    """Return d(a ** b) / da = b * a ** (b - 1), with 0 for exponent 0, where 0 * 0 ** -1 would be
    NaN.
    """
    slope = op.multiply(b, op.power(a, op.subtract(b, scalar_like(1.0, b))))
    if not isinstance(b, Constant) or not np.all(b.data):
        slope = op.where(op.equal(b, scalar_like(0.0, b)), scalar_like(0.0, b), slope)
    return op.multiply(g, slope)


def _power_exponent_gradient(a: Expr, b: Expr, y: Expr, g: Expr) -> Expr:
    """Return d(a ** b) / db = a ** b * log(a), with its limit 0 at base 0."""
    base = op.where(op.equal(a, scalar_like(0.0, a)), scalar_like(1.0, a), a)
    return op.multiply(g, op.multiply(y, op.log(base)))


def _make_unary_gradient(
    rule: Callable[[Expr, Expr, Expr], Expr],
) -> Callable[[Call, Expr], list[Expr | None]]:
    return lambda call, grad: [rule(call.args[0], call, grad)]


def _make_binary_gradient(
    rule: Callable[[Expr, Expr, Expr, Expr], tuple[Expr, Expr]],
) -> Callable[[Call, Expr], list[Expr | None]]:
    def gradient(call: Call, grad: Expr) -> list[Expr | None]:
        """Return the gradients of both arguments, summed over broadcast axes."""
        a, b = call.args
        shape = tensor_type_of(call).shape
        da, db = rule(a, b, call, grad)
        return [sum_to_shape(da, shape, a), sum_to_shape(db, shape, b)]

    return gradient


for _name, _rule in UNARY_GRADIENTS.items():
    if _name in OPS:
        register_gradient(_name, _make_unary_gradient(_rule))
for _name, _binary_rule in BINARY_GRADIENTS.items():
    register_gradient(_name, _make_binary_gradient(_binary_rule))
for _name in ZERO_GRADIENT_OPS:
    if _name in OPS:
        register_gradient(_name, lambda call, grad: [None] * len(call.args))


def _float_attr(attrs: Attrs | None, name: str) -> float:
    value = getattr(attrs, name)
    assert isinstance(value, (int, float))
    return float(value)


@register_gradient("nn.leaky_relu")
def _leaky_relu_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    slope = scalar_like(_float_attr(call.attrs, "alpha"), x)
    return [op.where(op.greater(x, scalar_like(0.0, x)), grad, op.multiply(grad, slope))]


@register_gradient("nn.prelu")
def _prelu_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    x, alpha = call.args
    axis = int(_float_attr(call.attrs, "axis")) % len(tensor_type_of(x).shape)
    positive = op.greater(x, scalar_like(0.0, x))
    trailing = len(tensor_type_of(x).shape) - 1 - axis
    slope = op.expand_dims(alpha, 1, trailing) if trailing else alpha
    inner = op.where(positive, op.zeros_like(grad), op.multiply(grad, x))
    return [
        op.where(positive, grad, op.multiply(grad, slope)),
        op.sum(inner, axis=axis, exclude=True),
    ]


@register_gradient("clip")
def _clip_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    low, high = (scalar_like(_float_attr(call.attrs, name), x) for name in ("a_min", "a_max"))
    inside = op.logical_and(op.greater_equal(x, low), op.less_equal(x, high))
    return [_mask_gradient(inside, grad)]


@register_gradient("cast")
def _cast_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    dtype = tensor_type_of(call.args[0]).dtype
    back = op.cast(grad, dtype) if "float" in dtype else None
    return [back, *[None] * (len(call.args) - 1)]


register_gradient("cast_like", _cast_gradient)


@register_gradient("where")
def _where_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    condition, x, y = call.args
    shape, zero = tensor_type_of(call).shape, op.zeros_like(grad)
    return [
        None,
        sum_to_shape(op.where(condition, grad, zero), shape, x),
        sum_to_shape(op.where(condition, zero, grad), shape, y),
    ]


@register_gradient("nn.dropout")
def _dropout_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    return [first_field(grad)]


def first_field(grad: Expr) -> Expr:
    """Return the first field of a tuple's gradient."""
    fields = getattr(grad, "fields", None)
    assert isinstance(fields, tuple), "the gradient of several results is a Tuple"
    first = fields[0]
    assert isinstance(first, RelayExpr)
    return first
