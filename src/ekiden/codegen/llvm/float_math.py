"""Vocabulary in which mathematical functions are written, over operands of any builder; one float
type, any number of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.codegen.llvm.software_intrinsics import SOFTWARE_INTRINSICS, two_product
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.ir import dtype as dt

MANTISSA_BITS = {"float32": 23, "float64": 52}
EXPONENT_BIAS = {"float32": 127, "float64": 1023}
# a normal number in float32, as is its square root, and negligible beside 1 in float64
NEGLIGIBLE_TERM = 1e-30


class FloatMath:
    """Arithmetic on operands of `dtype` (float32 or float64 with lanes)."""

    def __init__(self, b: FunctionBuilder, dtype: str) -> None:
        self.b, self.dtype = b, dtype
        self.element, self.lanes = dt.element_dtype(dtype), dt.lanes(dtype)
        self.word = dt.with_lanes("int32" if self.element == "float32" else "int64", self.lanes)

    @property
    def is_double(self) -> bool:
        """Return whether this works in float64."""
        return self.element == "float64"

    @property
    def mantissa_bits(self) -> int:
        """Return the number of stored mantissa bits."""
        return MANTISSA_BITS[self.element]

    def const(self, value: float) -> Operand:
        """Return a float constant."""
        return self.b.pooled_const(value, self.dtype)

    def int_const(self, value: int) -> Operand:
        """Return a constant of the integer type of the same width."""
        return self.b.const(value, self.word)

    def emit_intrinsic(self, name: str, *operands: Operand) -> Operand:
        """Emit an LLVM intrinsic on this type, or its software form where the target does not
        support it.
        """
        ability, compute = SOFTWARE_INTRINSICS.get(name, (None, None))
        if ability is not None and compute is not None and not self.b.module.has(ability):
            with self.without_fast_math():
                return compute(self, *operands)
        return self.b.intrinsic(name, self.dtype, *operands)

    @contextmanager
    def without_fast_math(self) -> Iterator[None]:
        """Suspend fast-math flags for the operations inside: reassociation would remove
        error-compensation terms.
        """
        flags, self.b.flags = self.b.flags, ""
        try:
            yield
        finally:
            self.b.flags = flags

    def add(self, x: Operand, y: Operand) -> Operand:
        """Return x + y."""
        return self.b.binary("fadd", self.dtype, x, y)

    def sub(self, x: Operand, y: Operand) -> Operand:
        """Return x - y."""
        return self.b.binary("fsub", self.dtype, x, y)

    def mul(self, x: Operand, y: Operand) -> Operand:
        """Return x * y."""
        return self.b.binary("fmul", self.dtype, x, y)

    def div(self, x: Operand, y: Operand) -> Operand:
        """Return x / y."""
        return self.b.binary("fdiv", self.dtype, x, y)

    def neg(self, x: Operand) -> Operand:
        """Return -x."""
        return self.b.negate(self.dtype, x)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Operand:
        """Return x * y + z, rounded once."""
        return self.emit_intrinsic("fma", x, y, z)

    def exact_residual(self, z: Operand, x: Operand, y: Operand) -> Operand:
        """Return z - x * y for a z within some units in the last place of x * y: the difference is
        exact. float64 only; parts of x and y must not overflow.
        """
        if self.b.module.has("fma"):
            return self.fma(self.neg(x), y, z)
        # Reassociation would fold the error term of the product to 0.
        with self.without_fast_math():
            product, lost = two_product(self, x, y)
            return self.sub(self.sub(z, product), lost)

    def multiply_add(self, x: Operand, y: Operand, z: Operand) -> Operand:
        """Return x * y + z, rounded once or twice, whichever is faster: for sums whose rounding
        error is not used. WebAssembly's engines have no fused instruction for certain, nor has
        x86-64 below level v3, where to keep the product whole takes a softmax 4 times as long.
        """
        module = self.b.module
        if module.target is not None and module.has("madd"):
            return self.b.intrinsic("fmuladd", self.dtype, x, y, z)
        return self.fma(x, y, z) if module.has("fma") else self.add(self.mul(x, y), z)

    def square_below_one(self, x: Operand) -> Operand:
        """Return x * x for |x| < 1, where an underflow to zero is harmless: the square is added to
        1 or, without a fused instruction, to x.
        """
        if self.b.module.has("fma") or self.b.module.has("madd"):
            return self.multiply_add(x, x, self.const(NEGLIGIBLE_TERM))
        moved = self.add(x, self.const(NEGLIGIBLE_TERM if self.is_double else NEGLIGIBLE_TERM**0.5))
        return self.mul(moved, moved)

    def abs(self, x: Operand) -> Operand:
        """Return |x|."""
        return self.emit_intrinsic("fabs", x)

    def copysign(self, x: Operand, sign: Operand) -> Operand:
        """Return |x| with the sign of `sign`."""
        return self.emit_intrinsic("copysign", x, sign)

    def less(self, x: Operand, y: Operand) -> Operand:
        """Return x < y."""
        return self.b.compare("olt", self.dtype, x, y)

    def select(self, condition: Operand, x: Operand, y: Operand) -> Operand:
        """Return x where condition, else y."""
        return self.b.select(condition, self.dtype, x, y, self.lanes)

    def clamp(self, x: Operand, low: float, high: float) -> Operand:
        """Return x clamped to [low, high]; NaN stays NaN."""
        return self.at_most(self.at_least(x, low), high)

    def at_least(self, x: Operand, low: float) -> Operand:
        """Return the greater of x and `low`; NaN stays NaN."""
        bottom = self.const(low)
        return self.select(self.less(x, bottom), bottom, x)

    def at_most(self, x: Operand, high: float) -> Operand:
        """Return the lesser of x and `high`; NaN stays NaN."""
        top = self.const(high)
        return self.select(self.b.compare("ogt", self.dtype, x, top), top, x)

    def polynomial(self, x: Operand, coefficients: Sequence[float]) -> Operand:
        """Evaluate a polynomial by Horner's rule; the constant term comes first."""
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.multiply_add(result, x, self.const(c))
        return result

    def paired_polynomial(
        self, x: Operand, square: Operand, coefficients: Sequence[float]
    ) -> Operand:
        """Evaluate a polynomial by Horner's rule in x**2 on pairs of terms (Estrin's scheme, first
        level), which halves the dependency chain; the constant term comes first.
        """
        pairs = [coefficients[n : n + 2] for n in range(0, len(coefficients), 2)]
        result, *remaining_pairs = (self.polynomial(x, pair) for pair in reversed(pairs))
        for pair in remaining_pairs:
            result = self.multiply_add(result, square, pair)
        return result

    # integers of the same width

    def int_op(self, opcode: str, x: Operand, y: Operand) -> Operand:
        """Emit an integer instruction."""
        return self.b.binary(opcode, self.word, x, y)

    def bits(self, x: Operand) -> Operand:
        """Return the bits of a float."""
        return self.b.convert("bitcast", self.dtype, self.word, x)

    def from_bits(self, x: Operand) -> Operand:
        """Return the float with the given bits."""
        return self.b.convert("bitcast", self.word, self.dtype, x)

    def to_int(self, x: Operand) -> Operand:
        """Convert a float that holds a small integer to an integer."""
        return self.b.convert("fptosi", self.dtype, self.word, x)

    def to_float(self, x: Operand) -> Operand:
        """Convert a small integer to float. In float64 it is added to the bits of 1.5 * 2**52,
        whose last bit has weight 1: below AVX-512 no instruction converts int64 vectors, and GCC
        does not vectorise a loop with such a conversion.
        """
        if not self.is_double or self.b.allows_reassociation:
            return self.b.convert("sitofp", self.word, self.dtype, x)
        number = self.const(1.5 * 2.0**self.mantissa_bits)
        with self.without_fast_math():
            return self.sub(self.from_bits(self.int_op("add", self.bits(number), x)), number)

    def power_of_two(self, n: Operand) -> Operand:
        """Return 2**n for an integer n in the normal range."""
        biased = self.int_op("add", n, self.int_const(EXPONENT_BIAS[self.element]))
        return self.from_bits(self.int_op("shl", biased, self.int_const(self.mantissa_bits)))

    def round_to_int(self, x: Operand, factor: float, bias: int) -> tuple[Operand, Operand]:
        """Return (n, an integer whose last bits are n + bias) for n = round(x * factor). A number
        so large that its last bit stands for 1 is added: that bit and those above it are n. Of
        NaN n is NaN.
        """
        if self.b.allows_reassociation:
            n = self.emit_intrinsic("roundeven", self.mul(x, self.const(factor)))
            return n, self.int_op("add", self.to_int(n), self.int_const(bias))
        number = self.const(1.5 * 2.0**self.mantissa_bits + bias)
        with self.without_fast_math():
            large = self.multiply_add(x, self.const(factor), number)
            return self.sub(large, number), self.bits(large)

    def _power_of_biased_exponent(self, biased: Operand) -> Operand:
        """Return the power of two whose biased exponent is the last bits of an integer."""
        return self.from_bits(self.int_op("shl", biased, self.int_const(self.mantissa_bits)))

    def round_to_power(self, x: Operand, factor: float) -> tuple[Operand, Operand]:
        """Return (n, 2**n) for n = round(x * factor), where 2**n is in the normal range."""
        n, biased = self.round_to_int(x, factor, EXPONENT_BIAS[self.element])
        return n, self._power_of_biased_exponent(biased)

    def round_to_split_powers(self, x: Operand, factor: float) -> tuple[Operand, Operand, Operand]:
        """Return (n, 2**h, 2**(n - h)) with h = n // 2; both powers are in the normal range for n
        in twice that range.
        """
        n, biased = self.round_to_int(x, factor, 2 * EXPONENT_BIAS[self.element])
        half = self.int_op("lshr", biased, self.int_const(1))
        return (
            n,
            self._power_of_biased_exponent(half),
            self._power_of_biased_exponent(self.int_op("sub", biased, half)),
        )

    @property
    def has_scale(self) -> bool:
        """Return whether `scale` is one instruction."""
        return self.b.has_scalef(self.dtype)

    def scale(self, x: Operand, n: Operand) -> Operand:
        """Return x * 2**n for a float n that holds a small integer, as one instruction; subnormal
        results and overflow come out right.
        """
        scaled = self.b.scalef(self.dtype, x, n)
        assert scaled is not None, self.dtype
        return scaled

    def table_lookup(self, values: tuple[float, ...], index: Operand) -> Operand:
        """Return `values[index]` for each lane, for an index in range. float64 only."""
        return self.b.load_table_element(values, index, self.lanes)

    def widen(self) -> FloatMath:
        """Return the same lanes in float64."""
        return FloatMath(self.b, dt.with_lanes("float64", self.lanes))

    def cast(self, x: Operand, to: FloatMath) -> Operand:
        """Convert x to the type of another FloatMath."""
        return emit_cast(self.b, x, self.dtype, to.dtype)
