"""Arithmetic, comparison and simple intrinsics on operands, as instructions."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.codegen.llvm.float_math import FloatMath
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.llvm.types import is_nan_constant, register_type
from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.tir.expr import Broadcast, Ramp

EmitFunction = Callable[..., Operand]


def compute_widened(
    b: FunctionBuilder, compute: EmitFunction, dtype: str, *operands: Operand
) -> Operand:
    """Run `compute(b, dtype, *operands)`, in float32 when dtype is a 16-bit float."""
    if dt.element_dtype(dtype) not in ("float16", "bfloat16"):
        return compute(b, dtype, *operands)
    wide = dt.with_lanes("float32", dt.lanes(dtype))
    result = compute(b, wide, *(emit_cast(b, o, dtype, wide) for o in operands))
    return emit_cast(b, result, wide, dtype)


def _instruction_emitter(floating: str, integer: str, boolean: str) -> EmitFunction:
    def emit_instruction(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
        """Emit the instruction of the operands' kind; bool has its own, on one bit."""
        if dt.is_float(dtype):
            return b.binary(floating, dtype, x, y)
        return b.binary(boolean if dt.element_dtype(dtype) == "bool" else integer, dtype, x, y)

    return emit_instruction


def _safe_division_operands(
    b: FunctionBuilder, dtype: str, x: Operand, y: Operand
) -> tuple[Operand, Operand, Operand | None]:
    """Emit the operands of a division that cannot trap (zero divisor, INT_MIN / -1): (dividend,
    divisor, wrong lanes). `wrong` says where the divisor was 0.
    """
    # A constant divisor other than 0 and -1 can neither trap nor overflow.
    if y[0] != "%" and y not in ("0", b.const(0, dtype), b.const(-1, dtype)):
        return x, y, None
    lanes, one = dt.lanes(dtype), b.const(1, dtype)
    wrong = b.compare("eq", dtype, y, b.const(0, dtype))
    y = b.select(wrong, dtype, one, y, lanes)
    if not dt.is_unsigned(dtype):
        # INT_MIN / -1 traps on x86; the negation that replaces it wraps.
        negate = b.compare("eq", dtype, y, b.const(-1, dtype))
        x = b.select(negate, dtype, b.binary("sub", dtype, b.const(0, dtype), x), x, lanes)
        y = b.select(negate, dtype, one, y, lanes)
    return x, y, wrong


def emit_divide(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    """Emit `x / y`, towards zero for integers; an integer divided by zero is zero, as in NumPy."""
    if dt.is_float(dtype):
        return b.binary("fdiv", dtype, x, y)
    x, y, wrong = _safe_division_operands(b, dtype, x, y)
    quotient = b.binary("udiv" if dt.is_unsigned(dtype) else "sdiv", dtype, x, y)
    return (
        quotient
        if wrong is None
        else b.select(wrong, dtype, b.const(0, dtype), quotient, dt.lanes(dtype))
    )


def emit_floor_divide(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    """Emit `x // y` rounded down."""
    if dt.is_float(dtype):
        return FloatMath(b, dtype).emit_intrinsic("floor", b.binary("fdiv", dtype, x, y))
    if dt.is_unsigned(dtype):
        return emit_divide(b, dtype, x, y)
    x, y, wrong = _safe_division_operands(b, dtype, x, y)
    quotient = b.binary("sdiv", dtype, x, y)
    remainder = b.binary("sub", dtype, x, b.binary("mul", dtype, quotient, y))
    down = b.convert(
        "zext", _mask_dtype(dtype), dtype, _needs_floor_correction(b, dtype, remainder, y)
    )
    quotient = b.binary("sub", dtype, quotient, down)
    return (
        quotient
        if wrong is None
        else b.select(wrong, dtype, b.const(0, dtype), quotient, dt.lanes(dtype))
    )


def emit_floor_modulo(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    """Emit `x % y` with the sign of y."""
    if dt.is_float(dtype):
        return _float_modulo(b, dtype, x, y)
    x, y, wrong = _safe_modulo_operands(b, dtype, x, y)
    remainder = b.binary("urem" if dt.is_unsigned(dtype) else "srem", dtype, x, y)
    if not dt.is_unsigned(dtype):
        zero = b.const(0, dtype)
        fix = b.select(
            _needs_floor_correction(b, dtype, remainder, y), dtype, y, zero, dt.lanes(dtype)
        )
        remainder = b.binary("add", dtype, remainder, fix)
    return (
        remainder
        if wrong is None
        else b.select(wrong, dtype, b.const(0, dtype), remainder, dt.lanes(dtype))
    )


def _safe_modulo_operands(
    b: FunctionBuilder, dtype: str, x: Operand, y: Operand
) -> tuple[Operand, Operand, Operand | None]:
    """Emit the operands of a remainder that cannot trap: (dividend, divisor, wrong lanes). x % -1
    is 0, so 1 replaces the divisor -1.
    """
    if y[0] != "%" and y not in ("0", b.const(0, dtype), b.const(-1, dtype)):
        return x, y, None
    lanes, one, minus = dt.lanes(dtype), b.const(1, dtype), b.const(-1, dtype)
    wrong = b.compare("eq", dtype, y, b.const(0, dtype))
    unsafe = wrong
    if not dt.is_unsigned(dtype):
        unsafe = b.binary("or", _mask_dtype(dtype), wrong, b.compare("eq", dtype, y, minus))
    return x, b.select(unsafe, dtype, one, y, lanes), wrong


def _needs_floor_correction(
    b: FunctionBuilder, dtype: str, remainder: Operand, y: Operand
) -> Operand:
    """Emit the test whether a truncated remainder is non-zero and has another sign than the
    divisor: the floor quotient is then one less.
    """
    zero = b.const(0, dtype)
    apart = b.compare("slt", dtype, b.binary("xor", dtype, remainder, y), zero)
    return b.binary("and", _mask_dtype(dtype), apart, b.compare("ne", dtype, remainder, zero))


def _float_modulo(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    """Return x - floor(x / y) * y in float64, limited to [0, y): exact while the quotient is below
    2**53.
    """
    wide = dt.with_lanes("float64", dt.lanes(dtype))
    x, y = emit_cast(b, x, dtype, wide), emit_cast(b, y, dtype, wide)
    m = FloatMath(b, wide)
    quotient = m.emit_intrinsic("floor", m.div(x, y))
    remainder = m.fma(m.neg(quotient), y, x)
    zero = b.const(0.0, wide)
    # Rounding of the quotient can leave the remainder one y below or beyond its range; both are
    # corrected.
    below = b.compare("olt", wide, b.binary("fmul", wide, remainder, y), zero)
    remainder = b.binary("fadd", wide, remainder, b.select(below, wide, y, zero, dt.lanes(wide)))
    beyond = b.compare(
        "oge", wide, b.intrinsic("fabs", wide, remainder), b.intrinsic("fabs", wide, y)
    )
    remainder = b.binary("fsub", wide, remainder, b.select(beyond, wide, y, zero, dt.lanes(wide)))
    return emit_cast(b, remainder, wide, dtype)


def _mask_dtype(dtype: str) -> str:
    return dt.with_lanes("bool", dt.lanes(dtype))


def _min_max_emitter(ordered: str, signed: str, unsigned: str, boolean: str) -> EmitFunction:
    """Return the emitter of a minimum or maximum. NaN of either side wins, as in NumPy."""

    def emit_min_max(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
        """Emit one comparison for floats that propagates a NaN of x, and a second for one of y,
        which is left out where y is a constant that is not NaN, or NaNs are excluded (flag
        nnan).
        """
        lanes = dt.lanes(dtype)
        if dt.element_dtype(dtype) == "bool":
            return b.binary(boolean, dtype, x, y)
        if not dt.is_float(dtype):
            test = b.compare(unsigned if dt.is_unsigned(dtype) else signed, dtype, x, y)
            return b.select(test, dtype, x, y, lanes)
        # A constant goes second, where the test for NaN is left out.
        if x[0] != "%":
            x, y = y, x
        if is_nan_constant(y, dtype):
            return y
        # one vmaxps: the first operand unless y is beyond it, so a NaN in x stays
        best = b.select(b.compare(ordered, dtype, x, y), dtype, y, x, lanes)
        if y[0] != "%" or "nnan" in b.flags:
            return best
        return b.select(b.compare("uno", dtype, y, y), dtype, y, best, lanes)

    return emit_min_max


def _comparison_emitter(floating: str, signed: str, unsigned: str) -> EmitFunction:
    def emit_comparison(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
        """Emit a comparison; bfloat16, and float16 where the processor does not support it, are
        compared as float32, which holds all their values exactly.
        """
        no_half = not b.module.has("float16")
        if dt.element_dtype(dtype) == "bfloat16" or (
            dt.element_dtype(dtype) == "float16" and no_half
        ):
            wide = dt.with_lanes("float32", dt.lanes(dtype))
            x, y, dtype = emit_cast(b, x, dtype, wide), emit_cast(b, y, dtype, wide), wide
        if dt.is_float(dtype):
            return b.compare(floating, dtype, x, y)
        without_sign = dt.is_unsigned(dtype) or dt.element_dtype(dtype) == "bool"
        return b.compare(unsigned if without_sign else signed, dtype, x, y)

    return emit_comparison


# fmt: off
BINARY_EMITTERS: dict[type[prim.BinaryExpr], EmitFunction] = {
    prim.Add: _instruction_emitter("fadd", "add", "or"),
    prim.Sub: _instruction_emitter("fsub", "sub", "xor"),
    prim.Mul: _instruction_emitter("fmul", "mul", "and"),
    prim.And: _instruction_emitter("",     "and", "and"),
    prim.Or:  _instruction_emitter("",     "or",  "or"),
    prim.Div: emit_divide,
    prim.FloorDiv: emit_floor_divide,
    prim.FloorMod: emit_floor_modulo,
    prim.Min: _min_max_emitter("ogt", "slt", "ult", "and"),
    prim.Max: _min_max_emitter("olt", "sgt", "ugt", "or"),
}
COMPARISON_EMITTERS: dict[type[prim.BinaryExpr], EmitFunction] = {
    prim.EQ: _comparison_emitter("oeq", "eq",  "eq"),
    prim.NE: _comparison_emitter("une", "ne",  "ne"),
    prim.LT: _comparison_emitter("olt", "slt", "ult"),
    prim.LE: _comparison_emitter("ole", "sle", "ule"),
    prim.GT: _comparison_emitter("ogt", "sgt", "ugt"),
    prim.GE: _comparison_emitter("oge", "sge", "uge"),
}
# fmt: on


def emit_binary(
    b: FunctionBuilder, kind: type[prim.BinaryExpr], dtype: str, x: Operand, y: Operand
) -> Operand:
    """Emit any two-operand node on operands of `dtype`."""
    if kind in COMPARISON_EMITTERS:
        return COMPARISON_EMITTERS[kind](b, dtype, x, y)
    return compute_widened(b, BINARY_EMITTERS[kind], dtype, x, y)


def emit_lane_reduction(b: FunctionBuilder, kind: str, dtype: str, x: Operand) -> Operand:
    """Combine the lanes of a vector: kind is sum, max, min or prod. Float sums are trees."""
    element = dt.element_dtype(dtype)
    # In float32, because every level of the tree would round to 16 bits otherwise.
    if element in ("float16", "bfloat16"):
        wide = dt.with_lanes("float32", dt.lanes(dtype))
        return emit_cast(
            b, emit_lane_reduction(b, kind, wide, emit_cast(b, x, dtype, wide)), "float32", element
        )
    node, lanes = REDUCTION_NODES[kind], dt.lanes(dtype)
    while lanes > 1 and lanes % 2 == 0:
        half = lanes // 2
        low, high = (_lane_slice(b, element, x, lanes, start, half) for start in (0, half))
        x, lanes = emit_binary(b, node, dt.with_lanes(element, half), low, high), half
    if lanes == 1:
        return x
    total = _lane_slice(b, element, x, lanes, 0, 1)
    for i in range(1, lanes):
        total = emit_binary(b, node, element, total, _lane_slice(b, element, x, lanes, i, 1))
    return total


REDUCTION_NODES: dict[str, type[prim.BinaryExpr]] = {
    "sum": prim.Add,
    "prod": prim.Mul,
    "max": prim.Max,
    "min": prim.Min,
}


def _lane_slice(
    b: FunctionBuilder, element: str, x: Operand, lanes: int, start: int, count: int
) -> Operand:
    """Return lanes [start, start + count) of a vector."""
    kind = register_type(dt.with_lanes(element, lanes))
    if count == 1:
        return b.pure(f"extractelement {kind} {x}, i64 {start}")
    chosen = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return b.pure(f"shufflevector {kind} {x}, {kind} poison, <{count} x i32> <{chosen}>")


def is_first_lane_mask(mask: prim.PrimExpr) -> bool:
    """Return whether a mask is known to select the first lane alone."""
    # LLVM 22 stores four bytes for masked vectors that it narrows to one or two bytes.
    match mask:
        case prim.LT(
            a=Ramp(base=prim.IntImm(value=first), stride=prim.IntImm(value=1)),
            b=Broadcast(value=prim.IntImm(value=limit)),
        ):
            return limit - first == 1
    return False
