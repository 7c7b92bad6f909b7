"""Inline all stages of a kind that are neither outputs nor scheduled already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ekiden.ir.prim import PrimExpr, Var
from ekiden.te.inline import tensor_loads
from ekiden.te.schedule.schedule import Schedule
from ekiden.te.schedule.stage import Attach, Stage
from ekiden.te.tensor import ComputeOp, ExternOp


def _inline_matching(schedule: Schedule, is_wanted: Callable[[ComputeOp], bool]) -> None:
    written = [s.op for s in schedule.stages if isinstance(s.op, ExternOp)]
    needed = {t.op for op in written for t in op.input_tensors}  # statements read memory
    for stage in schedule.stages:
        op = stage.op
        is_free = op not in needed and _is_unscheduled(stage)
        if isinstance(op, ComputeOp) and is_free and is_wanted(op):
            stage.compute_inline()


def _is_unscheduled(stage: Stage) -> bool:
    """Return whether a stage may be inlined and has no other schedule."""
    is_scheduled = stage.steps or stage.iter_var_attrs or stage.scope or stage.layouts
    is_own = not stage.is_output and stage.enclosing_scan is None
    return is_own and stage.attach_type is Attach.ROOT and not is_scheduled


def _read_indices(op: ComputeOp) -> list[Sequence[PrimExpr]]:
    return [load.indices for load in tensor_loads(op)]


def auto_inline_injective(schedule: Schedule) -> None:
    """Inline every computation that is no reduction."""
    _inline_matching(schedule, lambda op: not op.reduce_axis)


def auto_inline_elementwise(schedule: Schedule) -> None:
    """Inline computations that read every tensor at the element they compute."""

    def is_elementwise(op: ComputeOp) -> bool:
        """Return whether a computation reads at its own axes alone."""
        axes = [a.var for a in op.axis]
        return not op.reduce_axis and all(list(position) == axes for position in _read_indices(op))

    _inline_matching(schedule, is_elementwise)


def auto_inline_broadcast(schedule: Schedule) -> None:
    """Inline computations that read every tensor at some of their own axes, in order."""

    def is_broadcast(op: ComputeOp) -> bool:
        """Return whether a computation reads at its own axes, in order, some left out."""
        return not op.reduce_axis and all(
            _are_axes_in_order(op, position) for position in _read_indices(op)
        )

    _inline_matching(schedule, is_broadcast)


def _are_axes_in_order(op: ComputeOp, indices: Sequence[PrimExpr]) -> bool:
    axis_position = {a.var: n for n, a in enumerate(op.axis)}
    positions = [axis_position.get(i, -1) if isinstance(i, Var) else -1 for i in indices]
    return -1 not in positions and all(a < b for a, b in pairwise(positions))
