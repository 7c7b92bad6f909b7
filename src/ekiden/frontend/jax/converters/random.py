"""Random numbers: Threefry and Philox, bit-exact with XLA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.node import StablehloNode, StablehloRow
from ekiden.ir.dtype import is_float, itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, product_of_dims, to_attr_dims

_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_SKEIN_PARITY = 0x1BD11BDA


def _u32_const(number: int) -> Expr:
    return const(np.array(number, np.uint32))


def _rotate_left(x: Expr, count: int) -> Expr:
    return op.bitwise_or(
        op.left_shift(x, _u32_const(count)), op.right_shift(x, _u32_const(32 - count))
    )


def threefry_2x32(
    node: StablehloNode, key: Sequence[Expr], counter: Sequence[Expr]
) -> tuple[Expr, Expr]:
    """Emit Threefry-2x32 with 20 rounds (Salmon et al., 2011): two output words per pair of counter
    words.
    """
    # Third word of the key schedule: the parity of the key and Skein's constant.
    third = op.bitwise_xor(op.bitwise_xor(key[0], key[1]), _u32_const(_SKEIN_PARITY))
    keys = [key[0], key[1], third]
    x: Expr = op.add(counter[0], key[0])
    y: Expr = op.add(counter[1], key[1])
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x = op.add(x, y)
            y = op.bitwise_xor(_rotate_left(y, rotation), x)
        x = op.add(x, keys[(group + 1) % 3])
        y = op.add(op.add(y, keys[(group + 2) % 3]), _u32_const(group + 1))
        x, y = (node.scope.expr(node.bind_shared(word)) for word in (x, y))
    return x, y


def _split_u64(node: StablehloNode, value: Expr) -> tuple[Expr, Expr]:
    """Split 64-bit numbers into their low and high 32-bit words."""
    low = op.cast(op.bitwise_and(value, const(np.array(0xFFFFFFFF, np.uint64))), "uint32")
    high = op.cast(op.right_shift(value, const(np.array(32, np.uint64))), "uint32")
    return node.scope.expr(node.bind_shared(low)), node.scope.expr(node.bind_shared(high))


def _half_shape(shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the axis along which XLA stacks pairs of words, and the shape of one half.

    It is the first axis of even extent, else the longest.
    """
    # XLA's ThreeFry expander splits along an even dimension; the bits depend on this choice.
    even = [i for i, extent in enumerate(shape) if extent % 2 == 0]
    axis = even[0] if even else max(range(len(shape)), key=lambda i: shape[i])
    return axis, (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])


def _rng_bit_generator(node: StablehloNode) -> Result:
    """Convert rng_bit_generator: return the next state and random bits.

    The state is a 64-bit key and a 64-bit counter, which Philox may extend by 64 bits; integers
    shorter than 32 bits are the low bits of 32-bit words.
    """
    algorithm = node.enum_keyword("rng_algorithm")
    dtype = node.out_dtype(1)
    if node.dtype(0) != "uint64":
        node.reject(f"a state of {node.dtype(0)} for bits of {dtype}")
    generate = _threefry_bits if algorithm == "THREE_FRY" else _philox_bits
    extents = node.static_output_extents(1)
    shape = node.static_dims([-1 if e is None else e for e in extents], "random bits")
    width = max(itemsize(dtype), 4)
    state, bits = generate(node, shape, width)
    plain = f"uint{8 * width}"
    if itemsize(dtype) < width:
        plain = f"uint{8 * itemsize(dtype)}"
        bits = op.cast(bits, plain)
    return [state, bits if dtype == plain else op.reinterpret(bits, dtype)]


def _state_word(node: StablehloNode, index: int) -> Expr:
    return node.emit_once(op.take(node.expr(0), const(index, "int64"), axis=0))


def _counter_range(node: StablehloNode, start: Expr, count: int) -> Expr:
    """Emit `count` consecutive 64-bit counters from `start`."""
    return node.emit_once(op.add(const(np.arange(count, dtype=np.uint64)), start))


def _threefry_bits(node: StablehloNode, extents: Sequence[int], width: int) -> tuple[Expr, Expr]:
    """Emit the next state and random integers of `width` bytes: Threefry words in XLA's layout."""
    shape = tuple(extents) or (1,)
    axis, half = _half_shape(shape) if width == 4 else (0, shape)
    count = math.prod(half)
    key, counter = (_state_word(node, i) for i in (0, 1))
    counters = _counter_range(node, counter, count)
    words = threefry_2x32(node, _split_u64(node, key), _split_u64(node, counters))
    first, second = (op.reshape(word, half, allowzero=True) for word in words)
    if width == 4:
        pairs = op.stack([first, second], axis=axis + 1)
        wide = (*shape[:axis], 2 * half[axis], *shape[axis + 1 :])
        both = op.reshape(pairs, wide, allowzero=True)
        # An odd extent leaves the last word unused.
        bits: Expr = op.strided_slice(both, (0,), (shape[axis],), axes=(axis,))
    else:
        bits = _join_u32(first, second)
    moved = op.add(counter, const(np.array(count, np.uint64)))
    shaped_bits: Expr = bits if extents else op.reshape(bits, ())
    return op.stack([key, moved], axis=0), shaped_bits


def _join_u32(low: Expr, high: Expr) -> Expr:
    """Join low and high 32-bit words into 64-bit numbers."""
    above = op.left_shift(op.cast(high, "uint64"), const(np.array(32, np.uint64)))
    return op.bitwise_or(op.cast(low, "uint64"), above)


_PHILOX_ROUNDS = 10
_PHILOX_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
"""What the words of the key grow by in each round."""
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)


def _philox_bits(node: StablehloNode, extents: Sequence[int], width: int) -> tuple[Expr, Expr]:
    """Emit the next state and random integers of `width` bytes by Philox-4x32 with 10 rounds
    (Salmon et al., 2011).

    A state of two numbers uses its key as the upper half of the counter, too, as XLA does.
    """
    shape, size = tuple(extents), math.prod(extents)
    count = -(-size * (width // 4) // 4)
    length = node.static_dims(node.shape(0), "the state")[0]
    key, low = (_state_word(node, i) for i in (0, 1))
    high = _state_word(node, 2) if length > 2 else key
    counters = _counter_range(node, low, count)
    # Unsigned wrap-around of the low counter half carries into the high half.
    carry = op.cast(op.less(counters, low), "uint64")
    above = node.emit_once(op.add(carry, high))
    words = _philox_4x32(
        node, _split_u64(node, key), (*_split_u64(node, counters), *_split_u64(node, above))
    )
    flat: Expr = op.reshape(op.stack(words, axis=1), (4 * count,), allowzero=True)
    if width == 8:
        pairs = node.emit_once(op.reshape(flat, (2 * count, 2), allowzero=True))
        halves = (op.take(pairs, const(i, "int64"), axis=1) for i in (0, 1))
        flat = _join_u32(*halves)
    bits = op.strided_slice(flat, (0,), (size,), axes=(0,))
    moved = node.emit_once(op.add(low, const(np.array(count, np.uint64))))
    state = [key, moved]
    if length > 2:
        state.append(op.add(high, op.cast(op.less(moved, low), "uint64")))
    return op.stack(state, axis=0), op.reshape(bits, shape, allowzero=True)


def _philox_4x32(node: StablehloNode, key: Sequence[Expr], counter: Sequence[Expr]) -> list[Expr]:
    """Emit the four output words of each counter."""
    words, keys = list(counter), list(key)
    for _ in range(_PHILOX_ROUNDS):
        low, high = zip(
            *(
                _mulhilo(node, words[position], factor)
                for position, factor in zip((0, 2), _PHILOX_MULTIPLIERS, strict=True)
            ),
            strict=True,
        )
        first = op.bitwise_xor(op.bitwise_xor(high[1], words[1]), keys[0])
        third = op.bitwise_xor(op.bitwise_xor(high[0], words[3]), keys[1])
        words = [node.emit_once(first), low[1], node.emit_once(third), low[0]]
        pairs = zip(keys, _PHILOX_KEY_INCREMENTS, strict=True)
        keys = [node.emit_once(op.add(word, _u32_const(step))) for word, step in pairs]
    return words


def _mulhilo(node: StablehloNode, word: Expr, factor: int) -> tuple[Expr, Expr]:
    """Emit the low and high word of the 64-bit product of a word and a constant."""
    wide = op.multiply(op.cast(word, "uint64"), const(np.array(factor, np.uint64)))
    return _split_u64(node, node.emit_once(wide))


def _draw_random(node: StablehloNode) -> Expr:
    """Convert rng: draw from a distribution with Threefry, seeded by the operation's position in
    its program.

    StableHLO leaves the generator open; here each run draws the same numbers.
    """
    dtype = node.out_dtype()
    shape = node.sizes(2)
    total = product_of_dims(as_dim(extent) for extent in shape)
    counts = op.cast(op.arange(0, total, 1, dtype="int64"), "uint32")
    key = (_u32_const(node.graph.next_seed()), _u32_const(_SKEIN_PARITY))
    words = threefry_2x32(node, key, (node.emit_once(counts), op.zeros_like(counts)))
    first, second = (
        op.reshape(w, to_attr_dims(shape), allowzero=True) for w in map(node.emit_once, words)
    )
    a, b = node.expr(0), node.expr(1)
    if not is_float(dtype):
        wide = op.cast(_join_u32(first, second), "int64")
        # The sign is cleared so that the modulus is that of a non-negative number.
        positive = op.bitwise_and(wide, const(np.iinfo(np.int64).max, "int64"))
        span = op.cast(op.subtract(b, a), "int64")
        return op.add(op.cast(op.floor_mod(positive, span), dtype), a)
    real = "float64" if dtype == "float64" else "float32"
    uniform = _uniform_fraction(first, second, real)
    location, scale = op.cast(a, real), op.cast(b, real)
    if node.enum_keyword("rng_distribution") == "UNIFORM":
        samples = op.add(location, op.multiply(uniform, op.subtract(scale, location)))
        return op.cast(samples, dtype)
    # Box and Muller 1958: of a number in (0, 1] and an angle
    size = op.sqrt(op.multiply(op.log(op.subtract(const(1, real), uniform)), const(-2, real)))
    angle = op.multiply(_uniform_fraction(second, first, real), const(2 * math.pi, real))
    samples = op.add(location, op.multiply(op.multiply(size, op.cos(angle)), scale))
    return op.cast(samples, dtype)


def _uniform_fraction(first: Expr, second: Expr, dtype: str) -> Expr:
    """Emit uniform numbers in [0, 1) with as many random bits as the dtype's significand has."""
    if dtype == "float32":
        # 24 bits are exact in float32; more would round up to 1.
        bits = op.cast(op.right_shift(first, _u32_const(8)), dtype)
        return op.multiply(bits, const(2.0**-24, dtype))
    wide = op.right_shift(_join_u32(first, second), const(np.array(11, np.uint64)))
    return op.multiply(op.cast(wide, dtype), const(2.0**-53, dtype))


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.rng_bit_generator", _rng_bit_generator),
    StablehloRow("stablehlo.rng", _draw_random),
)
