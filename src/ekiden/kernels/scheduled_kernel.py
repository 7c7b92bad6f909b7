"""Kernels as schedules: an initial program and the schedule primitives that turn it into loops.

    family.schedule_steps(sch, kernel)   apply primitives of `tir.Schedule` by the decision: split,
                                         reorder, ..., tensorize into a micro-kernel
    ScheduledKernel                      initial program, trace of the steps, resulting program

The initial program is one block per computation that is not inlined. The trace records every
decision: `Trace.apply_to_schedule(tir.Schedule(initial_program))` rebuilds the function, and other
numbers in it give another function of the same meaning, or a ScheduleError. The schedule proves
every step valid; families do not emit statements.

The tests of families make these proofs, over shapes, dtypes, decisions and targets; a compilation
repeats the steps of its own decisions without them (`tir.Schedule(proofs="trusted")`). Decisions
of users and of tuning are proved in each compilation, and all are under
EKIDEN_SCHEDULE_PROOFS=checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.decision import Decision
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

if TYPE_CHECKING:
    from ekiden.kernels import stages
    from ekiden.tir.schedule import schedule
    from ekiden.tir.schedule.schedule import Schedule
    from ekiden.tir.schedule.trace import BlockRV, LoopRV, Trace
else:
    stages = LazyModule("ekiden.kernels.stages")
    schedule = LazyModule("ekiden.tir.schedule.schedule")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Kernel to schedule: its outputs, anchor, target and decision.

    proofs: Whether the steps are "checked" or "trusted", as `tir.Schedule` has it.
    """

    outputs: Sequence[te.Tensor]
    anchor: te.Tensor
    target: Target
    decision: Decision
    proofs: str = "checked"


ScheduleSteps: TypeAlias = "Callable[[Schedule, KernelSpec], None]"
"""Schedule function (schedule of the initial program, kernel) that applies the primitives."""


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """Loops of a kernel with their provenance: the initial program and the trace, or the reason for
    having none.
    """

    func: PrimFunc
    initial_program: PrimFunc | None = None
    trace: Trace | None = None
    unscheduled_reason: str = ""


def create_inlined_program(
    inputs: list[te.Tensor], outputs: list[te.Tensor], name: str
) -> PrimFunc:
    """Create the initial program of a group, with elementwise computations inlined."""
    stages = te.inline_injective(outputs)
    return te.create_prim_func([*inputs, *stages], name, extern_blocks=True)


def result_description(params: Sequence[te.Tensor | Var], result_tensor: te.Tensor) -> PrimFunc:
    """Return the description of a micro-kernel: the program of one result, with its inner sums
    computed where its own sum reads them.
    """
    sch = schedule.Schedule(te.create_prim_func([*params, result_tensor]))
    *inner, result = (b.op.name for b in stages.stages_of([result_tensor]))
    for block in reversed(inner):
        sch.compute_at(block, sch.get_loops(result)[-1])
    return sch.func


def replace_computation(
    outputs: Sequence[te.Tensor], old: te.Tensor, new: te.Tensor
) -> list[te.Tensor]:
    """Return outputs in which `new` replaces the computation `old`."""

    def redirect_load(e: PrimExpr) -> PrimExpr:
        """Redirect a read of the old computation to the new one."""
        if isinstance(e, te.ProducerLoad) and e.producer is old:
            return new[e.indices]
        return e

    results: list[te.Tensor] = []
    for output in te.inline_injective(outputs):
        op = output.op
        if output is old or not isinstance(op, te.ComputeOp):
            results.append(new if output is old else output)
            continue
        body = tuple(rewrite(b, redirect_load) for b in op.body)
        results.append(output.with_fields(op=op.with_fields(body=body)))
    return results


def row_loop(sch: Schedule, block: BlockRV, leading: Sequence[LoopRV]) -> LoopRV:
    """Return the loop over rows; a unit loop where the data has no row axis."""
    return leading[0] if leading else sch.add_unit_loop(sch.get_loops(block)[0])


def try_primitive(sch: Schedule, step: Callable[..., None], *arguments: object) -> bool:
    """Apply an optional schedule primitive; skip it if the schedule cannot prove it valid.

    Shapes whose sizes are expressions may not be provable. Return whether it was done.
    """
    try:
        with sch.checking():
            step(*arguments)
    except ScheduleError:
        return False
    return True


def apply_schedule_steps(
    start: PrimFunc, steps: ScheduleSteps, kernel: KernelSpec
) -> ScheduledKernel:
    """Apply schedule steps to a program; return the scheduled kernel. Raises ScheduleError for a
    step that is refused.
    """
    sch = schedule.Schedule(start, proofs=kernel.proofs)
    steps(sch, kernel)
    return ScheduledKernel(sch.func, start, sch.trace)


__all__ = [
    "KernelSpec",
    "ScheduleSteps",
    "ScheduledKernel",
    "apply_schedule_steps",
    "create_inlined_program",
    "replace_computation",
    "result_description",
    "row_loop",
    "try_primitive",
]
