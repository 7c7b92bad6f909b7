"""Int8 dense layers with int4 weights in scaled groups, by int8 dot products.

sums[i, j, b] = sum over k of group b of data[i, k] * level[j, k]                      int32
out[i, j] = sum over b of (sums[i, j, b] - total[i, b] * point[j, b])                  float32
                          * (step[i, b] * scale[j, b])

for each panel of 64 rows of the weight, in parallel; for each tile of rows of the data:
  int4_tile: both sums in registers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden import te
from ekiden.ir.prim import IntImm, PrimExpr, Var
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.family import Family
from ekiden.kernels.micro_kernels.int4_tile import INT4_TILE_KERNEL, group_sum, scaled_group
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
from ekiden.tir.stmt import PrimFunc
from ekiden.topi.nn.int4_dense import ROWS_PER_PANEL

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule

INT4_SPARE_REGISTERS = 4
"""Registers for unpacked words and the mask beside the accumulators."""
INT4_DENSE_TAG = "dense_nibbles_pack"
GROUP_SUMS_BLOCK = "group_sums"
"""Name of the block of int32 sums."""


def create_scaled_program(inputs: list[te.Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: int32 sums of groups, their scaled float32 sums, and the
    epilogues.
    """
    anchor = kernel.anchor
    data, step, total, weight, scale, point = anchor_operands(anchor)
    groups, words = weight.shape[1], _static(weight.shape[2])

    def sum_of_group(*i: Var) -> PrimExpr:
        """Return the sum of a group of a row and a column."""
        *row, j, b = i
        panel, lane = j // ROWS_PER_PANEL, j % ROWS_PER_PANEL
        return group_sum(
            lambda k: data[(*row, k)], lambda b, w: weight[panel, b, w, lane], b, words
        )

    sums = te.compute((*anchor.shape, groups), sum_of_group, name=GROUP_SUMS_BLOCK)
    group = te.reduce_axis((0, groups), "group")

    def sum_of_groups(*i: Var) -> PrimExpr:
        """Return the sum of the scaled groups of a row and a column."""
        *row, j = i
        panel, lane = j // ROWS_PER_PANEL, j % ROWS_PER_PANEL
        term = scaled_group(
            lambda b: sums[(*i, b)],
            (lambda b: step[(*row, b)], lambda b: total[(*row, b)]),
            (lambda b: scale[panel, b, lane], lambda b: point[panel, b, lane]),
        )
        return te.sum(term(group), group)

    result = te.compute(anchor.shape, sum_of_groups, name=anchor.op.name)
    outputs = replace_computation(kernel.outputs, anchor, result)
    return create_inlined_program(inputs, outputs, name)


def schedule_int4_dense(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a dense layer with int4 weights."""
    weight = anchor_operands(kernel.anchor)[3]
    sizes = {"groups": _static(weight.shape[1]), "words": _static(weight.shape[2])}
    schedule_word_panels(sch, kernel, ROWS_PER_PANEL, INT4_TILE_KERNEL, sizes, (GROUP_SUMS_BLOCK,))


def _static(size: PrimExpr) -> int:
    assert isinstance(size, IntImm), "weights are known"
    return size.value


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: the weight's shape is static."""
    return all(isinstance(d, IntImm) for t in anchor_operands(anchor)[3:] for d in t.shape)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many rows as the registers hold accumulators for."""
    return rows_in_registers(target, fixed, ROWS_PER_PANEL, INT4_SPARE_REGISTERS)


FAMILY = Family(
    name=INT4_DENSE_TAG,
    accepts=is_supported,
    required_features=("dot4_u8s8",),
    search_space=search_space,
    default_decision=default_decision,
    schedule_steps=schedule_int4_dense,
    create_initial_program=create_scaled_program,
)
