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
SCHEDULE_NAMES = tuple(
    f"schedule_{name}"
    for name in """
    injective elemwise broadcast extern reduce softmax fast_softmax pool pool_grad adaptive_pool
    dense matmul batch_matmul einsum lrn batch_norm concatenate transpose reorg scan lstm
    conv1d_ncw conv1d_nwc conv1d_transpose_ncw group_conv1d_ncw group_conv1d_nwc
    conv2d_nchw conv2d_nhwc conv2d_hwcn conv2d_NCHWc conv2d_transpose_nchw correlation_nchw
    group_conv2d_nchw group_conv2d_nhwc group_conv2d_transpose_nchw deformable_conv2d_nchw
    deformable_conv2d_nhwc depthwise_conv2d_nchw depthwise_conv2d_nhwc depthwise_conv2d_NCHWc
    conv3d_ncdhw conv3d_ndhwc conv3d_transpose_ncdhw dilation2d_nchw dilation2d_nhwc
    binarize_pack binary_dense bitpack bitserial_conv2d_nchw bitserial_conv2d_nhwc
    bitserial_dense sparse_dense sparse_transpose
    roi_align roi_pool sort argsort topk argwhere unique
""".split()
)
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
        elif on_gpu and stage.op.reduce_axis:
            _split_reduction(stage)
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


def _split_reduction(stage: Stage) -> None:
    """Spread the reduction of a stage without axes over the threads of one block."""
    op = stage.op
    assert isinstance(op, ComputeOp)
    axes = list(op.reduce_axis)
    fused = stage.fuse(*axes) if len(axes) > 1 else axes[0]
    _, thread = stage.split(fused, factor=SCHEDULE_THREADS_PER_BLOCK)
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
