"""Int8 dot products: words of four bytes, and the instructions that multiply them.

    dot4_u8s8   acc + a0*b0 + a1*b1 + a2*b2 + a3*b3          one instruction, or shifts and products
    madd_s16    acc + (a0*b0 + a2*b2) + (a1*b1 + a3*b3)      two sums of two products of int16
    madd_u8s8   acc + ((a0*b0 + a1*b1) + (a2*b2 + a3*b3))    the inner sums in int16
    madd_s8s8   the same of bytes that both have a sign      magnitudes of a, and b with its signs
    sum2_u8s8   the inner sums of the third alone, added up in int16

    amx_int8    the first, of matrices (matrix_tiles.py)
    amx_bf16    the same of words of two

The first two are exact for all bytes: 255 * -128 twice is far from the end of int32. For the second
the data are widened once, in the order of the sums, so that a tile broadcasts pairs as they lie;
weights stay bytes, an eighth of what data of a tile read, and are widened by shifts where they are
loaded. Without the first a product of words took 28 operations, the second takes 4, the third 3.

The third is exact where the inner sums fit: 255 * (b0 + b1) of what has one sign. A weight that is
known is made so. Of pairs too large, half stays; the words that have the rest follow as rows of
their own behind the others of their panel, with a list of where in the data they belong:

    weight [panel][k / 4 + r][column][4]     places [panel][r]

Panels have as many of those rows as the one with most, and it is done where that costs less than
it saves: bytes of a normal distribution over a whole weight need it for some words in a hundred,
those of a range of 7 bits for none.

For the second, panels hold words of two instead: of int8, which are widened where a row of a panel
is loaded, or of int16, for twice the bytes (`are_int16_weights_faster`).
"""

from __future__ import annotations

import numpy as np

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, shuffle
from ekiden.ir.op import Array
from ekiden.ir.prim import Cast, PrimExpr, Var, const, is_const
from ekiden.kernels.decision import Decision, Knob, SearchSpace
from ekiden.kernels.family import elements_per_word
from ekiden.kernels.micro_kernels.matrix_tiles import MATRIX_DOT_BY_PANEL
from ekiden.kernels.micro_kernels.register_tiles import WIDENED_DTYPE
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, Stmt, seq
from ekiden.topi.nn.weight_packing import (
    DOT_WORD_BY_DTYPE,
    DOT_WORD_CHANNELS,
    WORD_PAIR_ELEMENTS,
)

DOT4_FEATURE, MADD_FEATURE, NARROW_DOT_FEATURE, BF16_PAIR_FEATURE = (
    "dot4_u8s8",
    "madd_s16",
    "madd_u8s8",
    "dot2_bf16",
)
SIGNED_DOT_FEATURE, SHORT_DOT_FEATURE = "madd_s8s8", "sum2_u8s8"
"""Signed dot products: int32 accumulation (exact for second operands from -127 on) and int16
accumulation.
"""
MAX_PAIR_SUM = 128
"""Maximum magnitude of the sum of two same-signed weights whose products with bytes fit int16."""
EVEN_BYTES_MASK = 0x00FF00FF
"""Mask of bytes 0 and 2 of a word."""
INT16_ONES = 0x00010001
"""Word with 1 in both int16 halves."""
COLUMN_SUM_FEATURE = "helium"
"""Target feature: horizontal sums of vectors of words of one column."""
MIN_WIDENED_BYTES_PER_THREAD = 1 << 14
"""Bytes per thread below which widening is not parallelised."""


def supported_dots(
    target: Target, weight: te.Tensor | None = None, is_narrow: bool = False
) -> tuple[str, ...]:
    """Return the dot-product instructions of a target for byte data, the best first.

    Args:
        target: The processor.
        weight: The packed weight, if its words may be others than of four int8.
        is_narrow: Whether sums of two products fit int16.

    Returns:
        Names of intrinsics. The exact dot product is always among them, if not as an instruction.
    """
    if weight is not None and elements_per_word(weight) == WORD_PAIR_ELEMENTS:
        return (MADD_FEATURE,)
    instructions = [MADD_FEATURE] if target.has(MADD_FEATURE) else []
    if is_narrow and target.has(NARROW_DOT_FEATURE):
        instructions.insert(0, NARROW_DOT_FEATURE)
    return (
        (DOT4_FEATURE, *instructions) if target.has(DOT4_FEATURE) else (*instructions, DOT4_FEATURE)
    )


def exact_dot_instruction(target: Target) -> str:
    """Return the target's instruction for exact uint8 by int8 products.

    It holds for all bytes, or where sums of two products fit int16; "" where the target has
    neither.
    """
    return next(
        (
            instruction
            for instruction in (DOT4_FEATURE, NARROW_DOT_FEATURE)
            if target.has(instruction)
        ),
        "",
    )


def word_dot_instructions(target: Target) -> tuple[str, ...]:
    """Return the target's instructions that multiply words of bytes or int16."""
    needs = {
        DOT4_FEATURE: DOT4_FEATURE,
        MADD_FEATURE: MADD_FEATURE,
        SHORT_DOT_FEATURE: NARROW_DOT_FEATURE,
    }
    return tuple(instruction for instruction, ability in needs.items() if target.has(ability))


def has_narrow_dot(target: Target) -> bool:
    """Return whether the target's dot product is so slow that copying windows to skip padding pays.
    On x86-64 they are not: pmaddwd takes 1.2 to 2.4 times as long with them.
    """
    return target.has(COLUMN_SUM_FEATURE) or target.has("smlad")


def max_words_per_instruction(target: Target) -> int:
    """Return the number of words multiplied at once, which rows of packed data are padded to."""
    return target.lanes("int32") if target.has(COLUMN_SUM_FEATURE) else 1


def dot_instruction_knobs(
    weight: te.Tensor, target: Target, is_narrow: bool = False, matrices: str | None = None
) -> SearchSpace:
    """Return the knob of the dot-product instruction, for weights that may be words.

    Args:
        weight: The weight.
        target: The processor.
        is_narrow: Whether sums of two products fit int16.
        matrices: The instruction of registers that hold matrices (`matrix_dot_instruction`), or
            None.
    """
    is_integer = weight.dtype in ("int8", WIDENED_DTYPE)
    instructions = supported_dots(target, weight, is_narrow) if is_integer else (BF16_PAIR_FEATURE,)
    if matrices is not None:
        instructions = (matrices, *instructions)
    elif not is_integer:
        return ()
    return (Knob("dot", instructions, "dot-product instruction of words of adjacent elements"),)


def matrix_dot_instruction(weight: te.Tensor, target: Target) -> str | None:
    """Return the target's AMX instruction for a weight's words, or None.

    It multiplies bytes in words of four, not the pairs that other instructions widen. Its loads are
    not checked, so it is not used where all accesses shall be.
    """
    products = MATRIX_DOT_BY_PANEL.get(weight.dtype)
    if elements_per_word(weight) != DOT_WORD_BY_DTYPE.get(weight.dtype):
        return None
    # Checks of bounds instrument vector loads, not loads of matrix registers.
    has_it = products is not None and target.has(products.feature) and not target.bounds
    return products.feature if products is not None and has_it else None


def split_large_pairs(weight: Array) -> tuple[Array, Array]:
    """Split the weight values whose pair sums overflow int16 into residual words: [panel][k /
    4][column][4].

    Returns:
        The weight with the words of the remainder behind the others, and their positions, as above.
    """
    pairs = weight.reshape(*weight.shape[:-1], 2, 2)
    wide = pairs.astype(np.int16)
    above = np.maximum(wide, 0).sum(-1) > MAX_PAIR_SUM
    is_large = above | (np.minimum(wide, 0).sum(-1) < -MAX_PAIR_SUM)
    # Half of a pair, and the other half, are each at most 128 in sum; both are exact integers.
    # 255 * 128 = 32640 fits int16: with pair sums of at most 128, the saturating instruction never
    # saturates.
    remainder = np.where(is_large[..., None], pairs >> 1, 0).astype(np.int8)
    has_remainder = is_large.any((-1, -2))
    # One array holds all panels, so each gets as many rows as the longest list needs.
    count = int(has_remainder.sum(1).max(initial=0))
    # A stable sort keeps listed words in the order of k; short lists are padded by words of zeros.
    first = np.argsort(~has_remainder, axis=1, kind="stable")[:, :count]
    rows = np.take_along_axis(remainder.reshape(weight.shape), first[:, :, None, None], axis=1)
    extended = np.concatenate([(pairs - remainder).reshape(weight.shape), rows], axis=1)
    return extended, first.astype(np.int32)


def create_widened_buffer(data: Buffer, decision: Decision) -> Buffer | None:
    """Create the buffer of data widened to int16 pairs, or None if the decision does not widen.

    It has the same elements, but beside words of four the first and the third of each come first.
    """
    if decision.get("dot") != MADD_FEATURE:
        return None
    return Buffer("pairs", data.shape, WIDENED_DTYPE)


def emit_widen_pairs(data: Buffer, pairs: Buffer, size: PrimExpr, lanes: int, word: int) -> Stmt:
    """Emit the parallel widening of `size` bytes to int16 pairs. Rows are whole words and follow
    one another, so that all are taken as one: few words of a row leave lanes idle (12544 rows of 32
    bytes and 16 columns by AVX-512 on Zen 5: 177 us row by row, 57 as one).

    Args:
        data: The bytes.
        pairs: The int16 elements: in the order of the bytes beside words of two, in the pair order
            (`widen_words`) beside words of four.
        size: The number of elements.
        lanes: Words of a vector.
        word: Elements of the weight's words.
    """
    words = simplify(size // word)

    def widen_in_order(at: PrimExpr, width: int) -> Stmt:
        """Emit the widening of pairs of bytes to pairs of int16."""
        index = ramp(at * word, 1, word * width)
        load = data[index].with_fields(dtype=dt.with_lanes("uint8", word * width))
        return BufferStore(pairs, Cast(load, dt.with_lanes(WIDENED_DTYPE, word * width)), (index,))

    def widen_words(at: PrimExpr, width: int) -> Stmt:
        """Emit the widening of words of four bytes b0 b1 b2 b3 to int16 b0 b2 b1 b3, by masks and
        shifts within each word.
        """
        first = at * DOT_WORD_CHANNELS
        wide = f"int64x{width}" if width > 1 else "int64"
        word_dtype = dt.with_lanes("int32", width) if width > 1 else "int32"

        def splat(value: int) -> PrimExpr:
            """Repeat a number in each word of the vector."""
            return broadcast(const(value, "int64"), width) if width > 1 else const(value, "int64")

        load = data[ramp(first, 1, DOT_WORD_CHANNELS * width)].with_fields(
            dtype=dt.with_lanes("uint8", DOT_WORD_CHANNELS * width)
        )
        # The sign bits that this cast may add are harmless: the mask keeps bits 0-7 and 16-23 only.
        value = Cast(call_intrin("reinterpret", load, dtype=word_dtype), wide)
        even = call_intrin("bitwise_and", value, splat(EVEN_BYTES_MASK), dtype=wide)
        odd = call_intrin("right_shift", value, splat(8), dtype=wide)
        odd = call_intrin("bitwise_and", odd, splat(EVEN_BYTES_MASK), dtype=wide)
        # Even bytes fill the lower 32 bits, odd ones the upper, so one OR gives the order b0 b2 b1
        # b3.
        odd = call_intrin("left_shift", odd, splat(32), dtype=wide)
        both = call_intrin("bitwise_or", even, odd, dtype=wide)
        widened = call_intrin(
            "reinterpret", both, dtype=dt.with_lanes("int16", DOT_WORD_CHANNELS * width)
        )
        return BufferStore(pairs, widened, (ramp(first, 1, DOT_WORD_CHANNELS * width),))

    widen = widen_words if word == DOT_WORD_CHANNELS else widen_in_order
    vector, tail = Var("vector"), Var("tail")
    whole = simplify(words // lanes)
    # A copy is memory-bound: a thread needs enough bytes to pay for its start.
    grain = max(1, MIN_WIDENED_BYTES_PER_THREAD // (word * lanes))
    vectors = For(
        vector,
        const(0),
        whole,
        ForKind.PARALLEL,
        widen(vector * lanes, lanes),
        {"grain": grain},
    )
    rest = simplify(words - whole * lanes)
    if is_const(rest, 0):
        return vectors
    return seq(vectors, For(tail, const(0), rest, ForKind.SERIAL, widen(whole * lanes + tail, 1)))


def to_pair_order(levels: PrimExpr) -> PrimExpr:
    """Return a vector of int32 narrowed to int16 in the pair order 0, 2, 1, 3."""
    count = dt.lanes(levels.dtype)
    halves = call_intrin("reinterpret", levels, dtype=dt.with_lanes("int16", 2 * count))
    first = [
        DOT_WORD_CHANNELS * (n // DOT_WORD_CHANNELS) + (0, 2, 1, 3)[n % DOT_WORD_CHANNELS]
        for n in range(count)
    ]
    # Element 2n is the lower half of int32 lane n, as targets are little-endian.
    return shuffle(halves, halves, [2 * n for n in first])


__all__ = [
    "BF16_PAIR_FEATURE",
    "DOT4_FEATURE",
    "INT16_ONES",
    "MADD_FEATURE",
    "NARROW_DOT_FEATURE",
    "SHORT_DOT_FEATURE",
    "SIGNED_DOT_FEATURE",
    "create_widened_buffer",
    "dot_instruction_knobs",
    "emit_widen_pairs",
    "exact_dot_instruction",
    "has_narrow_dot",
    "matrix_dot_instruction",
    "max_words_per_instruction",
    "split_large_pairs",
    "supported_dots",
    "to_pair_order",
    "word_dot_instructions",
]
