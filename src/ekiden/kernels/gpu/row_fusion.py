"""Row fusion on GPUs: computations that share rows run in one launch.

    for i: m[i] = max over k of x[i, k]                 for i in rows:
    for i, k: e[i, k] = exp(x[i, k] - m[i])                 m = max over k of x[i, k]
    for i: s[i] = sum over k of e[i, k]          ->         for k: e[k] = exp(x[i, k] - m)
    for i, k: y[i, k] = e[i, k] / s[i]                      s = sum over k of e[k]
                                                            for k: y[i, k] = e[k] / s

A row has a thread where threads run one after the other and compute with vectors, or where it is
shorter than a warp; else a block of threads, which stride over its elements, combine what they have
reduced (`block_reduction`), and wait for one another before stored elements are read by others.
What no other kernel reads is in memory of the thread or of the block, where that is large enough:
in that of each thread, where threads have warps and all know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import prove_equal, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import post_order, substitute
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.block_reduction import ThreadGroup
from ekiden.kernels.gpu.launch import (
    MIN_ROW_THREADS,
    ROW_LOOP_THREADS_PER_BLOCK,
    ComputationNest,
    emit_launch,
    is_long_reduction,
    serial_loop,
    thread_loop,
    threads_per_block,
    threads_per_row,
)
from ekiden.kernels.gpu.reduction import emit_vector_row
from ekiden.kernels.gpu.vector_access import computes_with_vectors, unravel_index
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import TensorBufferMap, create_stage_nest, emit_stores, wrap_in_allocations
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC
from ekiden.tir.transform.tree_reduction import element_loads
from ekiden.tir.visitor import ExprRewriter
from ekiden.tir.visitor import substitute as substitute_statement

MAX_THREAD_BYTES, MAX_BLOCK_BYTES = 1 << 14, 1 << 13
"""Maximum row memory of a thread (half of a small L1) and of a block (half of the shared memory, so
that two blocks fit).
"""
TYPICAL_ELEMENT_BYTES = 4
"""Assumed bytes per element."""
ComputationGroup: TypeAlias = Sequence[Tensor]
"""Outputs of one operation."""


def needs_fused_launch(run: Sequence[ComputationGroup], target: Target) -> bool:
    """Return whether a run of operations should be emitted by `emit_fused_launch`.

    A run is of several operations, or of one whose few results have a block of threads each, where
    threads run together.
    """
    if len(run) > 1:
        return True
    op = run[0][0].op
    is_reduction = isinstance(op, ComputeOp) and isinstance(op.body[0], Reduce)
    return is_reduction and target.thread_warp_size > 1 and is_long_reduction(_compute_op(run[0]))


def group_launches(
    groups: Sequence[ComputationGroup], target: Target
) -> Iterator[Sequence[ComputationGroup]]:
    """Yield the operations in order, grouped into runs where one launch is faster."""
    run: list[ComputationGroup] = []
    for group in groups:
        if run and not _shares_rows_with(group, run):
            yield from _profitable_runs(run, target)
            run = []
        run.append(group)
    yield from _profitable_runs(run, target)


def _shares_rows_with(group: ComputationGroup, run: Sequence[ComputationGroup]) -> bool:
    """Return whether an operation shares all rows of a run."""
    axes = _num_shared_axes([*run, group])
    if axes == 0 or len(run) == 1:
        return axes > 0
    shared = _compute_op(run[0]).axis[axes : _num_shared_axes(run)]
    return all(is_const(a.extent, 1) for a in shared)


def _profitable_runs(
    run: Sequence[ComputationGroup], target: Target
) -> Iterator[Sequence[ComputationGroup]]:
    """Yield a run as a whole, or split into single operations where rows are too few to fill the
    device.

    Where rows are fewer than units of the device, the elements of one must not be so many that
    other units would have computed some of them.
    """
    is_one = len(run) > 1 and any(isinstance(_compute_op(g).body[0], Reduce) for g in run)
    if is_one:
        shape = _FusedRowsShape.from_run(run, target)
        count = known_extent(simplify(product_of_dims(shape.rows)))
        few = count is not None and count < target.cores
        is_one = not few or (
            shape.length is not None
            and shape.length * TYPICAL_ELEMENT_BYTES <= shape.row_memory_bytes
        )
    yield from (run,) if is_one else ((g,) for g in run)


def _compute_op(group: ComputationGroup) -> ComputeOp:
    op = group[0].op
    assert isinstance(op, ComputeOp)
    return op


def _num_shared_axes(run: Sequence[ComputationGroup]) -> int:
    """Return the number of leading axes that computations share, along which every element depends
    on its own coordinates only.

    Returns:
        0 where they share no axis, or where an operation is no computation.
    """
    if not all(isinstance(g[0].op, ComputeOp) for g in run):
        return 0
    ops = [_compute_op(g) for g in run]
    results = {t for g in run for t in g}
    first = ops[0].axis
    count = min(len(op.axis) for op in ops)
    for op in ops:
        same = [prove_equal(a.extent, b.extent) for a, b in zip(op.axis, first, strict=False)]
        count = min(count, _count_leading(same))
        for e in post_order(*op.body):
            if isinstance(e, ProducerLoad) and e.producer in results:
                own = [
                    i is a.var or (is_const(i, 0) and is_const(a.extent, 1))
                    for i, a in zip(e.indices, op.axis, strict=False)
                ]
                count = min(count, _count_leading(own))
    return count


def _count_leading(flags: Sequence[bool]) -> int:
    """Return the number of leading true flags."""
    return next((n for n, holds in enumerate(flags) if not holds), len(flags))


@dataclass(frozen=True, slots=True)
class _FusedRowsShape:
    """Shape of a run: leading axes, row extents, row length, and whether one thread computes a
    row.
    """

    axes: int
    rows: list[PrimExpr]
    length: int | None
    is_row_per_thread: bool

    @staticmethod
    def from_run(run: Sequence[ComputationGroup], target: Target) -> _FusedRowsShape:
        """Return the shape of operations that share rows."""
        axes = _num_shared_axes(run)
        ops = [_compute_op(g) for g in run]
        inside = [
            [*(a.extent for a in op.axis[axes:]), *(r.extent for r in op.reduce_axis)] for op in ops
        ]
        sizes = [known_extent(simplify(product_of_dims(extents))) for extents in inside]
        static_sizes = [n for n in sizes if n is not None]
        length = max(static_sizes) if len(static_sizes) == len(sizes) else None
        is_short = length is not None and length < MIN_ROW_THREADS
        rows = [a.extent for a in ops[0].axis[:axes]]
        return _FusedRowsShape(axes, rows, length, computes_with_vectors(target) or is_short)

    @property
    def row_memory_bytes(self) -> int:
        """Return the maximum bytes of private memory per row."""
        return MAX_THREAD_BYTES if self.is_row_per_thread else MAX_BLOCK_BYTES

    @property
    def row_memory_scope(self) -> str:
        """Return the storage scope of a row's memory."""
        return "local" if self.is_row_per_thread else "shared"


def emit_fused_launch(
    run: Sequence[ComputationGroup],
    buffers: TensorBufferMap,
    private_tensors: set[Tensor],
    target: Target,
) -> tuple[Stmt, set[Tensor]]:
    """Emit one launch for a run of operations.

    Args:
        run: The operations.
        buffers: The buffers of all tensors.
        own: The tensors that nothing else reads.
        target: The device.

    Returns:
        The launch, and those of `own` that it has in memory of rows; the others are in `buffers`.
    """
    shape = _FusedRowsShape.from_run(run, target)
    thread_group = ThreadGroup.create(Var("thread"), threads_per_row(shape.length, target), target)
    row = _RowEmitter(run, shape, buffers, target, thread_group)
    moved = _choose_row_buffers(row, private_tensors)
    body = (_emit_rows_by_thread if shape.is_row_per_thread else _emit_rows_by_block)(
        row, _RowBufferRewriter(shape.axes, moved)
    )
    row_tensors = {t for t in private_tensors if buffers.buffers[t] in moved}
    return body, row_tensors


def _choose_row_buffers(row: _RowEmitter, private_tensors: set[Tensor]) -> dict[Buffer, Buffer]:
    """Return the buffers that can be replaced by one-row buffers, small ones first until the row's
    memory is full. What every thread of a block knows, each has by itself.
    """
    shape, buffers = row.shape, row.buffers.buffers
    sizes: dict[Tensor, int] = {}
    for t in (t for g in row.run for t in g if t in private_tensors and not t.is_part):
        size = known_extent(simplify(product_of_dims(t.shape[shape.axes :]) * dt.itemsize(t.dtype)))
        if size is not None:
            sizes[t] = size
    room, replacements = shape.row_memory_bytes, {}
    replicable = {t for g in row.run if row.is_replicable(g) and sizes.keys() >= set(g) for t in g}
    # Small tensors are read most often per byte, so they get the room first.
    for t in sorted(sizes, key=lambda t: sizes[t]):
        if sizes[t] <= room:
            room -= sizes[t]
            global_buffer = buffers[t]
            inside = global_buffer.shape[shape.axes :] or (const(1),)
            scope = "local" if t in replicable else shape.row_memory_scope
            replacements[global_buffer] = global_buffer.with_fields(shape=inside, scope=scope)
    return replacements


class _RowBufferRewriter(ExprRewriter):
    """Rewriter of accesses to one-row buffers, which drop the row axes."""

    def __init__(self, axes: int, moved: Mapping[Buffer, Buffer]) -> None:
        super().__init__(self._rewrite_load)
        self._num_row_axes, self._row_buffers = axes, moved

    def buffers(self, scope: str) -> list[Buffer]:
        """Return the one-row buffers of a scope."""
        return [b for b in self._row_buffers.values() if b.scope == scope]

    def is_private(self, global_buffer: Buffer) -> bool:
        """Return whether each thread has its own copy of a buffer."""
        return (
            global_buffer in self._row_buffers and self._row_buffers[global_buffer].scope == "local"
        )

    def _drop_row_axes(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return tuple(indices[self._num_row_axes :]) or (const(0),)

    def _rewrite_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer in self._row_buffers:
            return e.with_fields(
                buffer=self._row_buffers[e.buffer], indices=self._drop_row_axes(e.indices)
            )
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Drop the row axes of a store to a one-row buffer."""
        store = super().visit_store(stmt)
        assert isinstance(store, BufferStore)
        if store.buffer not in self._row_buffers:
            return store
        buffer = self._row_buffers[store.buffer]
        return store.with_fields(buffer=buffer, indices=self._drop_row_axes(store.indices))


@dataclass(frozen=True, slots=True)
class _RowEmitter:
    """Emitter of one row of a run."""

    run: Sequence[ComputationGroup]
    shape: _FusedRowsShape
    buffers: TensorBufferMap
    target: Target
    thread_group: ThreadGroup
    """Threads of the block that computes a row; None with one thread per row."""

    def inner_extents(self, op: ComputeOp) -> list[PrimExpr]:
        """Return a computation's extents within a row."""
        return [a.extent for a in op.axis[self.shape.axes :]]

    def emit_serial(self, group: ComputationGroup, at: Sequence[PrimExpr]) -> Stmt:
        """Emit a row computed by one thread, vectorised where elements are contiguous."""
        op, axes = _compute_op(group), self.shape.axes
        row = emit_vector_row(op, group[0], self.buffers, self.target) if len(group) == 1 else None
        if row is not None:
            names = [Var(a.var.name) for a in op.axis[axes:]]
            values = zip((a.var for a in op.axis), (*at, *names), strict=True)
            body = substitute_statement(row, dict(values))
            for name, extent in reversed(list(zip(names, self.inner_extents(op), strict=True))):
                body = serial_loop(name, extent, body)
            return body
        number = Var("number")
        nest = ComputationNest.from_stage(create_stage_nest(op, group, self.buffers))
        body, count, _ = nest.vector_body(number, at, self.target)
        return serial_loop(number, count, body)

    def emit_strided(self, group: ComputationGroup, at: Sequence[PrimExpr]) -> Stmt:
        """Emit a row computed by the threads of a block, which stride over its elements."""
        op, thread, threads = (
            _compute_op(group),
            self.thread_group.thread,
            self.thread_group.threads,
        )
        size, iteration = simplify(product_of_dims(self.inner_extents(op))), Var("turn")
        number = iteration * threads + thread
        coordinates_ = (*at, *unravel_index(number, self.inner_extents(op)))
        if isinstance(op.body[0], Reduce):
            body = self.emit_private_reduction(group, coordinates_)
        else:
            body = ComputationNest.from_stage(
                create_stage_nest(op, group, self.buffers)
            ).element_at(coordinates_)
        num_iterations = simplify((size + (threads - 1)) // threads)
        return serial_loop(iteration, num_iterations, IfThenElse(number < size, body))

    def emit_private_reduction(self, group: ComputationGroup, at: Sequence[PrimExpr]) -> Stmt:
        """Emit a reduction element by one thread, accumulated in private memory."""
        op = _compute_op(group)
        steps: dict[Var, PrimExpr] = {r: Var(r.name) for r in op.reduce_axis}
        values = steps | {a.var: coordinate for a, coordinate in zip(op.axis, at, strict=True)}
        accumulator, body = self.accumulate_one(group, values)
        for r in reversed(op.reduce_axis):
            step = steps[r]
            assert isinstance(step, Var)
            body = serial_loop(step, substitute(r.extent, values), body)
        store = self.emit_store(group, element_loads(accumulator), at)
        return wrap_in_allocations(
            seq(self.emit_initialize(group, accumulator), body, store), accumulator
        )

    def accumulate_one(
        self, group: ComputationGroup, values: Mapping[Var, PrimExpr]
    ) -> tuple[list[Buffer], Stmt]:
        """Return a thread's accumulators, and the statement that combines them with one value."""
        reduce = _compute_op(group).body[0]
        assert isinstance(reduce, Reduce)
        accumulators = [Buffer("own", (const(1),), t.dtype, "local") for t in group]
        terms = [substitute(self.buffers.replace_loads(s), dict(values)) for s in reduce.sources]
        combined = reduce.reducer.combine(element_loads(accumulators), terms)
        return accumulators, emit_stores(accumulators, combined, (const(0),))

    def emit_initialize(self, group: ComputationGroup, accumulators: Sequence[Buffer]) -> Stmt:
        """Emit the initialisation of a thread's accumulators."""
        reduce = _compute_op(group).body[0]
        assert isinstance(reduce, Reduce)
        starts = zip(accumulators, reduce.reducer.identity_element, strict=True)
        return seq(*(BufferStore(b, e, (const(0),)) for b, e in starts))

    def emit_store(
        self, group: ComputationGroup, values: Sequence[PrimExpr], at: Sequence[PrimExpr]
    ) -> Stmt:
        """Emit the store of an element of the results."""
        return emit_stores([self.buffers.buffers[t] for t in group], values, tuple(at))

    def emit_block_reduction(
        self, group: ComputationGroup, at: Sequence[PrimExpr], is_private: bool
    ) -> tuple[Stmt, list[Buffer]]:
        """Emit a row's only reduction element by all threads of a block.

        Each thread reduces some elements, then they combine theirs.

        Args:
            group: The reduction.
            at: The coordinates of the row.
            is_private: Whether each thread stores the result, in memory of its own.

        Returns:
            The statement, and the memory that threads share.
        """
        op, zero, thread_group = _compute_op(group), const(0), self.thread_group
        reduce = op.body[0]
        assert isinstance(reduce, Reduce)
        where = (*at, *(zero for _ in self.inner_extents(op)))
        values = {a.var: coordinate for a, coordinate in zip(op.axis, where, strict=True)}
        # what a sum runs over may depend on the element it is for
        extents = [substitute(r.extent, values) for r in op.reduce_axis]
        iteration, total = Var("turn"), simplify(product_of_dims(extents))
        # Strided by the block: neighbouring threads read neighbouring elements, which coalesces.
        number = iteration * thread_group.threads + thread_group.thread
        values |= dict(zip(op.reduce_axis, unravel_index(number, extents), strict=True))
        accumulator, more = self.accumulate_one(group, values)
        num_iterations = simplify((total + (thread_group.threads - 1)) // thread_group.threads)
        reduction = thread_group.emit_reduction(
            accumulator, reduce.reducer.combine, broadcasts_result=is_private
        )
        store = self.emit_store(group, reduction.results, where)
        statements: list[Stmt] = [
            self.emit_initialize(group, accumulator),
            serial_loop(iteration, num_iterations, IfThenElse(number < total, more)),
            reduction.body,
            store if is_private else IfThenElse(thread_group.thread.equal(0), store),
        ]
        return wrap_in_allocations(seq(*statements), accumulator), reduction.shared

    def has_single_element(self, group: ComputationGroup) -> bool:
        """Return whether a computation has one element per row."""
        return is_const(simplify(product_of_dims(self.inner_extents(_compute_op(group)))), 1)

    def is_replicable(self, group: ComputationGroup) -> bool:
        """Return whether every thread of a block can hold a computation's result: a single element
        per row.
        """
        return (
            self.thread_group.has_warps
            and not self.shape.is_row_per_thread
            and self.has_single_element(group)
        )

    def emit_replicated(self, group: ComputationGroup, at: Sequence[PrimExpr]) -> Stmt:
        """Emit a row's only element redundantly by each thread."""
        op = _compute_op(group)
        where = (*at, *(const(0) for _ in self.inner_extents(op)))
        return ComputationNest.from_stage(create_stage_nest(op, group, self.buffers)).element_at(
            where
        )


def _emit_rows_by_thread(row: _RowEmitter, inside: _RowBufferRewriter) -> Stmt:
    """Emit the rows, one thread per row."""
    index, rows = Var("index"), row.shape.rows
    position, count = unravel_index(index, rows), simplify(product_of_dims(rows))
    body = seq(*(row.emit_serial(group, position) for group in row.run))
    body = wrap_in_allocations(inside.visit(body), inside.buffers("local"))
    return emit_launch(
        index, count, min(threads_per_block(count, row.target), ROW_LOOP_THREADS_PER_BLOCK), body
    )


def _emit_rows_by_block(row: _RowEmitter, inside: _RowBufferRewriter) -> Stmt:
    """Emit the rows, one block per row."""
    block, rows, thread_group = Var("block"), row.shape.rows, row.thread_group
    position, shared_buffers = unravel_index(block, rows), inside.buffers("shared")
    statements: list[Stmt] = []
    for group in row.run:
        is_private = all(inside.is_private(row.buffers.buffers[t]) for t in group)
        if isinstance(_compute_op(group).body[0], Reduce) and row.has_single_element(group):
            stmt, scratch = row.emit_block_reduction(group, position, is_private)
            shared_buffers = [*shared_buffers, *scratch]
        elif is_private:
            stmt = row.emit_replicated(group, position)
        else:
            stmt = row.emit_strided(group, position)
        # A private result needs no barrier: each thread reads what it has written itself.
        statements += [stmt] if is_private else [stmt, STORAGE_SYNC]
    # The last statement is a barrier that nothing follows: a run ends with a shared result.
    body = wrap_in_allocations(inside.visit(seq(*statements[:-1])), inside.buffers("local"))
    lanes = wrap_in_allocations(
        thread_loop(thread_group.thread, thread_group.threads, "threadIdx.x", body), shared_buffers
    )
    return thread_loop(block, simplify(product_of_dims(rows)), "blockIdx.x", lanes)


__all__ = ["emit_fused_launch", "group_launches", "needs_fused_launch"]
