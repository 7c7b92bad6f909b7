"""Wide memory accesses of GPU threads: how many adjacent elements one access covers, and along
which axes.

Threads that run one after the other compute with vectors (`Lanes.of`). Threads that run together
read and write contiguous elements as one: they begin at a multiple of their number, and nothing
tells them apart, so that an expression over tensors reads contiguous elements, or the same,
whatever else its axes are. Where memory itself begins, a kernel tests (`codegen.wide_access`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import Analyzer, simplify
from ekiden.codegen.wide_access import MAX_ACCESS_BYTES
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const, maximum, minimum
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import Block, BufferStore, For, ForKind, IterKind, Stmt
from ekiden.tir.transform.loop_vectorization import Vectorizer
from ekiden.tir.visitor import pre_order_stmts, stmt_exprs

MAX_DEVICE_VECTOR_LANES = 16
"""Maximum lanes of the vector types of device languages."""


def unravel_index(index: PrimExpr, extents: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Return the coordinates of a flat index, the last axis fastest; 0 on axes of extent 1."""
    positions: list[PrimExpr] = [const(0)] * len(extents)
    long = [n for n, extent in enumerate(extents) if not is_const(extent, 1)]
    for n in reversed(long):
        # The number is in range, so that the first long axis needs no remainder.
        positions[n] = index % extents[n] if n != long[0] else index
        index = index // extents[n]
    return positions


@dataclass(frozen=True, slots=True)
class VectorAxes:
    """Axes of a computation that vectors run over: those from `first` on, `count` elements at a
    time.
    """

    first: int
    count: int

    @staticmethod
    def widest(block: Block, target: Target, min_axis: int = 0) -> VectorAxes | None:
        """Return the vector axes along which every access is contiguous, as many as possible.

        What a block adds to, it may not add to twice: then vectors fit the axes exactly.

        Args:
            block: The computation.
            target: The device.
            min_axis: The first axis that may be taken.

        Returns:
            None where there are no such axes, or the target's threads have no vectors.
        """
        if not computes_with_vectors(target):
            return None
        loads, stores = collect_accesses(block.body)
        limit = max_lanes(target, (buffer.dtype for buffer, _ in (*loads, *stores)))
        axes = [i for i in block.iter_vars if i.kind is IterKind.SPATIAL]
        step, adds = Var("step"), len(axes) < len(block.iter_vars)
        for first in range(min_axis, len(axes)):
            extents = [i.extent for i in axes[first:]]
            size = simplify(product_of_dims(extents))
            count = lanes_fitting(limit, size.value if isinstance(size, IntImm) else None)
            # The last vector overlaps the one before, which is harmless for stores but not for
            # sums.
            while adds and count > 1 and not is_const(simplify(size % count), 0):
                count //= 2
            position = unravel_index(step, extents)
            positions = {i.var: value for i, value in zip(axes[first:], position, strict=True)}
            is_near = are_contiguous(loads, positions, step) and are_contiguous(
                stores, positions, step, 1
            )
            if count > 1 and is_near:
                return VectorAxes(first, count)
        return None


def computes_with_vectors(target: Target) -> bool:
    """Return whether a target runs threads serially, each with vector instructions."""
    return target.thread_warp_size == 1 and target.lanes("float32") > 1


def max_lanes(target: Target, dtypes: Iterable[str]) -> int:
    """Return the maximum vector lanes for all of some dtypes."""
    widest = max((dt.itemsize(dtype) for dtype in dtypes), default=1)
    return min(target.vector_bits // (8 * widest), MAX_DEVICE_VECTOR_LANES)


def lanes_fitting(limit: int, size: int | None) -> int:
    """Return the lanes that divide a size; 1 where it is dynamic."""
    return next((n for n in (16, 8, 4, 2) if size is not None and n <= min(limit, size)), 1)


Access: TypeAlias = tuple[Buffer, tuple[PrimExpr, ...]]


def collect_loads(*exprs: PrimExpr) -> list[Access]:
    """Return the loads of expressions, with their shapes and indices."""
    return [(e.buffer, e.indices) for e in post_order(*exprs) if isinstance(e, BufferLoad)]


def collect_accesses(body: Stmt) -> tuple[list[Access], list[Access]]:
    """Return the loads and the stores of a statement."""
    loads: list[Access] = []
    stores: list[Access] = []
    for s in pre_order_stmts(body):
        loads += collect_loads(*stmt_exprs(s))
        if isinstance(s, BufferStore):
            stores.append((s.buffer, s.indices))
    return loads, stores


def are_contiguous(
    accesses: Iterable[Access], positions: Mapping[Var, PrimExpr], step: Var, limit: int = 2
) -> bool:
    """Return whether consecutive values of a variable access elements at most `limit` apart.

    Args:
        accesses: Buffers and indices.
        positions: The variables of the indices in terms of `step`.
        step: The variable.
        limit: The largest distance.
    """
    return all(
        isinstance(d, IntImm) and 0 <= d.value <= limit
        for d in (access_stride(b.shape, position, positions, step) for b, position in accesses)
    )


def access_stride(
    shape: Sequence[PrimExpr],
    indices: Sequence[PrimExpr],
    positions: Mapping[Var, PrimExpr],
    step: Var,
) -> PrimExpr:
    """Return the stride in elements of an access along a variable."""
    flat: PrimExpr = const(0)
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    address = simplify(substitute(flat, dict(positions)))
    return simplify(substitute(address, {step: step + 1}) - address)


def tile_start(tile: PrimExpr, width: int, extent: PrimExpr) -> PrimExpr:
    """Return the first element of a tile; the last tile is shifted back to end with its axis."""
    size = extent.value if isinstance(extent, IntImm) else None
    if size is not None and size % width == 0:
        return tile * width
    last = extent - width if size is not None and size >= width else maximum(extent - width, 0)
    return minimum(tile * width, simplify(last))


WIDE_ACCESS_FEATURE = "near_memory"
ACCESS_WIDTHS = (16, 8, 4, 2)
IndexedAccess: TypeAlias = tuple[Sequence[PrimExpr], Sequence[PrimExpr]]
"""Shape and indices of an access."""


def max_access_width(target: Target, *dtypes: str) -> int:
    """Return the maximum number of adjacent elements that a target's threads access at once, for
    all of some dtypes.
    """
    has_none = not target.has(WIDE_ACCESS_FEATURE) or any(
        dt.is_byte_stored(d) or d == "bool" for d in dtypes
    )
    return 1 if has_none else max(1, MAX_ACCESS_BYTES // max(map(dt.itemsize, dtypes)))


def tensor_reads(value: PrimExpr) -> list[ProducerLoad]:
    """Return the tensor reads of an expression."""
    return [e for e in post_order(value) if isinstance(e, ProducerLoad)]


def read_width(
    value: PrimExpr, axes: Sequence[Var], extents: Sequence[PrimExpr], limit: int
) -> int:
    """Return the width of one access that all tensor reads of an expression allow.

    Args:
        value: The expression.
        axes: The axes that are counted through.
        extents: Their extents.
        limit: The upper limit of the lanes.

    Returns:
        The lanes; 1 where no read is one access, or where a condition differs between lanes.
    """
    reads = tensor_reads(value)
    widths = [
        MAX_ACCESS_BYTES // dt.itemsize(e.dtype) for e in reads if not dt.is_byte_stored(e.dtype)
    ]
    if len(widths) < len(reads):
        return 1
    accesses = [(e.producer.shape, e.indices) for e in reads]
    return access_width(accesses, axes, extents, min([limit, *widths]), _guard_conditions(value))


def wide_access_axes(block: Block, target: Target, threads: int) -> VectorAxes | None:
    """Return the trailing axes of a computation along which one access covers adjacent elements.

    Returns:
        None where there are none, where threads of the target do not run together, or where there
        are fewer such accesses than the target's units have threads.
    """
    body, axes = block.body, list(block.iter_vars)
    is_plain = all(i.kind is IterKind.SPATIAL for i in axes) and isinstance(body, BufferStore)
    if target.thread_warp_size == 1 or not is_plain:
        return None
    assert isinstance(body, BufferStore)
    nodes = post_order(body.value)
    if any(isinstance(e, Intrinsic) and find_intrinsic(e.op).has_effects for e in nodes):
        return None
    loads, stores = collect_accesses(body)
    accesses = [(buffer.shape, position) for buffer, position in (*loads, *stores)]
    limit = max_access_width(target, *(buffer.dtype for buffer, _ in (*loads, *stores)))
    total = simplify(product_of_dims([i.extent for i in axes])) if axes else const(1)
    conditions = _guard_conditions(body.value)
    for first in range(len(axes)) if limit > 1 else ():
        extents = [i.extent for i in axes[first:]]
        lanes = access_width(accesses, [i.var for i in axes[first:]], extents, limit, conditions)
        # Fewer, wider accesses do not pay where they leave units without threads.
        if isinstance(total, IntImm) and total.value < lanes * threads * target.cores:
            return None
        if lanes > 1:
            return VectorAxes(first, lanes)
    return None


def _guard_conditions(value: PrimExpr) -> list[PrimExpr]:
    """Return the conditions that guard subexpressions."""
    intrinsics = [e for e in post_order(value) if isinstance(e, Intrinsic)]
    return [e.args[0] for e in intrinsics if e.op == "if_then_else"]


def access_width(
    accesses: Iterable[IndexedAccess],
    axes: Sequence[Var],
    extents: Sequence[PrimExpr],
    limit: int,
    conditions: Sequence[PrimExpr] = (),
) -> int:
    """Return the width of one access that all accesses and guards allow.

    Args:
        accesses: Shapes and indices.
        axes: The axes that are counted through.
        extents: Their extents.
        limit: The upper limit of the lanes.
        conditions: Expressions that must be the same for all lanes.
    """
    size = simplify(product_of_dims(extents)) if extents else const(1)
    first, lane = Var("first"), Var("lane")
    for lanes in ACCESS_WIDTHS:
        # No vector may cross the end of the axes.
        if lanes > limit or not is_const(simplify(size % lanes), 0):
            continue
        indices = dict(zip(axes, unravel_index(first * lanes + lane, extents), strict=True))
        # A condition that depends on the lane would guard part of a vector.
        is_same = all(lane not in free_vars(simplify(substitute(c, indices))) for c in conditions)
        if is_same and all(_is_contiguous(access, indices, lane, lanes) for access in accesses):
            return lanes
    return 1


def _is_contiguous(
    access: IndexedAccess, at: Mapping[Var, PrimExpr], lane: Var, lanes: int
) -> bool:
    flat: PrimExpr = const(0)
    for index, extent in zip(access[1], access[0], strict=True):
        flat = flat * extent + index
    analyzer = Analyzer()
    analyzer.bind(lane, 0, lanes)
    address = analyzer.simplify(substitute(flat, dict(at)))
    if lane not in free_vars(address):
        return True
    index = Vectorizer(lane, const(0), lanes).rewrite_expr(address)
    if not isinstance(index, Ramp) or not is_const(simplify(index.stride), 1):
        return False
    # An aligned vector access needs the first index to be a multiple of the lanes.
    alignment = Analyzer().modular_set(index.base)
    return bool(alignment.coeff % lanes == alignment.base % lanes == 0)


def vector_loop(lane: Var, count: int, body: Stmt) -> Stmt:
    """Return a vectorised loop over the first `count` values of a lane variable."""
    return For(lane, const(0), const(count), ForKind.VECTORIZED, body, {"lanes": count})
