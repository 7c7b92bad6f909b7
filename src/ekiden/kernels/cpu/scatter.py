"""Scatter of slices: rows of updates combined with data-dependent rows of the result, in order.

    if data and out have other memory:              the first step falls away where nobody else
      for i..:  block copy:  out[i..] = data[i..]   has the data
    for e.. ordered, j..:  block update:
      out[index[e..], j..] = combine(out[index[e..], j..], updates[e.., j..])

Updates of one row may meet, so the axes e are ordered; the columns j are apart. The schedule keeps
all updates on one thread: two that share the columns take as long together, as each reads lines of
every row (Zen 4, 100,000 rows of 64: 1.7 ms, in halves 3.8). Where the next rows lie is known long
before they are needed, and no processor guesses it: they are brought near `ahead` updates before
(2.2 to 1.7 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    Intrinsic,
    Not,
    PrimExpr,
    Var,
    const,
    convert,
    maximum,
    minimum,
)  # fmt: skip
from ekiden.kernels.cost_model import (
    CACHE_LINE_BYTES,
    PREFETCH_AHEAD_LATENCIES,
    PREFETCH_DISTANCES,
    cache_levels,
)
from ekiden.kernels.cpu.loops import (
    LoopAxis,
    estimated_product,
    parallel_axes,
    parallel_outer_loops,
    serial_loops,
    vectorized_loop,
)
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.prim_builder import declare_extern_parameters
from ekiden.kernels.scheduled_kernel import KernelSpec
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.range_checks import normalize_negative_index
from ekiden.tir.expr import Buffer
from ekiden.tir.schedule.program import block_writes
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    IfThenElse,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.transform.inject_prefetch import PREFETCH_ANNOTATION, accessed_regions

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule
    from ekiden.tir.schedule.trace import BlockRV

CombineFn = Callable[[PrimExpr, PrimExpr], PrimExpr]
SCATTER_VECTOR_LANES = 16
"""Vector lanes of the row copies."""
COPY_BLOCK, UPDATE_BLOCK = "copy", "update"
"""Names of the blocks of a scatter."""
MAX_SCATTER_PREFETCH_LINES = 8
"""Maximum prefetched cache lines per row; the hardware prefetcher covers the rest."""
SCATTER_REDUCTIONS: Mapping[str, CombineFn] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "mean": lambda old, new: (old + new) / convert(2, old.dtype),
    "min": minimum,
    "max": maximum,
}
"""Reduction functions (old, update) by mode; "mean" averages pairwise, as TVM does."""


def axes_of_shape(shape: Sequence[PrimExpr], name: str = "i") -> list[LoopAxis]:
    """Return a loop axis for each dimension of a shape."""
    return [LoopAxis(Var(f"{name}{n}"), d) for n, d in enumerate(shape)]


def axis_vars(axes: Sequence[LoopAxis]) -> tuple[PrimExpr, ...]:
    """Return the loop variables of axes."""
    return tuple(a.var for a in axes)


def emit_copy(source: Buffer, target: Buffer) -> Stmt:
    """Emit the elementwise copy of one buffer to another of its shape, unless they alias."""
    axes = axes_of_shape(target.shape)
    store: Stmt = BufferStore(target, source[axis_vars(axes)], axis_vars(axes))
    if axes:
        store = vectorized_loop(axes[-1], SCATTER_VECTOR_LANES, store)
    copy = parallel_outer_loops(axes[:-1], estimated_product(target.shape[-1:]), store)
    return IfThenElse(Not(_has_same_memory(source, target)), copy)


def _has_same_memory(source: Buffer, target: Buffer) -> PrimExpr:
    """Return whether a result has the input's bytes (updated_input), which only run-time addresses
    tell.
    """
    return Intrinsic("same_memory", (source.access_ptr("r"), target.access_ptr("r")), "bool")


Element = Callable[[tuple[Var, ...]], BufferStore]
"""Function of a block's iterators that returns its store."""


def create_block_nest(
    name: str, shape: Sequence[PrimExpr], store: Element, num_ordered: int = 0
) -> Stmt:
    """Return a block of one store in a serial loop for each axis of a shape, the first axes
    ordered.
    """
    kinds = (IterKind.ORDERED if n < num_ordered else IterKind.SPATIAL for n in range(len(shape)))
    iters = tuple(
        IterVar(a.var, a.extent, k) for a, k in zip(axes_of_shape(shape, "v"), kinds, strict=True)
    )
    loops = axes_of_shape(shape)
    block = Block(name, iters, store(tuple(i.var for i in iters)))
    return serial_loops(loops, BlockRealize(axis_vars(loops), const(True), block))


@dataclass(frozen=True, slots=True)
class SliceScatter:
    """Slice scatter: `index_depth` coordinates along the first axis of the indices select an
    update's slice, `mode` the reduction.
    """

    index_depth: int
    mode: str

    def emit_scatter(self, inputs: Sequence[Buffer], result: Buffer) -> Stmt:
        """Emit the blocks of the scatter of (data, indices, updates) into the result."""
        data, indices, updates = inputs
        rank = len(indices.shape) - 1

        def store_update(at: tuple[Var, ...]) -> BufferStore:
            """Return the update of an element."""
            target = (*self._slice_coordinates(indices, data, at[:rank]), *at[rank:])
            value = SCATTER_REDUCTIONS[self.mode](result[target], updates[at])
            return BufferStore(result, value, target)

        copy = create_block_nest(
            COPY_BLOCK, data.shape, lambda at: BufferStore(result, data[at], at)
        )
        if rank:
            update = create_block_nest(UPDATE_BLOCK, updates.shape, store_update, rank)
        else:
            # One update: an ordered axis of one step tells the columns from the order.
            shape = (const(1), *updates.shape)
            update = create_block_nest(UPDATE_BLOCK, shape, lambda at: store_update(at[1:]), 1)
        return seq(IfThenElse(Not(_has_same_memory(data, result)), copy), update)

    def _slice_coordinates(
        self, indices: Buffer, data: Buffer, step: Sequence[PrimExpr]
    ) -> tuple[PrimExpr, ...]:
        coordinates = (indices[(const(n), *step)] for n in range(self.index_depth))
        return tuple(
            normalize_negative_index(p, d) for p, d in zip(coordinates, data.shape, strict=False)
        )


def create_scatter_program(inputs: list[te.Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: the blocks of the copy and of the updates."""
    slices = kernel.anchor.op.attrs["slices"]
    assert isinstance(slices, SliceScatter)
    buffers, operands, (result,) = declare_extern_parameters(inputs, kernel.outputs)
    attrs = {"global_symbol": name, "num_outputs": len(kernel.outputs)}
    return PrimFunc((*buffers.values(),), slices.emit_scatter(operands, result), attrs)


def schedule_scatter(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a scatter: threads share the copy, vectors run along the columns."""
    schedule_copy(sch, sch.get_block(COPY_BLOCK), kernel.anchor.shape)
    slices, ahead = kernel.anchor.op.attrs["slices"], kernel.decision.int_value("prefetch_distance")
    assert isinstance(slices, SliceScatter)
    loops = sch.get_loops(UPDATE_BLOCK)
    columns = kernel.anchor.shape[slices.index_depth :]
    steps = loops[: len(loops) - len(columns)]
    if columns:  # whole rows go in: their elements do not meet
        sch.vectorize(loops[-1], SCATTER_VECTOR_LANES)
    if ahead and steps:
        block = sch.get(sch.get_block(UPDATE_BLOCK))
        assert isinstance(block, Block)
        number = [r.buffer for r in accessed_regions(block)].index(block_writes(block)[0])
        row = _row_to_prefetch(columns, kernel.anchor.dtype)
        sch.annotate(steps[-1], PREFETCH_ANNOTATION, [number, ahead, row])


def schedule_copy(sch: Schedule, copy: BlockRV, shape: Sequence[PrimExpr]) -> None:
    """Schedule a copy of a shape: vectors along the last axis, threads share as many of the others
    as give them enough steps.
    """
    *outer, last = sch.get_loops(copy)
    *extents, width = shape
    sch.vectorize(last, SCATTER_VECTOR_LANES)
    count, grain = parallel_axes(extents, estimated_product([width]))
    if count:
        rows = sch.fuse(*outer[:count]) if count > 1 else outer[0]
        sch.parallel(rows, grain)


def _row_to_prefetch(columns: Sequence[PrimExpr], dtype: str) -> int:
    """Return the elements of a row that are prefetched, in whole cache lines."""
    if not columns:
        return 1
    line, width = CACHE_LINE_BYTES // dt.itemsize(dtype), known_extent(columns[-1])
    lines = MAX_SCATTER_PREFETCH_LINES if width is None else -(-width // line)
    return min(lines, MAX_SCATTER_PREFETCH_LINES) * line


def _slice_elements(anchor: te.Tensor) -> int | None:
    """Return the number of elements of a slice."""
    slices = anchor.op.attrs["slices"]
    assert isinstance(slices, SliceScatter)
    sizes = [known_extent(d) for d in anchor.shape[slices.index_depth :]]
    return None if None in sizes else math.prod(s for s in sizes if s is not None)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a scatter of slices."""
    return (Knob("prefetch_distance", PREFETCH_DISTANCES, "prefetch distance of rows, in updates"),)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a scatter of slices."""
    return Decision.from_mapping(
        {"prefetch_distance": fixed.get("prefetch_distance", prefetch_distance(anchor, target))}
    )


def prefetch_distance(anchor: te.Tensor, target: Target) -> int:
    """Return the prefetch distance in updates, by the latency of the last cache; 0 where L2 holds
    all rows.
    """
    _, second, third = cache_levels(target)
    sizes = [known_extent(d) for d in anchor.shape]
    if None not in sizes:
        total = math.prod(s for s in sizes if s is not None) * dt.itemsize(anchor.dtype)
        if 2 * total <= second.size:
            return 0
    # a row is read and written, an update read from memory
    cycles = (
        3
        * (_slice_elements(anchor) or SCATTER_VECTOR_LANES)
        * dt.itemsize(anchor.dtype)
        / third.bandwidth
    )
    min_distance = PREFETCH_AHEAD_LATENCIES * third.latency / max(cycles, 1.0)
    return next((d for d in PREFETCH_DISTANCES[1:] if d >= min_distance), PREFETCH_DISTANCES[-1])


FAMILY = Family(
    name="scatter",
    create_initial_program=create_scatter_program,
    schedule_steps=schedule_scatter,
    search_space=search_space,
    default_decision=default_decision,
    prevents_fusion=True,
)

__all__ = [
    "SCATTER_REDUCTIONS",
    "CombineFn",
    "SliceScatter",
    "axes_of_shape",
    "axis_vars",
    "emit_copy",
]
