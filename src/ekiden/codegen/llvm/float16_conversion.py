"""Convert float16 to float32 and back by integer operations, for processors without F16C or FP16;
x86-64 below level v3. LLVM would call a library.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.ir import dtype as dt


class _Float32Bits:
    """Builder of integer and float operations on the bits of float32 lanes."""

    def __init__(self, b: FunctionBuilder, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.single, self.word = dt.with_lanes("float32", lanes), dt.with_lanes("int32", lanes)
        self.half, self.short = dt.with_lanes("float16", lanes), dt.with_lanes("uint16", lanes)

    def integer_op(self, opcode: str, x: Operand, number: int | Operand) -> Operand:
        y = self.b.const(number, self.word) if isinstance(number, int) else number
        return self.b.binary(opcode, self.word, x, y)

    def select_below(self, limit: int, size: Operand, x: Operand, y: Operand) -> Operand:
        """Return x where size is below the limit, else y."""
        inside = self.b.compare("ult", self.word, size, self.b.const(limit, self.word))
        return self.b.select(inside, self.word, x, y, self.lanes)

    def float_op(self, opcode: str, bits: Operand, number: float) -> Operand:
        """Apply a float operation with a constant to the float of `bits`, and return the result's
        bits.
        """
        x = self.b.convert("bitcast", self.word, self.single, bits)
        result = self.b.binary(opcode, self.single, x, self.b.const(number, self.single))
        return self.b.convert("bitcast", self.single, self.word, result)


def float16_to_float32(b: FunctionBuilder, a: Operand, lanes: int) -> Operand:
    """Convert float16 to float32 (F16C in software): a multiplication rebiases the exponent and
    normalises subnormals; infinities and NaN get float32's exponent.
    """
    w = _Float32Bits(b, lanes)
    bits = b.convert("zext", w.short, w.word, b.convert("bitcast", w.half, w.short, a))
    magnitude = w.integer_op("and", bits, 0x7FFF)
    moved = w.integer_op("shl", magnitude, 13)
    # 112 = 127 - 15 is the difference of the biases; the product is exact, even of subnormals.
    finite = w.float_op("fmul", moved, 2.0**112)
    magnitude_bits = w.select_below(
        0x7C00, magnitude, finite, w.integer_op("or", moved, 0x7F800000)
    )
    sign = w.integer_op("shl", w.integer_op("and", bits, 0x8000), 16)
    return b.convert("bitcast", w.word, w.single, w.integer_op("or", magnitude_bits, sign))


def float32_to_float16(b: FunctionBuilder, a: Operand, lanes: int) -> Operand:
    """Convert float32 to float16, to nearest even; a NaN becomes the quiet NaN."""
    w = _Float32Bits(b, lanes)
    bits = b.convert("bitcast", w.single, w.word, a)
    size = w.integer_op("and", bits, 0x7FFFFFFF)
    odd = w.integer_op("and", w.integer_op("lshr", size, 13), 1)
    # 0xFFF plus the last bit that stays rounds to nearest even; the exponent loses 127 - 15.
    normal = w.integer_op(
        "lshr", w.integer_op("add", w.integer_op("add", size, odd), 0xFFF - (112 << 23)), 13
    )
    # The ulp of 0.5 in float32 is 2**-24, that of a subnormal float16: the addition itself rounds.
    subnormal = w.integer_op("sub", w.float_op("fadd", size, 0.5), 0x3F000000)
    beyond = w.select_below(0x7F800001, size, b.const(0x7C00, w.word), b.const(0x7E00, w.word))
    # 0x38800000 is 2**-14, the least normal float16; 0x47800000 is 2**16, beyond the greatest.
    magnitude_bits = w.select_below(
        0x38800000, size, subnormal, w.select_below(0x47800000, size, normal, beyond)
    )
    half_bits = w.integer_op(
        "or", magnitude_bits, w.integer_op("and", w.integer_op("lshr", bits, 16), 0x8000)
    )
    return b.convert("bitcast", w.short, w.half, b.convert("trunc", w.word, w.short, half_bits))
