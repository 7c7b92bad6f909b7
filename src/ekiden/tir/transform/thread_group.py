"""Threads of a block that combine their values: through shared memory, or by warp shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from ekiden.ir.intrinsic import WARP_SIZE
from ekiden.ir.prim import IntImm, PrimExpr, Var, cast, const, is_const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.reduction import DecomposedReduction, Elements
from ekiden.tir.stmt import BufferStore, For, IfThenElse, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC, is_thread_loop
from ekiden.tir.transform.tree_reduction import (
    WARP_SHUFFLES_FEATURE,
    element_loads,
    emit_shuffles,
    emit_tree_reduction,
)
from ekiden.tir.transform.virtual_thread_injection import is_virtual_thread_loop
from ekiden.tir.visitor import pre_order_stmts

# Slowest first: CUDA numbers the threads of a block with x fastest.
_THREAD_AXES = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
_ZERO_INDEX = (const(0),)
Refuse = Callable[[str], NoReturn]
"""Raises a CompileError that names what is lowered, for a reason."""


def thread_axis_of(stmt: Stmt) -> str:
    """Return the thread axis of a loop, as "threadIdx.x"; "" of any other statement."""
    if not isinstance(stmt, For) or not is_thread_loop(stmt) or is_virtual_thread_loop(stmt):
        return ""
    return str((stmt.annotations or {}).get("thread", ""))


def kernel_thread_axes(kernel: Stmt) -> set[str]:
    """Return the axes of a kernel's threads within a block."""
    axes = map(thread_axis_of, pre_order_stmts(kernel))
    return {axis for axis in axes if axis.startswith("threadIdx")}


def group_threads(
    enclosing: Sequence[For],
    reducing: Sequence[Var],
    kernel_axes: set[str],
    target: Target | None,
    refuse: Refuse,
) -> ThreadGroup:
    """Return the threads that combine and their group within the thread block.

    Args:
        enclosing: the loops over threads around the combination.
        reducing: the variables of those whose threads combine.
        kernel_axes: the axes of all threads of the kernel.
        target: tells whether warps exchange registers.
        refuse: called with the reason where the threads of a block would not wait for each other.
    """
    loops: dict[str, For] = {}
    for loop in enclosing:
        axis = thread_axis_of(loop)
        if not axis.startswith("threadIdx"):
            continue
        if axis in loops:
            refuse(f"two loops around it are bound to {axis}")
        if not isinstance(loop.extent, IntImm) or not is_const(loop.min, 0):
            refuse(
                f"the threads of {axis} must be a constant number from 0, which a split by a number"
                " makes them"
            )
        loops[axis] = loop
    missing = sorted(kernel_axes - loops.keys())
    if missing:
        refuse(
            f"the kernel has threads of {missing[0]} too, and all of a block must wait: bind a"
            " loop around the block to it"
        )
    inside = [a for a in _THREAD_AXES if a in loops and loops[a].loop_var in reducing]
    other_axes = [a for a in _THREAD_AXES if a in loops and a not in inside]
    thread, count = _linear_thread_index([loops[a] for a in inside])
    group, groups = _linear_thread_index([loops[a] for a in other_axes])
    has_warps = (
        target is not None
        and inside == ["threadIdx.x"]
        and target.thread_warp_size == WARP_SIZE
        and target.has(WARP_SHUFFLES_FEATURE)
        # Shuffles need full warps: a reduction uses whole warps, or a power-of-two segment of one.
        and (count * groups) % WARP_SIZE == 0
        and (count % WARP_SIZE == 0 or (count & (count - 1) == 0 and count <= WARP_SIZE))
    )
    return ThreadGroup(thread, count, group, groups, has_warps)


def _linear_thread_index(axes: Sequence[For]) -> tuple[PrimExpr, int]:
    """Return the number of a thread by its axes, the last fastest, and how many there are."""
    number: PrimExpr = const(0)
    count = 1
    for loop in axes:
        assert isinstance(loop.extent, IntImm)
        size = int(loop.extent.value)
        number = number * size + cast(loop.loop_var, "int64")
        count *= size
    return number, count


@dataclass(frozen=True, slots=True)
class CombinedValues:
    """The combination: its statements, the values that at least the first thread then has, and its
    buffers.
    """

    statements: Sequence[Stmt]
    values: Sequence[PrimExpr]
    shared: Sequence[Buffer]
    local: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """The threads of one reduction, one of `groups` in a thread block."""

    thread: PrimExpr
    count: int
    group: PrimExpr
    groups: int
    has_warps: bool

    def emit_combination(
        self, reduction: DecomposedReduction, own: Sequence[Buffer], everywhere: bool
    ) -> CombinedValues:
        """Emit the combination of the threads' single-element buffers into one value, known to the
        first thread or to all.
        """
        if self.count == 1:
            return CombinedValues((), element_loads(own), ())
        if not self.has_warps:
            return self._emit_shared_memory_tree(reduction, own, self.count, self.thread, None, ())
        near = [Buffer(f"near_{b.name}", (const(1),), b.dtype, "local") for b in own]
        lanes = min(self.count, WARP_SIZE)
        statements = _emit_warp_reduction(reduction, own, near, lanes)
        # Two levels: each warp reduces by shuffles, then the warps' results go through shared
        # memory, one slot per warp.
        warps = self.count // lanes
        shared: list[Buffer] = []
        if warps > 1:
            # After the shuffles lane 0 has the value of its warp, and it alone stores.
            first_lane = (self.thread % WARP_SIZE).equal(0)
            if warps > WARP_SIZE or warps & (warps - 1):
                through_memory = self._emit_shared_memory_tree(
                    reduction, own, warps, self.thread // WARP_SIZE, first_lane, statements
                )
                return CombinedValues(
                    through_memory.statements, through_memory.values, through_memory.shared, near
                )
            # Every warp combines the partial results, which saves all barriers but one. Lanes
            # beyond their number repeat them, so that all lanes load valid memory.
            shared = self._partial_results(own, warps)
            slot, first = self.thread // WARP_SIZE, self.group * warps
            statements += [
                IfThenElse(first_lane, _emit_stores(shared, element_loads(own), first + slot)),
                STORAGE_SYNC,
                _emit_stores(
                    own, element_loads(shared, first + self.thread % warps), _ZERO_INDEX[0]
                ),
                *_emit_warp_reduction(reduction, own, near, warps),
            ]
        # Shuffling down leaves the result in the first lane alone.
        if everywhere:
            first_values = emit_shuffles(own, "tvm_warp_shuffle", 0, lanes)
            statements.append(_emit_stores(own, first_values, _ZERO_INDEX[0]))
        return CombinedValues(statements, element_loads(own), shared, near)

    def _partial_results(self, own: Sequence[Buffer], count: int) -> list[Buffer]:
        """Return shared buffers of `count` partial results for each group of threads, so that
        groups need no barrier between each other.
        """
        shape = (const(count * self.groups),)
        return [Buffer(b.name.replace("own_", "parts_"), shape, b.dtype, "shared") for b in own]

    def _emit_shared_memory_tree(
        self,
        reduction: DecomposedReduction,
        own: Sequence[Buffer],
        count: int,
        number: PrimExpr,
        storing: PrimExpr | None,
        before: Sequence[Stmt],
    ) -> CombinedValues:
        """Emit the tree reduction through shared memory of the values of `count` threads, or of
        those that store.
        """
        shared_buffers = self._partial_results(own, count)
        first = self.group * count
        store = _emit_stores(shared_buffers, element_loads(own), first + number)
        if storing is not None:
            store = IfThenElse(storing, store)
        own_slot = (first + self.thread,)

        def combine_into_slot(left_values: Sequence[PrimExpr], right: Sequence[PrimExpr]) -> Stmt:
            """Combine two partial results into the first's slot."""
            return reduction.combine([(p, own_slot) for p in shared_buffers], left_values, right)

        folds = emit_tree_reduction(shared_buffers, first, self.thread, count, combine_into_slot)
        return CombinedValues(
            [*before, store, *folds], element_loads(shared_buffers, first), shared_buffers
        )


def _emit_stores(targets: Sequence[Buffer], values: Sequence[PrimExpr], index: PrimExpr) -> Stmt:
    """Emit the store of each value at an index of its buffer."""
    return seq(*(BufferStore(b, e, (index,)) for b, e in zip(targets, values, strict=True)))


def _emit_warp_reduction(
    reduction: DecomposedReduction, own: Sequence[Buffer], near: Sequence[Buffer], lanes: int
) -> list[Stmt]:
    """Emit the reduction of each `lanes` neighbouring lanes into the first of them: log2(lanes)
    shuffles at halving distances.
    """
    statements: list[Stmt] = []
    own_elements: Elements = [(b, _ZERO_INDEX) for b in own]
    distance = lanes // 2
    while distance:
        values = emit_shuffles(own, "tvm_warp_shuffle_down", distance, lanes)
        statements.append(_emit_stores(near, values, _ZERO_INDEX[0]))
        statements.append(reduction.combine(own_elements, element_loads(own), element_loads(near)))
        distance //= 2
    return statements


__all__ = [
    "CombinedValues",
    "Refuse",
    "ThreadGroup",
    "group_threads",
    "kernel_thread_axes",
    "thread_axis_of",
]
