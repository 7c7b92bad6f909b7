"""Analytical cost model of matrix products: tile and block sizes from a processor's registers,
caches and bandwidth.

After Low, Igual, Smith, Quintana-Orti, "Analytical modeling is enough for high-performance BLIS"
(2016): every size follows from registers, units, latencies, and the sizes, ways and bandwidths of
caches. Differences: the left matrix is not packed, weights are prepacked in panels, and a panel is
read from whichever cache it fits.

    panel of nv vectors, tile of mr rows     acc[mr, nv] in registers
    k in blocks of kc                        rows x kc of data and two blocks of panels stay in L2
    order                                    panels outside, unless L3 feeds a tile of mr rows
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ekiden.kernels.decision import Knob, divisors
from ekiden.kernels.family import BYTE_PAIRS, INT16_PAIR_SUMS, MatmulSizes, clamp_panel_width
from ekiden.kernels.micro_kernels.matrix_tiles import AMX_LANES, AMX_WORD_BYTES, MATRIX_DOT_BY_DATA
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_TILE_ROWS, WIDENED_DTYPE
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Cache, Target
from ekiden.topi.nn.weight_packing import WORD_PAIR_ELEMENTS

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""
L1_SET_STRIDE_BYTES = 4096
"""Address distance in bytes of lines that map to the same L1 set."""
MAX_PANEL_VECTORS = 4
"""Maximum vectors per panel: wider panels leave registers for too few rows."""
MEMORY_OP_CYCLES = 0.05
"""Cycles of a load or prefetch that multiply-adds hide."""
LATENCY_SLIP_CYCLES = 0.7
"""Cycles of a step that is as long as the wait for the sums before it: one that comes a cycle late
is made up for by nothing (Zen 3: four rows of two vectors take 4.6 to 5.7 cycles, five rows 5)."""
NARROW_PANEL_PENALTY = 0.01
"""Fraction of time that a narrower last panel must save to justify its own code."""
MAX_ROWS_FROM_L2 = 256
"""Data rows above which a block of k no longer stays in L2."""
USABLE_CACHE_FRACTION = 0.75
"""Fraction of a cache that the model plans to use."""
PREFETCH_DISTANCES = (0, 4, 8, 16, 32)
"""Domain of the prefetch distance into L1, in steps of k."""
PREFETCH_AHEAD_LATENCIES = 6
"""Prefetch distance as a multiple of the source cache's latency."""
MIN_PREFETCH_BYTES = 16 * CACHE_LINE_BYTES
"""Minimum prefetch distance in bytes: hardware prefetchers do not cross a page."""
STREAM_PREFETCH_BYTES = 2 * L1_SET_STRIDE_BYTES
"""Prefetch distance in bytes of data streamed from memory into L2, which begins the next page
early.
"""
STREAM_PREFETCH_STRIDE_BYTES = 8 * CACHE_LINE_BYTES
"""Bytes of a stream per software prefetch; the hardware prefetcher fetches the adjacent lines.
Asked for one by one they fill the few places that a first-level cache has for lines under way, and
its own requests wait (one row of q4_0 by the weights of 135M, Zen 4, of 32 GB/s: all lines 2 KB
ahead to L1 21, 8 KB ahead to L2 14, none 30, one of eight 34).
"""
L3_LINES_PER_PREFETCH = 3
"""L3 lines per prefetched line of the next panel."""
USABLE_L3_BANDWIDTH = 0.6
"""Fraction of the L3 bandwidth that a tile may use per step."""
REREAD_L3_BANDWIDTH = 0.2
"""Fraction of the L3 bandwidth that repeated reads may take before blocks of k pay."""
MAX_VECTOR_ROWS = 4
"""Rows up to which AMX is no faster than vectors: reading the panel dominates."""
MIN_K_BLOCK = 192
"""Minimum steps of k per block: a block reloads and stores partial sums."""


def cache_levels(target: Target) -> tuple[Cache, Cache, Cache]:
    """Return the three cache levels of a target; a missing level is replaced by the one before."""
    first, *more = target.caches
    second = more[0] if more else first
    return first, second, more[1] if len(more) > 1 else second


@dataclass(frozen=True, slots=True)
class KStepCost:
    """Instruction and register cost of one step of k: instructions per accumulator, per panel
    vector and per tile row, and the registers that they need.
    """

    per_accumulator: int
    per_vector: int = 0
    per_row: int = 0
    columns: int = 1
    registers: int = 1
    wide_tile_registers: int = 0
    """Further registers of tiles of more than two vectors: a broadcast outlives two products."""
    tile_rows_limit: int = 0
    """Tile rows where accumulators are kept for one column at a time; 0 for as many as fit."""


FMA_STEP = KStepCost(per_accumulator=1)
"""Step cost of one fused multiply-add."""
MUL_ADD_STEP = KStepCost(per_accumulator=2, registers=2)
"""Step cost of a separate multiplication and addition."""
SHUFFLED_STEP = KStepCost(per_accumulator=2, per_row=1, registers=2)
"""Step cost where broadcasts use the shuffle unit that shares ports with multiplication (Zen 4 with
128 bits, 128x768x768: tiles of 6x2 reach 56 percent of the peak, of 2x4 67).
"""
WIDENED_PAIRS_STEP = KStepCost(per_accumulator=4, per_vector=3, columns=2, registers=4)
"""Step cost of two int16 pair products per accumulator, with data widened before."""
WIDENED_HALVES_STEP = KStepCost(per_accumulator=2, per_vector=2, per_row=2, columns=2, registers=3)
"""Step cost of two int16 pair products per accumulator, with both operands widened in the loop."""
FOUR_WORDS_STEP = KStepCost(per_accumulator=2, per_vector=3, per_row=2, tile_rows_limit=4)
"""Step cost of four steps reduced along k within vectors, with gathered weights. There are
registers for four sums.
"""
BYTE_STEPS = (
    ("dot4_u8s8", FMA_STEP),
    ("madd_s16", WIDENED_PAIRS_STEP),
    ("helium", FOUR_WORDS_STEP),
    ("smlad", WIDENED_HALVES_STEP),
    ("", KStepCost(per_accumulator=28, registers=5)),
)
"""Step costs of byte words by instruction; the last is the shift-based fallback."""
STEPS_BY_DTYPE: Mapping[str, tuple[tuple[str, KStepCost], ...]] = {
    "float32": (
        ("fma", FMA_STEP),
        ("madd", FMA_STEP),
        ("broadcasts", MUL_ADD_STEP),
        ("", SHUFFLED_STEP),
    ),
    "uint8": BYTE_STEPS,
    "int8": BYTE_STEPS,
    # a product of bytes, its sums two by two, then a sum; beside a broadcast the ones of the second
    INT16_PAIR_SUMS: (
        ("dot4_u8s8", FMA_STEP),
        ("madd_u8s8", KStepCost(per_accumulator=3, registers=3)),
        *BYTE_STEPS[1:],
    ),
    "bfloat16": (("dot2_bf16", FMA_STEP), ("", KStepCost(per_accumulator=6, registers=5))),
    # words of two, widened where they are loaded or before
    BYTE_PAIRS: (
        ("dot2_s16", KStepCost(per_accumulator=1, per_vector=1)),
        ("", KStepCost(per_accumulator=2, per_vector=1, registers=2, wide_tile_registers=1)),
    ),
    # two products before they are added, the second in place of the broadcast
    "int16": (
        ("dot2_s16", FMA_STEP),
        ("", KStepCost(per_accumulator=2, registers=2, wide_tile_registers=1)),
    ),
}
"""Step costs by data dtype (or INT16_PAIR_SUMS or BYTE_PAIRS) and instruction, the best first."""


def step_cost(dtype: str, target: Target) -> KStepCost:
    """Return the instruction cost of a step of k for a data dtype on a target."""
    candidates = STEPS_BY_DTYPE.get(dtype, STEPS_BY_DTYPE["float32"])
    return next(step for ability, step in candidates if not ability or target.has(ability))


def accumulator_registers(target: Target, dtype: str = "float32") -> int:
    """Return the number of registers for accumulators and a panel row, without the broadcast and,
    where there is no FMA, the product.
    """
    step = step_cost(dtype, target)
    return target.registers - step.registers


def max_register_rows(vectors: int, target: Target, dtype: str = "float32") -> int:
    """Return the rows of the largest tile of `vectors` vectors whose accumulators fit the
    registers.
    """
    step = step_cost(dtype, target)
    if step.tile_rows_limit:
        return step.tile_rows_limit
    others = vectors * step.columns + (step.wide_tile_registers if vectors > 2 else 0)
    return max(1, (accumulator_registers(target, dtype) - others) // vectors)


def accumulator_chains(rows: int, vectors: int, target: Target, dtype: str = "float32") -> int:
    """Return the number of independent accumulators per sum that keeps the FMA units busy, limited
    by the registers. Separate multiply and add wait for the addition alone.
    """
    if step_cost(dtype, target) is not FMA_STEP:
        return 1
    sums = rows * vectors
    # latency * units independent FMAs keep all units busy.
    latency_chains = -(-target.fma_latency * target.fma_units // sums)
    return max(1, min(latency_chains, (accumulator_registers(target, dtype) - vectors) // sums))


def is_balanced(panels: int, cores: int) -> bool:
    """Return whether sharing panels among threads loses at most a tenth of the time to
    imbalance.
    """
    return panels >= cores and 10 * panels >= 9 * -(-panels // cores) * cores


def step_cycles(rows: float, vectors: int, target: Target, dtype: str = "float32") -> float:
    """Return the cycles of one step of k of a tile: the maximum of arithmetic, loads, and the
    latency of dependent accumulations.
    """
    memory, step = rows + 2 * vectors, step_cost(dtype, target)
    work = vectors * (rows * step.per_accumulator + step.per_vector) + rows * step.per_row
    multiply = work / target.fma_units
    busy, wait = max(multiply, (rows + vectors) / target.loads), target.fma_latency
    late = max(0.0, LATENCY_SLIP_CYCLES - abs(busy - wait))
    return max(busy, wait) + late + MEMORY_OP_CYCLES * memory


def can_hide_prefetches(rows: int, vectors: int, target: Target, dtype: str = "float32") -> bool:
    """Return whether a tile has spare load slots for prefetches (1x768x768 on Zen 4: 31 us with, 25
    without).
    """
    step = step_cost(dtype, target)
    multiply = vectors * (rows * step.per_accumulator + step.per_vector) / target.fma_units
    return (rows + 2 * vectors) / target.loads <= multiply


def _load_imbalance(task_count: int, target: Target) -> float:
    """Return the largest thread's share of the work over the mean share."""
    return (
        -(-task_count // target.cores) * target.cores / task_count
        if task_count >= target.cores
        else 1.0
    )


def _cycles_per_row_step(vectors: int, product: MatmulSizes, target: Target) -> float:
    """Return the cycles of one step of k of one row of the whole product, in panels of `vectors`
    vectors.
    """
    lanes = target.lanes("float32")

    def panel_cycles(wide: int) -> float:
        """Return the cycles of a step of one row in a panel of `wide` vectors."""
        rows: float = tile_rows(wide, product, target)
        if product.rows:
            rows = product.rows / -(-product.rows // int(rows))  # tiles are balanced
        return step_cycles(rows, wide, target, product.dtype) / rows

    if product.columns is None:
        return panel_cycles(vectors) / vectors
    total = -(-product.columns // lanes)
    full_panels, tail_vectors = divmod(total, vectors)
    panels = full_panels + (tail_vectors > 0)
    share = _load_imbalance(panels, target)
    blocking = LoopBlocking(product, vectors * lanes, tile_rows(vectors, product, target), target)
    if (
        blocking.num_row_tiles
        and blocking.num_row_tiles >= target.cores
        and blocking.outer_loop() == "row"
    ):
        # Threads may share row tiles instead of panels: the better balance of the two counts.
        share = min(share, _load_imbalance(blocking.num_row_tiles, target))
    cost = full_panels * panel_cycles(vectors) + (
        panel_cycles(tail_vectors) if tail_vectors else 0.0
    )
    return cost * share * (1 + NARROW_PANEL_PENALTY if tail_vectors else 1.0)


def tile_rows(vectors: int, product: MatmulSizes, target: Target) -> int:
    """Return the rows of a tile: as many as the registers hold, fewer where their stride causes L1
    set conflicts.
    """
    rows = max_register_rows(vectors, target, product.dtype)
    if product.rows is None:
        return min(rows, MAX_DYNAMIC_TILE_ROWS)
    if product.depth:
        while rows > 1 and exceeds_associativity(rows, product.depth, target):
            rows -= 1
    return rows


def rows_per_cache_set(rows: int, depth: int) -> int:
    """Return the number of tile rows, `depth` floats apart, that map to the same cache sets."""
    # Addresses of rows repeat modulo 4096 after 4096 / gcd(4 * depth, 4096) rows.
    return -(-rows * math.gcd(4 * depth, L1_SET_STRIDE_BYTES) // L1_SET_STRIDE_BYTES)


def exceeds_associativity(rows: int, depth: int, target: Target) -> bool:
    """Return whether more rows map to an L1 set than it has ways."""
    associativity = target.caches[0].ways
    return rows_per_cache_set(rows, depth) > associativity + 1


def choose_panel_width(product: MatmulSizes, target: Target) -> int:
    """Return the panel width of packed weights, in columns.

    For sums in matrix registers all widths are as fast: a panel of two of them stays in L1 while
    rows pass by, or one of four (Sapphire Rapids, 128x768x768 with weights from L2: 1.8 TOP/s by 32
    columns, 1.5 by 48, 1.7 by 64; from L3 1.6, 1.1, 1.1).
    """
    lanes = target.lanes("float32")
    if has_matrix_unit(product.dtype, target):
        bytes_ = AMX_WORD_BYTES * (product.depth or 0) * 2 * AMX_LANES
        return clamp_panel_width(
            (4 if 2 * bytes_ <= target.l1 // 2 else 2) * AMX_LANES, product, target
        )
    best = min(
        range(1, MAX_PANEL_VECTORS + 1),
        key=lambda v: (round(_cycles_per_row_step(v, product, target), 6), -v),
    )
    return clamp_panel_width(best * lanes, product, target)


def panel_width_knob(target: Target) -> Knob:
    """Return the knob of panel widths."""
    lanes = target.lanes("float32")
    widths = tuple(v * lanes for v in range(1, MAX_PANEL_VECTORS + 1))
    return Knob("panel", widths, "columns of a panel of packed weights", True)


def are_int16_sums_faster(listed: int, depth: int, target: Target) -> bool:
    """Return whether byte products in int16 pair sums are faster, although they need `listed`
    additional steps of k per panel.

    Widening a panel's words is not counted: with one row it hides behind reading them, which takes
    longer with more (Zen 4 as AVX-512 without VNNI, 1x768x768: 115 GOP/s in pairs, with all words
    twice 74, with none 172).
    """
    before, narrowed_cost = (
        step_cost("uint8", target).per_accumulator,
        step_cost(INT16_PAIR_SUMS, target).per_accumulator,
    )
    return bool(depth) and narrowed_cost * (depth + listed) < before * depth


def widens_bytes(target: Target) -> bool:
    """Return whether a target multiplies bytes as pairs of int16, to which they are widened.

    Matrix registers multiply the bytes themselves, whatever vectors do.
    """
    return step_cost("uint8", target) is WIDENED_PAIRS_STEP and not has_matrix_unit("uint8", target)


def has_matrix_unit(dtype: str, target: Target) -> bool:
    """Return whether a target has matrix registers for products of data of a dtype."""
    products = MATRIX_DOT_BY_DATA.get(dtype)
    return products is not None and target.has(products.feature)


def fills_matrix_unit(product: MatmulSizes) -> bool:
    """Return whether a product has rows enough for matrix registers: few are bound by reading each
    panel once, which these do not speed up.
    """
    return product.rows is None or product.rows > MAX_VECTOR_ROWS


def are_int16_weights_faster(product: MatmulSizes, target: Target) -> bool:
    """Return whether a product of bytes is faster with its weight stored as int16.

    Bytes are widened by an instruction of each vector of a panel that is loaded; int16 are not, for
    twice the bytes to be read.

    Args:
        product: The sizes of the product, in steps of two.
        target: The processor.

    Returns:
        Whether it is; no where a size is unknown or bytes are not widened.
    """
    if not widens_bytes(target):
        return False
    if not (product.rows and product.columns and product.depth):
        return False
    widened = replace(product, dtype=WIDENED_DTYPE)
    return _product_cycles(widened, 2, target) < _product_cycles(product, 1, target)


def _product_cycles(product: MatmulSizes, weight_bytes: int, target: Target) -> float:
    """Return the cycles of a product in pairs, of known sizes, by the best panel; at least those in
    which its weight is read once from L3, where other layers of a network leave it.
    """
    assert product.rows and product.columns and product.depth
    vectors = range(1, MAX_PANEL_VECTORS + 1)
    per_row_step = min(_cycles_per_row_step(v, product, target) for v in vectors)
    nbytes = weight_bytes * WORD_PAIR_ELEMENTS * product.columns * product.depth
    bandwidth = USABLE_L3_BANDWIDTH * cache_levels(target)[2].bandwidth
    return max(per_row_step * product.rows * product.depth, nbytes / bandwidth)


@dataclass(frozen=True, slots=True)
class LoopBlocking:
    """Loop order, blocking and prefetching of a matrix product with a given panel width."""

    product: MatmulSizes
    panel: int
    rows: int
    target: Target

    @property
    def panel_vectors(self) -> int:
        """Return the number of vectors of a panel row."""
        return -(-self.panel // self.target.lanes("float32"))

    @property
    def num_row_tiles(self) -> int | None:
        """Return the number of row tiles, or None if unknown."""
        rows = self.product.rows
        return None if rows is None else max(1, -(-rows // self.rows))

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights."""
        size = self.product
        return math.inf if not (size.columns and size.depth) else 4 * size.columns * size.depth

    @property
    def step_cycles(self) -> float:
        """Return the cycles of one step of k of a tile."""
        rows = min(self.rows, self.product.rows or self.rows)
        return step_cycles(rows, self.panel_vectors, self.target, self.product.dtype)

    def outer_loop(self) -> str:
        """Return the outer loop: "row" where weights stay in L2 or L3 keeps up, else "panel"."""
        size = self.product
        _, second, third = cache_levels(self.target)
        if size.rows is None or size.columns is None or size.depth is None:
            return "panel"
        if self.num_row_tiles == 1 or self.weight_bytes <= second.size // 2:
            return "row"
        per_cycle = 4 * self.target.lanes("float32") * self.target.fma_units / self.rows
        is_fed = per_cycle <= USABLE_L3_BANDWIDTH * third.bandwidth
        return "row" if size.rows <= MAX_ROWS_FROM_L2 and is_fed else "panel"

    def k_block_steps(self, order: str) -> int:
        """Return the steps of k per block, a divisor of the depth; 0 for no blocking."""
        size, second = self.product, cache_levels(self.target)[1]
        if order != "panel" or not size.depth or self.num_row_tiles == 1:
            return 0
        if size.rows is not None and size.rows <= MAX_ROWS_FROM_L2:
            if not self.exceeds_l3_bandwidth(size.depth):
                return 0
            # Per step of k, L2 holds all rows once and two panels (the current one and the next): 4
            # bytes each.
            limit = int(USABLE_CACHE_FRACTION * second.size) // (4 * (size.rows + 2 * self.panel))
        else:  # rows stream by a panel
            limit = second.size // 2 // (4 * self.panel)
        fitting = next((d for d in divisors(size.depth, MIN_K_BLOCK) if d <= limit), 0)
        return 0 if fitting == size.depth else fitting

    def exceeds_l3_bandwidth(self, depth: int) -> bool:
        """Return whether the traffic repeated without blocks of k exceeds the L3 bandwidth: rows
        per panel, and panels per row tile where they do not fit L2.
        """
        _, second, third = cache_levels(self.target)
        floats = self.rows
        if 4 * depth * self.panel > USABLE_CACHE_FRACTION * second.size:
            floats += self.panel
        return 4 * floats / self.step_cycles > REREAD_L3_BANDWIDTH * third.bandwidth

    def prefetch_distance(self, order: str) -> int:
        """Return the distance, in steps of k, of the prefetches of a panel into L1.

        0 where what is read between two uses of a panel fits there, and where a panel is used once:
        hardware prefetches sequential floats as fast as they arrive, and software prefetches only
        take load slots from it (Zen 4, one row of 768x768: 30 us without, 37 with them). Words of
        bytes that are widened to int16 leave it too few loads in flight for that.
        """
        first, second, third = cache_levels(self.target)
        depth, columns = self.product.depth, self.product.columns
        width = self.panel if order == "panel" else columns
        if depth is not None and width is not None and 4 * depth * width <= first.size // 2:
            return 0
        if self.num_row_tiles == 1 and step_cost(self.product.dtype, self.target) is FMA_STEP:
            return 0
        # unknown tiles may be one or two, which find no panel brought nearer by others
        is_by_panel = order == "panel" and self.num_row_tiles is not None
        is_near = is_by_panel or self.weight_bytes <= second.size // 2
        # Several latencies ahead: hardware needs slack where several misses queue up.
        wait = PREFETCH_AHEAD_LATENCIES * (second if is_near else third).latency
        steps = max(wait / self.step_cycles, MIN_PREFETCH_BYTES / (4 * self.panel))
        return next((d for d in PREFETCH_DISTANCES[1:] if d >= steps), PREFETCH_DISTANCES[-1])

    def pack_prefetch_cache(self) -> str:
        """Return the cache that matrix rows are prefetched to before packing: L1 where L2 holds the
        matrix, else L2 (128x768x3072 on Zen 4: 85 percent of the peak to L1, 95 to L2).
        """
        return "l1" if self.weight_bytes <= cache_levels(self.target)[1].size else "l2"

    def panel_prefetch_tiles(self, order: str) -> int:
        """Return the number of row tiles over which the next panel is prefetched to L2; 0 for none.
        With an unknown number of tiles a line at every step: few rows wait for the next panel, and
        two lines a step exceed L3's bandwidth.
        """
        third = cache_levels(self.target)[2]
        if order != "panel":
            return 0
        steps = L3_LINES_PER_PREFETCH * CACHE_LINE_BYTES / third.bandwidth / self.step_cycles
        enough = (
            d
            for d in self.panel_prefetch_domain()
            if d * CACHE_LINE_BYTES >= 4 * self.panel * steps
        )
        slowest = next(enough, self.panel_prefetch_domain()[-1])
        available = self.panel_vectors if self.num_row_tiles is None else self.num_row_tiles
        return max(d for d in self.panel_prefetch_domain() if d <= min(slowest, available))

    def unroll_factor(self, order: str, ahead: int) -> int:
        """Return the unroll factor of k.

        Two if prefetches (`ahead`) separate the steps: without them a compiler would load both
        panel rows at once, which takes more registers than there are. One where panels change too
        often for the doubled code to pay. A core that runs one thread is as fast without unrolling;
        of one that runs two, each takes 0.75 to 0.8 of the time (Zen 3, pixels and channels:
        784x128x128, 196x256x1024).
        """
        has_known_depth = self.product.depth and self.product.dtype == "float32"
        return 2 if ahead and has_known_depth and order == "panel" else 1

    def should_pack_rows(self, block: int) -> int:
        """Return 1 if the rows of a block of k must be packed to avoid L1 set conflicts, else 0."""
        depth = self.product.depth
        return int(bool(block and depth and exceeds_associativity(self.rows, depth, self.target)))

    def panel_prefetch_domain(self) -> tuple[int, ...]:
        """Return the domain of the knob `l2_prefetch`."""
        return tuple(sorted({0, 1, *(self.panel_vectors * n for n in (1, 2, 4))}))


__all__ = [
    "LoopBlocking",
    "accumulator_chains",
    "are_int16_sums_faster",
    "are_int16_weights_faster",
    "can_hide_prefetches",
    "choose_panel_width",
    "exceeds_associativity",
    "fills_matrix_unit",
    "has_matrix_unit",
    "is_balanced",
    "max_register_rows",
    "panel_width_knob",
    "rows_per_cache_set",
    "tile_rows",
    "widens_bytes",
]
