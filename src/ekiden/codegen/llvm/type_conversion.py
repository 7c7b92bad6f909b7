"""Conversions between data types with C's semantics, without calls of a compiler library."""

from __future__ import annotations

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.codegen.llvm.float16_conversion import float16_to_float32, float32_to_float16
from ekiden.codegen.llvm.types import intrinsic_suffix
from ekiden.ir import dtype as dt


def emit_cast(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    """Convert `a`; floats truncate towards zero, non-zero becomes True, narrower integers wrap."""
    if source == target:
        return a
    lanes = dt.lanes(source)
    start, end = dt.element_dtype(source), dt.element_dtype(target)

    def llvm_type(name: str) -> str:
        """Return the LLVM type of as many lanes of a dtype."""
        return dt.with_lanes(name, lanes)

    if end == "bool":
        zero = b.const(0, source)
        if start == "bfloat16" or (start == "float16" and not b.module.has("float16")):
            return emit_cast(
                b, emit_cast(b, a, source, llvm_type("float32")), llvm_type("float32"), target
            )
        return b.compare("une" if dt.is_float(start) else "ne", source, a, zero)
    # float32 holds every 16-bit float exactly, so that this detour rounds only once.
    if start in ("float16", "bfloat16") and end != "float32":
        return emit_cast(
            b, emit_cast(b, a, source, llvm_type("float32")), llvm_type("float32"), target
        )
    if dt.is_float(start):
        return (
            _float_to_float(b, a, source, target)
            if dt.is_float(end)
            else _float_to_int(b, a, source, target)
        )
    if dt.is_float(end):
        return _int_to_float(b, a, source, target)
    return _int_to_int(b, a, source, target)


def emit_round_to_int(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    """Emit the conversion to the nearest integer, ties to even, which is the processors' default
    rounding mode.
    """
    name = f"llvm.lrint.{intrinsic_suffix(target)}.{intrinsic_suffix(source)}"
    return b.call(name, target, [(source, a)])


def _int_to_int(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    before, after = _bit_width(source), _bit_width(target)
    if before == after:
        return a
    if after < before:
        return b.convert("trunc", source, target, a)
    unsigned = dt.is_unsigned(source) or dt.element_dtype(source) == "bool"
    return b.convert("zext" if unsigned else "sext", source, target, a)


def _bit_width(dtype: str) -> int:
    return 1 if dt.element_dtype(dtype) == "bool" else dt.SCALAR_BITS[dt.element_dtype(dtype)]


def _int_to_float(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    unsigned = dt.is_unsigned(source) or dt.element_dtype(source) == "bool"
    opcode = "uitofp" if unsigned else "sitofp"
    if dt.element_dtype(target) in ("float16", "bfloat16"):
        # float32 holds integers of 16 bits exactly: the only rounding is the one to 16 bits.
        wide = dt.with_lanes("float64" if _bit_width(source) > 16 else "float32", dt.lanes(source))
        return emit_cast(b, b.convert(opcode, source, wide, a), wide, target)
    return b.convert(opcode, source, target, a)


def _float_to_int(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    bits = _bit_width(target)
    if dt.element_dtype(target) == "uint64":
        return _float_to_uint64(b, a, source, target)
    # Narrow integers wrap as in C through int32; values of uint32 need the range of int64.
    through = "int32" if bits < 32 or dt.element_dtype(target) == "int32" else "int64"
    wide = dt.with_lanes(through, dt.lanes(source))
    return _int_to_int(b, b.convert("fptosi", source, wide, a), wide, target)


def _float_to_uint64(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    """Convert floats to uint64: values from 2**63 on as unsigned, others as signed (negative ones
    wrap).
    """
    lanes = dt.lanes(source)
    signed = b.convert("fptosi", source, dt.with_lanes("int64", lanes), a)
    unsigned = b.convert("fptoui", source, target, a)
    large = b.compare("oge", source, a, b.const(2.0**63, source))
    return b.select(large, target, unsigned, signed, lanes)


def _float_to_float(b: FunctionBuilder, a: Operand, source: str, target: str) -> Operand:
    start, end, lanes = dt.element_dtype(source), dt.element_dtype(target), dt.lanes(source)
    if start == "bfloat16":
        wide = b.convert("zext", source, dt.with_lanes("int32", lanes), a)
        bits = b.binary(
            "shl", dt.with_lanes("int32", lanes), wide, b.const(16, dt.with_lanes("int32", lanes))
        )
        return b.convert("bitcast", dt.with_lanes("int32", lanes), target, bits)
    # Two roundings to nearest differ from one where the first of them lands on a tie.
    if end in ("float16", "bfloat16") and start == "float64":
        a, source = _round_to_odd(b, a, source), dt.with_lanes("float32", lanes)
    if end == "bfloat16":
        return _float32_to_bfloat16(b, a, lanes)
    if "float16" in (dt.element_dtype(source), end) and not b.module.has("float16"):
        return (
            float32_to_float16(b, a, lanes) if end == "float16" else float16_to_float32(b, a, lanes)
        )
    wider = dt.SCALAR_BITS[end] > dt.SCALAR_BITS[dt.element_dtype(source)]
    return b.convert("fpext" if wider else "fptrunc", source, target, a)


def _round_to_odd(b: FunctionBuilder, a: Operand, source: str) -> Operand:
    """Round float64 to float32 to odd, so that rounding once more to 16 bits is exact (Boldo and
    Melquiond 2008).
    """
    lanes = dt.lanes(source)
    single, word = dt.with_lanes("float32", lanes), dt.with_lanes("int32", lanes)
    near = b.convert("fptrunc", source, single, a)
    back = b.convert("fpext", single, source, near)
    inexact = b.compare("one", source, back, a)
    away = b.compare(
        "ogt", source, b.intrinsic("fabs", source, back), b.intrinsic("fabs", source, a)
    )
    bits = b.convert("bitcast", single, word, near)
    # Where rounding went away from zero, the bit pattern before it is the truncated value.
    bits = b.binary("sub", word, bits, b.convert("zext", dt.with_lanes("bool", lanes), word, away))
    bits = b.binary(
        "or", word, bits, b.convert("zext", dt.with_lanes("bool", lanes), word, inexact)
    )
    return b.convert("bitcast", word, single, bits)


def _float32_to_bfloat16(b: FunctionBuilder, a: Operand, lanes: int) -> Operand:
    """Round to nearest even on the bits. NaN stays a quiet NaN."""
    single, word = dt.with_lanes("float32", lanes), dt.with_lanes("int32", lanes)
    bits = b.convert("bitcast", single, word, a)
    high = b.binary("lshr", word, bits, b.const(16, word))
    odd = b.binary("and", word, high, b.const(1, word))
    # 0x7FFF plus the last bit that stays rounds ties to even.
    rounded = b.binary("add", word, bits, b.binary("add", word, odd, b.const(0x7FFF, word)))
    rounded = b.binary("lshr", word, rounded, b.const(16, word))
    # Without the quiet bit, a NaN whose payload is in the lower half would become infinity.
    quiet = b.binary("or", word, high, b.const(0x40, word))
    nan = b.compare("uno", single, a, a)
    chosen = b.select(nan, word, quiet, rounded, lanes)
    return b.convert("trunc", word, dt.with_lanes("bfloat16", lanes), chosen)
