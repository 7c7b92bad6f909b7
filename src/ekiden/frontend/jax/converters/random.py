"""Random bits: Threefry, as XLA has it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.node import Node, Row
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _word(number: int) -> Expr:
    return const(np.array(number, np.uint32))


def _rotated(x: Expr, count: int) -> Expr:
    return op.bitwise_or(op.left_shift(x, _word(count)), op.right_shift(x, _word(32 - count)))


def threefry(node: Node, key: Sequence[Expr], counter: Sequence[Expr]) -> tuple[Expr, Expr]:
    """Threefry-2x32 with 20 rounds (Salmon and others, 2011): two words for each pair of words."""
    third = op.bitwise_xor(op.bitwise_xor(key[0], key[1]), _word(_PARITY))
    keys = [key[0], key[1], third]
    x: Expr = op.add(counter[0], key[0])
    y: Expr = op.add(counter[1], key[1])
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = op.add(x, y)
            y = op.bitwise_xor(_rotated(y, rotation), x)
        x = op.add(x, keys[(group + 1) % 3])
        y = op.add(op.add(y, keys[(group + 2) % 3]), _word(group + 1))
        x, y = (node.scope.expr(node.given(each)) for each in (x, y))
    return x, y


def _halves(node: Node, value: Expr) -> tuple[Expr, Expr]:
    """The low and the high word of numbers of 64 bits."""
    low = op.cast(op.bitwise_and(value, const(np.array(0xFFFFFFFF, np.uint64))), "uint32")
    high = op.cast(op.right_shift(value, const(np.array(32, np.uint64))), "uint32")
    return node.scope.expr(node.given(low)), node.scope.expr(node.given(high))


def _halves_of(shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The axis along which pairs of words lie, as XLA chooses it, and the shape of half of them:
    the first axis of even extent, else the longest.
    """
    even = [i for i, extent in enumerate(shape) if extent % 2 == 0]
    axis = even[0] if even else max(range(len(shape)), key=lambda i: shape[i])
    return axis, (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])


def _rng_bit_generator(node: Node) -> Result:
    """(state): the next state and random bits. The state is a key and a counter of 64 bits each."""
    algorithm = node.word("rng_algorithm")
    if algorithm != "THREE_FRY":
        node.unsupported(f"the algorithm {algorithm} is not supported, THREE_FRY is")
    state, dtype = node.expr(0), node.out_dtype(1)
    if node.dtype(0) != "uint64" or itemsize(dtype) < 4:
        node.unsupported(f"a state of {node.dtype(0)} for bits of {dtype}")
    extents = node.out_extents(1)
    shape = node.static([-1 if e is None else e for e in extents], "random bits") or (1,)
    axis, half = _halves_of(shape) if itemsize(dtype) == 4 else (0, shape)
    count = math.prod(half)
    key, counter = (op.take(state, const(i, "int64"), axis=0) for i in (0, 1))
    numbers = const(np.arange(count, dtype=np.uint64))
    places = node.scope.expr(node.given(op.add(numbers, counter)))
    words = threefry(node, _halves(node, key), _halves(node, places))
    first, second = (op.reshape(word, half, allowzero=True) for word in words)
    if itemsize(dtype) == 4:
        pairs = op.stack([first, second], axis=axis + 1)
        wide = (*shape[:axis], 2 * half[axis], *shape[axis + 1 :])
        both = op.reshape(pairs, wide, allowzero=True)
        bits = op.strided_slice(both, (0,), (shape[axis],), axes=(axis,))
    else:
        high = op.left_shift(op.cast(second, "uint64"), const(np.array(32, np.uint64)))
        bits = op.bitwise_or(op.cast(first, "uint64"), high)
    plain = f"uint{8 * itemsize(dtype)}"
    made: Expr = bits if dtype == plain else op.reinterpret(bits, dtype)
    made = made if extents else op.reshape(made, ())
    moved = op.add(counter, const(np.array(count, np.uint64)))
    return [op.stack([key, moved], axis=0), made]


ROWS: tuple[Row, ...] = (Row("stablehlo.rng_bit_generator", _rng_bit_generator),)
