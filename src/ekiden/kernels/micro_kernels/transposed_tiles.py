"""Square tiles transposed in registers: as many vectors as each has lanes, every shuffle of which
is one instruction.

    a0 a1 a2 a3        a0 b0 c0 d0
    b0 b1 b2 b3   ->   a1 b1 c1 d1        within 128 bits by interleaving neighbours of neighbours,
    c0 c1 c2 c3        a2 b2 c2 d2        then 128 bits at a time by picking every second one of two
    d0 d1 d2 d3        a3 b3 c3 d3

A tile of 16x16 takes 64 shuffles, where one element at a time takes 256 loads and as many stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import shuffle
from ekiden.ir.prim import PrimExpr, Var
from ekiden.target import Target
from ekiden.tir.stmt import LetStmt, Stmt, seq

PART = 128
"""Bits within which every processor shuffles in one instruction."""
MOST = 16
"""Vectors of a tile: more leave no registers."""
PLAIN = frozenset(
    ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
"""The types of elements that memory and registers hold alike."""


def tile_size(dtype: str, target: Target) -> int:
    """Rows and columns of a tile; 1 where there is none for a type of elements."""
    if dtype not in PLAIN or not target.has("shuffles"):
        return 1
    bits = dt.SCALAR_BITS[dtype]
    return min(target.vector_bits // bits, max(MOST, PART // bits))


def _pairs(vectors: Sequence[Var], group: int) -> list[tuple[Var, Var]]:
    """Neighbours half a group apart, in each group."""
    half = group // 2
    return [
        (vectors[g + i], vectors[g + i + half])
        for g in range(0, len(vectors), group)
        for i in range(half)
    ]


def _interleaved(lanes: int, part: int) -> tuple[list[int], list[int]]:
    """Of two vectors, in each part of them: its lower halves by turns, its upper halves."""
    orders: tuple[list[int], list[int]] = [], []
    for side, order in enumerate(orders):
        for start in range(0, lanes, part):
            for i in range(part // 2):
                at = start + side * (part // 2) + i
                order += [at, at + lanes]
    return orders


def _every_second(lanes: int, part: int) -> tuple[list[int], list[int]]:
    """Of two vectors, every second part of them from the first on, and from the second."""
    first = [at for at in range(2 * lanes) if at // part % 2 == 0]
    return first, [at + part for at in first]


def turned(rows: Sequence[PrimExpr], keep: Callable[[int, PrimExpr], Stmt]) -> Stmt:
    """`keep(n, vector)` for each column of a tile whose rows are vectors of as many lanes."""
    count, dtype = len(rows), rows[0].dtype
    part = min(count, PART // dt.SCALAR_BITS[dt.element(dtype)])
    lets: list[tuple[Var, PrimExpr]] = [(Var("row", dtype), row) for row in rows]
    now = [var for var, _ in lets]

    def both(orders: tuple[list[int], list[int]], pairs: list[tuple[Var, Var]]) -> list[Var]:
        """Both shuffles of each pair of vectors: one round of the transpose."""
        made = [(Var("turn", dtype), shuffle(a, b, o)) for a, b in pairs for o in orders]
        lets.extend(made)
        return [var for var, _ in made]

    step = part
    while step > 1:  # the rows of each part: column n of a part is vector n of its group
        now = both(_interleaved(count, part), _pairs(now, part))
        step //= 2
    groups = count // part
    # vector n of all groups: their parts, which are rows of as many parts, transposed
    columns: list[Var | None] = [None] * count
    for n in range(part):
        line = [now[g * part + n] for g in range(groups)]
        for _ in range(groups.bit_length() - 1):
            pairs = [(line[i], line[i + 1]) for i in range(0, groups, 2)]
            made = both(_every_second(count, part), pairs)
            line = [*made[0::2], *made[1::2]]
        for place, var in enumerate(line):
            columns[place * part + n] = var
    body = seq(*(keep(n, var) for n, var in enumerate(columns) if var is not None))
    for var, value in reversed(lets):
        body = LetStmt(var, value, body)
    return body


def woven(
    vectors: Sequence[PrimExpr], keep: Callable[[int, PrimExpr], Stmt], apart: bool = False
) -> Stmt:
    """`keep(n, vector)` for each vector of what goes through all of them by turns, as the pixels of
    an image whose channels lie apart; or, of pixels, for each channel."""
    count, dtype = len(vectors), vectors[0].dtype
    lanes = dt.lanes(dtype)
    lets: list[tuple[Var, PrimExpr]] = [(Var("channel", dtype), v) for v in vectors]
    given, made = [var for var, _ in lets], []
    for n in range(count):
        numbers = [lane * count + n if apart else n * lanes + lane for lane in range(lanes)]
        places = [divmod(i, lanes) if apart else divmod(i, count)[::-1] for i in numbers]
        now = given[0]
        for source, other in enumerate(given[1:], 1):
            kept = [place if source == 1 else lane for lane, (_, place) in enumerate(places)]
            order = [
                lanes + place if owner == source else kept[lane]
                for lane, (owner, place) in enumerate(places)
            ]
            lets.append((Var("woven", dtype), shuffle(now, other, order)))
            now = lets[-1][0]
        made.append(keep(n, now))
    body = seq(*made)
    for var, value in reversed(lets):
        body = LetStmt(var, value, body)
    return body


__all__ = ["PLAIN", "tile_size", "turned", "woven"]
