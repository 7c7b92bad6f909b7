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
    Blocking,
    cache_levels,
    most_rows,
    step_cycles,
    tile_rows,
)
from ekiden.kernels.cpu.dense import UNROLL_FACTORS
from ekiden.kernels.decision import Decision, Fixed, Knob, Space, descending
from ekiden.kernels.family import Product, size_of
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import BY_DATA, LANES, WORD_BYTES, WORDS
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.topi.nn.weights import WORD_BY_DTYPE
from ekiden.topi.nn.winograd import (
    CHANNELS_PER_STEP,
    INTERPOLATION_POINTS,
    MIN_TILES,
    WINOGRAD_TAPS,
)

MAX_BLOCK_TILES = 36
"""Most tiles of a block, if their number can be divided so."""
UNEVEN_BLOCK_TILES = 24
"""Tiles of a block otherwise."""
BLOCK_TILES = (8, 12, 16, UNEVEN_BLOCK_TILES, MAX_BLOCK_TILES, 48, 2 * MAX_BLOCK_TILES)
"""Tiles of a block that may be asked for in any case."""
EXPOSED_WEIGHT_TIME = 0.5
"""Of the time that weights take from a cache, what is seen behind multiply-adds."""
TILE_SIDE_KNOB = "m"
"""The choice of the side of an output tile."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of transformed data and weights: the dtype that iterations of k count in, the
    bytes of an element of both, the elements of an iteration, and the dtype of data.
    """

    dtype: str
    element_bytes: int
    word: int
    data: str


FLOATS = Arithmetic("float32", 4, 1, "float32")
BYTES = Arithmetic("int16", 2, CHANNELS_PER_STEP, "uint8")
SUM_BYTES = 4
"""Bytes of a sum, of float32 or of int32."""
STEP_ELEMENTS = {**WORD_BY_DTYPE, BYTES.dtype: BYTES.word}
"""dtype of data -> elements that a step of a product takes, where that is more than one."""
UNKNOWN_SIDE = 32
"""Height and width that an image is taken to have where only the run knows them."""


def arithmetic_of(anchor: te.Tensor) -> Arithmetic:
    """Return the arithmetic of a convolution."""
    return BYTES if operands_of(anchor)[1].dtype == BYTES.dtype else FLOATS


def side_knob() -> Knob:
    """Return the knob of the side of output tiles."""
    return Knob(
        TILE_SIDE_KNOB,
        (0, *INTERPOLATION_POINTS),
        "side of an output tile; 0: the direct sum",
        is_early=True,
    )


def block_size(tiles: int | None) -> int:
    """Return the tiles of a block: a divisor of their number if a good one is known.

    The last block repeats tiles where it does not divide. A block's V and M are to stay in the
    second-level cache: 2 * 36 points * 36 tiles * 64 channels * 4 bytes are 660 KB.
    """
    if tiles is None:
        return UNEVEN_BLOCK_TILES
    # A prime number of tiles has no good divisor: repeating some tiles is cheaper than tiny blocks.
    best = max(d for d in range(1, MAX_BLOCK_TILES + 1) if tiles % d == 0)
    if best > MIN_TILES:
        return best
    return tiles if 0 < tiles <= 2 * MAX_BLOCK_TILES else UNEVEN_BLOCK_TILES


def _product(anchor: te.Tensor) -> tuple[Product, int]:
    """Return the product of one point of a patch, with all tiles as rows, and the columns of a
    panel.
    """
    data, weight = operands_of(anchor)
    m = int(str(anchor.op.attrs[TILE_SIDE_KNOB]))
    n, height, width, channels = anchor.shape
    tiles = simplify(n * ((height + (m - 1)) // m) * ((width + (m - 1)) // m))
    panel = size_of(weight.shape[3])
    assert panel is not None, "weights are known"
    kind = arithmetic_of(anchor)
    words = simplify((data.shape[3] + (kind.word - 1)) // kind.word)
    return Product.of(tiles, channels, words, kind.dtype), panel


def space(anchor: te.Tensor, target: Target) -> Space:
    """Return the search space of a convolution."""
    product, panel = _product(anchor)
    rows = descending(most_rows(-(-panel // target.lanes("float32")), target, product.dtype))
    blocks = tuple(sorted({*BLOCK_TILES, block_size(product.rows)}))
    # fmt: off
    return (
        side_knob(),
        Knob("panel", (panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "output tiles of a register tile"),
        Knob("block", blocks, "output tiles whose three steps follow one another"),
        Knob("own", PREFETCH_DISTANCES,
             "steps by which a panel is brought to the first cache ahead"),
        Knob("unroll", UNROLL_FACTORS, "steps of k that stand one after the other"),
    )
    # fmt: on


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return the default decision for a convolution."""
    product, panel = _product(anchor)
    block = int(fixed.get("block", block_size(product.rows)))
    within = replace(product, rows=block)
    rows = int(fixed.get("rows", tile_rows(-(-panel // target.lanes("float32")), within, target)))
    blocking = Blocking(within, panel, rows, target)
    own = int(fixed.get("own", blocking.own("panel")))
    return Decision.of(
        {
            TILE_SIDE_KNOB: int(str(anchor.op.attrs[TILE_SIDE_KNOB])),
            "panel": panel,
            "rows": rows,
            "block": block,
            "own": own,
            "unroll": fixed.get("unroll", blocking.unroll("row", own)),
        }
    )


def tile_side(
    image: tuple[int, int, int] | None,
    channels: tuple[int, int],
    target: Target,
    fixed: Fixed,
    kind: Arithmetic = FLOATS,
    sides: Collection[int] = tuple(INTERPOLATION_POINTS),
) -> int:
    """Return the side of output tiles, one of `sides`, for an output image (how many, height,
    width; None if unknown) of a convolution of (input, output) channels; 0 where the direct sum is
    faster. Raises CompileError for a fixed one that cannot be."""
    if TILE_SIDE_KNOB in fixed:
        side_knob().check(fixed[TILE_SIDE_KNOB], "'winograd_conv2d'")
        side = int(fixed[TILE_SIDE_KNOB])
        return side if side in sides else 0
    # A guess of the size, not of the decision: weights are transformed before shapes are known.
    if image is None:
        image = (1, UNKNOWN_SIDE, UNKNOWN_SIDE)
    costs = {m: c for m, c in _costs(image, channels, target, kind).items() if m in sides}
    best = min(costs, key=costs.__getitem__, default=0)
    direct = math.prod(image) * WINOGRAD_TAPS**2 * channels[0] * channels[1]
    return best if best and costs[best] < direct_cycles(direct, target, kind.data) else 0


def _costs(
    image: tuple[int, int, int], channels: tuple[int, int], target: Target, kind: Arithmetic
) -> dict[int, float]:
    """Return side of output tiles -> cycles."""
    images, height, width = image
    counts = {m: images * -(-height // m) * -(-width // m) for m in INTERPOLATION_POINTS}
    return {m: _cost(m, n, channels, target, kind) for m, n in counts.items() if n >= MIN_TILES}


def winograd_cycles(
    image: tuple[int, int, int],
    channels: tuple[int, int],
    target: Target,
    kind: Arithmetic = FLOATS,
    side: int = 0,
) -> float:
    """Return the cycles of the method with a side of tiles, or with the best one, as `tile_side`
    has its arguments; infinite where there are too few tiles."""
    costs = _costs(image, channels, target, kind)
    return costs.get(side, math.inf) if side else min(costs.values(), default=math.inf)


def direct_cycles(products: float, target: Target, dtype: str = "float32") -> float:
    """Return the cycles of so many multiply-adds of data of a dtype in good tiles."""
    matrices = BY_DATA.get(dtype)
    if matrices is not None and target.has(matrices.ability):  # a row of a register takes a cycle
        return products / (LANES * WORDS * WORD_BYTES)
    lanes = target.lanes("float32") * STEP_ELEMENTS.get(dtype, 1)
    rows = tile_rows(3, Product(1 << 12, None, None, dtype), target)
    share = rows * 3 / target.fma_units / step_cycles(rows, 3, target, dtype)
    return products / (target.fma_units * lanes) / share


def _cost(m: int, tiles: int, channels: tuple[int, int], target: Target, kind: Arithmetic) -> float:
    """Return the cycles of the method: multiply-adds, reading the weights once for each block of
    tiles, and the transforms' way through the second-level cache."""
    points, (before, behind) = (m + WINOGRAD_TAPS - 1) ** 2, channels
    _, second, third = cache_levels(target)
    weights = kind.element_bytes * points * before * behind
    share = third.size // 2
    speed = second.bandwidth if weights <= second.size // 2 else third.bandwidth
    # Weights beyond their share of the third cache come from memory.
    speed = speed if weights <= max(share, second.size) else speed / 2
    blocks = -(-tiles // block_size(tiles))
    lanes = target.lanes("float32")
    inner, outer = (-(-num_channels // lanes) * lanes for num_channels in channels)
    moved = 2 * tiles * points * (kind.element_bytes * inner + SUM_BYTES * outer)
    read = weights * (blocks if weights <= second.size // 2 else 1) / speed
    multiply = direct_cycles(tiles * points * before * behind, target, kind.dtype)
    return multiply + EXPOSED_WEIGHT_TIME * read + moved / second.bandwidth
