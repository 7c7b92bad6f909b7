"""Estimated cost of quantised kernels, compared with their float counterparts.

    bytes     products / (4 lanes x tile) x cycles of an iteration by the target's instructions; of
              3x3 windows those of Winograd's method where the kernel is one of that
    floats    the same of multiply-adds; of 3x3 windows Winograd's method where that is faster
    passes    what finds ranges and rounds: instructions of its elements, or their way through the
              second-level cache; floats have none

Where there are no dot products of bytes a quantized convolution may be slower than the floats that
it replaces: compilation and profiling report it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ekiden import te
from ekiden.kernels.conv_geometry import conv_geometry_of
from ekiden.kernels.cost_model import cache_levels, step_cycles
from ekiden.kernels.family import (
    INT16_PAIR_SUMS,
    elements_per_word,
    known_extent,
    product_dtype,
)
from ekiden.kernels.kernel_selection import KernelSelection
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import (
    AMX_LANES,
    AMX_WORD_BYTES,
    AMX_WORDS,
    MATRIX_DOT_FEATURES,
)
from ekiden.kernels.micro_kernels.register_tiles import WIDENED_DTYPE
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.quantized.int8_dot import NARROW_DOT_FEATURE
from ekiden.kernels.spaces.winograd import (
    INT8_ARITHMETIC,
    TILE_SIDE_KNOB,
    direct_cycles,
    element_arithmetic,
    winograd_cycles,
)
from ekiden.target import Target
from ekiden.te.inline import post_order_tensors
from ekiden.topi.nn.winograd import WINOGRAD_TAPS, fills_vectors

ASSUMED_EXTENT = 1 << 10
"""Assumed value of a dynamic size."""
UNTILED_INTEGER_OPS = ("conv1d", "conv2d", "conv3d", "dense", "batch_matmul", "matmul")
"""Tags of products without a tiled kernel for integer accumulation."""
UNTILED_INTEGER_COST_RATIO = 8.0
"""Minimum slowdown of an untiled int32 nest (Xeon with AVX2: 15 to 80)."""


class KernelCost(NamedTuple):
    """Estimated cycles of a quantised kernel, and of its float counterpart."""

    quantized: float
    floating_point: float


def product_cost(
    outputs: list[te.Tensor], chosen: KernelSelection, target: Target
) -> KernelCost | None:
    """Return the cost of an integer product by the cost model; None for other kernels and on
    devices.
    """
    if target.kind.has_threads:
        return None
    anchor = chosen.anchor
    if anchor is None:
        return _untiled_cost(outputs, target)
    if chosen.family.name == "winograd_conv2d":
        return _winograd_cost(anchor, target)
    if chosen.family.name not in ("conv_nhwc_pack", "dense_pack"):
        return None
    data, weight = operands_of(anchor)
    if weight.dtype not in ("int8", WIDENED_DTYPE):
        return None
    is_conv = chosen.family.name == "conv_nhwc_pack"
    steps = math.prod(known_extent(d) or 1 for d in weight.shape[-6 if is_conv else -4 :][1:-2])
    pixels = known_extent(product_of_dims(list(anchor.shape[:-1]))) or ASSUMED_EXTENT
    columns = known_extent(anchor.shape[-1]) or 1
    products = pixels * columns * steps * elements_per_word(weight)
    floats = direct_cycles(products, target)
    # Floats may use Winograd's method instead, which is the faster competitor.
    if is_conv:
        floats = min(floats, _float_winograd_cycles(anchor, data, target))
    return KernelCost(_dot_cycles(products, chosen, weight, target), floats)


def float_product_cost(operations: int, target: Target) -> KernelCost:
    """Return the cost of a float product that remains in a quantised program."""
    cycles = direct_cycles(operations / 2, target)
    return KernelCost(cycles, cycles)


def quantization_pass_cost(
    elements: int, nbytes: int, instructions: int, target: Target
) -> KernelCost:
    """Return the cost of a kernel that finds a range or rounds, which a float program does not
    need.

    Args:
        elements: The elements that it reads.
        nbytes: The bytes that it reads and writes.
        instructions: Of each vector of elements.
        target: The processor.
    """
    _, second, _ = cache_levels(target)
    work = elements * instructions / (target.lanes("float32") * target.fma_units)
    return KernelCost(max(work, nbytes / second.bandwidth), 0.0)


def _untiled_cost(outputs: list[te.Tensor], target: Target) -> KernelCost | None:
    """Return the cost of an integer product that has no tiled kernel."""
    for tensor in post_order_tensors(outputs):
        op = tensor.op
        if not (op.tag in UNTILED_INTEGER_OPS and tensor.dtype in ("int32", "int64")):
            continue
        reduced = [axis.dom.extent for axis in getattr(op, "reduce_axis", ())]
        products = math.prod(known_extent(d) or ASSUMED_EXTENT for d in (*tensor.shape, *reduced))
        floats = direct_cycles(products, target)
        return KernelCost(UNTILED_INTEGER_COST_RATIO * floats, floats)
    return None


def _dot_cycles(products: int, chosen: KernelSelection, weight: te.Tensor, target: Target) -> float:
    """Estimate the cycles of the int8 products with the instructions that the decision selects."""
    decision = chosen.decision
    if decision["dot"] in MATRIX_DOT_FEATURES:  # a row of a register takes a cycle
        return products / (AMX_LANES * AMX_WORDS * AMX_WORD_BYTES)
    lanes = target.lanes("float32")
    rows, vectors = decision.int_value("rows"), -(-decision.int_value("panel") // lanes)
    dtype = product_dtype("uint8", weight)
    if decision["dot"] == NARROW_DOT_FEATURE:
        dtype = INT16_PAIR_SUMS
    return (
        products
        / (elements_per_word(weight) * rows * vectors * lanes)
        * step_cycles(rows, vectors, target, dtype)
    )


def _winograd_cost(anchor: te.Tensor, target: Target) -> KernelCost | None:
    """Return the cost of an int8 Winograd convolution; None for a float one."""
    kind = element_arithmetic(anchor)
    if kind is not INT8_ARITHMETIC:
        return None
    image, channels = _image_and_channels(anchor, operands_of(anchor)[0])
    products = math.prod(image) * math.prod(channels) * WINOGRAD_TAPS**2
    floats = min(direct_cycles(products, target), winograd_cycles(image, channels, target))
    side = int(str(anchor.op.attrs[TILE_SIDE_KNOB]))
    return KernelCost(winograd_cycles(image, channels, target, kind, side), floats)


def _image_and_channels(
    anchor: te.Tensor, data: te.Tensor
) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return (images, height, width) of a result, and its input and output channels; guesses where
    dynamic.
    """
    images, height, width = (known_extent(d) or 0 for d in anchor.shape[:3])
    side = math.isqrt(ASSUMED_EXTENT)
    channels = known_extent(data.shape[-1]) or 0, known_extent(anchor.shape[-1]) or 0
    return (images or 1, height or side, width or side), channels


def _float_winograd_cycles(anchor: te.Tensor, data: te.Tensor, target: Target) -> float:
    """Return the cycles of a float Winograd convolution; infinite where it does not apply."""
    geometry = conv_geometry_of(anchor)
    image, channels = _image_and_channels(anchor, data)
    # Winograd's F(m, 3) covers 3 x 3 windows with stride 1, without groups and dilation.
    is_plain = geometry.groups == 1 and geometry.strides == geometry.dilation == (1, 1)
    if not is_plain or geometry.kernel != (WINOGRAD_TAPS, WINOGRAD_TAPS):
        return math.inf
    if not fills_vectors(*channels, target.lanes("float32")):
        return math.inf
    return winograd_cycles(image, channels, target)


__all__ = ["KernelCost", "float_product_cost", "product_cost", "quantization_pass_cost"]
