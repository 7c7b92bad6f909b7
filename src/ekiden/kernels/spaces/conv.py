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
from ekiden.kernels.conv_geometry import NO_DEPTH_AXIS, ConvGeometry, conv_geometry_of
from ekiden.kernels.cost_model import (
    MIN_K_BLOCK,
    PREFETCH_DISTANCES,
    LoopBlocking,
    max_register_rows,
    tile_rows,
)
from ekiden.kernels.cpu.dense import K_UNROLL_FACTORS
from ekiden.kernels.decision import (
    Decision,
    Knob,
    KnobValue,
    Overrides,
    SearchSpace,
    descending_range,
    divisors,
)
from ekiden.kernels.family import MatmulSizes, elements_per_word, known_extent, product_dtype
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import AMX_TILE_HEIGHTS, MATRIX_DOT_FEATURES
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.quantized.int8_dot import (
    dot_instruction_knobs,
    matrix_dot_instruction,
    supported_dots,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

MAX_SHORT_LINE_PIXELS = 12
"""Maximum pixels of lines whose tiles are flattened over the image (7x7x512 3x3: 83 percent of the
peak by lines).
"""


MIN_MATRIX_WORDS = 3
"""Minimum words per row from which AMX pays: an AMX product costs the same for one word as for
sixteen.
"""


def is_short_line(width: PrimExpr) -> bool:
    """Return whether output lines are too short for tiles of equal sizes."""
    size = known_extent(width)
    return size is not None and size <= MAX_SHORT_LINE_PIXELS


@dataclass(frozen=True, slots=True)
class ConvSizes:
    """Sizes that a convolution's default decision depends on."""

    geometry: ConvGeometry
    product: MatmulSizes
    row_steps: int | None
    """Steps of k of a kernel row's fused loop; None where it is not one loop."""
    panel: int
    weights: int
    """Number of weight elements."""
    target: Target

    @staticmethod
    def from_anchor(anchor: te.Tensor, target: Target) -> ConvSizes:
        """Return the sizes of a convolution with a packed weight."""
        geometry, attrs = conv_geometry_of(anchor), anchor.op.attrs
        data, weight = operands_of(anchor)
        word = elements_per_word(weight)
        channels_in = known_extent(weight.shape[-2 if word == 1 else -3])
        assert channels_in is not None, "weights are known"
        taps = math.prod(geometry.kernel) * geometry.depth.kernel
        channels = int(str(attrs["channels"]))
        pixels = product_of_dims(list(geometry.out[:3]))
        # With groups or slices, the channels of neighbouring taps are not contiguous.
        is_one_loop = geometry.groups == 1 and geometry.depth is NO_DEPTH_AXIS
        is_one_loop = is_one_loop and (geometry.kernel[1] == 1 or geometry.dilation[1] == 1)
        row = channels_in * geometry.kernel[1]
        sizes = MatmulSizes.from_dims(
            pixels,
            channels // geometry.groups,
            channels_in * taps,
            product_dtype(data.dtype, weight),
        )
        return ConvSizes(
            geometry,
            sizes,
            row if is_one_loop and word == 1 else None,
            int(str(attrs["tile"])),
            channels_in * word * taps * channels,
            target,
        )

    @property
    def panel_vectors(self) -> int:
        """Return the vectors of a panel."""
        return -(-self.panel // self.target.lanes("float32"))

    @property
    def has_flattened_pixels(self) -> bool:
        """Return whether tiles run over the flattened output pixels."""
        return self.geometry.is_pointwise or is_short_line(self.geometry.out[2])

    def k_block_domain(self) -> tuple[int, ...]:
        """Return the domain of the steps of k per block."""
        if self.row_steps is None or self.product.dtype != "float32":
            return ()
        depth = self.product.depth
        return tuple(d for d in divisors(self.row_steps, MIN_K_BLOCK) if d != depth)

    def tile_rows(self) -> int:
        """Return the rows of a tile. Rows of data are a pixel apart, or a stride."""
        size = self.product
        # Tiles by lines never cross the end of a line.
        across = None if self.has_flattened_pixels else known_extent(self.geometry.out[2])
        rows = size.rows if across is None else across
        distance = MatmulSizes(rows, size.columns, self.pixel_stride, size.dtype)
        return tile_rows(self.panel_vectors, distance, self.target)

    @property
    def pixel_stride(self) -> int | None:
        """Return the data stride between adjacent output pixels of a line, if it is static."""
        return known_extent(simplify(self.geometry.data[3] * self.geometry.strides[1]))

    def unroll_factor(self, blocking: LoopBlocking, order: str, ahead: int) -> int:
        """Return the unroll factor of k.

        They are as many as for any product, but one where the next iteration of a pixel reads what
        this one of the next pixel does. A compiler loads that once for both, for all rows of a
        tile, and no registers remain for the sums (one channel, stride 1, window 256, 36 and 96
        channels: by one iteration 0.70 and 0.29 of the time on Zen 4, 0.48 and 0.43 as Zen 3).
        """
        steps = blocking.unroll_factor(order, ahead)
        along = self.row_steps is not None and self.geometry.kernel[1] > 1
        return 1 if along and self.pixel_stride is not None and self.pixel_stride < steps else steps

    def outer_loop(self, blocking: LoopBlocking) -> str:
        """Return the outer loop.

        Lines of pixels read from bands of data in the second-level cache, unless the weights are
        larger than all data: then each panel should be read once.
        """
        panels = -(-(self.product.columns or 0) // self.panel) * self.geometry.groups
        # Too few panels to occupy the cores: threads share rows instead.
        if panels < self.target.cores:
            return "row"
        data, depth = self.geometry.data, self.geometry.depth.size
        pixels = known_extent(simplify(math.prod(data[1:], start=depth)))
        is_heavy = pixels is not None and self.weights >= pixels
        if self.has_flattened_pixels and self.geometry.groups == 1 and not is_heavy:
            return blocking.outer_loop()
        return "panel" if is_heavy else "row"

    def k_block(self, blocking: LoopBlocking, order: str) -> int:
        """Return the steps of k per block: as many as fit the cache by the cost model."""
        max_block = blocking.k_block_steps(order) if self.has_flattened_pixels else 0
        if not max_block:
            return 0
        return next((d for d in self.k_block_domain() if d <= max_block), 0)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a convolution."""
    sizes = ConvSizes.from_anchor(anchor, target)
    blocking = LoopBlocking(sizes.product, sizes.panel, 1, target)
    rows = descending_range(max_register_rows(sizes.panel_vectors, target, sizes.product.dtype))
    weight = operands_of(anchor)[1]
    matrices = matrix_dot_instruction(weight, target)
    if matrices is not None:
        rows = (*AMX_TILE_HEIGHTS, *rows)
    # fmt: off
    return (
        Knob("panel", (sizes.panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "pixels of a tile"),
        Knob("order", ("panel", "row"), "the outer loop: panels, or pixels"),
        Knob("k_block", (0, *sizes.k_block_domain()), "steps of k of a block; 0: all"),
        Knob("l1_prefetch", PREFETCH_DISTANCES,
             "L1 prefetch distance of a panel, in steps of k"),
        Knob("l2_prefetch", blocking.panel_prefetch_domain(),
             "tiles that prefetch the next panel into L2"),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
        *dot_instruction_knobs(weight, target, matrices=matrices),
    )
    # fmt: on


def _contiguous_words(sizes: ConvSizes, weight: te.Tensor) -> int:
    """Return the number of contiguous data words: of a tap, or of a kernel row."""
    words = known_extent(weight.shape[-3]) or 0
    geometry = sizes.geometry
    is_whole = geometry.groups == 1 and geometry.dilation[1] == 1
    return words * geometry.kernel[1] if is_whole else words


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a convolution."""
    sizes = ConvSizes.from_anchor(anchor, target)
    chosen: dict[str, KnobValue] = {**fixed, "panel": sizes.panel}
    weight = operands_of(anchor)[1]
    matrices = (
        matrix_dot_instruction(weight, target)
        if _contiguous_words(sizes, weight) >= MIN_MATRIX_WORDS
        else None
    )
    instructions = (matrices, supported_dots(target, weight)[0])
    # Matrix registers are chosen above only where a row of the reduction fills them.
    if chosen.setdefault("dot", next(filter(None, instructions))) in MATRIX_DOT_FEATURES:
        chosen.setdefault("rows", AMX_TILE_HEIGHTS[0])
        # Matrix registers take all of k at once, and their loads stream.
        plain = {"k_block": 0, "l1_prefetch": 0, "l2_prefetch": 0, "unroll": 1}
        chosen = {**plain, **chosen}
    rows = int(chosen.setdefault("rows", sizes.tile_rows()))
    blocking = LoopBlocking(sizes.product, sizes.panel, rows, target)
    order = str(chosen.setdefault("order", sizes.outer_loop(blocking)))
    chosen.setdefault("k_block", sizes.k_block(blocking, order))
    l1_prefetch = int(chosen.setdefault("l1_prefetch", blocking.prefetch_distance(order)))
    l2_prefetch = int(
        chosen.setdefault(
            "l2_prefetch", blocking.panel_prefetch_tiles(order) if sizes.has_flattened_pixels else 0
        )
    )
    chosen.setdefault("unroll", sizes.unroll_factor(blocking, order, l1_prefetch or l2_prefetch))
    return Decision.from_mapping(
        {choice.name: chosen[choice.name] for choice in search_space(anchor, target)}
    )
