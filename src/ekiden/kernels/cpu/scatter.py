"""Scatter of slices: rows of updates combined with data-dependent rows of the result, in order.

    out = data;  for e:  out[index[e]] = combine(out[index[e]], updates[e])

The first step falls away where the result lies in the memory of the data: nobody else has it then.

Rows may meet, so one thread has all updates: two that share the columns take as long together, as
each reads lines of every row (Zen 4, 100,000 rows of 64: 1.7 ms, in halves 3.8). Where the next
rows lie is known long before they are needed, and no processor guesses it: they are brought near
`ahead` updates before (2.2 to 1.7 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    IntImm,
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
    parallel_outer_loops,
    serial_loops,
    vectorized_loop,
)
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.prim_builder import declare_extern_parameters
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.range_checks import normalize_negative_index
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, IfThenElse, Prefetch, PrimFunc, Stmt, seq

CombineFn = Callable[[PrimExpr, PrimExpr], PrimExpr]
SCATTER_VECTOR_LANES = 16
"""Vector lanes of the row copies."""
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
    # The result may have the input's bytes (updated_input): only the run-time addresses tell.
    is_there = Intrinsic("same_memory", (source.access_ptr("r"), target.access_ptr("r")), "bool")
    return IfThenElse(Not(is_there), copy)


@dataclass(frozen=True, slots=True)
class SliceScatter:
    """Slice scatter: `index_depth` coordinates along the first axis of the indices select an
    update's slice, `mode` the reduction.
    """

    index_depth: int
    mode: str

    def emit_scatter(self, inputs: Sequence[Buffer], result: Buffer, ahead: int = 0) -> Stmt:
        """Emit the scatter, updates in order.

        Args:
            inputs: Data, indices and updates.
            result: Where the updated data goes.
            ahead: Updates by which rows are prefetched; 0 for no prefetches.
        """
        data, indices, updates = inputs
        rank = len(indices.shape) - 1
        axes = axes_of_shape(updates.shape)
        lead, columns = axes[:rank], axes[rank:]
        target_index = (
            *self._slice_coordinates(indices, data, axis_vars(lead)),
            *axis_vars(columns),
        )
        value = SCATTER_REDUCTIONS[self.mode](result[target_index], updates[axis_vars(axes)])
        store: Stmt = BufferStore(result, value, target_index)
        if columns:  # whole rows go in: their elements do not meet
            store = serial_loops(
                columns[:-1], vectorized_loop(columns[-1], SCATTER_VECTOR_LANES, store)
            )
        if ahead and lead:
            store = seq(*self._emit_prefetches(indices, data, result, lead, columns, ahead), store)
        # Updates run serially: several may go to one row, and their order matters.
        return seq(emit_copy(data, result), serial_loops(lead, store))

    def _slice_coordinates(
        self, indices: Buffer, data: Buffer, lead: Sequence[PrimExpr]
    ) -> tuple[PrimExpr, ...]:
        coordinates = (indices[(const(n), *lead)] for n in range(self.index_depth))
        return tuple(
            normalize_negative_index(p, d) for p, d in zip(coordinates, data.shape, strict=False)
        )

    def _emit_prefetches(
        self,
        indices: Buffer,
        data: Buffer,
        result: Buffer,
        lead: Sequence[LoopAxis],
        columns: Sequence[LoopAxis],
        ahead: int,
    ) -> list[Stmt]:
        """Emit prefetches of the result row that an update `ahead` iterations later modifies."""
        last = lead[-1]
        # Clamped, so that no coordinate behind the last update is read.
        later = minimum(last.var + ahead, last.extent - 1)
        later_index = self._slice_coordinates(indices, data, (*axis_vars(lead[:-1]), later))
        if not columns:
            return [Prefetch(result, later_index, 3)]
        elements = CACHE_LINE_BYTES // dt.itemsize(result.dtype)
        width = columns[-1].extent
        lines = (
            MAX_SCATTER_PREFETCH_LINES
            if not isinstance(width, IntImm)
            else -(-width.value // elements)
        )
        start = (const(0),) * (len(columns) - 1)
        return [
            Prefetch(result, (*later_index, *start, const(n * elements)), 3)
            for n in range(min(lines, MAX_SCATTER_PREFETCH_LINES))
        ]


def _slice_elements(anchor: te.Tensor) -> int | None:
    """Return the number of elements of a slice."""
    slices = anchor.op.attrs["slices"]
    assert isinstance(slices, SliceScatter)
    sizes = [known_extent(d) for d in anchor.shape[slices.index_depth :]]
    return None if None in sizes else math.prod(s for s in sizes if s is not None)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a scatter of slices."""
    return (Knob("ahead", PREFETCH_DISTANCES, "updates by which rows are brought near"),)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a scatter of slices."""
    return Decision.from_mapping({"ahead": fixed.get("ahead", prefetch_distance(anchor, target))})


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


def build_scatter(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "scatter"."""
    slices = outputs[0].op.attrs["slices"]
    assert isinstance(slices, SliceScatter)
    buffers, operands, (result,) = declare_extern_parameters(inputs, outputs)
    body = slices.emit_scatter(operands, result, decision.int_value("ahead"))
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc((*buffers.values(),), body, attrs)


FAMILY = Family(
    name="scatter",
    build_unscheduled=build_scatter,
    unscheduled_reason=(
        "several updates may write one row, in order; blocks of a schedule have no order"
    ),
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
    "build_scatter",
    "emit_copy",
]
