"""Scatter of slices on devices of many threads: the blocks of `cpu.scatter`, other steps.

    for each column, or vector of columns, in parallel:      columns are apart
      for e..: out[index[e..], column] = combine(...)        updates of one row keep their order

The copy, where there is one, has a thread for each element or vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.kernels.cpu.scatter import (
    COPY_BLOCK,
    UPDATE_BLOCK,
    SliceScatter,
    create_scatter_program,
)
from ekiden.kernels.family import Family
from ekiden.kernels.gpu.launch import THREADS_PER_BLOCK, threads_per_block
from ekiden.kernels.gpu.vector_access import computes_with_vectors, lanes_fitting, max_lanes
from ekiden.kernels.scheduled_kernel import KernelSpec
from ekiden.target import Target
from ekiden.tir.stmt import For

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule
    from ekiden.tir.schedule.trace import LoopRV


def schedule_scatter_on_threads(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a scatter: threads share the columns, and each makes all updates of its own."""
    slices, target, anchor = kernel.anchor.op.attrs["slices"], kernel.target, kernel.anchor
    assert isinstance(slices, SliceScatter)
    lanes = _lanes_of_columns(anchor.shape, anchor.dtype, target)
    elements, lane = _split_last(sch, sch.get_loops(COPY_BLOCK), lanes)
    _bind_fused(sch, elements, lane, target)
    loops = sch.get_loops(UPDATE_BLOCK)
    num_columns = len(anchor.shape) - slices.index_depth
    steps, columns = loops[: len(loops) - num_columns], loops[len(loops) - num_columns :]
    if not columns:  # elements may meet: one thread makes them all
        thread = sch.add_unit_loop(steps[0] if steps else UPDATE_BLOCK)
        sch.bind(sch.add_unit_loop(thread), "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        return
    columns, lane = _split_last(sch, columns, lanes)
    sch.reorder(*columns, *steps, *lane)
    _bind_fused(sch, columns, lane, target)


def _lanes_of_columns(shape: Sequence[PrimExpr], dtype: str, target: Target) -> int:
    """Return how many columns a thread has: a vector that divides the last axis where threads
    compute with vectors, else one.
    """
    width = shape[-1].value if isinstance(shape[-1], IntImm) else None
    lanes = (
        lanes_fitting(max_lanes(target, (dtype,)), width) if computes_with_vectors(target) else 1
    )
    # Rows that vectors do not divide would need a scalar remainder.
    return lanes if width is not None and width % lanes == 0 else 1


def _split_last(
    sch: Schedule, loops: Sequence[LoopRV], lanes: int
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split vectors off the last loop; return the loops outside and the one over lanes, if any."""
    if lanes == 1:
        return list(loops), []
    *outer, last = loops
    vectors, lane = sch.split(last, [None, lanes])
    return [*outer, vectors], [lane]


def _bind_fused(
    sch: Schedule, loops: Sequence[LoopRV], lane: Sequence[LoopRV], target: Target
) -> None:
    """Bind perfectly nested loops, fused, to threads of blocks, and vectorise those of lanes."""
    index = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    nest = sch.get(index)
    assert isinstance(nest, For)
    threads = threads_per_block(nest.extent, target) if lane else THREADS_PER_BLOCK
    block, thread = sch.split(index, [None, min(threads, target.max_num_threads)])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for loop in lane:
        sch.vectorize(loop)


FAMILY = Family(
    name="thread_scatter",
    is_gpu_family=True,
    accepts=lambda anchor, target: "slices" in anchor.op.attrs,
    create_initial_program=create_scatter_program,
    schedule_steps=schedule_scatter_on_threads,
    prevents_fusion=True,
)
