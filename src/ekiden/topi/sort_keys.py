"""Order-preserving integer ranks of elements, and selection of a row's first few without sorting.

A rank is smaller for what comes earlier. Equal elements have equal ranks: -0 and 0, and all
not-a-numbers, which are the largest values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, cast, const, logical_and, maximum
from ekiden.tir.expr import VectorReduce, ramp
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.topi.dimensions import known_int

INSERTION_LANES = 16
"""Lanes of the vectorised insertion."""
COMPARE_BLOCK_ELEMENTS = 64
"""Elements compared at once with the current threshold."""


def sort_key_dtype(dtype: str) -> str:
    """Return the integer dtype of the ranks of a dtype."""
    wide = dtype in ("float64", "int64", "uint64", "uint32")
    return "int64" if wide else "int32"


def order_preserving_key(value: PrimExpr, ascending: bool) -> PrimExpr:
    """Return the order-preserving integer of an element."""
    integer_rank = _float_sort_key(value) if dt.is_float(value.dtype) else _integer_sort_key(value)
    # NOT reverses the order of all integers; negation would overflow for the least one.
    return (
        integer_rank
        if ascending
        else call_intrin("bitwise_xor", integer_rank, const(-1, integer_rank.dtype))
    )


def _float_sort_key(value: PrimExpr) -> PrimExpr:
    """Return a float's bits, with the magnitude bits of negative numbers flipped so that they order
    correctly; NaN ranks after infinity.
    """
    wide = value if value.dtype == "float64" else cast(value, "float32")
    dtype = sort_key_dtype(wide.dtype)
    width, infinity = (64, 0x7FF << 52) if dtype == "int64" else (32, 0xFF << 23)
    bits = call_intrin("reinterpret", wide, dtype=dtype)
    sign = call_intrin("right_shift", bits, const(width - 1, dtype))
    turned = call_intrin("bitwise_and", sign, const((1 << (width - 1)) - 1, dtype))
    ordered = call_intrin("bitwise_xor", bits, turned)
    # -0 equals 0, but its bits do not.
    number = Select(wide.equal(const(0.0, wide.dtype)), const(0, dtype), ordered, dtype)
    return Select(call_intrin("isnan", wide), const(infinity + 1, dtype), number, dtype)


def _integer_sort_key(value: PrimExpr) -> PrimExpr:
    dtype = sort_key_dtype(value.dtype)
    if value.dtype != "uint64":
        return cast(value, dtype)
    # With its top bit flipped an unsigned number orders as a signed one.
    bits = call_intrin("reinterpret", value, dtype=dtype)
    return call_intrin("bitwise_xor", bits, const(-(1 << 63), dtype))


def position_dtype(size: PrimExpr) -> str:
    """Return the integer dtype of positions in a row: int32 moves twice as fast."""
    longest = known_int(size)
    return "int64" if longest is None or longest >= 1 << 31 else "int32"


def prefers_selection(count: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return whether selecting the `count` first of `size` elements beats sorting all. A random row
    inserts count * (1 + ln(size / count)) elements, each in about 12 + count / 12 ns; sorting
    takes 3 ns per element and pass. Unknown sizes are tested at run time.
    """
    few, row_size = known_int(count), known_int(size)
    if few is None or row_size is None:
        return simplify(logical_and(logical_and(count > 0, count <= 256), count * 8 <= size))
    if few < 1 or row_size < 2 * few:
        return const(False)
    insert_ns = few * (1 + math.log(row_size / few)) * (12 + few / 12)
    return const(insert_ns + row_size / 4 < 3 * row_size * math.log2(row_size))


class RowSelection:
    """Builder of the streaming selection of a row's first `count` elements in order.
    `selected_ranks` holds their ranks and `selected_positions` their positions, after
    INSERTION_LANES sentinels that precede everything.
    """

    def __init__(self, ib: IRBuilder, count: PrimExpr, dtype: str, index: str) -> None:
        self.ib, self.list_length = ib, simplify(count + (INSERTION_LANES - 1))
        self.blocks = simplify((count + (INSERTION_LANES - 1)) // INSERTION_LANES)
        capacity = (self.blocks + 1) * INSERTION_LANES
        self.selected_ranks = ib.allocate(dtype, capacity, "kept")
        self.selected_positions = ib.allocate(index, capacity, "kept_order")
        # Sentinels precede every rank, so that the slot before the first kept element can be read.
        low = const(-(1 << (dt.SCALAR_BITS[dtype] - 1)), dtype)
        with ib.for_range(0, capacity, "p") as p:
            self.selected_ranks[p] = low
            self.selected_positions[p] = 0

    def emit_initial_selection(
        self, ranks: BufferVar, order: BufferVar, start: PrimExpr, size: PrimExpr
    ) -> None:
        """Emit the initial list: the sorted ranks[start : start + size] with their positions."""
        with self.ib.for_range(0, size, "p") as p:
            self.selected_ranks[p + INSERTION_LANES] = ranks[start + p]
            self.selected_positions[p + INSERTION_LANES] = order[start + p]

    def position(self, n: PrimExpr) -> PrimExpr:
        """Return the row position of the n-th selected element."""
        return self.selected_positions[n + INSERTION_LANES]

    def emit_scan(
        self, low: PrimExpr, size: PrimExpr, ranked: Callable[[PrimExpr], PrimExpr]
    ) -> None:
        """Emit the comparison of elements `low` to `size` with the current threshold."""
        ib = self.ib
        full_blocks = ib.let("whole", maximum(size - low, 0) // COMPARE_BLOCK_ELEMENTS)
        with ib.for_range(0, full_blocks, "block") as number:
            self._emit_block(ib.let("base", low + number * COMPARE_BLOCK_ELEMENTS), ranked)
        with ib.for_range(low + full_blocks * COMPARE_BLOCK_ELEMENTS, size, "left") as position:
            self._emit_insertion(ib.let("rank", ranked(position)), position)

    def _emit_block(self, base: PrimExpr, ranked: Callable[[PrimExpr], PrimExpr]) -> None:
        ib = self.ib
        ranks = ib.allocate(self.selected_ranks.dtype, COMPARE_BLOCK_ELEMENTS, "ranks", "local")
        with ib.for_range(0, COMPARE_BLOCK_ELEMENTS, "lane", kind="vectorized") as lane:
            ranks[lane] = ranked(base + lane)
        with (
            ib.if_scope(
                _emit_minimum(ranks, const(0), COMPARE_BLOCK_ELEMENTS)
                < self.selected_ranks[self.list_length]
            ),
            ib.for_range(0, COMPARE_BLOCK_ELEMENTS // INSERTION_LANES, "group") as group,
        ):
            first = ib.let("first", group * INSERTION_LANES)
            with (
                ib.if_scope(
                    _emit_minimum(ranks, first, INSERTION_LANES)
                    < self.selected_ranks[self.list_length]
                ),
                ib.for_range(0, INSERTION_LANES, "each") as lane_index,
            ):
                self._emit_insertion(
                    ib.let("rank", ranks[first + lane_index]), base + first + lane_index
                )

    def _emit_insertion(self, new_rank: PrimExpr, at: PrimExpr) -> None:
        """Emit the insertion of a rank into the sorted list, dropping the last one.

        kept[p] = kept[p] if it stays, the new rank if its predecessor stays, else that predecessor.
        """
        ib = self.ib
        # From the last block down: a slot reads its predecessor before that is overwritten.
        with (
            ib.if_scope(new_rank < self.selected_ranks[self.list_length]),
            ib.for_range(0, self.blocks, "down") as down,
        ):
            start = ib.let("start", (self.blocks - down) * INSERTION_LANES)
            with ib.for_range(0, INSERTION_LANES, "lane", kind="vectorized") as lane:
                slot = start + lane
                current, before = (
                    ib.let("here", self.selected_ranks[slot]),
                    ib.let("before", self.selected_ranks[slot - 1]),
                )
                was, moved = (
                    ib.let("was", self.selected_positions[slot]),
                    ib.let("moved", self.selected_positions[slot - 1]),
                )
                stays, follows = current <= new_rank, before <= new_rank
                first = Select(follows, new_rank, before, new_rank.dtype)
                self.selected_ranks[slot] = Select(stays, current, first, new_rank.dtype)
                position = Select(follows, cast(at, was.dtype), moved, was.dtype)
                self.selected_positions[slot] = Select(stays, was, position, was.dtype)


def _emit_minimum(ranks: BufferVar, first: PrimExpr, count: int) -> PrimExpr:
    wide = dt.with_lanes(ranks.dtype, count)
    loaded = ranks.buffer[ramp(first, 1, count)].with_fields(dtype=wide)
    return VectorReduce(loaded, "min", ranks.dtype)


__all__ = [
    "RowSelection",
    "order_preserving_key",
    "position_dtype",
    "prefers_selection",
    "sort_key_dtype",
]
