"""Block-wide reductions and scans of the values of a block's threads, by warp shuffles or shared
memory.

Threads that hand each other what is in registers, by warps, with one barrier for all of a block:

    x = combine(x, the x of the thread 16 further), then 8, 4, 2, 1 further
    the first thread of each warp: parts[warp] = x; barrier
    every warp likewise: x = parts[lane], 8, 4, 2, 1 further for as many as there are parts

Others by halves, in memory of the block, with a barrier for each:

    parts[thread] = x; barrier
    half of the threads combine with the other half; barrier; ... until one is left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ekiden.ir.intrinsic import WARP_SIZE
from ekiden.ir.prim import PrimExpr, Var, const, maximum
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import emit_stores, wrap_in_allocations
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, IfThenElse, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC
from ekiden.tir.transform.tree_reduction import (
    WARP_SHUFFLES_FEATURE,
    element_loads,
    emit_shuffles,
    emit_tree_reduction,
)

CombineFn: TypeAlias = Callable[[Sequence[PrimExpr], Sequence[PrimExpr]], Sequence[PrimExpr]]
"""Function (values of one, values of another) -> combined values."""
SHUFFLE_BROADCAST = "tvm_warp_shuffle"


@dataclass(frozen=True, slots=True)
class BlockCollective:
    """Block-wide reduction or scan: its statements, its result in every thread, and its shared and
    local buffers.
    """

    body: Stmt
    results: list[PrimExpr]
    shared: list[Buffer]
    local: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """Cooperating threads: each `size` adjacent threads of a block of `threads`."""

    thread: Var
    threads: int
    size: int
    has_warps: bool
    """Whether the threads of a warp exchange values by shuffles."""

    @staticmethod
    def create(thread: Var, threads: int, target: Target, size: int | None = None) -> ThreadGroup:
        """Return the group of all threads of a block, or of `size` adjacent ones; both are powers
        of 2.

        Args:
            thread: The variable of threadIdx.x.
            threads: Threads of the block.
            target: The device.
            size: Threads of a team; None for the block.
        """
        size = threads if size is None else size
        # Two levels of shuffles combine at most WARP_SIZE ** 2 threads, in whole warps.
        is_apt = (
            threads % WARP_SIZE == 0
            and size <= WARP_SIZE * WARP_SIZE
            and target.thread_warp_size == WARP_SIZE
        )
        return ThreadGroup(thread, threads, size, is_apt and target.has(WARP_SHUFFLES_FEATURE))

    def emit_reduction(
        self, thread_values: Sequence[Buffer], combine: CombineFn, broadcasts_result: bool = True
    ) -> BlockCollective:
        """Emit the reduction of the values in thread-local buffers of one element.

        Without warps a team is all of a block.

        Args:
            thread_values: A buffer per component of the value.
            combine: Combines two values.
            broadcasts_result: Whether all threads need the result, or at least the first.
        """
        if self.has_warps:
            return self._emit_warp_reduction(thread_values, combine, broadcasts_result)
        # The tree in shared memory combines a whole block, never parts of it.
        assert self.size == self.threads, (self.size, self.threads)
        return self._emit_shared_memory_tree(thread_values, combine)

    def _emit_warp_reduction(
        self, thread_values: Sequence[Buffer], combine: CombineFn, broadcasts_result: bool
    ) -> BlockCollective:
        near = [Buffer("near", (const(1),), b.dtype, "local") for b in thread_values]
        statements = self._emit_shuffle_reduction(
            thread_values, near, combine, min(self.size, WARP_SIZE)
        )
        shared: list[Buffer] = []
        if self.size > WARP_SIZE:
            warps = self.size // WARP_SIZE
            shared = [_shared_buffer_like(b, self.threads // WARP_SIZE) for b in thread_values]
            lane = self.thread % WARP_SIZE
            # Lanes beyond the number of warps repeat partial results, so that all lanes load valid
            # memory.
            partial_index = self.thread // self.size * warps + lane % warps
            mine = emit_stores(shared, element_loads(thread_values), (self.thread // WARP_SIZE,))
            statements += [IfThenElse(lane.equal(0), mine), STORAGE_SYNC]
            # Every warp combines the partial results redundantly, which saves a second barrier and
            # a broadcast.
            statements.append(
                emit_stores(thread_values, element_loads(shared, partial_index), (const(0),))
            )
            statements += self._emit_shuffle_reduction(thread_values, near, combine, warps)
        if (
            broadcasts_result and self.size > 1
        ):  # the first's: of their own, one has 0 and another -0
            first = emit_shuffles(thread_values, SHUFFLE_BROADCAST, 0, min(self.size, WARP_SIZE))
            statements.append(emit_stores(thread_values, first, (const(0),)))
        return BlockCollective(
            wrap_in_allocations(seq(*statements), near), element_loads(thread_values), shared
        )

    def emit_scan(
        self, thread_values: Buffer, combine: Callable[[PrimExpr, PrimExpr], PrimExpr]
    ) -> BlockCollective:
        """Emit the inclusive scan of the threads' values, in thread order.

        The result is in each thread's buffer, and the total is known to all. For complete blocks of
        warps.
        """
        assert self.has_warps and self.size == self.threads
        zero, lane, warp = (const(0),), self.thread % WARP_SIZE, self.thread // WARP_SIZE
        near, sums = (
            Buffer(n, (const(1),), thread_values.dtype, "local") for n in ("near", "sums")
        )
        statements, warps = (
            self._emit_warp_scan(thread_values, near, combine, WARP_SIZE),
            self.threads // WARP_SIZE,
        )
        shared: list[Buffer] = []
        if warps > 1:
            shared = [_shared_buffer_like(thread_values, warps)]
            last = BufferStore(shared[0], thread_values[0], (warp,))
            statements += [IfThenElse(lane.equal(WARP_SIZE - 1), last), STORAGE_SYNC]
            statements.append(BufferStore(sums, shared[0][lane % warps], zero))
            statements += self._emit_warp_scan(sums, near, combine, warps)
            # The first warp has none before it: it reads its own total and does not combine it.
            before = maximum(warp - 1, 0)
            statements.append(
                BufferStore(
                    near, emit_shuffles([sums], SHUFFLE_BROADCAST, before, WARP_SIZE)[0], zero
                )
            )
            joined = BufferStore(thread_values, combine(near[0], thread_values[0]), zero)
            statements.append(IfThenElse(warp > 0, joined))
        total_source, position = (sums, warps - 1) if warps > 1 else (thread_values, WARP_SIZE - 1)
        statements.append(
            BufferStore(
                sums, emit_shuffles([total_source], SHUFFLE_BROADCAST, position, WARP_SIZE)[0], zero
            )
        )
        if warps > 1:
            statements.append(STORAGE_SYNC)  # the next call writes the shared buffers again
        return BlockCollective(
            wrap_in_allocations(seq(*statements), [near]), [sums[0]], shared, [sums]
        )

    def _emit_warp_scan(
        self,
        thread_values: Buffer,
        near: Buffer,
        combine: Callable[[PrimExpr, PrimExpr], PrimExpr],
        count: int,
    ) -> list[Stmt]:
        """Emit the scan of the first `count` lanes of a warp (Hillis and Steele)."""
        statements: list[Stmt] = []
        zero, by = (const(0),), 1
        while by < count:
            shuffled_values = emit_shuffles([thread_values], "tvm_warp_shuffle_up", by, WARP_SIZE)
            joined = BufferStore(thread_values, combine(near[0], thread_values[0]), zero)
            statements += [BufferStore(near, shuffled_values[0], zero)]
            # Shuffles are executed by all lanes, only the combination is guarded: a shuffle in a
            # divergent branch is undefined.
            statements += [IfThenElse(self.thread % WARP_SIZE >= by, joined)]
            by *= 2
        return statements

    def _emit_shuffle_reduction(
        self,
        thread_values: Sequence[Buffer],
        near: Sequence[Buffer],
        combine: CombineFn,
        count: int,
    ) -> list[Stmt]:
        """Emit the shuffle reduction of each `count` lanes into the first of them, at halving
        distances.
        """
        statements: list[Stmt] = []
        by = count // 2
        while by:
            shuffled_values = emit_shuffles(
                thread_values, "tvm_warp_shuffle_down", by, min(count, WARP_SIZE)
            )
            statements.append(
                emit_stores(near, shuffled_values, (const(0),))
            )  # once each: a combination may ask twice
            statements.append(
                emit_stores(
                    thread_values,
                    combine(element_loads(thread_values), element_loads(near)),
                    (const(0),),
                )
            )
            by //= 2
        return statements

    def _emit_shared_memory_tree(
        self, thread_values: Sequence[Buffer], combine: CombineFn
    ) -> BlockCollective:
        """Emit a tree reduction in shared memory."""
        partials = [_shared_buffer_like(b, self.threads) for b in thread_values]

        def combine_into_first(lower: Sequence[PrimExpr], right: Sequence[PrimExpr]) -> Stmt:
            """Combine two threads' values, and store the result as the first one's."""
            return emit_stores(partials, combine(lower, right), (self.thread,))

        statements = [
            emit_stores(partials, element_loads(thread_values), (self.thread,)),
            *emit_tree_reduction(partials, const(0), self.thread, self.threads, combine_into_first),
            STORAGE_SYNC,
        ]
        return BlockCollective(seq(*statements), element_loads(partials), partials)


def _shared_buffer_like(like: Buffer, count: int) -> Buffer:
    return Buffer("parts", (const(count),), like.dtype, "shared")


__all__ = ["BlockCollective", "ThreadGroup"]
