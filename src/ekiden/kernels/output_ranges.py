"""Kernels that also return the maximum, the minimum or both of what they store.

    out0[i, j] = max(conv[i, j] + bias[j], 0);  out1[()] = max over i, j of out0[i, j]

Ranges of dynamically quantised data (DynamicQuantizeLinear) are found so, without a pass over the
data. The kernel of the first output is built as if it were alone; a reduction of what it stores
follows. Where each element is stored once it is marked, and lowering does it in registers
(`ekiden.tir.transform.reduction_fusion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.kernels.decision import Decision
from ekiden.kernels.families import FAMILIES
from ekiden.kernels.family import RANGE_EPILOGUE, Family
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.scheduled_kernel import ScheduledKernel
from ekiden.target import Target
from ekiden.te.reducer import Reduce
from ekiden.te.stmt_renaming import replace_buffers
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc, Stmt, seq
from ekiden.tir.transform.reduction_fusion import emit_reduction_of_stores

RANGE_KINDS = ("max", "min")


def split_ranges(
    outputs: Sequence[te.Tensor], target: Target
) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Return the outputs, without those behind the first that are ranges of it, and these."""
    first, *others = outputs
    is_ranged = (
        others
        and not target.kind.has_threads
        and not isinstance(first.op, te.PlaceholderOp)
        and all(_range_kind(t, first) for t in others)
    )
    return ([first], others) if is_ranged else (list(outputs), [])


def _range_kind(tensor: te.Tensor, data: te.Tensor) -> str:
    """Return "max" or "min" for that of all elements of the data, "" for other tensors."""
    op = tensor.op
    if tensor.shape or not isinstance(op, te.ComputeOp) or not dt.is_float(tensor.dtype):
        return ""
    body = op.body[tensor.value_index]
    if not isinstance(body, Reduce) or body.kind not in RANGE_KINDS:
        return ""
    source = body.source
    if not isinstance(source, te.ProducerLoad) or source.producer is not data:
        return ""
    return body.kind if tuple(source.indices) == body.axis else ""


def append_ranges(
    kernel: ScheduledKernel,
    stored: te.Tensor,
    ranges: Sequence[te.Tensor],
    target: Target,
    family: Family,
    decision: Decision,
) -> ScheduledKernel:
    """Return a kernel with ranges of its output as further outputs.

    Args:
        kernel: The kernel of the output alone.
        stored: The output.
        ranges: Its maximum, its minimum or both.
        target: The processor.
        family: The family of the kernel.
        decision: The kernel's decision.
    """
    func = kernel.func
    source = func.buffers[-1]
    targets = [Buffer(t.name, t.shape, t.dtype) for t in ranges]
    in_registers = RANGE_EPILOGUE in family.special_epilogues and not family.stores_partial_sums(
        decision
    )
    attrs = {**(func.attrs or {}), "num_outputs": 1 + len(ranges)}
    reductions: list[Stmt] = []
    for tensor, buffer in zip(ranges, targets, strict=True):
        if in_registers:
            kind, size = _range_kind(tensor, stored), product_of_dims(stored.shape)
            reductions += emit_reduction_of_stores(source, buffer, size, kind)
            continue
        alone = _standalone_reduction(tensor, stored, target)
        attrs["tir.has_blocks"] = 1
        reductions.append(
            replace_buffers(alone.body, dict(zip(alone.buffers, (source, buffer), strict=True)))
        )
    body = seq(func.body, *reductions)
    func = func.with_fields(params=(*func.params, *targets), body=body, attrs=attrs)
    return replace(kernel, func=func)


def _standalone_reduction(tensor: te.Tensor, stored: te.Tensor, target: Target) -> PrimFunc:
    """Return a standalone kernel that reduces a tensor in memory to its range."""
    data = te.placeholder(stored.shape, stored.dtype, "data")
    op = tensor.op
    assert isinstance(op, te.ComputeOp)
    body = op.body[tensor.value_index]
    assert isinstance(body, Reduce)
    moved = body.with_fields(sources=(data[body.axis],))
    alone = tensor.with_fields(op=op.with_fields(body=(moved,)))
    build = FAMILIES["default"].build_unscheduled
    assert build is not None
    return build([data], [alone], target, "range", Decision())


__all__ = ["append_ranges", "split_ranges"]
