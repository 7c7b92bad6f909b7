"""Lower intrinsic calls to instructions, by a table from name to emitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.codegen.llvm.float_math import FloatMath
from ekiden.codegen.llvm.math_erf import erf
from ekiden.codegen.llvm.math_exp import exp, exp_nonpositive, sigmoid, tanh
from ekiden.codegen.llvm.math_log import log, power
from ekiden.codegen.llvm.math_trig import cos, sin
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.llvm.types import register_type
from ekiden.ir import dtype as dt
from ekiden.runtime.errors import InternalError


def emit_intrinsic(
    b: FunctionBuilder,
    name: str,
    dtype: str,
    argument: str,
    operands: Sequence[Operand],
    at_most_zero: bool = False,
) -> Operand:
    """Emit the call `name(operands)`.

    Args:
        b: the builder.
        name: the intrinsic's name.
        dtype: dtype of the result.
        argument: dtype of the arguments.
        operands: the arguments.
        at_most_zero: no argument is above 0, which shortens some functions.

    Returns:
        The result's operand.
    """
    if name == "reinterpret":
        return b.convert("bitcast", argument, dtype, operands[0])
    if name in FLOAT_INTRINSICS:
        compute = (
            NONPOSITIVE_INTRINSICS.get(name, FLOAT_INTRINSICS[name])
            if at_most_zero
            else FLOAT_INTRINSICS[name]
        )
        return _compute_in_float(b, compute, dtype, argument, operands)
    if name in FLOAT_CLASS_TESTS:
        return _emit_float_test(b, name, argument, operands[0])
    if name in INTEGER_INTRINSICS:
        return INTEGER_INTRINSICS[name](b, argument, *operands)
    raise InternalError(f"llvm: no meaning for intrinsic {name!r}")


def _compute_in_float(
    b: FunctionBuilder,
    compute: Callable[..., Operand],
    dtype: str,
    argument: str,
    operands: Sequence[Operand],
) -> Operand:
    """Compute in float64 for float64, else in float32; integers keep to intrinsics that map
    integers to themselves.
    """
    if not dt.is_float(argument):
        return _emit_on_integers(b, compute, argument, operands)
    wide = "float64" if dt.element_dtype(argument) == "float64" else "float32"
    working = dt.with_lanes(wide, dt.lanes(argument))
    values = [emit_cast(b, o, argument, working) for o in operands]
    return emit_cast(b, compute(FloatMath(b, working), *values), working, dtype)


def _emit_on_integers(
    b: FunctionBuilder, compute: Callable[..., Operand], dtype: str, operands: Sequence[Operand]
) -> Operand:
    lanes = dt.lanes(dtype)
    if compute in (_emit_floor, _emit_ceil, _emit_trunc, _emit_round):
        return operands[0]
    if compute is _emit_abs:
        zero = b.const(0, dtype)
        negative = b.compare("slt", dtype, operands[0], zero)
        if dt.is_unsigned(dtype) or dt.element_dtype(dtype) == "bool":
            return operands[0]
        return b.select(
            negative, dtype, b.binary("sub", dtype, zero, operands[0]), operands[0], lanes
        )
    if compute is _emit_fma:
        return b.binary("add", dtype, b.binary("mul", dtype, operands[0], operands[1]), operands[2])
    if compute is power:
        return _integer_power(b, dtype, *operands)
    working = dt.with_lanes("float64", lanes)
    values = [emit_cast(b, o, dtype, working) for o in operands]
    return emit_cast(b, compute(FloatMath(b, working), *values), working, dtype)


def _integer_power(b: FunctionBuilder, dtype: str, base: Operand, exponent: Operand) -> Operand:
    """Emit square and multiply over the bits of the exponent; it wraps on overflow. A negative
    exponent gives the truncated quotient: 0, except for bases 1 and -1, where the exponent's
    last bit decides.
    """
    lanes, one, zero = dt.lanes(dtype), b.const(1, dtype), b.const(0, dtype)
    result, square = one, base
    for bit in range(dt.SCALAR_BITS[dt.element_dtype(dtype)]):
        bit_of_exponent = b.binary(
            "and", dtype, b.binary("lshr", dtype, exponent, b.const(bit, dtype)), one
        )
        on = b.compare("ne", dtype, bit_of_exponent, zero)
        result = b.select(on, dtype, b.binary("mul", dtype, result, square), result, lanes)
        square = b.binary("mul", dtype, square, square)
    if dt.is_unsigned(dtype):
        return result
    flags = dt.with_lanes("bool", lanes)
    below, minus_one = b.compare("slt", dtype, exponent, zero), b.const(-1, dtype)
    # 1 and -1 are their own inverses: the low bit of the exponent alone decides.
    for unit in (one, minus_one):
        below = b.binary("and", flags, below, b.compare("ne", dtype, base, unit))
    return b.select(below, dtype, zero, result, lanes)


def _emit_floor(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("floor", x)


def _emit_ceil(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("ceil", x)


def _emit_round(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("roundeven", x)


def _emit_trunc(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("trunc", x)


def _emit_abs(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("fabs", x)


def _emit_sqrt(m: FloatMath, x: Operand) -> Operand:
    return m.emit_intrinsic("sqrt", x)


def _emit_rsqrt(m: FloatMath, x: Operand) -> Operand:
    return m.div(m.const(1.0), m.emit_intrinsic("sqrt", x))


def _emit_fma(m: FloatMath, x: Operand, y: Operand, z: Operand) -> Operand:
    """Emit x * y + z, rounded once where there is an instruction, else twice: the intrinsic asks
    for speed.
    """
    has_either = m.b.module.has("fma") or m.b.module.has("madd")
    return m.multiply_add(x, y, z) if has_either else m.add(m.mul(x, y), z)


def _emit_float_test(b: FunctionBuilder, name: str, dtype: str, x: Operand) -> Operand:
    """Emit isnan or isinf; integers are neither."""
    if not dt.is_float(dtype):
        return b.const(False, dt.with_lanes("bool", dt.lanes(dtype)))
    if dt.element_dtype(dtype) in ("float16", "bfloat16"):
        wide = dt.with_lanes("float32", dt.lanes(dtype))
        x, dtype = emit_cast(b, x, dtype, wide), wide
    if name == "isnan":
        return b.compare("uno", dtype, x, x)
    return b.compare("oeq", dtype, b.intrinsic("fabs", dtype, x), b.const(float("inf"), dtype))


def _bitwise_emitter(opcode: str) -> Callable[..., Operand]:
    return lambda b, dtype, x, y: b.binary(opcode, dtype, x, y)


TARGET_INTRINSICS: dict[tuple[str, str, int], str] = {
    ("dot4_u8s8", "x86-64", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("dot4_u8s8", "x86-64", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("dot4_u8s8", "aarch64", 4): "llvm.aarch64.neon.usdot.v4i32.v16i8",
    ("dot4_u8s8", "nvptx", 1): "llvm.nvvm.idp4a.u.s",
    ("dot4_s8s8", "nvptx", 1): "llvm.nvvm.idp4a.s.s",
    ("dot4_u8u8", "nvptx", 1): "llvm.nvvm.idp4a.u.u",
    ("madd_u8s8", "x86-64", 16): "llvm.x86.avx512.pmaddubs.w.512",
    ("madd_u8s8", "x86-64", 8): "llvm.x86.avx2.pmadd.ub.sw",
    ("madd_u8s8", "x86-64", 4): "llvm.x86.ssse3.pmadd.ub.sw.128",
    ("sign_s8", "x86-64", 8): "llvm.x86.avx2.psign.b",
    ("sign_s8", "x86-64", 4): "llvm.x86.ssse3.psign.b.128",
    ("madd_s16", "x86-64", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("madd_s16", "x86-64", 8): "llvm.x86.avx2.pmadd.wd",
    ("madd_s16", "x86-64", 4): "llvm.x86.sse2.pmadd.wd",
    ("madd_s16", "wasm32", 4): "llvm.wasm.dot",
    ("dot2_bf16", "x86-64", 16): "llvm.x86.avx512bf16.dpbf16ps.512",
    ("dot2_bf16", "x86-64", 8): "llvm.x86.avx512bf16.dpbf16ps.256",
}
"""LLVM intrinsic by (target ability, architecture or device kind, accumulator lanes)."""


def _dot_intrinsic(b: FunctionBuilder, ability: str, lanes: int) -> str | None:
    """Return LLVM's intrinsic for a feature on this many lanes, or None where the target does not
    support it.
    """
    target = b.module.target
    if target is None or not target.has(ability) or 32 * lanes > target.vector_bits:
        return None
    if target.kind.has_threads:
        return TARGET_INTRINSICS.get((ability, target.kind.name, lanes))
    # AVX without AVX2 has 256-bit vectors of floats only.
    if target.architecture == "x86-64" and lanes == 8 and not target.has("integers_256"):
        return None
    return TARGET_INTRINSICS.get((ability, target.architecture, lanes))


def _split_128_bit_halves(compute: Callable[..., Operand]) -> Callable[..., Operand]:
    """Wrap an emitter so that it handles each 128-bit half by itself on targets whose 256-bit
    vectors are for floats only (AVX without AVX2).
    """

    def emit_by_halves(
        b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
    ) -> Operand:
        """Emit `compute` on halves: sums have `dtype`, `x` and `y` are words of four bytes."""
        target, bits = b.module.target, dt.SCALAR_BITS[dt.element_dtype(dtype)] * dt.lanes(dtype)
        has_it = target is not None and target.has("madd_u8s8")
        if bits != 256 or target is None or not has_it or target.has("integers_256"):
            return compute(b, dtype, total, x, y)
        count = dt.lanes(dtype)
        half = dt.with_lanes(dt.element_dtype(dtype), count // 2)
        words = dtype if dt.element_dtype(dtype) == "int32" else "int32x8"
        kinds = dtype, words, words
        low, high = (
            compute(
                b,
                half,
                *(_vector_half(b, k, o, n) for k, o in zip(kinds, (total, x, y), strict=True)),
            )
            for n in (0, 1)
        )
        kind, order = register_type(half), ", ".join(f"i32 {n}" for n in range(count))
        return b.pure(f"shufflevector {kind} {low}, {kind} {high}, <{count} x i32> <{order}>")

    return emit_by_halves


def _vector_half(b: FunctionBuilder, dtype: str, value: Operand, number: int) -> Operand:
    """Return the lower or the upper half of a vector."""
    count, kind = dt.lanes(dtype) // 2, register_type(dtype)
    order = ", ".join(f"i32 {number * count + n}" for n in range(count))
    return b.pure(f"shufflevector {kind} {value}, {kind} poison, <{count} x i32> <{order}>")


def _dot4_emitter(left_sign: str, right_sign: str) -> Callable[..., Operand]:
    """Return the emitter of total + the dot product of the four bytes of x and of y, signed ("s")
    or unsigned ("u").
    """

    def emit_dot4(
        b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
    ) -> Operand:
        """Emit one dot-product instruction, or multiply byte by byte."""
        lanes = dt.lanes(dtype)
        name = _dot_intrinsic(b, f"dot4_{left_sign}8{right_sign}8", lanes)
        if name is not None and lanes == 1:
            b.module.declare(name, "i32", ["i32"] * 3)
            return b.pure(f"call i32 @{name}(i32 {x}, i32 {y}, i32 {total})")
        if name is not None:
            words, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
            b.module.declare(name, words, [words, bytes_, bytes_])
            a, c = (b.convert("bitcast", dtype, f"int8x{4 * lanes}", o) for o in (x, y))
            return b.pure(f"call {words} @{name}({words} {total}, {bytes_} {a}, {bytes_} {c})")
        for byte in range(4):
            one = _extract_bytes(b, dtype, x, byte, left_sign)
            second = _extract_bytes(b, dtype, y, byte, right_sign)
            total = b.binary("add", dtype, total, b.binary("mul", dtype, one, second))
        return total

    return emit_dot4


def _extract_bytes(b: FunctionBuilder, dtype: str, x: Operand, number: int, sign: str) -> Operand:
    """Extract byte `number` of each 32-bit word, sign- or zero-extended to int32."""
    if sign == "u":
        moved = b.binary("lshr", dtype, x, b.const(8 * number, dtype))
        return b.binary("and", dtype, moved, b.const(255, dtype))
    moved = b.binary("shl", dtype, x, b.const(24 - 8 * number, dtype))
    return b.binary("ashr", dtype, moved, b.const(24, dtype))


_dot4 = _dot4_emitter("u", "s")


def _emit_narrow_dot4(
    b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
) -> Operand:
    """Emit `_dot4` where the sum of two neighbouring products fits int16 (PMADDUBSW, PMADDWD)."""
    lanes = dt.lanes(dtype)
    sums = _pmaddubsw(b, lanes, x, y)
    if sums is None:
        return _dot4(b, dtype, total, x, y)
    # PMADDWD by ones adds neighbouring int16 sums into int32 lanes.
    ones = b.const(0x00010001, dtype)
    return _emit_madd(
        b, dtype, total, b.convert("bitcast", f"int16x{2 * lanes}", dtype, sums), ones
    )


def _pmaddubsw(b: FunctionBuilder, lanes: int, x: Operand, y: Operand) -> Operand | None:
    """Return sums of neighbouring byte products as int16 lanes (PMADDUBSW), or None where there is
    no instruction.
    """
    name = _dot_intrinsic(b, "madd_u8s8", lanes)
    if name is None:
        return None
    halves, bytes_ = f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
    b.module.declare(name, halves, [bytes_, bytes_])
    a, c = (_bitcast_to_bytes(b, lanes, o) for o in (x, y))
    return b.pure(f"call {halves} @{name}({bytes_} {a}, {bytes_} {c})")


def _bitcast_to_bytes(b: FunctionBuilder, lanes: int, words: Operand) -> Operand:
    return b.convert("bitcast", dt.with_lanes("int32", lanes), f"int8x{4 * lanes}", words)


def _emit_pair_sums(
    b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
) -> Operand:
    """Add the sums of neighbouring byte products to int16 lanes (PMADDUBSW)."""
    lanes = dt.lanes(dtype) // 2
    sums = _pmaddubsw(b, lanes, x, y)
    if sums is not None:
        return b.binary("add", dtype, total, sums)
    bytes_, wide = f"int8x{4 * lanes}", f"int16x{4 * lanes}"
    data, weights = (
        b.convert(extension, bytes_, wide, _bitcast_to_bytes(b, lanes, o))
        for extension, o in (("zext", x), ("sext", y))
    )
    products = b.convert(
        "bitcast", wide, f"int32x{2 * lanes}", b.binary("mul", wide, data, weights)
    )
    upper = b.binary("lshr", f"int32x{2 * lanes}", products, b.const(16, f"int32x{2 * lanes}"))
    for half in (products, upper):
        total = b.binary("add", dtype, total, b.convert("trunc", f"int32x{2 * lanes}", dtype, half))
    return total


def _emit_signed_dot4(
    b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
) -> Operand:
    """Emit `_dot4` of signed bytes on both sides: magnitudes of the first times the second with the
    first's sign (PSIGNB).
    """
    lanes = dt.lanes(dtype)
    kind = f"int8x{4 * lanes}"
    a, c = (_bitcast_to_bytes(b, lanes, o) for o in (x, y))
    never = b.const(False, "bool")
    # PMADDUBSW takes unsigned by signed bytes: |x| is unsigned, and x's sign moves to y. |-128| is
    # 128 as uint8.
    magnitude = b.call(f"llvm.abs.v{4 * lanes}i8", kind, [(kind, a), ("bool", never)])
    name = _dot_intrinsic(b, "sign_s8", lanes)
    if name is not None:
        bytes_ = f"<{4 * lanes} x i8>"
        b.module.declare(name, bytes_, [bytes_, bytes_])
        turned = b.pure(f"call {bytes_} @{name}({bytes_} {c}, {bytes_} {a})")
    else:
        zero = b.const(0, kind)
        is_below = b.compare("slt", kind, a, zero)
        turned = b.select(is_below, kind, b.binary("sub", kind, zero, c), c, 4 * lanes)
    magnitudes, signed_bytes = (b.convert("bitcast", kind, dtype, o) for o in (magnitude, turned))
    return _emit_narrow_dot4(b, dtype, total, magnitudes, signed_bytes)


def _emit_madd(b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand) -> Operand:
    """Emit total + the dot product of the two int16 in each word (PMADDWD)."""
    lanes = dt.lanes(dtype)
    name = _dot_intrinsic(b, "madd_s16", lanes)
    if name is not None:
        words, halves = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
        b.module.declare(name, words, [halves, halves])
        a, c = (b.convert("bitcast", dtype, f"int16x{2 * lanes}", o) for o in (x, y))
        products = b.pure(f"call {words} @{name}({halves} {a}, {halves} {c})")
        return b.binary("add", dtype, total, products)
    by = b.const(16, dtype)
    low = (b.binary("ashr", dtype, b.binary("shl", dtype, o, by), by) for o in (x, y))
    high = (b.binary("ashr", dtype, o, by) for o in (x, y))
    for x_half, y_half in (low, high):
        total = b.binary("add", dtype, total, b.binary("mul", dtype, x_half, y_half))
    return total


def _emit_in_order(b: FunctionBuilder, dtype: str, value: Operand, other: Operand) -> Operand:
    """Emit `value`, to be read only by instructions behind `other`.

    An empty piece of assembly that reads both: LLVM schedules the instructions of a block by
    register pressure and nothing else holds them apart. Where additions are part of products there
    are none to hold.
    """
    target = b.module.target
    if target is None or target.architecture != "x86-64" or target.has("dot2_s16"):
        return value
    kind = register_type(dtype)
    return b.pure(f'call {kind} asm "", "=v,0,v"({kind} {value}, {kind} {other})')


def _emit_dot2_bf16(
    b: FunctionBuilder, dtype: str, total: Operand, x: Operand, y: Operand
) -> Operand:
    """Emit total + the dot product of the two bfloat16 in each word (VDPBF16PS, which flushes
    subnormals to 0).
    """
    lanes = dt.lanes(dtype)
    name = _dot_intrinsic(b, "dot2_bf16", lanes)
    if name is not None:
        sums, pairs = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
        b.module.declare(name, sums, [sums, pairs, pairs])
        a, c = (b.pure(f"bitcast {sums} {o} to {pairs}") for o in (x, y))
        return b.pure(f"call {sums} @{name}({sums} {total}, {pairs} {a}, {pairs} {c})")
    word, m = dt.with_lanes("int32", lanes), FloatMath(b, dtype)
    x_bits, y_bits = (b.convert("bitcast", dtype, word, o) for o in (x, y))
    # A bfloat16 is the upper half of a float32: shift the low one up, mask the high one.
    for opcode, by in (("shl", 16), ("and", -65536)):
        one, y_value = (b.binary(opcode, word, o, b.const(by, word)) for o in (x_bits, y_bits))
        factor = b.convert("bitcast", word, dtype, one)
        total = _emit_fma(m, factor, b.convert("bitcast", word, dtype, y_value), total)
    return total


def _emit_left_shift(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    return _emit_shift(b, "shl", dtype, x, y)


def _emit_right_shift(b: FunctionBuilder, dtype: str, x: Operand, y: Operand) -> Operand:
    if dt.is_unsigned(dtype):
        return _emit_shift(b, "lshr", dtype, x, y)
    # LLVM's ashr by the width or more is poison; by width - 1 it leaves the sign bits.
    last = b.const(dt.SCALAR_BITS[dt.element_dtype(dtype)] - 1, dtype)
    inside = b.compare("ult", dtype, y, last)
    return b.binary("ashr", dtype, x, b.select(inside, dtype, y, last, dt.lanes(dtype)))


def _emit_shift(b: FunctionBuilder, opcode: str, dtype: str, x: Operand, y: Operand) -> Operand:
    """Emit a shift whose result is 0 where the distance is the width or more; LLVM's shifts are
    poison there.
    """
    width, zero, lanes = (
        b.const(dt.SCALAR_BITS[dt.element_dtype(dtype)], dtype),
        b.const(0, dtype),
        dt.lanes(dtype),
    )
    inside = b.compare("ult", dtype, y, width)
    moved = b.binary(opcode, dtype, x, b.select(inside, dtype, y, zero, lanes))
    return b.select(inside, dtype, moved, zero, lanes)


# fmt: off
FLOAT_INTRINSICS: dict[str, Callable[..., Operand]] = {
    "exp": exp, "log": log, "pow": power, "sigmoid": sigmoid, "tanh": tanh, "erf": erf,
    "sin": sin, "cos": cos,
    "sqrt": _emit_sqrt, "rsqrt": _emit_rsqrt, "abs": _emit_abs, "fma": _emit_fma,
    "floor": _emit_floor, "ceil": _emit_ceil, "round": _emit_round, "trunc": _emit_trunc,
}
NONPOSITIVE_INTRINSICS: dict[str, Callable[..., Operand]] = {"exp": exp_nonpositive}
FLOAT_CLASS_TESTS = ("isnan", "isinf")
INTEGER_INTRINSICS: dict[str, Callable[..., Operand]] = {
    "bitwise_and": _bitwise_emitter("and"), "bitwise_or": _bitwise_emitter("or"),
    "bitwise_xor": _bitwise_emitter("xor"),
    "dot4_u8s8": _dot4, "dot4_s8s8": _dot4_emitter("s", "s"), "dot4_u8u8": _dot4_emitter("u", "u"),
    "madd_u8s8": _split_128_bit_halves(_emit_narrow_dot4),
    "madd_s8s8": _split_128_bit_halves(_emit_signed_dot4),
    "sum2_u8s8": _split_128_bit_halves(_emit_pair_sums),
    "madd_s16": _split_128_bit_halves(_emit_madd), "dot2_bf16": _emit_dot2_bf16,
    "in_order": _emit_in_order,
    "left_shift": _emit_left_shift, "right_shift": _emit_right_shift,
}
# fmt: on
