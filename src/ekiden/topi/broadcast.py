"""Broadcasting operators.

An axis whose extent is known to be 1 is read at 0. Of an extent that is a symbol beside another
one, the types say that both are equal, so it is read at the index of the result; a run checks that
once when the function is entered, and no element does. Meanings of operators on integers are C's
(relay/op/broadcast).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import numpy as np

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    COMPARISON_OPS,
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    BinaryExpr,
    Div,
    ExprLike,
    FloatImm,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Or,
    PrimExpr,
    Select,
    Sub,
    cast,
    const,
    convert,
    fold_binary,
    is_const,
)
from ekiden.te import Tensor
from ekiden.tir.transcendental import atan2_scalar
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_shape,
    broadcast_shape,
    is_broadcastable_to,
    known_int,
)
from ekiden.topi.dimensions import are_equal_dims as same_dim
from ekiden.topi.elementwise import as_bool, widen_half

BinaryScalar = Callable[[PrimExpr, PrimExpr], PrimExpr]
Operand = Tensor | ExprLike


def broadcast_shapes(*tensors: Tensor) -> Shape:
    """Return the shape that tensors broadcast to. Raises ValueError if they do not broadcast."""
    shape: Shape = ()
    for tensor in tensors:
        merged = broadcast_shape(shape, tensor.shape)
        if merged is None:
            raise ValueError(f"shapes {[t.shape for t in tensors]} do not broadcast")
        shape = merged
    return shape


def broadcast_indices(
    indices: Sequence[PrimExpr], shape: Shape, joint: Shape
) -> tuple[PrimExpr, ...]:
    """Return the indices into a tensor of `shape` for an element of its broadcast to `joint`."""
    start = len(joint) - len(shape)
    return tuple(
        _broadcast_index(i, d, j)
        for i, d, j in zip(indices[start:], shape, joint[start:], strict=True)
    )


def _broadcast_index(index: PrimExpr, dim: PrimExpr, joint: PrimExpr) -> PrimExpr:
    if is_const(dim, 1):
        return as_dim(0)
    if known_int(dim) is not None or same_dim(dim, joint):
        return index
    return Select(fold_binary(EQ, dim, 1), as_dim(0), index, "int64")


def as_tensor(value: Tensor | ExprLike, like: Tensor | None = None) -> Tensor:
    """Return a number as a tensor of rank 0 in the dtype of `like`; a tensor unchanged."""
    if isinstance(value, Tensor):
        return value
    scalar = convert(value, None if like is None or isinstance(value, PrimExpr) else like.dtype)
    return te.compute((), lambda: scalar, name="constant")


def load_operand(x: Tensor, indices: Sequence[PrimExpr]) -> PrimExpr:
    """Load an element of `x`, or return the constant of a scalar tensor so that special cases can
    match it.
    """
    body = x.op.body[0] if isinstance(x.op, te.ComputeOp) and x.ndim == 0 else None
    return body if body is not None and is_const(body) else x[indices]


def broadcast(function: Callable[..., PrimExpr], name: str, *tensors: Tensor) -> Tensor:
    """Return `function` applied to the elements of broadcast tensors."""
    shape = broadcast_shapes(*tensors)
    return te.compute(
        shape,
        lambda *i: function(
            *(load_operand(t, broadcast_indices(i, t.shape, shape)) for t in tensors)
        ),
        name=name,
        tag="broadcast",
    )


_BOOL_EQUIVALENTS: dict[type[BinaryExpr], type[BinaryExpr]] = {Add: Or, Mul: And, Max: Or, Min: And}


def _arithmetic_op(kind: type[BinaryExpr]) -> BinaryScalar:
    """Return the scalar operation `kind`; on bool, NumPy's logical equivalent."""

    def apply_scalar(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return fold_binary(_BOOL_EQUIVALENTS.get(kind, kind) if a.dtype == "bool" else kind, a, b)

    return apply_scalar


def _comparison_op(kind: type[BinaryExpr]) -> BinaryScalar:
    assert kind in COMPARISON_OPS, kind

    def compare_scalars(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Compare two scalars; bool is compared as int32, so that False < True."""
        return (
            fold_binary(kind, cast(a, "int32"), cast(b, "int32"))
            if a.dtype == "bool"
            else fold_binary(kind, a, b)
        )

    return compare_scalars


def _logical_op(kind: type[BinaryExpr]) -> BinaryScalar:
    return lambda a, b: fold_binary(kind, as_bool(a), as_bool(b))


def _bitwise_op(op: str, on_bool: type[BinaryExpr]) -> BinaryScalar:
    """Return a bitwise operation, with its logical equivalent on bool."""
    return lambda a, b: fold_binary(on_bool, a, b) if a.dtype == "bool" else call_intrin(op, a, b)


def _trap_free_divide(kind: type[BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return an integer division that cannot trap: division by 0 yields 0, by -1 yields the
    (wrapping) negation.
    """
    # Other constants cannot trap, so that no select is needed.
    if is_const(b) and not is_const(b, 0) and not is_const(b, -1):
        return fold_binary(kind, a, b)
    zero, one = const(0, a.dtype), const(1, a.dtype)
    traps = fold_binary(EQ, b, zero)
    at_minus_one = zero
    if not dt.is_unsigned(a.dtype):
        # The least integer divided by -1 overflows, on which x86's idiv traps.
        minus_one = fold_binary(EQ, b, const(-1, a.dtype))
        at_minus_one = Select(minus_one, -a, zero, a.dtype) if kind in (Div, FloorDiv) else zero
        traps = fold_binary(Or, traps, minus_one)
    return Select(
        traps, at_minus_one, fold_binary(kind, a, Select(traps, one, b, b.dtype)), a.dtype
    )


def _divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return a / b; integers divide without trapping."""
    return fold_binary(Div, a, b) if dt.is_float(a.dtype) else _trap_free_divide(Div, a, b)


def _rounded_quotient(rounding: str, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return the rounded quotient of floats, computed in float64, which is exact for float32. For
    "floor", a quotient that underflows (a number by infinity) is -1 where the signs differ.
    """
    x, y, zero = cast(a, "float64"), cast(b, "float64"), const(0.0, "float64")
    ratio = fold_binary(Div, x, y)
    rounded = call_intrin(rounding, ratio)
    if rounding != "floor":
        return rounded
    nothing = fold_binary(And, fold_binary(EQ, ratio, zero), fold_binary(NE, x, zero))
    below = fold_binary(And, nothing, Select(y < zero, x > zero, x < zero, "bool"))
    return Select(below, const(-1.0, "float64"), rounded, "float64")


def _remainder_of_rounded(rounding: str, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return the remainder of the rounded quotient: `a` itself where the quotient is 0, also by
    infinity.
    """
    x, quotient = cast(a, "float64"), _rounded_quotient(rounding, a, b)
    difference = x - quotient * cast(b, "float64")
    return cast(
        Select(fold_binary(EQ, quotient, const(0.0, "float64")), x, difference, "float64"), a.dtype
    )


def _floor_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return (
        cast(_rounded_quotient("floor", a, b), a.dtype)
        if dt.is_float(a.dtype)
        else _trap_free_divide(FloorDiv, a, b)
    )


def _floor_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return (
        _remainder_of_rounded("floor", a, b)
        if dt.is_float(a.dtype)
        else _trap_free_divide(FloorMod, a, b)
    )


def _mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return a - trunc(a / b) * b, which has the sign of a."""
    return (
        _remainder_of_rounded("trunc", a, b)
        if dt.is_float(a.dtype)
        else a - _trap_free_divide(Div, a, b) * b
    )


def _truncated_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return `_mod`, with 0 for integers modulo 0."""
    remainder = _mod(a, b)
    if dt.is_float(a.dtype) or (is_const(b) and not is_const(b, 0)):
        return remainder
    return Select(fold_binary(EQ, b, const(0, b.dtype)), const(0, a.dtype), remainder, a.dtype)


def _pow_special_cases(a: PrimExpr, result: PrimExpr, limitless: float, zero: float) -> PrimExpr:
    """Correct a power computed by square roots to C's pow at -inf and at zeros of both signs."""
    edges = ((-np.inf, limitless), (0.0, zero))
    for edge, value in edges:
        position = fold_binary(EQ, a, const(edge, a.dtype))
        result = Select(position, const(value, a.dtype), result, a.dtype)
    return result


_CONSTANT_EXPONENT_POWERS: dict[float, Callable[[PrimExpr], PrimExpr]] = {
    -1.0: lambda a: 1.0 / a,
    -0.5: lambda a: _pow_special_cases(a, call_intrin("rsqrt", a), 0.0, np.inf),
    0.5: lambda a: _pow_special_cases(a, call_intrin("sqrt", a), np.inf, 0.0),
    1.0: lambda a: a,
    2.0: lambda a: a * a,
    3.0: lambda a: a * a * a,
}
"""Powers with constant exponents that need no logarithm."""


def _power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if dt.is_float(a.dtype):
        if isinstance(b, FloatImm) and b.value in _CONSTANT_EXPONENT_POWERS:
            return cast(_CONSTANT_EXPONENT_POWERS[b.value](widen_half(a)), a.dtype)
        return cast(call_intrin("pow", widen_half(a), widen_half(b)), a.dtype)
    return call_intrin("pow", a, b)


def _logical_xor(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return fold_binary(NE, cast(as_bool(a), "int32"), cast(as_bool(b), "int32"))


def _truncated_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return (
        cast(_rounded_quotient("trunc", a, b), a.dtype)
        if dt.is_float(a.dtype)
        else _trap_free_divide(Div, a, b)
    )


def _binary_operator(name: str, function: BinaryScalar) -> Callable[[Operand, Operand], Tensor]:
    def compute_elementwise(a: Operand, b: Operand) -> Tensor:
        lhs = as_tensor(a, b if isinstance(b, Tensor) else None)
        return broadcast(function, name, lhs, as_tensor(b, lhs))

    compute_elementwise.__name__ = compute_elementwise.__qualname__ = name
    compute_elementwise.__doc__ = f"`{name}` of two tensors that broadcast; one may be a number."
    return compute_elementwise


# fmt: off
add           = _binary_operator("add",           _arithmetic_op(Add))
subtract      = _binary_operator("subtract",      _arithmetic_op(Sub))
multiply      = _binary_operator("multiply",      _arithmetic_op(Mul))
widening_multiply = _binary_operator(
    "widening_multiply", lambda a, b: cast(a, "int64") * cast(b, "int64")
)
maximum       = _binary_operator("maximum",       _arithmetic_op(Max))
minimum       = _binary_operator("minimum",       _arithmetic_op(Min))
divide        = _binary_operator("divide",        _divide)
power         = _binary_operator("power",         _power)
mod           = _binary_operator("mod",           _truncated_mod)
floor_divide  = _binary_operator("floor_divide",  _floor_divide)
floor_mod     = _binary_operator("floor_mod",     _floor_mod)
trunc_divide  = _binary_operator("trunc_divide",  _truncated_divide)
trunc_mod     = _binary_operator("trunc_mod",     _truncated_mod)
left_shift    = _binary_operator("left_shift",    lambda a, b: call_intrin("left_shift", a, b))
right_shift   = _binary_operator("right_shift",   lambda a, b: call_intrin("right_shift", a, b))
atan2         = _binary_operator(
    "atan2", lambda a, b: cast(atan2_scalar(widen_half(a), widen_half(b)), a.dtype))
bitwise_and   = _binary_operator("bitwise_and",   _bitwise_op("bitwise_and", And))
bitwise_or    = _binary_operator("bitwise_or",    _bitwise_op("bitwise_or",  Or))
bitwise_xor   = _binary_operator("bitwise_xor",   _bitwise_op("bitwise_xor", NE))
equal         = _binary_operator("equal",         _comparison_op(EQ))
not_equal     = _binary_operator("not_equal",     _comparison_op(NE))
less          = _binary_operator("less",          _comparison_op(LT))
less_equal    = _binary_operator("less_equal",    _comparison_op(LE))
greater       = _binary_operator("greater",       _comparison_op(GT))
greater_equal = _binary_operator("greater_equal", _comparison_op(GE))
logical_and   = _binary_operator("logical_and",   _logical_op(And))
logical_or    = _binary_operator("logical_or",    _logical_op(Or))
logical_xor   = _binary_operator("logical_xor",   _logical_xor)
# fmt: on


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return elements of `x` where the condition is not 0, of `y` elsewhere."""
    return broadcast(lambda c, a, b: Select(as_bool(c), a, b, a.dtype), "where", condition, x, y)


def broadcast_to(data: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return `data` broadcast to `shape`. Raises ValueError if it does not broadcast to that."""
    target_shape = as_shape(shape)
    if not is_broadcastable_to(data.shape, target_shape):
        raise ValueError(f"broadcast_to: shape {data.shape} does not broadcast to {target_shape}")
    return te.compute(
        target_shape,
        lambda *i: data[broadcast_indices(i, data.shape, target_shape)],
        name="broadcast_to",
        tag="broadcast",
    )


def elemwise_sum(xs: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape. Raises ValueError for none."""
    if not xs:
        raise ValueError("elemwise_sum: expected at least one tensor")
    return broadcast(lambda *values: functools.reduce(operator.add, values), "elemwise_sum", *xs)


def full_like(x: Tensor, fill_value: float | int | Tensor) -> Tensor:
    """Return a tensor of one value in the shape and dtype of `x`."""
    value = as_tensor(fill_value, x)
    return te.compute(
        x.shape, lambda *i: cast(load_operand(value, ()), x.dtype), name="full_like", tag="elemwise"
    )


__all__ = [
    "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_to", "divide",
    "elemwise_sum", "equal", "floor_divide", "floor_mod", "full_like", "greater", "greater_equal",
    "left_shift", "less", "less_equal", "logical_and", "logical_or", "logical_xor", "maximum",
    "minimum", "mod", "multiply", "not_equal", "power", "right_shift", "subtract", "trunc_divide",
    "trunc_mod", "where", "widening_multiply",
]  # fmt: skip
