"""Scans on GPUs with warps: one block per row.

y[0] = x[0]                  for steps of the block: x = each thread one element
y[k] = y[k - 1] + x[k]   ->      x = sum over the threads before and its own (`block_reduction`)
                                 y = what was carried + x;  carried = carried + the sum of all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, logical_and
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.block_reduction import ThreadGroup
from ekiden.kernels.gpu.launch import MIN_ROW_THREADS, serial_loop, thread_loop, threads_per_row
from ekiden.kernels.gpu.vector_access import unravel_index
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import TensorBufferMap, wrap_in_allocations
from ekiden.te.tensor import ExternOp, Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, IfThenElse, Stmt, seq

SCAN_ATTR_KEY = "scan"


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Static parameters of a scan: the binary operation, its identity, the axis, and whether it is
    exclusive.
    """

    combine: Callable[[PrimExpr, PrimExpr], PrimExpr]
    identity: PrimExpr
    axis: int
    exclusive: bool


def emit_scan_launch(
    op: ExternOp, group: Sequence[Tensor], buffers: TensorBufferMap, target: Target
) -> Stmt | None:
    """Emit the launch of a scan; None for other operations, short rows, and targets without
    warps.
    """
    scan = op.attrs.get(SCAN_ATTR_KEY)
    if not isinstance(scan, ScanSpec):
        return None
    source, out = buffers.buffers[op.inputs[0]], buffers.buffers[group[0]]
    length = known_extent(out.shape[scan.axis])
    thread_group = ThreadGroup.create(Var("thread"), threads_per_row(length, target), target)
    if not thread_group.has_warps or (length is not None and length < MIN_ROW_THREADS):
        return None
    return _emit_rows(scan, source, out, thread_group)


def _emit_rows(scan: ScanSpec, source: Buffer, out: Buffer, thread_group: ThreadGroup) -> Stmt:
    extent, zero = out.shape[scan.axis], (const(0),)
    outer_extents = [d for n, d in enumerate(out.shape) if n != scan.axis]
    block, iteration = Var("block"), Var("turn")
    position, number = (
        unravel_index(block, outer_extents),
        iteration * thread_group.threads + thread_group.thread,
    )

    def full_index(index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*position[: scan.axis], index, *position[scan.axis :])

    own, carried = (Buffer(n, (const(1),), out.dtype, "local") for n in ("own", "carried"))
    inside = number < extent
    # An exclusive scan is the inclusive one of elements shifted by one.
    first = logical_and(number > 0, inside) if scan.exclusive else inside
    element = cast(source[full_index(number - 1 if scan.exclusive else number)], out.dtype)
    block_scan = thread_group.emit_scan(own, scan.combine)
    total, begins = (
        block_scan.results[0],
        iteration.equal(0),
    )  # no value need be one that changes nothing
    # `carried` changes last: elements of this round take the totals of earlier rounds only.
    body = seq(
        BufferStore(own, if_then_else(first, element, scan.identity), zero),
        block_scan.body,
        IfThenElse(iteration > 0, BufferStore(own, scan.combine(carried[0], own[0]), zero)),
        IfThenElse(inside, BufferStore(out, own[0], full_index(number))),
        BufferStore(carried, Select(begins, total, scan.combine(carried[0], total)), zero),
    )
    num_iterations = simplify((extent + (thread_group.threads - 1)) // thread_group.threads)
    begin = BufferStore(carried, scan.identity, zero)
    loops = wrap_in_allocations(
        seq(begin, serial_loop(iteration, num_iterations, body)), [own, carried, *block_scan.local]
    )
    threads = thread_loop(thread_group.thread, thread_group.threads, "threadIdx.x", loops)
    rows = simplify(product_of_dims(outer_extents)) if outer_extents else const(1)
    return thread_loop(block, rows, "blockIdx.x", wrap_in_allocations(threads, block_scan.shared))


__all__ = ["SCAN_ATTR_KEY", "ScanSpec", "emit_scan_launch"]
