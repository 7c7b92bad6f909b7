"""Running sums and products on devices whose threads have warps: a block of threads for each row.

y[0] = x[0]                  for steps of the block: x = each thread one element
y[k] = y[k - 1] + x[k]   ->      x = sum over the threads before and its own (`block_reduction`)
                                 y = what was carried + x;  carried = carried + the sum of all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, logical_and
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.block_reduction import Team
from ekiden.kernels.gpu.launch import MIN_ROW_THREADS, bound, serial, threads_of_row
from ekiden.kernels.gpu.vector_access import coordinates
from ekiden.kernels.prim_builder import product
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import BufferMap, allocated
from ekiden.te.tensor import ExternOp, Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, IfThenElse, Stmt, seq

ATTRIBUTE = "scan"


@dataclass(frozen=True, slots=True)
class Scan:
    """What is fixed about a scan: how two values are combined, the value that changes nothing, the
    axis, and whether elements are left out of their own results."""

    combine: Callable[[PrimExpr, PrimExpr], PrimExpr]
    start: PrimExpr
    axis: int
    exclusive: bool


def scan_stage(
    op: ExternOp, group: Sequence[Tensor], buffers: BufferMap, target: Target
) -> Stmt | None:
    """Return the launch of a scan; None for other statements, short rows, and threads without
    warps.
    """
    scan = op.attrs.get(ATTRIBUTE)
    if not isinstance(scan, Scan):
        return None
    source, out = buffers.buffers[op.inputs[0]], buffers.buffers[group[0]]
    length = size_of(out.shape[scan.axis])
    team = Team.of(Var("thread"), threads_of_row(length, target), target)
    if not team.has_warps or (length is not None and length < MIN_ROW_THREADS):
        return None
    return _rows(scan, source, out, team)


def _rows(scan: Scan, source: Buffer, out: Buffer, team: Team) -> Stmt:
    extent, zero = out.shape[scan.axis], (const(0),)
    outer_extents = [d for n, d in enumerate(out.shape) if n != scan.axis]
    block, iteration = Var("block"), Var("turn")
    at, number = coordinates(block, outer_extents), iteration * team.threads + team.thread

    def index_at(index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*at[: scan.axis], index, *at[scan.axis :])

    own, carried = (Buffer(n, (const(1),), out.dtype, "local") for n in ("own", "carried"))
    inside = number < extent
    # An exclusive scan is the inclusive one of elements shifted by one.
    first = logical_and(number > 0, inside) if scan.exclusive else inside
    element = cast(source[index_at(number - 1 if scan.exclusive else number)], out.dtype)
    block_scan = team.scan(own, scan.combine)
    total, begins = (
        block_scan.values[0],
        iteration.equal(0),
    )  # no value need be one that changes nothing
    body = seq(
        BufferStore(own, if_then_else(first, element, scan.start), zero),
        block_scan.body,
        IfThenElse(iteration > 0, BufferStore(own, scan.combine(carried[0], own[0]), zero)),
        IfThenElse(inside, BufferStore(out, own[0], index_at(number))),
        BufferStore(carried, Select(begins, total, scan.combine(carried[0], total)), zero),
    )
    num_iterations = simplify((extent + (team.threads - 1)) // team.threads)
    begin = BufferStore(carried, scan.start, zero)
    loops = allocated(
        seq(begin, serial(iteration, num_iterations, body)), [own, carried, *block_scan.local]
    )
    threads = bound(team.thread, team.threads, "threadIdx.x", loops)
    rows = simplify(product(outer_extents)) if outer_extents else const(1)
    return bound(block, rows, "blockIdx.x", allocated(threads, block_scan.shared))


__all__ = ["ATTRIBUTE", "Scan", "scan_stage"]
