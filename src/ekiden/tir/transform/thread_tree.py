"""How threads of a block combine values through memory that they share, or registers of a warp.

    parts[t] = x                                            barrier
    if t < 3: parts[t] = combine(parts[t], parts[t + 4])    barrier     # of 7
    if t < 2: parts[t] = combine(parts[t], parts[t + 2])    barrier
    if t < 1: parts[t] = combine(parts[t], parts[t + 1])    barrier

Any number of threads: an odd one out waits for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.intrinsic import WARP, WHOLE_WARP, call_intrin
from ekiden.ir.prim import PrimExpr, const
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import IfThenElse, Stmt
from ekiden.tir.transform.thread_sync import BARRIER

SHUFFLES = "warp_shuffles"
"""The ability of targets whose threads hand each other registers, by warps."""

Combine = Callable[[Sequence[PrimExpr], Sequence[PrimExpr]], Stmt]
"""The statement that combines two tuples into a place it knows."""


def elements(buffers: Sequence[Buffer], place: PrimExpr | None = None) -> list[PrimExpr]:
    """Return loads of one element of each buffer: that at a place, or the first."""
    at = const(0) if place is None else place
    return [BufferLoad(b, (at,), b.dtype) for b in buffers]


def fold_by_halves(
    parts: Sequence[Buffer], first: PrimExpr, thread: PrimExpr, count: int, combine: Combine
) -> list[Stmt]:
    """Return the steps by which `count` neighbours in shared memory become one, a barrier before
    each and none behind the last.

    Args:
        parts: shared memory, a buffer for each component of the tuples.
        first: where the neighbours begin; the result is there.
        thread: the number of the thread among those that combine.
        count: how many values there are, each stored by a thread of its own.
        combine: makes the statement that combines into `parts[first + thread]`.
    """
    statements: list[Stmt] = []
    while count > 1:
        half = (count + 1) // 2
        place = first + thread
        join = combine(elements(parts, place), elements(parts, place + half))
        statements += [BARRIER, IfThenElse(thread < count - half, join)]
        count = half
    return statements


def shuffled(own: Sequence[Buffer], op: str, lane: PrimExpr | int, width: int) -> list[PrimExpr]:
    """Return what other threads of the warp have in registers.

    Args:
        own: a buffer of one element for each component.
        op: one of `ir.intrinsic.SHUFFLES`.
        lane: the lane to read, or how far away it is.
        width: how many neighbours exchange, a power of two.
    """
    number = const(lane, "int32") if isinstance(lane, int) else lane
    of = number, const(width, "int32"), const(WARP, "int32")
    return [call_intrin(op, const(WHOLE_WARP, "uint32"), value, *of) for value in elements(own)]


__all__ = ["SHUFFLES", "Combine", "elements", "fold_by_halves", "shuffled"]
