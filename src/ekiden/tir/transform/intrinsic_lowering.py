"""Lower intrinsics that no code generator has to those that all have.

log2(x)   ->   log(x) * 1.4426950408889634
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import WARP_SHUFFLES, call_intrin, shuffle
from ekiden.ir.intrinsic_rules import lowering_rules
from ekiden.ir.prim import (
    EQ,
    LT,
    FloatImm,
    IntImm,
    Intrinsic,
    Or,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import rewrite
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.expr import broadcast
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.stmt_summary import summarize_stmt
from ekiden.tir.transcendental import TRANSCENDENTAL_FUNCTIONS, atan2_scalar
from ekiden.tir.visitor import ExprRewriter

SHUFFLE_WORD_BYTES = 4
"""Size of a shuffle word in bytes."""
SHUFFLE_WORD_DTYPES = frozenset(("float32", "int32", "uint32"))
"""Dtypes of a shuffle word."""


def _constant_like(value: float, like: PrimExpr) -> PrimExpr:
    return broadcast(const(value, dt.element_dtype(like.dtype)), dt.lanes(like.dtype))


def _make_intrinsic_lowering(op: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(op, *args, dtype=args[0].dtype)


def _exp2(x: PrimExpr) -> PrimExpr:
    return _make_intrinsic_lowering("pow", _constant_like(2.0, x), x)


def _exp10(x: PrimExpr) -> PrimExpr:
    return _make_intrinsic_lowering("pow", _constant_like(10.0, x), x)


def _vectorize_function(function: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
    """Return a scalar function extended to vectors, by widening each of its nodes."""

    def apply_to_vectors(*args: PrimExpr) -> PrimExpr:
        """Apply the function to scalar variables, then substitute the vectors for them."""
        lanes = dt.lanes(args[0].dtype)
        if lanes == 1:
            return function(*args)
        names = [Var(f"x{n}", dt.element_dtype(a.dtype)) for n, a in enumerate(args)]
        values = dict(zip(names, args, strict=True))

        def widen_node(e: PrimExpr) -> PrimExpr:
            """Widen a node: constants are broadcast, variables are the vectors."""
            if isinstance(e, Var):
                return values[e]
            if isinstance(e, (IntImm, FloatImm)):
                return broadcast(e, lanes)
            if dt.lanes(e.dtype) == lanes:
                return e
            return e.with_fields(dtype=dt.with_lanes(e.dtype, lanes))

        return rewrite(function(*names), widen_node)

    return apply_to_vectors


def _hypot(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """Return the larger times sqrt(1 + ratio**2): squares do not overflow."""
    a, b = _make_intrinsic_lowering("abs", x), _make_intrinsic_lowering("abs", y)
    high, low = maximum(a, b), minimum(a, b)
    zero = const(0.0, x.dtype)
    # 0 / 0 and inf / inf would be NaN: there the ratio is 0 and the result is `high`.
    plain = fold_binary(Or, fold_binary(EQ, high, zero), call_intrin("isinf", high))
    ratio = Select(plain, zero, low / Select(plain, zero + 1.0, high, x.dtype), x.dtype)
    return high * _make_intrinsic_lowering("sqrt", ratio * ratio + 1.0)


def _copysign(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    bits = f"int{8 * dt.itemsize(x.dtype)}"
    sign = const(-(2 ** (8 * dt.itemsize(x.dtype) - 1)), bits)
    magnitude_mask = const(2 ** (8 * dt.itemsize(x.dtype) - 1) - 1, bits)
    a, b = (call_intrin("reinterpret", v, dtype=bits) for v in (x, y))
    combined = call_intrin(
        "bitwise_or", _apply_lane_mask(a, magnitude_mask), _apply_lane_mask(b, sign)
    )
    return call_intrin("reinterpret", combined, dtype=x.dtype)


def _nextafter(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    """Return the neighbour of x towards y: floats of one sign are ordered as their bits are."""
    kind = x.dtype
    bits = f"int{8 * dt.itemsize(kind)}"
    zero, word = const(0.0, kind), call_intrin("reinterpret", x, dtype=bits)
    smallest = call_intrin("reinterpret", const(1, bits), dtype=kind)
    is_up, is_positive = fold_binary(LT, x, y), fold_binary(LT, zero, x)
    grows = Select(is_up, is_positive, fold_binary(LT, x, zero), "bool")
    stepped = call_intrin("reinterpret", Select(grows, word + 1, word - 1, bits), dtype=kind)
    moved = Select(fold_binary(EQ, x, zero), _copysign(smallest, y), stepped, kind)
    reached = Select(fold_binary(EQ, x, y), y, moved, kind)
    is_nan = fold_binary(Or, call_intrin("isnan", x), call_intrin("isnan", y))
    return Select(is_nan, x + y, reached, kind)


def _apply_lane_mask(x: PrimExpr, mask: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_and", x, mask)


def _ldexp(x: PrimExpr, exponent: PrimExpr) -> PrimExpr:
    return x * _make_intrinsic_lowering("pow", const(2.0, x.dtype), cast(exponent, x.dtype))


def _isfinite(x: PrimExpr) -> PrimExpr:
    return fold_binary(LT, _make_intrinsic_lowering("abs", x), const(math.inf, x.dtype))


def _popcount(x: PrimExpr) -> PrimExpr:
    """Count set bits by summing neighbouring bits, then pairs, then fours, ..."""
    bits = 8 * dt.itemsize(x.dtype)
    unsigned = f"uint{bits}"
    total = x if x.dtype == unsigned else call_intrin("reinterpret", x, dtype=unsigned)
    width = 1
    while width < bits:
        # A field of w bits counts at most w, so the sum of two fits into 2w bits.
        mask = const(
            sum((2**width - 1) << position for position in range(0, bits, 2 * width)), unsigned
        )
        moved = call_intrin("right_shift", total, const(width, unsigned))
        total = _apply_lane_mask(total, mask) + _apply_lane_mask(moved, mask)
        width *= 2
    return cast(total, x.dtype)


def _clz(x: PrimExpr) -> PrimExpr:
    """Return the number of leading zeros: the unset bits once all bits below the highest set one
    are set.
    """
    bits = 8 * dt.itemsize(x.dtype)
    unsigned = f"uint{bits}"
    filled = x if x.dtype == unsigned else call_intrin("reinterpret", x, dtype=unsigned)
    shift = 1
    while shift < bits:
        moved = call_intrin("right_shift", filled, const(shift, unsigned))
        filled = call_intrin("bitwise_or", filled, moved)
        shift *= 2
    return cast(const(bits, unsigned) - _popcount(filled), x.dtype)


def _q_multiply_shift(x: PrimExpr, y: PrimExpr, q: PrimExpr, s: PrimExpr) -> PrimExpr:
    """Return ((x << max(-s, 0)) * y + half) >> (q + max(s, 0)), computed in 64 bits."""

    a, b, fraction_bits, by = (cast(e, "int64") for e in (x, y, q, s))
    total = fraction_bits + maximum(by, 0)
    # Half a unit of the last bit that remains: rounds to nearest, ties upward.
    half = _make_intrinsic_lowering("left_shift", const(1), total - 1)
    shifted = _make_intrinsic_lowering("left_shift", a, maximum(0 - by, 0))
    return cast(_make_intrinsic_lowering("right_shift", shifted * b + half, total), x.dtype)


def _q_per_axis(
    x: PrimExpr, y: PrimExpr, left_shift: PrimExpr, right: PrimExpr, q: PrimExpr, *_: PrimExpr
) -> PrimExpr:
    moved = _make_intrinsic_lowering("left_shift", cast(x, "int64"), cast(left_shift, "int64"))
    return cast(_q_multiply_shift(moved, y, q, right), x.dtype)


def _bitwise_not(x: PrimExpr) -> PrimExpr:
    ones = (
        const(-1, x.dtype)
        if not dt.is_unsigned(x.dtype)
        else const(2 ** (8 * dt.itemsize(x.dtype)) - 1, x.dtype)
    )
    return call_intrin("bitwise_xor", x, ones)


def _fmod(x: PrimExpr, y: PrimExpr) -> PrimExpr:
    return x - _make_intrinsic_lowering("trunc", x / y) * y


_SCALAR_LOWERINGS: dict[str, Callable[..., PrimExpr]] = {
    **TRANSCENDENTAL_FUNCTIONS,
    "atan2": atan2_scalar,
    "hypot": _hypot,
    "copysign": _copysign,
    "nextafter": _nextafter,
    "ldexp": _ldexp,
    "isfinite": _isfinite,
    "popcount": _popcount,
    "clz": _clz,
    "bitwise_not": _bitwise_not,
    "q_multiply_shift": _q_multiply_shift,
    "q_multiply_shift_per_axis": _q_per_axis,
}


def _low_half(x: PrimExpr) -> PrimExpr:
    return shuffle(x, x, range(dt.lanes(x.dtype) // 2))


def _high_half(x: PrimExpr) -> PrimExpr:
    lanes = dt.lanes(x.dtype)
    return shuffle(x, x, range(lanes // 2, lanes))


# A warp's threads exchange words: other values go as one, or as two.
def _lower_shuffle(
    op: str, mask: PrimExpr, value: PrimExpr, lane: PrimExpr, *of: PrimExpr
) -> PrimExpr:
    """Lower a warp shuffle of a dtype without hardware support to shuffles of 32-bit words."""
    if dt.lanes(value.dtype) > 1:
        raise CompileError(f"{op}: threads exchange scalars, got {value.dtype}")
    mask_and_lane = cast(mask, "uint32"), cast(lane, "int32")

    def shuffle_word(word: PrimExpr) -> PrimExpr:
        return Intrinsic(op, (mask_and_lane[0], word, mask_and_lane[1], *of), word.dtype)

    if value.dtype in SHUFFLE_WORD_DTYPES:
        return shuffle_word(value)
    # Narrow integers are extended by their own sign, so that casting back is exact.
    if value.dtype == "bool" or (
        dt.is_int(value.dtype) and dt.itemsize(value.dtype) < SHUFFLE_WORD_BYTES
    ):
        return cast(shuffle_word(cast(value, _shuffle_word_dtype(value.dtype))), value.dtype)
    bits = f"uint{8 * dt.itemsize(value.dtype)}"
    bit_pattern = value if value.dtype == bits else call_intrin("reinterpret", value, dtype=bits)
    if dt.itemsize(bits) > SHUFFLE_WORD_BYTES:
        up = const(8 * SHUFFLE_WORD_BYTES, bits)
        words = (
            cast(bit_pattern, "uint32"),
            cast(call_intrin("right_shift", bit_pattern, up), "uint32"),
        )
        low, high = (cast(shuffle_word(word_part), bits) for word_part in words)
        received = call_intrin("bitwise_or", low, call_intrin("left_shift", high, up))
    else:
        received = cast(shuffle_word(cast(bit_pattern, "uint32")), bits)
    return (
        received if value.dtype == bits else call_intrin("reinterpret", received, dtype=value.dtype)
    )


def _shuffle_word_dtype(dtype: str) -> str:
    return "int32" if dt.is_int(dtype) and not dt.is_unsigned(dtype) else "uint32"


INTRINSIC_LOWERINGS: dict[str, Callable[..., PrimExpr]] = {
    "likely": lambda x: x,
    "vectorlow": _low_half,
    "vectorhigh": _high_half,
    "vectorcombine": lambda x, y: shuffle(x, y, range(2 * dt.lanes(x.dtype))),
    "exp2": _exp2,
    "exp10": _exp10,
    "fmod": _fmod,
    "nearbyint": lambda x: _make_intrinsic_lowering("round", x),
    **{name: _vectorize_function(function) for name, function in _SCALAR_LOWERINGS.items()},
    **{name: partial(_lower_shuffle, name) for name in WARP_SHUFFLES},
}


def _lower_node(e: PrimExpr) -> PrimExpr:
    if isinstance(e, Intrinsic) and e.op in INTRINSIC_LOWERINGS:
        return INTRINSIC_LOWERINGS[e.op](*e.args)
    return e


def lower_intrinsics(func: PrimFunc) -> PrimFunc:
    """Return the function without the intrinsics of INTRINSIC_LOWERINGS and those that the user's
    rules for the current target lower.

    A rule that returns its call leaves it to the table. Raises CompileError for a rule whose
    result is no expression of the call's dtype.
    """
    ops = summarize_stmt(func.body).intrinsics
    target = Target.current()
    rules = lowering_rules(target.kind.name) if target is not None else {}
    if not any(f"tir.{op}" in rules for op in ops) and INTRINSIC_LOWERINGS.keys().isdisjoint(ops):
        return func

    def lower_node(e: PrimExpr) -> PrimExpr:
        """Apply the user's rule for a call, and the table to what results."""
        if not isinstance(e, Intrinsic) or f"tir.{e.op}" not in rules:
            return _lower_node(e)
        lowered = rules[f"tir.{e.op}"](e)
        if not isinstance(lowered, PrimExpr) or lowered.dtype != e.dtype:
            result = lowered.dtype if isinstance(lowered, PrimExpr) else type(lowered).__name__
            raise CompileError(
                f"lowering rule of 'tir.{e.op}': expected an expression of {e.dtype}, got {result}"
            )
        return rewrite(lowered, _lower_node)

    return func.with_fields(body=ExprRewriter(lower_node).visit(func.body))
