"""Tree reductions among threads of a block, through shared memory or warp shuffles.

    parts[t] = x                                            barrier
    if t < 3: parts[t] = combine(parts[t], parts[t + 4])    barrier     # of 7
    if t < 2: parts[t] = combine(parts[t], parts[t + 2])    barrier
    if t < 1: parts[t] = combine(parts[t], parts[t + 1])    barrier

Any number of threads: an odd one out waits for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.intrinsic import FULL_WARP_MASK, WARP_SIZE, call_intrin
from ekiden.ir.prim import PrimExpr, const
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import IfThenElse, Stmt
from ekiden.tir.transform.thread_sync import STORAGE_SYNC

WARP_SHUFFLES_FEATURE = "warp_shuffles"
"""Target feature: threads of a warp exchange registers."""

Combine = Callable[[Sequence[PrimExpr], Sequence[PrimExpr]], Stmt]
"""Function (tuple, tuple) -> statement that stores their combination."""


def element_loads(buffers: Sequence[Buffer], index: PrimExpr | None = None) -> list[PrimExpr]:
    """Return loads of one element of each buffer: at an index, or the first."""
    position = const(0) if index is None else index
    return [BufferLoad(b, (position,), b.dtype) for b in buffers]


def emit_tree_reduction(
    shared_buffers: Sequence[Buffer],
    first: PrimExpr,
    thread: PrimExpr,
    count: int,
    combine: Combine,
) -> list[Stmt]:
    """Emit the tree reduction of `count` consecutive values in shared memory, with a barrier before
    each step and none behind the last.

    Args:
        shared_buffers: shared memory, a buffer per tuple component.
        first: index of the first value; the result is stored there.
        thread: the index of the thread among those that combine.
        count: the number of values, each stored by a thread of its own.
        combine: returns the statement that combines into index `first + thread`.
    """
    statements: list[Stmt] = []
    while count > 1:
        # Rounded up, so that counts that are no powers of two work: the middle value then has no
        # partner in this step.
        half = (count + 1) // 2
        own_index = first + thread
        join = combine(
            element_loads(shared_buffers, own_index),
            element_loads(shared_buffers, own_index + half),
        )
        # The barrier is outside the branch: all threads of a block must reach it.
        statements += [STORAGE_SYNC, IfThenElse(thread < count - half, join)]
        count = half
    return statements


def emit_shuffles(
    partials: Sequence[Buffer], op: str, lane: PrimExpr | int, width: int
) -> list[PrimExpr]:
    """Return the register values of other threads of the warp.

    Args:
        own: a single-element buffer per component.
        op: one of `ir.intrinsic.WARP_SHUFFLES`.
        lane: the lane to read, or its distance.
        width: the number of lanes that exchange, a power of two.
    """
    number = const(lane, "int32") if isinstance(lane, int) else lane
    of = number, const(width, "int32"), const(WARP_SIZE, "int32")
    return [
        call_intrin(op, const(FULL_WARP_MASK, "uint32"), value, *of)
        for value in element_loads(partials)
    ]


__all__ = [
    "WARP_SHUFFLES_FEATURE",
    "Combine",
    "element_loads",
    "emit_shuffles",
    "emit_tree_reduction",
]
