"""Computations that share rows: one launch does all of them.

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
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.block_reduction import Team
from ekiden.kernels.gpu.launch import (
    MIN_ROW_THREADS,
    ROW_THREADS,
    Nest,
    bound,
    is_long,
    launch,
    serial,
    threads_of,
    threads_of_row,
)
from ekiden.kernels.gpu.reduction import row_of
from ekiden.kernels.gpu.vector_access import coordinates, has_vectors
from ekiden.kernels.prim_builder import product
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import BufferMap, allocated, stage_block, stores
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, Stmt, seq
from ekiden.tir.transform.thread_sync import BARRIER
from ekiden.tir.transform.thread_tree import elements
from ekiden.tir.visitor import ExprRewriter
from ekiden.tir.visitor import substitute as substitute_statement

MAX_THREAD_BYTES, MAX_BLOCK_BYTES = 1 << 14, 1 << 13
"""Bytes of a row that a thread keeps, half of what first caches have at least; that a block keeps,
half of what every device gives one, so that there may be two."""
WORD = 4
"""Bytes of most elements."""
Group: TypeAlias = Sequence[Tensor]
"""All results of one operation."""


def is_joined(run: Sequence[Group], target: Target) -> bool:
    """Return whether `build_joined` is for a run.

    A run is of several operations, or of one whose few results have a block of threads each, where
    threads run together.
    """
    if len(run) > 1:
        return True
    op = run[0][0].op
    is_reduction = isinstance(op, ComputeOp) and isinstance(op.body[0], Reduce)
    return is_reduction and target.thread_warp_size > 1 and is_long(_op(run[0]))


def runs_of(groups: Sequence[Group], target: Target) -> Iterator[Sequence[Group]]:
    """Operations in their order, those together that are worth one launch."""
    run: list[Group] = []
    for group in groups:
        if run and not _joins(group, run):
            yield from _profitable_runs(run, target)
            run = []
        run.append(group)
    yield from _profitable_runs(run, target)


def _joins(group: Group, run: Sequence[Group]) -> bool:
    """Return whether an operation shares rows with those before, which are not fewer for that."""
    axes = _shared_axes([*run, group])
    if axes == 0 or len(run) == 1:
        return axes > 0
    shared = _op(run[0]).axis[axes : _shared_axes(run)]
    return all(is_const(a.extent, 1) for a in shared)


def _profitable_runs(run: Sequence[Group], target: Target) -> Iterator[Sequence[Group]]:
    """Yield the run, or its operations one by one.

    Where rows are fewer than units of the device, the elements of one must not be so many that
    other units would have computed some of them.
    """
    is_one = len(run) > 1 and any(isinstance(_op(g).body[0], Reduce) for g in run)
    if is_one:
        shape = _Shape.of(run, target)
        count = size_of(simplify(product(shape.rows)))
        few = count is not None and count < target.cores
        is_one = not few or (shape.length is not None and shape.length * WORD <= shape.room)
    yield from (run,) if is_one else ((g,) for g in run)


def _op(group: Group) -> ComputeOp:
    op = group[0].op
    assert isinstance(op, ComputeOp)
    return op


def _shared_axes(run: Sequence[Group]) -> int:
    """Return the number of first axes that computations share, so that no element needs one at
    other coordinates of these.

    Returns:
        0 where they share no axis, or where an operation is no computation.
    """
    if not all(isinstance(g[0].op, ComputeOp) for g in run):
        return 0
    ops = [_op(g) for g in run]
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
    """Count the flags that hold before the first that does not."""
    return next((n for n, holds in enumerate(flags) if not holds), len(flags))


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a run looks like. rows: the extents of its first `axes` axes; length: elements of its
    longest computation in a row; by_thread: whether a row has one thread."""

    axes: int
    rows: list[PrimExpr]
    length: int | None
    by_thread: bool

    @staticmethod
    def of(run: Sequence[Group], target: Target) -> _Shape:
        """Return the shape of operations that share rows."""
        axes = _shared_axes(run)
        ops = [_op(g) for g in run]
        inside = [
            [*(a.extent for a in op.axis[axes:]), *(r.extent for r in op.reduce_axis)] for op in ops
        ]
        sizes = [size_of(simplify(product(extents))) for extents in inside]
        static_sizes = [n for n in sizes if n is not None]
        length = max(static_sizes) if len(static_sizes) == len(sizes) else None
        is_short = length is not None and length < MIN_ROW_THREADS
        rows = [a.extent for a in ops[0].axis[:axes]]
        return _Shape(axes, rows, length, has_vectors(target) or is_short)

    @property
    def room(self) -> int:
        """Bytes that a row may have in memory of its own."""
        return MAX_THREAD_BYTES if self.by_thread else MAX_BLOCK_BYTES

    @property
    def scope(self) -> str:
        """Return the scope of the memory of a row."""
        return "local" if self.by_thread else "shared"


def build_joined(
    run: Sequence[Group], buffers: BufferMap, own: set[Tensor], target: Target
) -> tuple[Stmt, set[Tensor]]:
    """Build the launch of a run.

    Args:
        run: The operations.
        buffers: The buffers of all tensors.
        own: The tensors that nothing else reads.
        target: The device.

    Returns:
        The launch, and those of `own` that it has in memory of rows; the others are in `buffers`.
    """
    shape = _Shape.of(run, target)
    team = Team.of(Var("thread"), threads_of_row(shape.length, target), target)
    row = _Row(run, shape, buffers, target, team)
    moved = _row_buffers(row, own)
    body = (_by_thread if shape.by_thread else _by_block)(
        row, _RowBufferRewriter(shape.axes, moved)
    )
    row_tensors = {t for t in own if buffers.buffers[t] in moved}
    return body, row_tensors


def _row_buffers(row: _Row, own: set[Tensor]) -> dict[Buffer, Buffer]:
    """Buffer of all rows -> that of one, for what has room, small ones first. What every thread of
    a block knows, each has by itself."""
    shape, buffers = row.shape, row.buffers.buffers
    sizes: dict[Tensor, int] = {}
    for t in (t for g in row.run for t in g if t in own and not t.is_part):
        size = size_of(simplify(product(t.shape[shape.axes :]) * dt.itemsize(t.dtype)))
        if size is not None:
            sizes[t] = size
    room, replacements = shape.room, {}
    replicable = {t for g in row.run if row.is_known(g) and sizes.keys() >= set(g) for t in g}
    # Small tensors are read most often per byte, so they get the room first.
    for t in sorted(sizes, key=lambda t: sizes[t]):
        if sizes[t] <= room:
            room -= sizes[t]
            global_buffer = buffers[t]
            inside = global_buffer.shape[shape.axes :] or (const(1),)
            scope = "local" if t in replicable else shape.scope
            replacements[global_buffer] = global_buffer.with_fields(shape=inside, scope=scope)
    return replacements


class _RowBufferRewriter(ExprRewriter):
    """Rewriter of accesses to memory of a row: they lose the axes of rows."""

    def __init__(self, axes: int, moved: Mapping[Buffer, Buffer]) -> None:
        super().__init__(self._load)
        self._axes, self._moved = axes, moved

    def buffers(self, scope: str) -> list[Buffer]:
        """Return the buffers of one row in a scope."""
        return [b for b in self._moved.values() if b.scope == scope]

    def is_private(self, global_buffer: Buffer) -> bool:
        """Return whether each thread has a buffer by itself."""
        return global_buffer in self._moved and self._moved[global_buffer].scope == "local"

    def _inside(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return tuple(indices[self._axes :]) or (const(0),)

    def _load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer in self._moved:
            return e.with_fields(buffer=self._moved[e.buffer], indices=self._inside(e.indices))
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Likewise."""
        store = super().visit_store(stmt)
        assert isinstance(store, BufferStore)
        if store.buffer not in self._moved:
            return store
        buffer = self._moved[store.buffer]
        return store.with_fields(buffer=buffer, indices=self._inside(store.indices))


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a run, being written."""

    run: Sequence[Group]
    shape: _Shape
    buffers: BufferMap
    target: Target
    team: Team
    """The threads of a block, where a row has one."""

    def inner(self, op: ComputeOp) -> list[PrimExpr]:
        """Return the extents of a computation in a row."""
        return [a.extent for a in op.axis[self.shape.axes :]]

    def serial(self, group: Group, at: Sequence[PrimExpr]) -> Stmt:
        """Compute a row by one thread: by vectors where neighbours are contiguous."""
        op, axes = _op(group), self.shape.axes
        row = row_of(op, group[0], self.buffers, self.target) if len(group) == 1 else None
        if row is not None:
            names = [Var(a.var.name) for a in op.axis[axes:]]
            values = zip((a.var for a in op.axis), (*at, *names), strict=True)
            body = substitute_statement(row, dict(values))
            for name, extent in reversed(list(zip(names, self.inner(op), strict=True))):
                body = serial(name, extent, body)
            return body
        number = Var("number")
        nest = Nest.of(stage_block(op, group, self.buffers))
        body, count, _ = nest.part(number, at, self.target)
        return serial(number, count, body)

    def in_turn(self, group: Group, at: Sequence[PrimExpr]) -> Stmt:
        """Compute a row by threads of a block that stride over its elements."""
        op, thread, threads = _op(group), self.team.thread, self.team.threads
        size, iteration = simplify(product(self.inner(op))), Var("turn")
        number = iteration * threads + thread
        coordinates_ = (*at, *coordinates(number, self.inner(op)))
        if isinstance(op.body[0], Reduce):
            body = self.alone(group, coordinates_)
        else:
            body = Nest.of(stage_block(op, group, self.buffers)).at(coordinates_)
        num_iterations = simplify((size + (threads - 1)) // threads)
        return serial(iteration, num_iterations, IfThenElse(number < size, body))

    def alone(self, group: Group, at: Sequence[PrimExpr]) -> Stmt:
        """Compute an element of a reduction by one thread, in memory of its own until it is
        complete.
        """
        op = _op(group)
        steps: dict[Var, PrimExpr] = {r: Var(r.name) for r in op.reduce_axis}
        values = steps | {a.var: coordinate for a, coordinate in zip(op.axis, at, strict=True)}
        own, body = self.more(group, values)
        for r in reversed(op.reduce_axis):
            step = steps[r]
            assert isinstance(step, Var)
            body = serial(step, substitute(r.extent, values), body)
        store = self.kept(group, elements(own), at)
        return allocated(seq(self.start(group, own), body, store), own)

    def more(self, group: Group, values: Mapping[Var, PrimExpr]) -> tuple[list[Buffer], Stmt]:
        """Memory of a thread, and what combines it with one value more."""
        reduce = _op(group).body[0]
        assert isinstance(reduce, Reduce)
        own = [Buffer("own", (const(1),), t.dtype, "local") for t in group]
        terms = [substitute(self.buffers.loads(s), dict(values)) for s in reduce.sources]
        combined = reduce.reducer.combine(elements(own), terms)
        return own, stores(own, combined, (const(0),))

    def start(self, group: Group, own: Sequence[Buffer]) -> Stmt:
        """Initialize the accumulators of a thread."""
        reduce = _op(group).body[0]
        assert isinstance(reduce, Reduce)
        starts = zip(own, reduce.reducer.identity_element, strict=True)
        return seq(*(BufferStore(b, e, (const(0),)) for b, e in starts))

    def kept(self, group: Group, values: Sequence[PrimExpr], at: Sequence[PrimExpr]) -> Stmt:
        """Store an element of the results."""
        return stores([self.buffers.buffers[t] for t in group], values, tuple(at))

    def together(
        self, group: Group, at: Sequence[PrimExpr], is_private: bool
    ) -> tuple[Stmt, list[Buffer]]:
        """Compute the one element of a reduction at a row, by all threads of a block.

        Each thread reduces some elements, then they combine theirs.

        Args:
            group: The reduction.
            at: The coordinates of the row.
            known: Whether each thread stores the result, in memory of its own.

        Returns:
            The statement, and the memory that threads share.
        """
        op, zero, team = _op(group), const(0), self.team
        reduce = op.body[0]
        assert isinstance(reduce, Reduce)
        where = (*at, *(zero for _ in self.inner(op)))
        values = {a.var: coordinate for a, coordinate in zip(op.axis, where, strict=True)}
        # what a sum runs over may depend on the element it is for
        extents = [substitute(r.extent, values) for r in op.reduce_axis]
        iteration, total = Var("turn"), simplify(product(extents))
        number = iteration * team.threads + team.thread
        values |= dict(zip(op.reduce_axis, coordinates(number, extents), strict=True))
        own, more = self.more(group, values)
        num_iterations = simplify((total + (team.threads - 1)) // team.threads)
        reduction = team.combined(own, reduce.reducer.combine, everywhere=is_private)
        store = self.kept(group, reduction.values, where)
        statements: list[Stmt] = [
            self.start(group, own),
            serial(iteration, num_iterations, IfThenElse(number < total, more)),
            reduction.body,
            store if is_private else IfThenElse(team.thread.equal(0), store),
        ]
        return allocated(seq(*statements), own), reduction.shared

    def is_one(self, group: Group) -> bool:
        """Return whether a computation has one element in a row."""
        return is_const(simplify(product(self.inner(_op(group)))), 1)

    def is_known(self, group: Group) -> bool:
        """Return whether all threads of a block may have the result of a computation: one element,
        which they have together or each by itself.
        """
        return self.team.has_warps and not self.shape.by_thread and self.is_one(group)

    def every(self, group: Group, at: Sequence[PrimExpr]) -> Stmt:
        """Compute the one element of a computation at a row, by each thread for itself."""
        op = _op(group)
        where = (*at, *(const(0) for _ in self.inner(op)))
        return Nest.of(stage_block(op, group, self.buffers)).at(where)


def _by_thread(row: _Row, inside: _RowBufferRewriter) -> Stmt:
    index, rows = Var("index"), row.shape.rows
    at, count = coordinates(index, rows), simplify(product(rows))
    body = seq(*(row.serial(group, at) for group in row.run))
    body = allocated(inside.visit(body), inside.buffers("local"))
    return launch(index, count, min(threads_of(count, row.target), ROW_THREADS), body)


def _by_block(row: _Row, inside: _RowBufferRewriter) -> Stmt:
    block, rows, team = Var("block"), row.shape.rows, row.team
    at, shared_buffers = coordinates(block, rows), inside.buffers("shared")
    statements: list[Stmt] = []
    for group in row.run:
        is_private = all(inside.is_private(row.buffers.buffers[t]) for t in group)
        if isinstance(_op(group).body[0], Reduce) and row.is_one(group):
            stmt, scratch = row.together(group, at, is_private)
            shared_buffers = [*shared_buffers, *scratch]
        elif is_private:
            stmt = row.every(group, at)
        else:
            stmt = row.in_turn(group, at)
        # A private result needs no barrier: each thread reads what it has written itself.
        statements += [stmt] if is_private else [stmt, BARRIER]
    body = allocated(inside.visit(seq(*statements[:-1])), inside.buffers("local"))
    lanes = allocated(bound(team.thread, team.threads, "threadIdx.x", body), shared_buffers)
    return bound(block, simplify(product(rows)), "blockIdx.x", lanes)


__all__ = ["build_joined", "is_joined", "runs_of"]
