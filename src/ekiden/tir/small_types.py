"""Conversions of sub-byte and 8-bit types in integer arithmetic: floats of 8 and 4 bits, integers
of 4 and 2.

No supported target computes with them, so kernels hold them as bytes ("carriers"): integers by
value, floats by bit pattern.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, PrimExpr, Select, binary, cast, const
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SmallFloatFormat:
    """The encoding of a small float, as in the OCP and MX formats and in ml_dtypes.

    largest: the code, without sign, of the largest finite number. over: the code of a larger
    number, nan: the code of NaN; 8-bit codes stand alone, others take the sign (None: 0 with the
    other sign). infinity: its code. unsigned_zero: 0 has no sign (its negative code is `nan`).
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    over: int
    nan: int | None
    infinity: int | None = None
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
SCALE_DTYPE = "float8_e8m0fnu"
"""Powers of two alone: 2**(code - 127), 255 is not a number."""
_F32_NAN_BITS, _F32_INFINITY_BITS = 0x7FC00000, 0x7F800000


def _word(value: int) -> PrimExpr:
    return const(value, "uint32")


def _shl(a: PrimExpr, by: int) -> PrimExpr:
    return call_intrin("left_shift", a, _word(by)) if by else a


def _shr(a: PrimExpr, by: int) -> PrimExpr:
    return call_intrin("right_shift", a, _word(by)) if by else a


def _and(a: PrimExpr, mask: int) -> PrimExpr:
    return call_intrin("bitwise_and", a, _word(mask))


def _or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_or", a, b)


def _bits(value: PrimExpr) -> PrimExpr:
    return call_intrin("reinterpret", value, dtype="uint32")


def _float(bits: PrimExpr) -> PrimExpr:
    return call_intrin("reinterpret", bits, dtype="float32")


def _choose(condition: PrimExpr, x: PrimExpr, y: PrimExpr) -> PrimExpr:
    return Select(condition, x, y, x.dtype)


def decode(code: PrimExpr, dtype: str) -> PrimExpr:
    """Decode a byte to float32; exact."""
    if dtype == SCALE_DTYPE:
        return _decode_scale(code)
    form, word = SMALL_FLOAT_FORMATS[dtype], cast(code, "uint32")
    width = form.exponent + form.mantissa
    magnitude = _and(word, (1 << width) - 1)
    # A normal number: align the mantissa with float32's 23 bits, then move the exponent from the
    # format's bias to 127.
    normal = _shl(magnitude, 23 - form.mantissa) + _word((127 - form.bias) << 23)
    # The value of one unit of a subnormal number, 2**(1 - bias - mantissa bits).
    unit = 2.0 ** (1 - form.bias - form.mantissa)
    small = _bits(cast(cast(magnitude, "int32"), "float32") * const(unit, "float32"))
    word_f32 = _choose(magnitude >= _word(1 << form.mantissa), normal, small)
    if form.infinity is not None:
        word_f32 = _choose(magnitude >= _word(form.infinity), _word(_F32_INFINITY_BITS), word_f32)
    # The fnuz formats have one NaN, the code of negative zero; it is handled last, with the sign.
    if form.nan is not None and form.nan <= 0x7F:
        first = form.nan if form.infinity is None else form.infinity + 1
        word_f32 = _choose(magnitude >= _word(first), _word(_F32_NAN_BITS), word_f32)
    word_f32 = _or(word_f32, _shl(_shr(_and(word, 1 << width), width), 31))
    if form.unsigned_zero:
        assert form.nan is not None
        word_f32 = _choose(binary(EQ, word, _word(form.nan)), _word(_F32_NAN_BITS), word_f32)
    return _float(word_f32)


def _decode_scale(code: PrimExpr) -> PrimExpr:
    """Decode a power-of-two scale; 2**-127 (code 0) is a subnormal float32."""
    word = cast(code, "uint32")
    word_f32 = _choose(binary(EQ, word, _word(0)), _word(0x00400000), _shl(word, 23))
    return _float(_choose(binary(EQ, word, _word(255)), _word(_F32_NAN_BITS), word_f32))


def encode(value: PrimExpr, dtype: str) -> PrimExpr:
    """Encode a float32 to the nearest byte, ties to even; overflow becomes infinity or NaN where
    the format has it, else the largest number.
    """
    if dtype == SCALE_DTYPE:
        return _encode_scale(value)
    form, word = SMALL_FLOAT_FORMATS[dtype], _bits(value)
    width = form.exponent + form.mantissa
    absolute = _and(word, 0x7FFFFFFF)
    # All in uint32: the rounding carry out of the mantissa increments the exponent, which is the
    # correct result of rounding up to a power of two.
    cut = 23 - form.mantissa
    odd = _and(_shr(absolute, cut), 1)
    # Round half to even in integers: add half a unit less one, plus the kept part's lowest bit.
    rounded = _shr(absolute + _word((1 << (cut - 1)) - 1) + odd, cut)
    normal = rounded - _word((127 - form.bias) << form.mantissa)
    units = _float(absolute) * const(2.0 ** (form.bias - 1 + form.mantissa), "float32")
    small = cast(cast(call_intrin("round", units), "int32"), "uint32")
    is_normal = absolute >= _word((128 - form.bias) << 23)
    magnitude = _choose(is_normal, normal, small)
    is_nan, is_over = absolute > _word(_F32_INFINITY_BITS), magnitude > _word(form.largest)
    is_over = Select(is_normal, is_over, const(False), "bool")
    sign = _shl(_shr(word, 31), width)
    if form.unsigned_zero:
        sign = _choose(binary(EQ, magnitude, _word(0)), _word(0), sign)
    code = _or(magnitude, sign)
    code = _choose(is_over, _or(_word(form.over), sign), code)
    negated = call_intrin("bitwise_xor", sign, _word(1 << width))
    nan = negated if form.nan is None else _or(_word(form.nan), sign)
    return cast(_choose(is_nan, nan, code), "uint8")


def _encode_scale(value: PrimExpr) -> PrimExpr:
    """Encode a power-of-two scale, ties up; 0 and negative numbers have no code."""
    word = _bits(value)
    code = _choose(word >= _word(_F32_INFINITY_BITS), _word(255), _shr(word + _word(0x400000), 23))
    code = _choose(word <= _word(0x00400000), _word(0), code)
    return cast(_choose(binary(EQ, word, _word(0)), _word(255), code), "uint8")


def sign_extend_low_bits(value: PrimExpr, dtype: str) -> PrimExpr:
    """Return a byte's low 4 or 2 bits as the number they encode, in its carrier."""
    carrier, spare = dt.carrier(dtype), 8 - dt.SCALAR_BITS[dtype]
    shift = const(spare, carrier)
    high = call_intrin("left_shift", cast(value, carrier), shift)
    return call_intrin("right_shift", high, shift)


def convert_small(value: PrimExpr, source: str, target: str) -> PrimExpr:
    """Convert `value` from dtype `source` to `target`; small dtypes are given and returned as their
    carriers.
    """
    if source in dt.SMALL_FLOATS:
        value = decode(value, source)
    if target in dt.SMALL_FLOATS:
        return encode(cast(value, "float32"), target)
    if dt.is_packed(target):
        return sign_extend_low_bits(
            value if dt.is_int(value.dtype) else cast(value, "int32"), target
        )
    return cast(value, target)


__all__ = [
    "SCALE_DTYPE",
    "SMALL_FLOAT_FORMATS",
    "SmallFloatFormat",
    "convert_small",
    "decode",
    "encode",
    "sign_extend_low_bits",
]
