"""Search space and default decision of convolutions by Winograd's method, and when it is used.

The method trades multiplications for weights: (m + 2)^2 matrices of them instead of nine. Where
they come from a slow cache and few tiles read them, the direct sum is faster.

    products per result     9  ->  (m + 2)^2 / m^2:      4 for m = 2,  2.25 for m = 4
    weights                 9  ->  (m + 2)^2:            16,           36

    cost(m) = multiply-adds / rate of good tiles
              + exposed share * weights / bandwidth of their cache * blocks that read them
              + transformed data there and back / bandwidth of L2

against multiply-adds alone for the direct sum. Bytes are multiplied as pairs of int16, and compared
with the direct sum of words of four. On a Skylake-SP 7x7x512 is faster direct, 1.79 ms against 2.38
measured, as 17 MB of weights come from its slow third-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from ekiden import te
from ekiden.arith import simplify
from ekiden.kernels.cost_model import (
    PREFETCH_DISTANCES,
    LoopBlocking,
    cache_levels,
    max_register_rows,
    step_cycles,
    tile_rows,
)
from ekiden.kernels.cpu.dense import K_UNROLL_FACTORS
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import MatmulSizes, known_extent
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import (
    AMX_LANES,
    AMX_WORD_BYTES,
    AMX_WORDS,
    MATRIX_DOT_BY_DATA,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE
from ekiden.topi.nn.winograd import (
    CHANNELS_PER_PAIR,
    INTERPOLATION_POINTS,
    MIN_WINOGRAD_TILES,
    WINOGRAD_TAPS,
)

MAX_TILES_PER_BLOCK = 36
"""Maximum tiles per block where a divisor of their number exists."""
DEFAULT_TILES_PER_BLOCK = 24
"""Tiles per block otherwise."""
TILES_PER_BLOCK_DOMAIN = (
    8,
    12,
    16,
    DEFAULT_TILES_PER_BLOCK,
    MAX_TILES_PER_BLOCK,
    48,
    2 * MAX_TILES_PER_BLOCK,
)
"""Values of the knob that are valid for any number of tiles."""
EXPOSED_WEIGHT_TIME_FRACTION = 0.5
"""Fraction of the weight-read time that arithmetic does not hide."""
TILE_SIDE_KNOB = "m"
"""Knob of the side of an output tile."""


@dataclass(frozen=True, slots=True)
class WinogradArithmetic:
    """Arithmetic of a Winograd convolution: the cost model's dtype, bytes per transformed element,
    elements per step of k, and the data's dtype.
    """

    dtype: str
    element_bytes: int
    elements_per_step: int
    data_dtype: str


FLOAT_ARITHMETIC = WinogradArithmetic("float32", 4, 1, "float32")
INT8_ARITHMETIC = WinogradArithmetic("int16", 2, CHANNELS_PER_PAIR, "uint8")
BYTES_PER_SUM = 4
"""Bytes of an accumulator, float32 or int32."""
STEP_ELEMENTS_BY_DTYPE = {
    **DOT_WORD_BY_DTYPE,
    INT8_ARITHMETIC.dtype: INT8_ARITHMETIC.elements_per_step,
}
"""Elements per step of k by data dtype; others take one."""
ASSUMED_IMAGE_SIDE = 32
"""Assumed image height and width where they are dynamic."""


def element_arithmetic(anchor: te.Tensor) -> WinogradArithmetic:
    """Return the arithmetic of a convolution."""
    return (
        INT8_ARITHMETIC
        if operands_of(anchor)[1].dtype == INT8_ARITHMETIC.dtype
        else FLOAT_ARITHMETIC
    )


def tile_size_knob() -> Knob:
    """Return the knob of the side of output tiles."""
    return Knob(
        TILE_SIDE_KNOB,
        (0, *INTERPOLATION_POINTS),
        "side of an output tile; 0: the direct sum",
        is_early=True,
    )


def tiles_per_block(tiles: int | None) -> int:
    """Return the tiles per block, a divisor of their number where a good one exists.

    The last block repeats tiles where it does not divide. A block's V and M are to stay in the
    second-level cache: 2 * 36 points * 36 tiles * 64 channels * 4 bytes are 660 KB.
    """
    if tiles is None:
        return DEFAULT_TILES_PER_BLOCK
    # A prime number of tiles has no good divisor: repeating some tiles is cheaper than tiny blocks.
    best = max(d for d in range(1, MAX_TILES_PER_BLOCK + 1) if tiles % d == 0)
    if best > MIN_WINOGRAD_TILES:
        return best
    return tiles if 0 < tiles <= 2 * MAX_TILES_PER_BLOCK else DEFAULT_TILES_PER_BLOCK


def _matmul_sizes_per_point(anchor: te.Tensor) -> tuple[MatmulSizes, int]:
    """Return the matrix-product sizes of one point of a transformed tile, and the panel width."""
    data, weight = operands_of(anchor)
    m = int(str(anchor.op.attrs[TILE_SIDE_KNOB]))
    n, height, width, channels = anchor.shape
    tiles = simplify(n * ((height + (m - 1)) // m) * ((width + (m - 1)) // m))
    panel = known_extent(weight.shape[3])
    assert panel is not None, "weights are known"
    kind = element_arithmetic(anchor)
    words = simplify((data.shape[3] + (kind.elements_per_step - 1)) // kind.elements_per_step)
    return MatmulSizes.from_dims(tiles, channels, words, kind.dtype), panel


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a convolution."""
    product, panel = _matmul_sizes_per_point(anchor)
    rows = descending_range(
        max_register_rows(-(-panel // target.lanes("float32")), target, product.dtype)
    )
    blocks = tuple(sorted({*TILES_PER_BLOCK_DOMAIN, tiles_per_block(product.rows)}))
    # fmt: off
    return (
        tile_size_knob(),
        Knob("panel", (panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "output tiles of a register tile"),
        Knob("block", blocks, "output tiles that pass through the three stages together"),
        Knob("l1_prefetch", PREFETCH_DISTANCES,
             "L1 prefetch distance of a panel, in steps of k"),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
    )
    # fmt: on


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a convolution."""
    product, panel = _matmul_sizes_per_point(anchor)
    block = int(fixed.get("block", tiles_per_block(product.rows)))
    within = replace(product, rows=block)
    rows = int(fixed.get("rows", tile_rows(-(-panel // target.lanes("float32")), within, target)))
    blocking = LoopBlocking(within, panel, rows, target)
    l1_prefetch = int(fixed.get("l1_prefetch", blocking.prefetch_distance("panel")))
    return Decision.from_mapping(
        {
            TILE_SIDE_KNOB: int(str(anchor.op.attrs[TILE_SIDE_KNOB])),
            "panel": panel,
            "rows": rows,
            "block": block,
            "l1_prefetch": l1_prefetch,
            "unroll": fixed.get("unroll", blocking.unroll_factor("row", l1_prefetch)),
        }
    )


def choose_tile_size(
    image: tuple[int, int, int] | None,
    channels: tuple[int, int],
    target: Target,
    fixed: Overrides,
    kind: WinogradArithmetic = FLOAT_ARITHMETIC,
    sides: Collection[int] = tuple(INTERPOLATION_POINTS),
) -> int:
    """Return the side of output tiles with the fewest estimated cycles; 0 where direct convolution
    is faster. Raises CompileError for a fixed one that cannot be.
    """
    if TILE_SIDE_KNOB in fixed:
        tile_size_knob().check(fixed[TILE_SIDE_KNOB], "'winograd_conv2d'")
        side = int(fixed[TILE_SIDE_KNOB])
        return side if side in sides else 0
    # A guess of the size, not of the decision: weights are transformed before shapes are known.
    if image is None:
        image = (1, ASSUMED_IMAGE_SIDE, ASSUMED_IMAGE_SIDE)
    costs = {
        m: c for m, c in _cycles_by_tile_size(image, channels, target, kind).items() if m in sides
    }
    best = min(costs, key=costs.__getitem__, default=0)
    direct = math.prod(image) * WINOGRAD_TAPS**2 * channels[0] * channels[1]
    return best if best and costs[best] < direct_cycles(direct, target, kind.data_dtype) else 0


def _cycles_by_tile_size(
    image: tuple[int, int, int], channels: tuple[int, int], target: Target, kind: WinogradArithmetic
) -> dict[int, float]:
    """Return the estimated cycles by side of output tiles."""
    images, height, width = image
    counts = {m: images * -(-height // m) * -(-width // m) for m in INTERPOLATION_POINTS}
    return {
        m: _estimate_cycles(m, n, channels, target, kind)
        for m, n in counts.items()
        if n >= MIN_WINOGRAD_TILES
    }


def winograd_cycles(
    image: tuple[int, int, int],
    channels: tuple[int, int],
    target: Target,
    kind: WinogradArithmetic = FLOAT_ARITHMETIC,
    side: int = 0,
) -> float:
    """Return the estimated cycles of Winograd convolution with a tile side, or the best one;
    infinite where there are too few tiles.
    """
    costs = _cycles_by_tile_size(image, channels, target, kind)
    return costs.get(side, math.inf) if side else min(costs.values(), default=math.inf)


def direct_cycles(products: float, target: Target, dtype: str = "float32") -> float:
    """Return the estimated cycles of `products` multiply-adds in good register tiles."""
    matrices = MATRIX_DOT_BY_DATA.get(dtype)
    if matrices is not None and target.has(matrices.feature):  # a row of a register takes a cycle
        return products / (AMX_LANES * AMX_WORDS * AMX_WORD_BYTES)
    lanes = target.lanes("float32") * STEP_ELEMENTS_BY_DTYPE.get(dtype, 1)
    rows = tile_rows(3, MatmulSizes(1 << 12, None, None, dtype), target)
    share = rows * 3 / target.fma_units / step_cycles(rows, 3, target, dtype)
    return products / (target.fma_units * lanes) / share


def _estimate_cycles(
    m: int, tiles: int, channels: tuple[int, int], target: Target, kind: WinogradArithmetic
) -> float:
    """Return the estimated cycles: multiply-adds, weight reads per block of tiles, and transforms
    through L2.
    """
    points, (before, behind) = (m + WINOGRAD_TAPS - 1) ** 2, channels
    _, second, third = cache_levels(target)
    weights = kind.element_bytes * points * before * behind
    share = third.size // 2
    speed = second.bandwidth if weights <= second.size // 2 else third.bandwidth
    # Weights beyond their share of the third cache come from memory.
    speed = speed if weights <= max(share, second.size) else speed / 2
    blocks = -(-tiles // tiles_per_block(tiles))
    lanes = target.lanes("float32")
    # Channels of transformed tiles are stored as whole vectors.
    inner, outer = (-(-num_channels // lanes) * lanes for num_channels in channels)
    # Factor 2: transformed data and products are each written once and read once.
    moved = 2 * tiles * points * (kind.element_bytes * inner + BYTES_PER_SUM * outer)
    read = weights * (blocks if weights <= second.size // 2 else 1) / speed
    multiply = direct_cycles(tiles * points * before * behind, target, kind.dtype)
    return multiply + EXPOSED_WEIGHT_TIME_FRACTION * read + moved / second.bandwidth
