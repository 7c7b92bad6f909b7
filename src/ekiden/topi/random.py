"""Counter-based random numbers (Threefry). Threefry-4x64 with 20 rounds (Salmon et al. 2011).

A generator is 10 words of uint64: a key (4), a counter (4), and two that are not used. Generating
advances the counter; splitting gives two generators whose keys are enciphered from the old one, so
that their numbers are independent. Equal generators give equal numbers everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.broadcast import Operand
from ekiden.topi.dimensions import Dim, as_dim, as_shape, product_of_dims, require_shape
from ekiden.topi.scan import cumsum
from ekiden.topi.transform import unravel

THREEFRY_WORD_DTYPE = "uint64"
GENERATOR_STATE_WORDS = 10
"""Words of a generator's state: key and counter."""
THREEFRY_ROTATIONS = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
THREEFRY_PARITY = 0x1BD11BDAA9FC1A22
THREEFRY_ROUNDS = 20


def _rotate_left(x: PrimExpr, by: int) -> PrimExpr:
    shifted = call_intrin("left_shift", x, const(by, THREEFRY_WORD_DTYPE))
    return call_intrin(
        "bitwise_or", shifted, call_intrin("right_shift", x, const(64 - by, THREEFRY_WORD_DTYPE))
    )


def emit_threefry(
    ib: IRBuilder, key: Sequence[PrimExpr], counter: Sequence[PrimExpr]
) -> list[PrimExpr]:
    """Emit the encryption of a counter by Threefry-4x64-20; return the four words (Salmon et al.
    2011).
    """
    last: PrimExpr = const(THREEFRY_PARITY, THREEFRY_WORD_DTYPE)
    for key_word in key:
        last = call_intrin("bitwise_xor", last, key_word)
    keys: list[PrimExpr] = [*key, ib.let("parity", last)]
    x: list[PrimExpr] = [ib.let("x", c + k) for c, k in zip(counter, key, strict=True)]
    for r in range(THREEFRY_ROUNDS):
        first, second = THREEFRY_ROTATIONS[r % 8]
        # Threefry exchanges words 1 and 3 after each round; odd rounds index them so instead.
        pairs = ((0, 1, first), (2, 3, second)) if r % 2 == 0 else ((0, 3, first), (2, 1, second))
        for a, b, by in pairs:
            x[a] = ib.let("x", x[a] + x[b])
            x[b] = ib.let("x", call_intrin("bitwise_xor", _rotate_left(x[b], by), x[a]))
        # The key schedule: after every four rounds the next rotation of the five key words is
        # added, the last of them with the round number.
        if r % 4 == 3:
            injection = r // 4 + 1
            x = [ib.let("x", w + keys[(injection + n) % 5]) for n, w in enumerate(x)]
            x[3] = ib.let("x", x[3] + const(injection, THREEFRY_WORD_DTYPE))
    return x


def _require_generator(name: str, gen: Tensor) -> None:
    if gen.dtype != THREEFRY_WORD_DTYPE or gen.ndim != 1:
        raise ValueError(
            f"{name}: a generator is {GENERATOR_STATE_WORDS} words of {THREEFRY_WORD_DTYPE}, "
            f"got {gen.dtype}"
        )
    require_shape(name, "key", gen.shape, (GENERATOR_STATE_WORDS,))


def threefry_key(seed: int) -> list[int]:
    """Return the words of a new generator."""
    return [seed % 2**64, *[0] * (GENERATOR_STATE_WORDS - 1)]


def threefry_generate(gen: Tensor, out_shape: Sequence[Dim]) -> tuple[Tensor, Tensor]:
    """Return the advanced generator, and random uint64 words in `out_shape`."""
    _require_generator("threefry_generate", gen)
    shape = as_shape(out_shape)
    # Four words per block; a generator advances by whole blocks, so that no word is used twice.
    count = product_of_dims(shape)

    def emit_generate(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a block of four words for each counter value, in parallel since the blocks are
        independent (Salmon et al. 2011); the advanced generator continues after the last block.
        """
        ib = IRBuilder()
        old, new, words = ib.buffer_ptr(ins[0]), *map(ib.buffer_ptr, outs)
        blocks = ib.let("blocks", (count + 3) // 4)
        with ib.for_range(0, GENERATOR_STATE_WORDS, "n") as n:
            new[n] = old[n]
        new[4] = old[4] + cast(blocks, THREEFRY_WORD_DTYPE)
        with ib.if_scope(new[4] < old[4]):  # the counter's lowest word ran over
            new[5] = old[5] + const(1, THREEFRY_WORD_DTYPE)
        with ib.for_range(0, blocks, "block", kind="parallel") as block:
            low = ib.let("low", old[4] + cast(block, THREEFRY_WORD_DTYPE))
            # Unsigned wrap-around is the carry into the counter's next word; it happens once in
            # 2**64 blocks.
            carried = cast(low < old[4], THREEFRY_WORD_DTYPE)
            key = [ib.let("key", old[n]) for n in range(4)]
            block_words = emit_threefry(ib, key, [low, old[5] + carried, old[6], old[7]])
            for lane, word in enumerate(block_words):
                position = block * 4 + lane
                with ib.if_scope(position < count):
                    words[unravel(position, shape)] = word
        return ib.get()

    outputs = te.extern_op(
        [(as_dim(GENERATOR_STATE_WORDS),), shape],
        [gen],
        emit_generate,
        [THREEFRY_WORD_DTYPE, THREEFRY_WORD_DTYPE],
        name="threefry",
    )
    return outputs[0], outputs[1]


def threefry_split(gen: Tensor) -> tuple[Tensor, Tensor]:
    """Return two generators that are independent of each other, and of what `gen` generates."""
    _require_generator("threefry_split", gen)

    def emit_split(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a key for each side: the encryption of the counter with its top bit set, which
        generation never reaches, and the side's number.
        """
        ib = IRBuilder()
        old = ib.buffer_ptr(ins[0])
        for side, buffer in enumerate(outs):
            new = ib.buffer_ptr(buffer)
            counter = [old[n] for n in range(4, 7)]
            # The top bit separates these counters from all that generation uses, so the children
            # are independent of the parent's numbers.
            marked = call_intrin("bitwise_xor", old[7], const(2**63 + side, THREEFRY_WORD_DTYPE))
            key = emit_threefry(ib, [old[n] for n in range(4)], [*counter, marked])
            for n in range(GENERATOR_STATE_WORDS):
                new[n] = key[n] if n < 4 else const(0, THREEFRY_WORD_DTYPE)
        return ib.get()

    shape = (as_dim(GENERATOR_STATE_WORDS),)
    outputs = te.extern_op(
        [shape, shape],
        [gen],
        emit_split,
        [THREEFRY_WORD_DTYPE, THREEFRY_WORD_DTYPE],
        name="threefry_split",
    )
    return outputs[0], outputs[1]


MANTISSA_BITS = {"float16": 10, "float32": 23, "float64": 52}


def _uniform_from_word(word: PrimExpr, dtype: str) -> PrimExpr:
    """Return a number in [0, 1) from the highest bits of a word."""
    # Use as many bits as the mantissa holds: every result is exact, and none rounds up to 1.
    bits = MANTISSA_BITS[dtype]
    wide = "float64" if dtype == "float64" else "float32"
    high = call_intrin("right_shift", word, const(64 - bits, THREEFRY_WORD_DTYPE))
    return cast(cast(cast(high, "int64"), wide) * const(2.0**-bits, wide), dtype)


def uniform(
    gen: Tensor, low: Operand, high: Operand, out_shape: Sequence[Dim], out_dtype: str = "float32"
) -> tuple[Tensor, Tensor]:
    """Return the advanced generator, and uniform numbers in [low, high), for bounds of rank 0.
    Raises ValueError for a dtype other than float16, float32 and float64.
    """
    if out_dtype not in MANTISSA_BITS:
        raise ValueError(
            f"uniform: out_dtype must be one of {', '.join(MANTISSA_BITS)}, got {out_dtype!r}"
        )
    new, words = threefry_generate(gen, out_shape)
    begin, end = (_rank0_value(v, out_dtype) for v in (low, high))
    values = te.compute(
        words.shape,
        lambda *i: begin + _uniform_from_word(words[i], out_dtype) * (end - begin),
        name="uniform",
        tag="elemwise",
    )
    return new, values


def _rank0_value(value: Operand, dtype: str) -> PrimExpr:
    if isinstance(value, Tensor):
        return cast(value[()], dtype)
    return const(value, dtype) if isinstance(value, (int, float)) else cast(value, dtype)


def normal(
    gen: Tensor, mean: Operand, scale: Operand, out_shape: Sequence[Dim], out_dtype: str = "float32"
) -> tuple[Tensor, Tensor]:
    """Return the advanced generator, and normally distributed numbers, by the Box-Muller
    transform.
    """
    shape = as_shape(out_shape)
    new, pairs = threefry_generate(gen, (2, *shape))
    middle, deviation = (_rank0_value(v, out_dtype) for v in (mean, scale))
    wide = "float64" if out_dtype == "float64" else "float32"

    def box_muller(*i: Var) -> PrimExpr:
        """Box and Muller (1958): sqrt(-2 log(1 - u)) cos(2 pi v); 1 - u is above 0, as u is below
        1.
        """
        first, second = (_uniform_from_word(pairs[(n, *i)], wide) for n in (0, 1))
        radius = call_intrin("sqrt", call_intrin("log", 1.0 - first) * -2.0)
        wave = call_intrin("cos", second * 6.283185307179586)
        return middle + cast(radius * wave, out_dtype) * deviation

    return new, te.compute(shape, box_muller, name="normal", tag="elemwise")


def multinomial(gen: Tensor, probs: Tensor, num_samples: Dim) -> tuple[Tensor, Tensor]:
    """Return the advanced generator, and int32 indices [..., num_samples] drawn with replacement by
    the weights in the last axis of `probs`, which need not sum to 1. Raises ValueError for
    weights that are not floating point.
    """
    if not dt.is_float(probs.dtype):
        raise ValueError(f"multinomial: weights must be floating point, got {probs.dtype}")
    sums = cumsum(probs, axis=-1)
    size, shape = probs.shape[-1], (*probs.shape[:-1], as_dim(num_samples))
    new, draws = uniform(gen, 0.0, 1.0, shape)
    k = te.reduce_axis((0, size), "k")

    def count_thresholds_below(*i: Var) -> PrimExpr:
        """Return the number of cumulative weights that a draw, scaled to the total weight, has
        passed (inverse transform sampling).
        """
        scaled_draw = cast(draws[i], probs.dtype) * sums[(*i[:-1], size - 1)]
        passed = sums[(*i[:-1], k)] <= scaled_draw
        return te.sum(cast(passed, "int32"), k)

    drawn = te.compute(shape, count_thresholds_below, name="multinomial_count", tag="reduce")
    # Rounding of the cumulative sums may make a draw pass the last one; it then takes the last
    # index.
    last = cast(size - 1, "int32")
    return new, te.compute(
        shape, lambda *i: te.min(drawn[i], last), name="multinomial", tag="elemwise"
    )


__all__ = [
    "multinomial", "normal", "threefry_generate", "threefry_split", "uniform",
]  # fmt: skip
