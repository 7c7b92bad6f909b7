"""How a product of matrices is cut into tiles and blocks, from the facts of a processor.

After Low, Igual, Smith, Quintana-Orti, "Analytical modeling is enough for high-performance BLIS"
(2016): every size follows from registers, units, latencies, and the sizes, ways and bandwidths of
caches. What differs here: the left matrix is not copied into tiles, weights lie in panels ready
made, and a panel comes from whichever cache it fits.

    panel of nv vectors, tile of mr rows     acc[mr, nv] in registers
    k in blocks of kc                        rows x kc of data and two blocks of panels stay in L2
    order                                    panels outside, unless L3 feeds a tile of mr rows
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ekiden.kernels.decision import Choice, divisors
from ekiden.kernels.family import NARROW, Product, narrowed
from ekiden.kernels.micro_kernels.matrix_tiles import BY_DATA, LANES, WORD_BYTES
from ekiden.kernels.micro_kernels.register_tiles import DYNAMIC_ROWS
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Cache, Target

LINE = 64
"""Bytes of a cache line."""
PAGE = 4096
"""Bytes after which lines fall into the same set of a first-level cache."""
MOST_VECTORS = 4
"""Vectors of a panel: more leave rows too few for a tile."""
MEMORY = 0.05
"""Cycles that a load or a prefetch costs beside multiply-adds that hide it."""
SLIP = 0.7
"""Cycles of a step that is as long as the wait for the sums before it: one that comes a cycle late
is made up for by nothing (Zen 3: four rows of two vectors take 4.6 to 5.7 cycles, five rows 5)."""
TAIL = 0.01
"""Share of the time by which a panel narrower than the others must gain: it is code of its own."""
MANY_ROWS = 256
"""Rows of data beyond which a block of them does not stay in a second-level cache."""
SHARE = 0.75
"""Share of a cache that what is counted on may take."""
DISTANCES = (0, 4, 8, 16, 32)
"""Steps by which a panel is brought to the first cache ahead."""
HIDDEN = 6
"""Latencies of the cache that a panel is in by which it is brought ahead: that has more to do."""
AHEAD = 16 * LINE
"""Bytes by which a panel is brought ahead at least: narrow panels whose steps are long (products of
int16) are at the next page, which a processor does not follow to, in a few steps."""
STREAM = 2 * PAGE
"""Bytes by which what is read once from memory is brought ahead, to the second-level cache: so the
next page, to which no processor follows by itself, is begun before its first line is waited for."""
TOUCHED = 8 * LINE
"""Of so many bytes of such a stream one line is asked for; the processor brings those beside it by
itself. Asked for one by one they fill the few places that a first-level cache has for lines under
way, and its own requests wait (one row of q4_0 by the weights of 135M, Zen 4, of 32 GB/s: all lines
2 KB ahead to L1 21, 8 KB ahead to L2 14, none 30, one of eight 34)."""
QUIET = 3
"""Of so many lines that the third-level cache gives one is of the next panel: others need it."""
ROOM = 0.6
"""Of what the third-level cache gives, what a tile may take in every step: nearer to the limit it
waits (256 bits on Zen 4, 2/3 of it: 91 percent of the peak, by panels 98; Zen 5, 0.55: 98)."""
AGAIN = 0.2
"""Of what the third-level cache gives, what may come again without blocks of k: those store sums
and load them, and take twice the code (128x768x3072, a quarter of it on Skylake-SP: 70 percent of
the peak, with blocks 82; a twentieth on Zen 4: 95 and 93)."""
LEAST_BLOCK = 192
"""Steps of k below which a block costs more than it saves: sums are stored and loaded again."""


def levels(target: Target) -> tuple[Cache, Cache, Cache]:
    """The caches of a target; behind the last comes memory, which is taken for as fast."""
    first, *more = target.caches
    second = more[0] if more else first
    return first, second, more[1] if len(more) > 1 else second


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of k takes: instructions for each accumulator, for each vector of a panel row,
    and for each row of the tile; registers for a vector of a panel row, and those beside: a
    broadcast, what is in between.
    """

    each: int
    vector: int = 0
    row: int = 0
    columns: int = 1
    registers: int = 1
    rows: int = 0
    """Of a tile, where its sums are in registers a column at a time; 0: as many as they hold."""


DIRECT = Step(each=1)
"""An instruction that multiplies and adds."""
APART = Step(each=2, registers=2)
"""A product, then a sum."""
SHUFFLED = Step(each=2, row=1, registers=2)
"""The same where a number is loaded, and then brought to all lanes by the units that multiply (Zen
4 by 128 bits, 128x768x768: tiles of 6x2 reach 56 percent of the peak, of 2x4 67)."""
PAIRS = Step(each=4, vector=3, columns=2, registers=4)
"""Two sums of two products of int16, of bytes that were widened."""
HALVES = Step(each=2, vector=2, row=2, columns=2, registers=3)
"""Two sums of two products of int16, of words whose bytes are widened on both sides."""
FOUR_WORDS = Step(each=2, vector=3, row=2, rows=4)
"""Sums over vectors of four steps, which follow each other in a row of the data and in one column
of the weights: a load and the products for each row and column, weights that are gathered and made
unsigned, and the sums of data, which all columns share. There are registers for four sums."""
BYTES = (
    ("dot4_u8s8", DIRECT),
    ("madd_s16", PAIRS),
    ("helium", FOUR_WORDS),
    ("smlad", HALVES),
    ("", Step(each=28, registers=5)),
)
"""Words of bytes; the last way takes them apart by shifts."""
STEPS: Mapping[str, tuple[tuple[str, Step], ...]] = {
    "float32": (("fma", DIRECT), ("madd", DIRECT), ("broadcasts", APART), ("", SHUFFLED)),
    "uint8": BYTES,
    "int8": BYTES,
    # a product of bytes, its sums two by two, then a sum; beside a broadcast the ones of the second
    NARROW: (("dot4_u8s8", DIRECT), ("madd_u8s8", Step(each=3, registers=3)), *BYTES[1:]),
    "bfloat16": (("dot2_bf16", DIRECT), ("", Step(each=6, registers=5))),
    # words of two; beside a broadcast the products before they are added
    "int16": (("dot2_s16", DIRECT), ("", Step(each=2, registers=2))),
}
"""dtype of data (or NARROW) -> what a step takes with the instruction of a name, the best first."""


def step_of(dtype: str, target: Target) -> Step:
    """A step of k of data of a type."""
    ways = STEPS.get(dtype, STEPS["float32"])
    return next(step for ability, step in ways if not ability or target.has(ability))


def spare_registers(target: Target, dtype: str = "float32") -> int:
    """Registers for sums and a row of a panel: without those of a broadcast, and of a product
    where that is no part of a multiply-add."""
    step = step_of(dtype, target)
    return target.registers - step.registers


def most_rows(vectors: int, target: Target, dtype: str = "float32") -> int:
    """Rows of the largest tile of so many vectors that stays in registers."""
    step = step_of(dtype, target)
    if step.rows:
        return step.rows
    columns = vectors * step.columns
    return max(1, (spare_registers(target, dtype) - columns) // vectors)


def chains_of(rows: int, vectors: int, target: Target, dtype: str = "float32") -> int:
    """Accumulators of each sum of a tile: as many as keep multiply-adds busy, where registers hold
    them. Sums that add what was multiplied apart wait for that addition alone."""
    if step_of(dtype, target) is not DIRECT:
        return 1
    sums = rows * vectors
    wanted = -(-target.fma_latency * target.fma_units // sums)
    return max(1, min(wanted, (spare_registers(target, dtype) - vectors) // sums))


def shared_evenly(panels: int, cores: int) -> bool:
    """Whether threads can share out panels: with one more for some at most a tenth of the time is
    lost."""
    return panels >= cores and 10 * panels >= 9 * -(-panels // cores) * cores


def step_cycles(rows: float, vectors: int, target: Target, dtype: str = "float32") -> float:
    """Cycles of a step of k of a tile: multiply-adds, or loads where those take longer, or the
    wait for the sums of the step before."""
    memory, step = rows + 2 * vectors, step_of(dtype, target)
    work = vectors * (rows * step.each + step.vector) + rows * step.row
    multiply = work / target.fma_units
    busy, wait = max(multiply, (rows + vectors) / target.loads), target.fma_latency
    late = max(0.0, SLIP - abs(busy - wait))
    return max(busy, wait) + late + MEMORY * memory


def hides_prefetches(rows: int, vectors: int, target: Target, dtype: str = "float32") -> bool:
    """Whether a tile has time to bring its panel ahead: a prefetch is a load, and with few rows
    loads are all that a step waits for (1x768x768 on Zen 4: 31 us, without prefetches 25)."""
    step = step_of(dtype, target)
    multiply = vectors * (rows * step.each + step.vector) / target.fma_units
    return (rows + 2 * vectors) / target.loads <= multiply


def _late_share(parts: int, target: Target) -> float:
    """How much longer than their mean the thread with the most parts takes."""
    return -(-parts // target.cores) * target.cores / parts if parts >= target.cores else 1.0


def _columns_cost(vectors: int, product: Product, target: Target) -> float:
    """Cycles of a step of k of one row of the whole product, in panels of so many vectors."""
    lanes = target.lanes("float32")

    def each(wide: int) -> float:
        """Cycles of a step of one row in a panel of `wide` vectors."""
        rows: float = tile_rows(wide, product, target)
        if product.rows:
            rows = product.rows / -(-product.rows // int(rows))  # tiles are balanced
        return step_cycles(rows, wide, target, product.dtype) / rows

    if product.columns is None:
        return each(vectors) / vectors
    total = -(-product.columns // lanes)
    whole, rest = divmod(total, vectors)
    panels = whole + (rest > 0)
    share = _late_share(panels, target)
    blocking = Blocking(product, vectors * lanes, tile_rows(vectors, product, target), target)
    if blocking.tiles and blocking.tiles >= target.cores and blocking.order() == "row":
        share = min(share, _late_share(blocking.tiles, target))
    cost = whole * each(vectors) + (each(rest) if rest else 0.0)
    return cost * share * (1 + TAIL if rest else 1.0)


def tile_rows(vectors: int, product: Product, target: Target) -> int:
    """Rows of a tile: as many as registers hold, unless rows at the same distance would drive each
    other out of the first-level cache."""
    rows = most_rows(vectors, target, product.dtype)
    if product.rows is None:
        return min(rows, DYNAMIC_ROWS)
    if product.depth:
        while rows > 1 and is_crowded(rows, product.depth, target):
            rows -= 1
    return rows


def rows_in_set(rows: int, depth: int) -> int:
    """How many of the rows of a tile, `depth` floats apart, begin in the same lines of a set."""
    return -(-rows * math.gcd(4 * depth, PAGE) // PAGE)


def is_crowded(rows: int, depth: int, target: Target) -> bool:
    """Whether more rows begin in a set of the first-level cache than it has ways."""
    ways = target.caches[0].ways
    return rows_in_set(rows, depth) > ways + 1


def panel_width(product: Product, target: Target) -> int:
    """Columns of a panel of weights. Sums in registers that hold matrices are as fast by any: a
    panel of two of them stays in the first cache while rows pass by, or one of four (Sapphire
    Rapids, 128x768x768 with weights from the second cache: 1.8 TOP/s by 32 columns, 1.5 by 48, 1.7
    by 64; from the third 1.6, 1.1, 1.1).
    """
    lanes = target.lanes("float32")
    made = BY_DATA.get(product.dtype)
    if made is not None and target.has(made.ability):
        bytes_ = WORD_BYTES * (product.depth or 0) * 2 * LANES
        return narrowed((4 if 2 * bytes_ <= target.l1 // 2 else 2) * LANES, product, target)
    best = min(
        range(1, MOST_VECTORS + 1),
        key=lambda v: (round(_columns_cost(v, product, target), 6), -v),
    )
    return narrowed(best * lanes, product, target)


def panel_choice(target: Target) -> Choice:
    """The widths of panels that there may be."""
    lanes = target.lanes("float32")
    widths = tuple(v * lanes for v in range(1, MOST_VECTORS + 1))
    return Choice("panel", widths, "columns of a panel of packed weights", True)


def narrowing_pays(listed: int, depth: int, target: Target) -> bool:
    """Whether to multiply bytes by sums of two products that fit int16, where that takes `listed`
    steps of k more than `depth` for each panel. Widening the words of a panel is not counted: with
    one row it hides behind reading them, which takes longer with more (Zen 4 as AVX-512 without
    VNNI, 1x768x768: 115 GOP/s in pairs, with all words twice 74, with none 172)."""
    before, now = step_of("uint8", target).each, step_of(NARROW, target).each
    return bool(depth) and now * (depth + listed) < before * depth


@dataclass(frozen=True, slots=True)
class Blocking:
    """A product on one panel width, ready for questions about its loops."""

    product: Product
    panel: int
    rows: int
    target: Target

    @property
    def vectors(self) -> int:
        """Of a panel row."""
        return -(-self.panel // self.target.lanes("float32"))

    @property
    def tiles(self) -> int | None:
        """Tiles of rows, if that is known."""
        rows = self.product.rows
        return None if rows is None else max(1, -(-rows // self.rows))

    @property
    def weights(self) -> float:
        """Bytes of them."""
        size = self.product
        return math.inf if not (size.columns and size.depth) else 4 * size.columns * size.depth

    @property
    def cycles(self) -> float:
        """Of a step of k of a tile."""
        rows = min(self.rows, self.product.rows or self.rows)
        return step_cycles(rows, self.vectors, self.target, self.product.dtype)

    def order(self) -> str:
        """What the outer loop is: "row" tiles where there is but one, where the weights stay in the
        second-level cache, or where the third feeds a tile as fast as it computes; else "panel"s.
        """
        size = self.product
        _, second, third = levels(self.target)
        if size.rows is None or size.columns is None or size.depth is None:
            return "panel"
        if self.tiles == 1 or self.weights <= second.size // 2:
            return "row"
        per_cycle = 4 * self.target.lanes("float32") * self.target.fma_units / self.rows
        is_fed = per_cycle <= ROOM * third.bandwidth
        return "row" if size.rows <= MANY_ROWS and is_fed else "panel"

    def k_block(self, order: str) -> int:
        """Steps of k of a block, a divisor of the depth; 0 for all at once."""
        size, second = self.product, levels(self.target)[1]
        if order != "panel" or not size.depth or self.tiles == 1:
            return 0
        if size.rows is not None and size.rows <= MANY_ROWS:
            if not self.waits_for_more(size.depth):
                return 0
            most = int(SHARE * second.size) // (4 * (size.rows + 2 * self.panel))
        else:  # rows stream by a panel
            most = second.size // 2 // (4 * self.panel)
        fitting = next((d for d in divisors(size.depth, LEAST_BLOCK) if d <= most), 0)
        return 0 if fitting == size.depth else fitting

    def waits_for_more(self, depth: int) -> bool:
        """Whether what comes from the third-level cache again and again, without blocks of k, is
        more than it gives beside: the rows for every panel, and a panel for every tile of rows
        where it does not fit in the second."""
        _, second, third = levels(self.target)
        floats = self.rows
        if 4 * depth * self.panel > SHARE * second.size:
            floats += self.panel
        return 4 * floats / self.cycles > AGAIN * third.bandwidth

    def own(self, order: str) -> int:
        """Steps by which a tile brings its panel to the first-level cache ahead; 0 where what is
        read between two uses of a panel fits there, and where a panel is used but once: floats that
        are read in order a processor fetches ahead by itself, as fast as they come, and prefetches
        only take loads from it (Zen 4, one row of 768x768: 30 us without, 37 with them). Words of
        bytes on the way through int16 leave it too few loads in flight for that.
        """
        first, second, third = levels(self.target)
        depth, columns = self.product.depth, self.product.columns
        width = self.panel if order == "panel" else columns
        if depth is not None and width is not None and 4 * depth * width <= first.size // 2:
            return 0
        if self.tiles == 1 and step_of(self.product.dtype, self.target) is DIRECT:
            return 0
        # unknown tiles may be one or two, which find no panel brought nearer by others
        is_by_panel = order == "panel" and self.tiles is not None
        is_near = is_by_panel or self.weights <= second.size // 2
        wait = HIDDEN * (second if is_near else third).latency
        steps = max(wait / self.cycles, AHEAD / (4 * self.panel))
        return next((d for d in DISTANCES[1:] if d >= steps), DISTANCES[-1])

    def copied_to(self) -> str:
        """The cache that rows of a matrix are brought to before they are copied: the first, from
        the second if that holds the matrix. Else there must be more of them on the way, and rows
        that lie apart share few sets of the first (128x768x3072 on Zen 4: 85 percent of the peak,
        to the second 95)."""
        return "first" if self.weights <= levels(self.target)[1].size else "second"

    def spread(self, order: str) -> int:
        """Tiles that bring the next panel to the second-level cache, a line at every so many steps
        of each; 0 for none. Where their number is not known a line at every step: few rows wait
        for the next panel, and two lines a step are more than the third-level cache gives.
        """
        third = levels(self.target)[2]
        if order != "panel":
            return 0
        steps = QUIET * LINE / third.bandwidth / self.cycles
        enough = (d for d in self.spreads() if d * LINE >= 4 * self.panel * steps)
        wanted = next(enough, self.spreads()[-1])
        there = self.vectors if self.tiles is None else self.tiles
        return max(d for d in self.spreads() if d <= min(wanted, there))

    def unroll(self, order: str, ahead: int) -> int:
        """Steps of k that stand one after the other: two, if prefetches, `ahead`, stand between
        them that keep a compiler from loading the panel rows of both at once: that needs more
        registers than there are. One where panels change too often for it to pay for twice the
        code. A core that runs one thread has instructions to spare and is as fast by one step; of
        one that runs two at once each takes 0.75 to 0.8 of the time by two (Zen 3, pixels and
        channels: 784x128x128, 196x256x1024)."""
        known = self.product.depth and self.product.dtype == "float32"
        return 2 if ahead and known and order == "panel" else 1

    def copy(self, block: int) -> int:
        """Whether to copy the rows of blocks of k apart: 1 where they drive each other out of the
        first-level cache."""
        depth = self.product.depth
        return int(bool(block and depth and is_crowded(self.rows, depth, self.target)))

    def spreads(self) -> tuple[int, ...]:
        """All that `spread` may be."""
        return tuple(sorted({0, 1, *(self.vectors * n for n in (1, 2, 4))}))


__all__ = [
    "Blocking",
    "chains_of",
    "hides_prefetches",
    "is_crowded",
    "most_rows",
    "narrowing_pays",
    "panel_choice",
    "panel_width",
    "rows_in_set",
    "shared_evenly",
    "tile_rows",
]
