"""Plain schedules of tensor expressions under the names of TVM's `topi.generic`.

    with Target("cuda"):
        schedule = topi.generic.schedule_injective(result)

A stage whose rows are independent is spread over threads: of a processor by `parallel`, of a GPU by
blocks and threads. Ekiden's own kernels come from `ekiden.compile`, which knows better ones; these
are for programs that make kernels of tensor expressions by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from ekiden import te, topi
from ekiden.target import Target
from ekiden.te.schedule import Schedule, Stage
from ekiden.te.tensor import ComputeOp, Tensor

SCHEDULE_THREADS_PER_BLOCK = 256
"""Threads per block."""

Outs = Tensor | Sequence[Tensor]
SCHEDULE_NAMES = (
    "schedule_injective", "schedule_elemwise", "schedule_broadcast", "schedule_extern",
    "schedule_reduce", "schedule_softmax", "schedule_pool", "schedule_adaptive_pool",
    "schedule_dense", "schedule_batch_matmul", "schedule_conv2d_nchw", "schedule_conv2d_nhwc",
    "schedule_depthwise_conv2d_nchw", "schedule_lrn", "schedule_concatenate",
)  # fmt: skip
"""Names of TVM's schedules, all of which are the same parallel schedule."""


def schedule_parallel(outs: Outs, on_gpu: bool) -> Schedule:
    """Return a schedule that inlines elementwise stages and distributes the elements of each other
    stage over threads.
    """
    outputs = [outs] if isinstance(outs, Tensor) else list(outs)
    schedule: Schedule = te.create_schedule([output.op for output in outputs])
    results = {result.op for result in outputs}
    for stage in schedule.stages:
        if not isinstance(stage.op, ComputeOp):
            continue
        if stage.op not in results and not stage.op.reduce_axis:
            stage.compute_inline()
        elif stage.op.axis:
            _parallelize_stage(stage, on_gpu)
    return schedule


def _parallelize_stage(stage: Stage, on_gpu: bool) -> None:
    op = stage.op
    assert isinstance(op, ComputeOp)
    axes = list(op.axis)
    if not on_gpu:
        stage.parallel(axes[0])
        return
    fused = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    block, thread = stage.split(fused, factor=SCHEDULE_THREADS_PER_BLOCK)
    stage.bind(block, te.thread_axis("blockIdx.x"))
    stage.bind(thread, te.thread_axis("threadIdx.x"))


def schedule_getattr(on_gpu: bool | None) -> Callable[[str], object]:
    """Return the `__getattr__` of a module of schedules; `on_gpu` None means the current target.
    Operators that TVM has there are those of `topi` and `topi.nn`.
    """

    def find_attribute(name: str) -> object:
        """Return a schedule, or an operator. Raises AttributeError for other names."""
        if name in SCHEDULE_NAMES:
            return lambda outs: schedule_parallel(
                outs, _is_gpu_target() if on_gpu is None else on_gpu
            )
        namespaces: tuple[ModuleType, ...] = (topi, topi.nn, topi.image, topi.vision)
        for namespace in () if name.startswith("_") else namespaces:
            if name in namespace.__all__:
                value: object = getattr(namespace, name)
                return value
        raise AttributeError(
            f"topi has no {name!r} for a target: kernels of operators are scheduled when "
            "ekiden.compile builds them; here are the schedules " + ", ".join(SCHEDULE_NAMES)
        )

    return find_attribute


def _is_gpu_target() -> bool:
    target = Target.current()
    return target is not None and str(target.kind) not in ("llvm", "c")
