"""Relative cost of a product of bytes, compared with the same product of float32, by the model of
kernels.

    bytes     products / (4 lanes x tile) x cycles of an iteration by the target's instructions; of
              3x3 windows those of Winograd's method where the kernel is one of that
    floats    the same of multiply-adds; of 3x3 windows Winograd's method where that is faster

Where there are no dot products of bytes a quantized convolution may be slower than the floats that
it replaces: compilation and profiling report it.
"""

from __future__ import annotations

import math

from ekiden import te
from ekiden.kernels.cost_model import step_cycles
from ekiden.kernels.family import NARROW, size_of
from ekiden.kernels.geometry import geometry_of
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import LANES, MATRIX_DOTS, WORD_BYTES, WORDS
from ekiden.kernels.names import Chosen
from ekiden.kernels.prim_builder import product
from ekiden.kernels.quantized.int8_dot import NARROW_DOT
from ekiden.kernels.spaces.winograd import (
    BYTES,
    TILE_SIDE_KNOB,
    arithmetic_of,
    direct_cycles,
    winograd_cycles,
)
from ekiden.target import Target
from ekiden.te.inline import post_order_tensors
from ekiden.topi.nn.weights import WORD, WORD_BY_DTYPE
from ekiden.topi.nn.winograd import WINOGRAD_TAPS, suits

UNKNOWN_EXTENT = 1 << 10
"""What a size is taken for that only the run knows."""
PLAIN = ("conv1d", "conv2d", "conv3d", "dense", "batch_matmul", "matmul")
"""Tags of products that have no kernel where their sums are integers."""
PLAIN_INTEGER_COST = 8.0
"""How many times as long a plain nest of int32 takes at least (Xeon with AVX2: 15 to 80)."""


def relative_cost(outputs: list[te.Tensor], chosen: Chosen, target: Target) -> float:
    """Return the modelled ratio of an integer product's cycles to those of the same product of
    floats; 0 where it is none, or on a device.
    """
    if target.kind.has_threads:
        return 0.0
    anchor = chosen.anchor
    if anchor is None:
        tensors = post_order_tensors(outputs)
        is_plain = any(t.op.tag in PLAIN and t.dtype in ("int32", "int64") for t in tensors)
        return PLAIN_INTEGER_COST if is_plain else 0.0
    if chosen.family.name == "winograd_conv2d":
        return _winograd_relative_cost(anchor, target)
    if chosen.family.name not in ("conv_nhwc_pack", "dense_pack"):
        return 0.0
    data, weight = operands_of(anchor)
    if weight.dtype != "int8":
        return 0.0
    is_conv = chosen.family.name == "conv_nhwc_pack"
    steps = math.prod(size_of(d) or 1 for d in weight.shape[-6 if is_conv else -4 :][1:-2])
    pixels = size_of(product(list(anchor.shape[:-1]))) or UNKNOWN_EXTENT
    columns = size_of(anchor.shape[-1]) or 1
    products = pixels * columns * steps * WORD_BY_DTYPE[weight.dtype]
    floats = direct_cycles(products, target)
    # Floats may use Winograd's method instead, which is the faster competitor.
    if is_conv:
        floats = min(floats, _float_winograd_cycles(anchor, data, target))
    return _word_cycles(products, chosen, target) / floats if floats else 0.0


def _word_cycles(products: int, chosen: Chosen, target: Target) -> float:
    """Return the cycles of products of bytes by the instructions of a decision."""
    decision = chosen.decision
    if decision["dot"] in MATRIX_DOTS:  # a row of a register takes a cycle
        return products / (LANES * WORDS * WORD_BYTES)
    lanes = target.lanes("float32")
    rows, vectors = decision.number("rows"), -(-decision.number("panel") // lanes)
    dtype = NARROW if decision["dot"] == NARROW_DOT else "uint8"
    return products / (WORD * rows * vectors * lanes) * step_cycles(rows, vectors, target, dtype)


def _winograd_relative_cost(anchor: te.Tensor, target: Target) -> float:
    """Return the relative cost of a convolution of bytes by Winograd's method; 0 for one
    of floats.
    """
    kind = arithmetic_of(anchor)
    if kind is not BYTES:
        return 0.0
    image, channels = _sizes(anchor, operands_of(anchor)[0])
    products = math.prod(image) * math.prod(channels) * WINOGRAD_TAPS**2
    floats = min(direct_cycles(products, target), winograd_cycles(image, channels, target))
    return (
        winograd_cycles(image, channels, target, kind, int(str(anchor.op.attrs[TILE_SIDE_KNOB])))
        / floats
    )


def _sizes(anchor: te.Tensor, data: te.Tensor) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return (images, height, width) of a result, and the channels of both sides; estimates where
    only the run knows them.
    """
    images, height, width = (size_of(d) or 0 for d in anchor.shape[:3])
    side = math.isqrt(UNKNOWN_EXTENT)
    channels = size_of(data.shape[-1]) or 0, size_of(anchor.shape[-1]) or 0
    return (images or 1, height or side, width or side), channels


def _float_winograd_cycles(anchor: te.Tensor, data: te.Tensor, target: Target) -> float:
    """Return the cycles of Winograd's method for a convolution of floats; infinite where it has
    none."""
    geometry = geometry_of(anchor)
    image, channels = _sizes(anchor, data)
    is_plain = geometry.groups == 1 and geometry.strides == geometry.dilation == (1, 1)
    if not is_plain or geometry.kernel != (WINOGRAD_TAPS, WINOGRAD_TAPS):
        return math.inf
    if not suits(*channels, target.lanes("float32")):
        return math.inf
    return winograd_cycles(image, channels, target)


__all__ = ["relative_cost"]
