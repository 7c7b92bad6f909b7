"""Search space and default decision of convolutions with packed weights.

A convolution is the product of its output pixels and its output channels over taps and input
channels:  rows = n * h * w,  columns = o,  depth = kh * kw * c.  It differs from a dense layer in
where rows come from: of 1x1 kernels they are the pixels of the data in order, and the model of
dense layers covers it; of others a tile must not go over the end of a line, and blocks of k are
slices of one kernel row, as only along that the depth is contiguous.

    order=panel    weights larger than the data (late layers): each panel is read once
    order=row      data larger than the weights (early layers): a band of lines stays in L2
"""

from __future__ import annotations

import math

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr
from ekiden.kernels.cost_model import (
    MIN_K_BLOCK,
    PREFETCH_DISTANCES,
    Blocking,
    most_rows,
    tile_rows,
)
from ekiden.kernels.cpu.dense import UNROLL_FACTORS
from ekiden.kernels.decision import Decision, Fixed, Knob, Space, Value, descending, divisors
from ekiden.kernels.family import Product, size_of
from ekiden.kernels.geometry import FLAT, Geometry, geometry_of
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import MATRIX_DOTS, TILE_HEIGHTS
from ekiden.kernels.prim_builder import product
from ekiden.kernels.quantized.int8_dot import dot_space, dots, matrix_dot
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.topi.nn.weights import WORD_BY_DTYPE

MAX_SHORT_LINE = 12
"""Lines of at most this many pixels share tiles (7x7x512 3x3: 83 % of the peak by lines)."""


MIN_MATRIX_WORDS = 3
"""Words of a row from which registers that hold matrices pay: a multiplication takes as long with
one word as with sixteen, 64 products a cycle for each, where dot products of 512 bits do 128."""


def is_short(width: PrimExpr) -> bool:
    """Return whether lines are too short to be cut into good tiles."""
    size = size_of(width)
    return size is not None and size <= MAX_SHORT_LINE


@dataclass(frozen=True, slots=True)
class ConvSizes:
    """Sizes that a decision depends on."""

    geometry: Geometry
    product: Product
    row_steps: int | None
    """Steps of k of a kernel row that are one loop; None where they are several."""
    panel: int
    weights: int
    """Elements of all weights."""
    target: Target

    @staticmethod
    def of(anchor: te.Tensor, target: Target) -> ConvSizes:
        """Return the sizes of a convolution with a packed weight."""
        geometry, attrs = geometry_of(anchor), anchor.op.attrs
        data, weight = operands_of(anchor)
        word = WORD_BY_DTYPE.get(weight.dtype, 1)
        channels_in = size_of(weight.shape[-2 if word == 1 else -3])
        assert channels_in is not None, "weights are known"
        taps = math.prod(geometry.kernel) * geometry.depth.kernel
        channels = int(str(attrs["channels"]))
        pixels = product(list(geometry.out[:3]))
        is_one_loop = geometry.groups == 1 and geometry.depth is FLAT
        is_one_loop = is_one_loop and (geometry.kernel[1] == 1 or geometry.dilation[1] == 1)
        row = channels_in * geometry.kernel[1]
        sizes = Product.of(pixels, channels // geometry.groups, channels_in * taps, data.dtype)
        return ConvSizes(
            geometry,
            sizes,
            row if is_one_loop and word == 1 else None,
            int(str(attrs["tile"])),
            channels_in * word * taps * channels,
            target,
        )

    @property
    def vectors(self) -> int:
        """Return the vectors of a panel."""
        return -(-self.panel // self.target.lanes("float32"))

    @property
    def is_flat(self) -> bool:
        """Return whether tiles run over all output pixels."""
        return self.geometry.is_pointwise or is_short(self.geometry.out[2])

    def blocks(self) -> tuple[int, ...]:
        """Return the iterations of k that a block may have."""
        if self.row_steps is None or self.product.dtype != "float32":
            return ()
        depth = self.product.depth
        return tuple(d for d in divisors(self.row_steps, MIN_K_BLOCK) if d != depth)

    def rows(self) -> int:
        """Return the rows of a tile. Rows of data are a pixel apart, or a stride."""
        size = self.product
        across = None if self.is_flat else size_of(self.geometry.out[2])
        rows = size.rows if across is None else across
        distance = Product(rows, size.columns, self.pixel, size.dtype)
        return tile_rows(self.vectors, distance, self.target)

    @property
    def pixel(self) -> int | None:
        """Return the elements from the data of a pixel of a line to those of the next, if they are
        known.
        """
        return size_of(simplify(self.geometry.data[3] * self.geometry.strides[1]))

    def unroll(self, blocking: Blocking, order: str, ahead: int) -> int:
        """Return the iterations of k that stand one after the other.

        They are as many as for any product, but one where the next iteration of a pixel reads what
        this one of the next pixel does. A compiler loads that once for both, for all rows of a
        tile, and no registers remain for the sums (one channel, stride 1, window 256, 36 and 96
        channels: by one iteration 0.70 and 0.29 of the time on Zen 4, 0.48 and 0.43 as Zen 3).
        """
        steps = blocking.unroll(order, ahead)
        along = self.row_steps is not None and self.geometry.kernel[1] > 1
        return 1 if along and self.pixel is not None and self.pixel < steps else steps

    def order(self, blocking: Blocking) -> str:
        """Return the outer loop.

        Lines of pixels read from bands of data in the second-level cache, unless the weights are
        larger than all data: then each panel should be read once.
        """
        panels = -(-(self.product.columns or 0) // self.panel) * self.geometry.groups
        # Too few panels to occupy the cores: threads share rows instead.
        if panels < self.target.cores:
            return "row"
        data, depth = self.geometry.data, self.geometry.depth.size
        pixels = size_of(simplify(math.prod(data[1:], start=depth)))
        is_heavy = pixels is not None and self.weights >= pixels
        if self.is_flat and self.geometry.groups == 1 and not is_heavy:
            return blocking.order()
        return "panel" if is_heavy else "row"

    def k_block(self, blocking: Blocking, order: str) -> int:
        """Return the iterations of k of a block: the most that the model has cache for."""
        max_block = blocking.k_block(order) if self.is_flat else 0
        if not max_block:
            return 0
        return next((d for d in self.blocks() if d <= max_block), 0)


def space(anchor: te.Tensor, target: Target) -> Space:
    """Return the search space of a convolution."""
    sizes = ConvSizes.of(anchor, target)
    blocking = Blocking(sizes.product, sizes.panel, 1, target)
    rows = descending(most_rows(sizes.vectors, target, sizes.product.dtype))
    weight = operands_of(anchor)[1]
    matrices = matrix_dot(weight, target)
    if matrices is not None:
        rows = (*TILE_HEIGHTS, *rows)
    # fmt: off
    return (
        Knob("panel", (sizes.panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "pixels of a tile"),
        Knob("order", ("panel", "row"), "the outer loop: panels, or pixels"),
        Knob("k_block", (0, *sizes.blocks()), "steps of k of a block; 0: all"),
        Knob("own", PREFETCH_DISTANCES,
             "steps by which a panel is brought to the first cache ahead"),
        Knob("spread", blocking.spreads(), "tiles that bring the next panel to the second"),
        Knob("unroll", UNROLL_FACTORS, "steps of k that stand one after the other"),
        *dot_space(weight, target, matrices=matrices),
    )
    # fmt: on


def _row_words(sizes: ConvSizes, weight: te.Tensor) -> int:
    """Return the words that follow one another in the data: of a tap, or of all of a row where the
    channels of neighbouring pixels do.
    """
    words = size_of(weight.shape[-3]) or 0
    geometry = sizes.geometry
    is_whole = geometry.groups == 1 and geometry.dilation[1] == 1
    return words * geometry.kernel[1] if is_whole else words


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return the default decision for a convolution."""
    sizes = ConvSizes.of(anchor, target)
    chosen: dict[str, Value] = {**fixed, "panel": sizes.panel}
    weight = operands_of(anchor)[1]
    matrices = matrix_dot(weight, target) if _row_words(sizes, weight) >= MIN_MATRIX_WORDS else None
    instructions = (matrices, dots(target)[0])
    # Matrix registers are chosen above only where a row of the reduction fills them.
    if chosen.setdefault("dot", next(filter(None, instructions))) in MATRIX_DOTS:
        chosen.setdefault("rows", TILE_HEIGHTS[0])
        # Matrix registers take all of k at once, and their loads stream.
        plain = {"k_block": 0, "own": 0, "spread": 0, "unroll": 1}
        chosen = {**plain, **chosen}
    rows = int(chosen.setdefault("rows", sizes.rows()))
    blocking = Blocking(sizes.product, sizes.panel, rows, target)
    order = str(chosen.setdefault("order", sizes.order(blocking)))
    chosen.setdefault("k_block", sizes.k_block(blocking, order))
    own = int(chosen.setdefault("own", blocking.own(order)))
    spread = int(chosen.setdefault("spread", blocking.spread(order) if sizes.is_flat else 0))
    chosen.setdefault("unroll", sizes.unroll(blocking, order, own or spread))
    return Decision.of({choice.name: chosen[choice.name] for choice in space(anchor, target)})
