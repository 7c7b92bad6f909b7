"""Elements as integers in the order they sort in, and the few first of a row without sorting it.

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
from ekiden.topi.shape import known

LANES = 16
"""Elements that are moved, or looked at one by one, together."""
BLOCK = 64
"""Elements that are compared with the last one kept at once."""


def rank_dtype(dtype: str) -> str:
    """The integers that rank elements of a dtype."""
    wide = dtype in ("float64", "int64", "uint64", "uint32")
    return "int64" if wide else "int32"


def rank(value: PrimExpr, ascending: bool) -> PrimExpr:
    """The rank of an element."""
    found = _float_rank(value) if dt.is_float(value.dtype) else _integer_rank(value)
    return found if ascending else call_intrin("bitwise_xor", found, const(-1, found.dtype))


def _float_rank(value: PrimExpr) -> PrimExpr:
    """The bits, those of negative numbers but for the sign turned: they then grow downwards."""
    wide = value if value.dtype == "float64" else cast(value, "float32")
    dtype = rank_dtype(wide.dtype)
    width, infinity = (64, 0x7FF << 52) if dtype == "int64" else (32, 0xFF << 23)
    bits = call_intrin("reinterpret", wide, dtype=dtype)
    sign = call_intrin("right_shift", bits, const(width - 1, dtype))
    turned = call_intrin("bitwise_and", sign, const((1 << (width - 1)) - 1, dtype))
    ordered = call_intrin("bitwise_xor", bits, turned)
    number = Select(wide.equal(const(0.0, wide.dtype)), const(0, dtype), ordered, dtype)
    return Select(call_intrin("isnan", wide), const(infinity + 1, dtype), number, dtype)


def _integer_rank(value: PrimExpr) -> PrimExpr:
    dtype = rank_dtype(value.dtype)
    if value.dtype != "uint64":
        return cast(value, dtype)
    bits = call_intrin("reinterpret", value, dtype=dtype)
    return call_intrin("bitwise_xor", bits, const(-(1 << 63), dtype))


def index_dtype(size: PrimExpr) -> str:
    """The integers that positions in a row are kept in: narrow ones are moved twice as fast."""
    longest = known(size)
    return "int64" if longest is None or longest >= 1 << 31 else "int32"


def selects(count: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Whether keeping the `count` first of `size` elements beats sorting all.

    A row in random order puts count * (1 + ln(size / count)) elements among those kept, each for
    about 12 + count / 12 ns; sorting takes 3 ns per element and pass. What is not known is asked
    when it runs.
    """
    few, many = known(count), known(size)
    if few is None or many is None:
        return simplify(logical_and(logical_and(count > 0, count <= 256), count * 8 <= size))
    if few < 1 or many < 2 * few:
        return const(False)
    kept = few * (1 + math.log(many / few)) * (12 + few / 12)
    return const(kept + many / 4 < 3 * many * math.log2(many))


class Selection:
    """The first `count` elements of a row, in order, while the row is read from its beginning.

    `kept` holds their ranks and `order` their positions, behind LANES places that nothing is
    before.
    """

    def __init__(self, ib: IRBuilder, count: PrimExpr, dtype: str, index: str) -> None:
        self.ib, self.last = ib, simplify(count + (LANES - 1))
        self.blocks = simplify((count + (LANES - 1)) // LANES)
        places = (self.blocks + 1) * LANES
        self.kept = ib.allocate(dtype, places, "kept")
        self.order = ib.allocate(index, places, "kept_order")
        low = const(-(1 << (dt.SCALAR_BITS[dtype] - 1)), dtype)
        with ib.for_range(0, places, "p") as p:
            self.kept[p] = low
            self.order[p] = 0

    def begin(self, ranks: BufferVar, order: BufferVar, start: PrimExpr, size: PrimExpr) -> None:
        """Keep the sorted ranks[start : start + size] with their positions."""
        with self.ib.for_range(0, size, "p") as p:
            self.kept[p + LANES] = ranks[start + p]
            self.order[p + LANES] = order[start + p]

    def position(self, n: PrimExpr) -> PrimExpr:
        """Where in the row the n-th of the elements kept is."""
        return self.order[n + LANES]

    def scan(self, low: PrimExpr, size: PrimExpr, ranked: Callable[[PrimExpr], PrimExpr]) -> None:
        """Take in the elements from `low` to `size`, which `ranked` gives the ranks of."""
        ib = self.ib
        whole = ib.let("whole", maximum(size - low, 0) // BLOCK)
        with ib.for_range(0, whole, "block") as number:
            self._block(ib.let("base", low + number * BLOCK), ranked)
        with ib.for_range(low + whole * BLOCK, size, "left") as at:
            self._offer(ib.let("rank", ranked(at)), at)

    def _block(self, base: PrimExpr, ranked: Callable[[PrimExpr], PrimExpr]) -> None:
        ib = self.ib
        ranks = ib.allocate(self.kept.dtype, BLOCK, "ranks", "local")
        with ib.for_range(0, BLOCK, "lane", kind="vectorized") as lane:
            ranks[lane] = ranked(base + lane)
        with (
            ib.if_scope(_least(ranks, const(0), BLOCK) < self.kept[self.last]),
            ib.for_range(0, BLOCK // LANES, "group") as group,
        ):
            first = ib.let("first", group * LANES)
            with (
                ib.if_scope(_least(ranks, first, LANES) < self.kept[self.last]),
                ib.for_range(0, LANES, "each") as each,
            ):
                self._offer(ib.let("rank", ranks[first + each]), base + first + each)

    def _offer(self, found: PrimExpr, at: PrimExpr) -> None:
        """Put an element behind those that are not after it; the last one falls out.

        kept[p] = kept[p] where it stays, found where its neighbour before stays, else that one
        """
        ib = self.ib
        with (
            ib.if_scope(found < self.kept[self.last]),
            ib.for_range(0, self.blocks, "down") as down,
        ):
            start = ib.let("start", (self.blocks - down) * LANES)
            with ib.for_range(0, LANES, "lane", kind="vectorized") as lane:
                place = start + lane
                here, before = (
                    ib.let("here", self.kept[place]),
                    ib.let("before", self.kept[place - 1]),
                )
                was, moved = (
                    ib.let("was", self.order[place]),
                    ib.let("moved", self.order[place - 1]),
                )
                stays, follows = here <= found, before <= found
                first = Select(follows, found, before, found.dtype)
                self.kept[place] = Select(stays, here, first, found.dtype)
                position = Select(follows, cast(at, was.dtype), moved, was.dtype)
                self.order[place] = Select(stays, was, position, was.dtype)


def _least(ranks: BufferVar, first: PrimExpr, count: int) -> PrimExpr:
    wide = dt.with_lanes(ranks.dtype, count)
    found = ranks.buffer[ramp(first, 1, count)].with_fields(dtype=wide)
    return VectorReduce(found, "min", ranks.dtype)


__all__ = ["Selection", "index_dtype", "rank", "rank_dtype", "selects"]
