"""Dense layers with block-quantised weights, by int8 dot products on dynamically quantised data, or
on float32 data.

    bytes, step, total = the data, quantised per 32 values of a row; sums of groups
    sums[i, j, g] = sum over k of group g of bytes[i, k] * (level[j, k] - least)           int32
    out[i, j] = sum over g of (sums[i, j, g] + least * total[i, g])                        float32
                              * (step[i, g] * scale[j, g]) + step * total * offset[j, g]

    for each panel of rows of the weight, in parallel; for each tile of rows of the data:
      block_int8_tile: both sums in registers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden import te
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.kernels.decision import Decision, Knob, Overrides
from ekiden.kernels.family import Family, MatmulSizes, clamp_panel_width, create_kernel_program
from ekiden.kernels.micro_kernels.block_descriptions import int8_group_sum, scaled_block_group
from ekiden.kernels.micro_kernels.block_tile import (
    BLOCK_INT8_TILE_KERNEL,
    BLOCK_TILE_KERNEL,
    DOT_INSTRUCTIONS,
    MAX_NARROW_DOT_BITS,
    WORDS_PER_UNIT,
    int16_sums_fit,
)
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.quantized.dynamic_quantization import SYMMETRIC_INT8_FACT, DynamicQuantization
from ekiden.kernels.quantized.int8_dot import (
    DOT4_FEATURE,
    NARROW_DOT_FEATURE,
    SIGNED_DOT_FEATURE,
    exact_dot_instruction,
)
from ekiden.kernels.quantized.word_panels import (
    anchor_operands,
    rows_in_registers,
    schedule_word_panels,
    search_space,
)
from ekiden.kernels.scheduled_kernel import (
    KernelSpec,
    create_inlined_program,
    replace_computation,
)
from ekiden.target import Target
from ekiden.te.tensor import BLOCK_ANNOTATIONS_ATTR
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc, Stmt
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME
from ekiden.topi.nn.block_quantized import VALUES_PER_UNIT, PackedBlock

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule

BLOCK_DENSE_TAG = "dense_blocks_pack"
BLOCK_SPARE_REGISTERS = 6
"""Registers for unpacked words, scales, offsets and masks beside the accumulators."""
MIN_PANEL_VECTORS = 2
"""Minimum vectors of a panel: that of tiles with many rows, so that every tile reads whole panels.
Half a panel at a time came from memory at a third of the speed (Zen 4: four rows took 3.3 ms of a
weight of 32 MB, now 1.5, sixteen 7.1 and 6.0, one and two the same).
"""
GROUP_SUMS_BLOCK = "group_sums"
"""Name of the block of int32 sums."""


def create_block_program(inputs: list[te.Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: of int8 data, their quantisation and int32 sums of groups in
    front of the float32 sums.
    """
    anchor = kernel.anchor
    if not _quantizes_data(anchor):
        return create_kernel_program(inputs, kernel, name)
    data, weight = anchor_operands(anchor)
    of, lanes = packed_layout_of(anchor), kernel.target.lanes("float32")
    bytes_, step, total = quantize_data(data, of.format.group_size, lanes)
    groups = total.shape[-1]
    sums = te.compute(
        (*anchor.shape, groups),
        lambda *i: int8_group_sum(of, lambda k: bytes_[(*i[:-2], k)], weight, i[-1], i[-2]),
        name=GROUP_SUMS_BLOCK,
        attrs={BLOCK_ANNOTATIONS_ATTR: {SYMMETRIC_INT8_FACT: 1}},
    )
    group = te.reduce_axis((0, groups), "group")

    def sum_of_groups(*i: Var) -> PrimExpr:
        """Return the sum of the scaled groups of a row and a column."""
        *row, column = i
        term = scaled_block_group(
            of,
            sums[(*i, group)],
            lambda u: step[(*row, u)],
            lambda g: total[(*row, g)],
            weight,
            group,
            column,
        )
        return te.sum(term, group)

    result = te.compute(anchor.shape, sum_of_groups, name=anchor.op.name)
    outputs = replace_computation(kernel.outputs, anchor, result)
    return create_inlined_program(inputs, outputs, name)


def quantize_data(data: te.Tensor, group_size: int, lanes: int) -> Sequence[te.Tensor]:
    """Return the bytes of data quantised per unit of a row, the steps of units, and the sums of the
    bytes of groups.
    """
    *leading, depth = data.shape
    assert isinstance(depth, IntImm), "weights are known"

    def emit_quantization(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the quantisation, rows in parallel."""
        quantization = DynamicQuantization(ins[0], VALUES_PER_UNIT, group_size, *outs)
        return quantization.emit(product_of_dims(leading), lanes)

    counts = [const(depth.value // size) for size in (1, VALUES_PER_UNIT, group_size)]
    tensors = te.extern(
        [(*leading, n) for n in counts],
        [data],
        emit_quantization,
        name="quantized",
        dtype=["int8", "float32", "int32"],
    )
    assert isinstance(tensors, list)
    return tensors


def schedule_block_dense(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a dense layer with block-quantised weights."""
    of, target = packed_layout_of(kernel.anchor), kernel.target
    blocks = anchor_operands(kernel.anchor)[1].shape[1]
    assert isinstance(blocks, IntImm), "weights are known"
    options = {"format": of.format.gguf_type, "blocks": blocks.value}
    if uses_int16_sums(of, target):
        # Levels of a group stay in registers while rows pass. With two vectors, each word of the
        # data would be live for the second one too, which the registers of such processors do not
        # hold (Zen 3, q4_0, alternately: 16 rows 140 to 164 GFLOP/s, 4 rows of weights in memory 83
        # to 149).
        options["narrow_vectors"] = 1
    if not _quantizes_data(kernel.anchor):
        schedule_word_panels(sch, kernel, of.panel, BLOCK_TILE_KERNEL, options)
        return
    dot = exact_dot_instruction(target)
    if dot == NARROW_DOT_FEATURE and of.format.levels.bits > MAX_NARROW_DOT_BITS:
        # The narrow dot adds two u8 * s8 products in int16 with saturation: levels above 7 bits
        # could saturate it.
        dot = SIGNED_DOT_FEATURE
    options |= {
        "dot": DOT_INSTRUCTIONS.index(dot),
        "int16_sums": int(uses_int16_sums(of, target)),
    }
    schedule_word_panels(
        sch, kernel, of.panel, BLOCK_INT8_TILE_KERNEL, options, (GROUP_SUMS_BLOCK,)
    )


def _quantizes_data(anchor: te.Tensor) -> bool:
    return anchor.op.attrs["activations"] == "int8"


def packed_layout_of(anchor: te.Tensor) -> PackedBlock:
    """Return the packed block layout of an anchor's weight."""
    attrs = anchor.op.attrs
    return PackedBlock(BLOCK_FORMATS_BY_NAME[str(attrs["format"])], int(str(attrs["panel"])))


def uses_int16_sums(of: PackedBlock, target: Target) -> bool:
    """Return whether a group's sums fit int16 and the target sums in int16."""
    return exact_dot_instruction(target) == NARROW_DOT_FEATURE and int16_sums_fit(of)


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: the weight's shape is static."""
    return all(isinstance(d, IntImm) for d in anchor_operands(anchor)[1].shape)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many rows as the registers hold accumulators for."""
    if uses_int16_sums(packed_layout_of(anchor), target):
        fixed = {"rows": WORDS_PER_UNIT, **fixed}
    return rows_in_registers(target, fixed, packed_layout_of(anchor).panel, BLOCK_SPARE_REGISTERS)


def panel_columns(product: MatmulSizes, target: Target) -> int:
    """Return the columns of a panel: enough vectors to hide the FMA latency of a single row."""
    return clamp_panel_width(MIN_PANEL_VECTORS * target.lanes("float32"), product, target)


def panel_knob(target: Target) -> Knob:
    """Return the knob of panel columns."""
    lanes = target.lanes("float32")
    return Knob(
        "panel", tuple(lanes * n for n in range(1, 2 * MIN_PANEL_VECTORS + 1)), "rows of a panel"
    )


FAMILY = Family(
    name=BLOCK_DENSE_TAG,
    accepts=is_supported,
    alternative_features=(DOT4_FEATURE, NARROW_DOT_FEATURE),
    search_space=search_space,
    default_decision=default_decision,
    schedule_steps=schedule_block_dense,
    create_initial_program=create_block_program,
    default_panel_width=panel_columns,
    panel_width_knob=panel_knob,
)
