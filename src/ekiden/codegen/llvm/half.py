"""Convert float16 to float32 and back by integer operations, for processors without F16C or FP16;
x86-64 below level v3. LLVM would call a library.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.ir import dtype as dt


class _Words:
    """Builder of integer and float operations on the bits of float32 lanes."""

    def __init__(self, b: FunctionBuilder, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.single, self.word = dt.with_lanes("float32", lanes), dt.with_lanes("int32", lanes)
        self.half, self.short = dt.with_lanes("float16", lanes), dt.with_lanes("uint16", lanes)

    def op(self, opcode: str, x: Operand, number: int | Operand) -> Operand:
        y = self.b.const(number, self.word) if isinstance(number, int) else number
        return self.b.binary(opcode, self.word, x, y)

    def below(self, limit: int, size: Operand, x: Operand, y: Operand) -> Operand:
        """Return x where size is below the limit, else y."""
        inside = self.b.compare("ult", self.word, size, self.b.const(limit, self.word))
        return self.b.select(inside, self.word, x, y, self.lanes)

    def floating(self, opcode: str, bits: Operand, number: float) -> Operand:
        """Apply a float operation with a constant to the float of `bits`, and return the result's
        bits.
        """
        x = self.b.convert("bitcast", self.word, self.single, bits)
        result = self.b.binary(opcode, self.single, x, self.b.const(number, self.single))
        return self.b.convert("bitcast", self.single, self.word, result)


def from_half(b: FunctionBuilder, a: Operand, lanes: int) -> Operand:
    """Convert float16 to float32 (F16C in software): a multiplication rebiases the exponent and
    normalises subnormals; infinities and NaN get float32's exponent.
    """
    w = _Words(b, lanes)
    bits = b.convert("zext", w.short, w.word, b.convert("bitcast", w.half, w.short, a))
    magnitude = w.op("and", bits, 0x7FFF)
    moved = w.op("shl", magnitude, 13)
    finite = w.floating("fmul", moved, 2.0**112)
    magnitude_bits = w.below(0x7C00, magnitude, finite, w.op("or", moved, 0x7F800000))
    sign = w.op("shl", w.op("and", bits, 0x8000), 16)
    return b.convert("bitcast", w.word, w.single, w.op("or", magnitude_bits, sign))


def to_half(b: FunctionBuilder, a: Operand, lanes: int) -> Operand:
    """Convert float32 to float16, to nearest even; a NaN becomes the quiet NaN."""
    w = _Words(b, lanes)
    bits = b.convert("bitcast", w.single, w.word, a)
    size = w.op("and", bits, 0x7FFFFFFF)
    odd = w.op("and", w.op("lshr", size, 13), 1)
    normal = w.op("lshr", w.op("add", w.op("add", size, odd), 0xFFF - (112 << 23)), 13)
    # beside 0.5 the last bits of a float32 stand for what those of a subnormal float16 do
    subnormal = w.op("sub", w.floating("fadd", size, 0.5), 0x3F000000)
    beyond = w.below(0x7F800001, size, b.const(0x7C00, w.word), b.const(0x7E00, w.word))
    magnitude_bits = w.below(0x38800000, size, subnormal, w.below(0x47800000, size, normal, beyond))
    half_bits = w.op("or", magnitude_bits, w.op("and", w.op("lshr", bits, 16), 0x8000))
    return b.convert("bitcast", w.short, w.half, b.convert("trunc", w.word, w.short, half_bits))
