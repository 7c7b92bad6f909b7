"""Conversions of sub-byte and 8-bit dtypes (float8, float4, int4, int2) in integer arithmetic.

No supported target computes with them, so kernels hold them as bytes ("carriers"): integers by
value, floats by bit pattern.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, PrimExpr, Select, cast, const, fold_binary
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SmallFloatFormat:
    """The encoding of a small float, as in the OCP and MX formats and in ml_dtypes.

    largest: the code, without sign, of the largest finite number. over: the code of a larger
    number, nan: the code of NaN; 8-bit codes stand alone, others take the sign (None: 0 with the
    other sign). infinity: its code. unsigned_zero: 0 has no sign (its negative code is `nan`).
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest_code: int
    overflow_code: int
    nan_code: int | None
    infinity_code: int | None = None
    unsigned_zero: bool = False


# fmt: off
SMALL_FLOAT_FORMATS: dict[str, SmallFloatFormat] = {
    #                          e  m  bias largest over  nan   infinity
    "float8_e4m3fn":   SmallFloatFormat(4, 3, 7,   0x7E,   0x7F, 0x7F),
    "float8_e5m2":     SmallFloatFormat(5, 2, 15,  0x7B,   0x7C, 0x7E, 0x7C),
    "float8_e4m3fnuz": SmallFloatFormat(4, 3, 8,   0x7F,   0x80, 0x80, unsigned_zero=True),
    "float8_e5m2fnuz": SmallFloatFormat(5, 2, 16,  0x7F,   0x80, 0x80, unsigned_zero=True),
    "float4_e2m1fn":   SmallFloatFormat(2, 1, 1,   0x7,    0x7,  None),
}
# fmt: on
E8M0_SCALE_DTYPE = "float8_e8m0fnu"
"""Power-of-two scale type: 2**(code - 127); code 255 is NaN."""
_F32_NAN_BITS, _F32_INFINITY_BITS = 0x7FC00000, 0x7F800000


def _uint32(value: int) -> PrimExpr:
    return const(value, "uint32")


def _shl(a: PrimExpr, by: int) -> PrimExpr:
    return call_intrin("left_shift", a, _uint32(by)) if by else a


def _shr(a: PrimExpr, by: int) -> PrimExpr:
    return call_intrin("right_shift", a, _uint32(by)) if by else a


def _and(a: PrimExpr, mask: int) -> PrimExpr:
    return call_intrin("bitwise_and", a, _uint32(mask))


def _or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_or", a, b)


def _float_to_bits(value: PrimExpr) -> PrimExpr:
    return call_intrin("reinterpret", value, dtype="uint32")


def _bits_to_float(bits: PrimExpr) -> PrimExpr:
    return call_intrin("reinterpret", bits, dtype="float32")


def _select_uint32(condition: PrimExpr, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    return Select(condition, x, y, x.dtype)


def decode_small_float(code: PrimExpr, dtype: str) -> PrimExpr:
    """Decode a byte to float32; exact."""
    if dtype == E8M0_SCALE_DTYPE:
        return _decode_e8m0(code)
    form, word = SMALL_FLOAT_FORMATS[dtype], cast(code, "uint32")
    width = form.exponent_bits + form.mantissa_bits
    magnitude = _and(word, (1 << width) - 1)
    # A normal number: align the mantissa with float32's 23 bits, then move the exponent from the
    # format's bias to 127.
    normal = _shl(magnitude, 23 - form.mantissa_bits) + _uint32((127 - form.bias) << 23)
    # The value of one unit of a subnormal number, 2**(1 - bias - mantissa bits).
    unit = 2.0 ** (1 - form.bias - form.mantissa_bits)
    # Integers below 128 are exact in float32, and so are their products with a power of two.
    small = _float_to_bits(cast(cast(magnitude, "int32"), "float32") * const(unit, "float32"))
    word_f32 = _select_uint32(magnitude >= _uint32(1 << form.mantissa_bits), normal, small)
    if form.infinity_code is not None:
        word_f32 = _select_uint32(
            magnitude >= _uint32(form.infinity_code), _uint32(_F32_INFINITY_BITS), word_f32
        )
    # The fnuz formats have one NaN, the code of negative zero; it is handled last, with the sign.
    if form.nan_code is not None and form.nan_code <= 0x7F:
        first = form.nan_code if form.infinity_code is None else form.infinity_code + 1
        word_f32 = _select_uint32(magnitude >= _uint32(first), _uint32(_F32_NAN_BITS), word_f32)
    word_f32 = _or(word_f32, _shl(_shr(_and(word, 1 << width), width), 31))
    if form.unsigned_zero:
        assert form.nan_code is not None
        word_f32 = _select_uint32(
            fold_binary(EQ, word, _uint32(form.nan_code)), _uint32(_F32_NAN_BITS), word_f32
        )
    return _bits_to_float(word_f32)


def _decode_e8m0(code: PrimExpr) -> PrimExpr:
    """Decode a power-of-two scale; 2**-127 (code 0) is a subnormal float32."""
    word = cast(code, "uint32")
    word_f32 = _select_uint32(
        fold_binary(EQ, word, _uint32(0)), _uint32(0x00400000), _shl(word, 23)
    )
    return _bits_to_float(
        _select_uint32(fold_binary(EQ, word, _uint32(255)), _uint32(_F32_NAN_BITS), word_f32)
    )


def encode_small_float(value: PrimExpr, dtype: str) -> PrimExpr:
    """Encode a float32 to the nearest byte, ties to even; overflow becomes infinity or NaN where
    the format has it, else the largest number.
    """
    if dtype == E8M0_SCALE_DTYPE:
        return _encode_e8m0(value)
    form, word = SMALL_FLOAT_FORMATS[dtype], _float_to_bits(value)
    width = form.exponent_bits + form.mantissa_bits
    absolute = _and(word, 0x7FFFFFFF)
    # All in uint32: the rounding carry out of the mantissa increments the exponent, which is the
    # correct result of rounding up to a power of two.
    cut = 23 - form.mantissa_bits
    odd = _and(_shr(absolute, cut), 1)
    # Round half to even in integers: add half a unit less one, plus the kept part's lowest bit.
    rounded = _shr(absolute + _uint32((1 << (cut - 1)) - 1) + odd, cut)
    normal = rounded - _uint32((127 - form.bias) << form.mantissa_bits)
    units = _bits_to_float(absolute) * const(2.0 ** (form.bias - 1 + form.mantissa_bits), "float32")
    # Rounding up to 2**mantissa_bits yields the code of the smallest normal number.
    small = cast(cast(call_intrin("round", units), "int32"), "uint32")
    is_normal = absolute >= _uint32((128 - form.bias) << 23)
    magnitude = _select_uint32(is_normal, normal, small)
    is_nan, is_over = absolute > _uint32(_F32_INFINITY_BITS), magnitude > _uint32(form.largest_code)
    is_over = Select(is_normal, is_over, const(False), "bool")
    sign = _shl(_shr(word, 31), width)
    if form.unsigned_zero:
        sign = _select_uint32(fold_binary(EQ, magnitude, _uint32(0)), _uint32(0), sign)
    code = _or(magnitude, sign)
    code = _select_uint32(is_over, _or(_uint32(form.overflow_code), sign), code)
    negated = call_intrin("bitwise_xor", sign, _uint32(1 << width))
    nan = negated if form.nan_code is None else _or(_uint32(form.nan_code), sign)
    return cast(_select_uint32(is_nan, nan, code), "uint8")


def _encode_e8m0(value: PrimExpr) -> PrimExpr:
    """Encode a power-of-two scale, ties up; 0 and negative numbers have no code."""
    word = _float_to_bits(value)
    code = _select_uint32(
        word >= _uint32(_F32_INFINITY_BITS), _uint32(255), _shr(word + _uint32(0x400000), 23)
    )
    # The sum would round the subnormal 2**-127 up to code 1; its code is 0.
    code = _select_uint32(word <= _uint32(0x00400000), _uint32(0), code)
    return cast(_select_uint32(fold_binary(EQ, word, _uint32(0)), _uint32(255), code), "uint8")


def sign_extend_low_bits(value: PrimExpr, dtype: str) -> PrimExpr:
    """Return a byte's low 4 or 2 bits as the number they encode, in its carrier."""
    carrier, spare = dt.storage_dtype(dtype), 8 - dt.SCALAR_BITS[dtype]
    shift = const(spare, carrier)
    high = call_intrin("left_shift", cast(value, carrier), shift)
    return call_intrin("right_shift", high, shift)


def convert_small_dtype(value: PrimExpr, source: str, target: str) -> PrimExpr:
    """Convert `value` from dtype `source` to `target`; small dtypes are given and returned as their
    carriers.
    """
    if source in dt.SMALL_FLOATS:
        value = decode_small_float(value, source)
    if target in dt.SMALL_FLOATS:
        return encode_small_float(cast(value, "float32"), target)
    if dt.is_packed(target):
        return sign_extend_low_bits(
            value if dt.is_int(value.dtype) else cast(value, "int32"), target
        )
    return cast(value, target)


__all__ = [
    "E8M0_SCALE_DTYPE",
    "SMALL_FLOAT_FORMATS",
    "SmallFloatFormat",
    "convert_small_dtype",
    "decode_small_float",
    "encode_small_float",
    "sign_extend_low_bits",
]
