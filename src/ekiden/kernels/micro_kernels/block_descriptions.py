"""Results of products with block-quantised weights, as tensor expressions: what the families
schedule, and what the micro-kernels of block_tile.py describe.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden import te
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.kernels.scheduled_kernel import result_description
from ekiden.te import Tensor
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.tensor_intrin.micro import Options
from ekiden.topi.nn.block_formats import GGUF_BLOCK_FORMATS
from ekiden.topi.nn.block_quantized import (
    VALUES_PER_UNIT,
    PackedBlock,
    decode_packed_value,
    packed_level,
    packed_scales,
)

Element = Callable[[PrimExpr], PrimExpr]
"""Function (index) -> element of a row or of a column."""


def int8_group_sum(
    of: PackedBlock, data: Element, weight: Tensor, group: PrimExpr, column: PrimExpr
) -> PrimExpr:
    """Return the int32 sum of int8 data times levels, counted from the least, of a group of k.

    Args:
        of: The layout of the weight.
        data: The element of the data at k.
        weight: The packed weight.
        group: The group.
        column: The row of the weight.
    """
    r = te.reduce_axis((0, of.format.group_size), "r")
    k = group * of.format.group_size + r
    return te.sum(cast(data(k), "int32") * packed_level(of, weight, column, k, 0), r)


def scaled_block_group(
    of: PackedBlock,
    group_sum: PrimExpr,
    step: Element,
    total: Element,
    weight: Tensor,
    group: PrimExpr,
    column: PrimExpr,
) -> PrimExpr:
    """Return the float32 term of a group of k.

    Args:
        of: The layout of the weight.
        group_sum: The sum of the group.
        step: The step of a unit of the data.
        total: The sum of the data of a group.
        weight: The packed weight.
        group: The group.
        column: The row of the weight.
    """
    least, size = of.format.levels.min_value, of.format.group_size
    scale, *offset = packed_scales(of, weight, column, group * size)
    unit_step = step(group // of.num_groups)
    # sum(a * (q + least)) = sum(a * q) + least * sum(a)
    whole = group_sum + total(group) * const(least, "int32") if least else group_sum
    term = cast(whole, "float32") * (unit_step * scale)
    return term + unit_step * cast(total(group), "float32") * offset[0] if offset else term


def layout_of(options: Options) -> PackedBlock:
    """Return the layout of the weight that options name."""
    format = next(f for f in GGUF_BLOCK_FORMATS if f.gguf_type == options["format"])
    return PackedBlock(format, options["panel"])


def describe_float_result(options: Options) -> PrimFunc:
    """Return the program of one result of float32 data; `lane` is its column in the panel."""
    of, lane = layout_of(options), Var("lane")
    depth = options["blocks"] * of.format.values_per_block
    data = te.placeholder((depth,), "float32", "data")
    weight = te.placeholder((1, options["blocks"], of.block_bytes), "uint8", "weight")
    k = te.reduce_axis((0, depth), "k")
    value = decode_packed_value(of, weight, lane, k)
    result = te.compute((), lambda: te.sum(data[k] * value, k), name="result")
    return result_description([data, weight, lane], result)


def describe_int8_result(options: Options) -> PrimFunc:
    """Return the program of one result of quantised data; `lane` is its column in the panel."""
    of, lane = layout_of(options), Var("lane")
    depth = options["blocks"] * of.format.values_per_block
    groups = depth // of.format.group_size
    data = te.placeholder((depth,), "int8", "data")
    step = te.placeholder((depth // VALUES_PER_UNIT,), "float32", "step")
    total = te.placeholder((groups,), "int32", "total")
    weight = te.placeholder((1, options["blocks"], of.block_bytes), "uint8", "weight")
    sums = te.compute(
        (groups,), lambda g: int8_group_sum(of, lambda k: data[k], weight, g, lane), name="sums"
    )
    g = te.reduce_axis((0, groups), "g")
    term = scaled_block_group(of, sums[g], lambda u: step[u], lambda g: total[g], weight, g, lane)
    result = te.compute((), lambda: te.sum(term, g), name="result")
    return result_description([data, step, total, weight, lane], result)


__all__ = [
    "describe_float_result",
    "describe_int8_result",
    "int8_group_sum",
    "layout_of",
    "scaled_block_group",
]
