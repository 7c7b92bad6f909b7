"""Transposition of square tiles in registers, by one-instruction shuffles.

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
from ekiden.kernels.prim_builder import wrap_in_lets
from ekiden.target import Target
from ekiden.tir.stmt import Stmt, seq

SHUFFLE_GROUP_BITS = 128
"""Bits within which every processor shuffles in one instruction."""
MAX_TRANSPOSE_VECTORS = 16
"""Maximum vectors of a tile: more would spill."""
TRANSPOSABLE_DTYPES = frozenset(
    ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
"""Dtypes with the same representation in memory and registers."""


def transpose_tile_size(dtype: str, target: Target) -> int:
    """Return the side of a transposable tile of a dtype; 1 if the target has none."""
    if dtype not in TRANSPOSABLE_DTYPES or not target.has("shuffles"):
        return 1
    bits = dt.SCALAR_BITS[dtype]
    return min(target.vector_bits // bits, max(MAX_TRANSPOSE_VECTORS, SHUFFLE_GROUP_BITS // bits))


def _butterfly_pairs(vectors: Sequence[Var], group: int) -> list[tuple[Var, Var]]:
    """Return the butterfly pairs: vectors half a group apart."""
    half = group // 2
    return [
        (vectors[g + i], vectors[g + i + half])
        for g in range(0, len(vectors), group)
        for i in range(half)
    ]


def _interleave_orders(lanes: int, group_lanes: int) -> tuple[list[int], list[int]]:
    """Return the shuffles that interleave the lower and the upper halves of two vectors' groups."""
    orders: tuple[list[int], list[int]] = [], []
    for side, order in enumerate(orders):
        for start in range(0, lanes, group_lanes):
            for i in range(group_lanes // 2):
                at = start + side * (group_lanes // 2) + i
                order += [at, at + lanes]
    return orders


def _alternate_orders(lanes: int, group_lanes: int) -> tuple[list[int], list[int]]:
    """Return the shuffles that select the even and the odd groups of two vectors."""
    first = [at for at in range(2 * lanes) if at // group_lanes % 2 == 0]
    return first, [at + group_lanes for at in first]


def emit_transpose(
    rows: Sequence[PrimExpr], emit_store_column: Callable[[int, PrimExpr], Stmt]
) -> Stmt:
    """Emit the transposition of a square tile; `emit_store_column(n, vector)` stores column n.

    Args:
        rows: Vectors of as many lanes as there are rows.
        emit_store_column: Returns the statement that stores a column.
    """
    count, dtype = len(rows), rows[0].dtype
    # Shuffles within 128 bits are one instruction on x86 and Arm; crossing 128-bit groups is left
    # to the last rounds.
    group_lanes = min(count, SHUFFLE_GROUP_BITS // dt.SCALAR_BITS[dt.element_dtype(dtype)])
    lets: list[tuple[Var, PrimExpr]] = [(Var("row", dtype), row) for row in rows]
    current = [var for var, _ in lets]

    def apply_shuffles(
        orders: tuple[list[int], list[int]], pairs: list[tuple[Var, Var]]
    ) -> list[Var]:
        """Apply both shuffles to each pair of vectors: one round of the transpose."""
        shuffles = [(Var("turn", dtype), shuffle(a, b, o)) for a, b in pairs for o in orders]
        lets.extend(shuffles)
        return [var for var, _ in shuffles]

    step = group_lanes
    while step > 1:  # the rows of each part: column n of a part is vector n of its group
        current = apply_shuffles(
            _interleave_orders(count, group_lanes), _butterfly_pairs(current, group_lanes)
        )
        step //= 2
    groups = count // group_lanes
    # vector n of all groups: their parts, which are rows of as many parts, transposed
    columns: list[Var | None] = [None] * count
    for n in range(group_lanes):
        line = [current[g * group_lanes + n] for g in range(groups)]
        for _ in range(groups.bit_length() - 1):
            pairs = [(line[i], line[i + 1]) for i in range(0, groups, 2)]
            shuffled = apply_shuffles(_alternate_orders(count, group_lanes), pairs)
            line = [*shuffled[0::2], *shuffled[1::2]]
        for group_index, var in enumerate(line):
            columns[group_index * group_lanes + n] = var
    body = seq(*(emit_store_column(n, var) for n, var in enumerate(columns) if var is not None))
    # The last shuffle is bound innermost: each one reads vectors that were bound before it.
    return wrap_in_lets(lets, body)


def emit_interleave(
    vectors: Sequence[PrimExpr],
    emit_store_column: Callable[[int, PrimExpr], Stmt],
    is_inverse: bool = False,
) -> Stmt:
    """Emit the interleaving of planar channel vectors into pixels, or the inverse.

    Args:
        vectors: The vectors.
        emit_store_column: Returns the statement that stores the n-th result.
        is_inverse: Whether to deinterleave.
    """
    count, dtype = len(vectors), vectors[0].dtype
    lanes = dt.lanes(dtype)
    lets: list[tuple[Var, PrimExpr]] = [(Var("channel", dtype), v) for v in vectors]
    sources, stmts = [var for var, _ in lets], []
    for n in range(count):
        numbers = [lane * count + n if is_inverse else n * lanes + lane for lane in range(lanes)]
        positions = [divmod(i, lanes) if is_inverse else divmod(i, count)[::-1] for i in numbers]
        current = sources[0]
        for source, operand in enumerate(sources[1:], 1):
            # The first shuffle reads two untouched sources; later ones find earlier lanes in place.
            order_so_far = [
                source_lane if source == 1 else lane
                for lane, (_, source_lane) in enumerate(positions)
            ]
            # Lanes of earlier sources stay; those of this source replace their slots.
            order = [
                lanes + own_lane if owner == source else order_so_far[lane]
                for lane, (owner, own_lane) in enumerate(positions)
            ]
            lets.append((Var("woven", dtype), shuffle(current, operand, order)))
            current = lets[-1][0]
        stmts.append(emit_store_column(n, current))
    body = seq(*stmts)
    return wrap_in_lets(lets, body)


__all__ = ["TRANSPOSABLE_DTYPES", "emit_interleave", "emit_transpose", "transpose_tile_size"]
