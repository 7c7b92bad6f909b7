"""Loop nests of reductions, vectorised along rows or along columns.

    along the last axis      a vector of partial results, several in a row to hide the latency of an
                             addition; lanes are combined once at the end
    along an outer axis      a vector of neighbouring results, a step of the reduced axis at a time

so that loads are of neighbouring elements in both. Sums are thus taken in another order than from
left to right: of n numbers in m chains, errors grow by n / m steps instead of n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import LT, IntImm, PrimExpr, Select, Var, const, is_const
from ekiden.ir.prim_visitor import post_order
from ekiden.kernels.cpu.loops import (
    LoopAxis,
    NestAccesses,
    element_cost,
    estimated_product,
    parallel_outer_loops,
    serial_loops,
    vector_lanes,
    vectorized_loop,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.reducer import COMBINE, identity
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt
from ekiden.tir.transform.loop_vectorization import Vectorizer, tail_lanes
from ekiden.tir.visitor import NO_OP, flatten_seq

NUM_ACCUMULATORS = 4
"""Independent accumulator vectors of a cheap reduction, which hide its latency."""


MAX_COLUMN_VECTORS = 8
"""Maximum column vectors that a reduction over rows accumulates in registers."""


def reduces_innermost_axis(tensor: Tensor) -> bool:
    """Return whether the last reduced axis is the innermost axis of the data read."""
    op = tensor.op
    assert isinstance(op, ComputeOp)
    reduced = op.reduce_axis[-1]
    reads = [e for e in post_order(*op.body) if isinstance(e, ProducerLoad) and e.indices]
    walks = [e for e in reads if any(x is reduced for x in post_order(e.indices[-1]))]
    longest = max((e.producer.ndim for e in reads), default=0)
    return any(e.producer.ndim == longest for e in walks)


@dataclass(frozen=True, slots=True)
class StreamedProducer:
    """Intermediate tensor that is computed, stored and reduced in one loop: its variable in the
    reduction, its value, buffer and index.
    """

    var: Var
    value: PrimExpr
    buffer: Buffer
    index: PrimExpr


class ReductionNest:
    """Builder of one reduction nest: `buffer[index] = combine(source)` over `reduced`, for all
    values of `axes`.
    """

    def __init__(
        self,
        buffer: Buffer,
        index: PrimExpr,
        kind: str,
        source: PrimExpr,
        axes: Sequence[LoopAxis],
        reduced: Sequence[LoopAxis],
        analyzer: Analyzer,
        target: Target,
        stream: StreamedProducer | None = None,
    ) -> None:
        self.stream = stream
        self.buffer, self.index, self.kind, self.source = buffer, index, kind, source
        self.axes, self.reduced = list(axes), list(reduced)
        self.analyzer = analyzer
        self.dtype = source.dtype
        streamed = [] if stream is None else [stream.value]
        self.values = [source, *streamed]
        self.accesses = NestAccesses([index], self.values)
        loaded = [x.dtype for x in self.accesses.loads]
        self.lanes = vector_lanes(target, self.dtype, loaded, self.values)
        self.combine: Callable[[PrimExpr, PrimExpr], PrimExpr] = COMBINE[kind]

    def emit_nest(self, top: bool) -> Stmt:
        """Emit the loops; with parallel ones at the top of a function."""
        work = estimated_product([a.extent for a in self.reduced]) * element_cost(self.values)
        along = self.vectorizes_reduced_axis()
        if along or not self.axes:
            body = self.emit_accumulators() if along else self.emit_element()
            return (
                parallel_outer_loops(self.axes, work, body)
                if top
                else serial_loops(self.axes, body)
            )
        inner = self.axes[-1]
        column_vectors = self._vectors_per_column_group(inner)
        if column_vectors > 1:
            return self.emit_column_groups(inner, column_vectors, work, top)
        return self._emit_outer_loops(
            vectorized_loop(inner, self.lanes, self.emit_element()), inner.extent, work, top
        )

    def _emit_outer_loops(self, body: Stmt, columns: PrimExpr, work: int, top: bool) -> Stmt:
        """Wrap a body that computes `columns` columns in the loops over the outer axes."""
        outer = self.axes[:-1]
        if not top:
            return serial_loops(outer, body)
        return parallel_outer_loops(outer, work * estimated_product([columns]), body)

    def _vectors_per_column_group(self, inner: LoopAxis) -> int:
        """Return the number of column vectors accumulated together: a whole row where rows are many
        and read in order.
        """
        in_order = all(
            self.analyzer.coefficient(i, inner.var) in (0, 1) for i in self.accesses.indices
        )
        if not in_order or not isinstance(inner.extent, IntImm) or element_cost(self.values) > 1:
            return 1
        # With few rows, loading and storing the group costs more than reading rows in order saves.
        few = estimated_product([a.extent for a in self.reduced]) < MAX_COLUMN_VECTORS
        return 1 if few else min(MAX_COLUMN_VECTORS, inner.extent.value // self.lanes)

    def vectorizes_reduced_axis(self) -> bool:
        """Return whether vectors run along the last reduced axis, where fewer loads are strided."""
        if not self.reduced:
            return False
        last = self.reduced[-1]
        # Fewer than four elements do not pay for combining the lanes at the end.
        if isinstance(last.extent, IntImm) and last.extent.value < 4:
            return False
        walked, strided = self._count_access_patterns(last)
        if not walked or not self.axes:
            return walked > 0
        spatial_walked, spatial_strided = self._count_access_patterns(self.axes[-1])
        return (strided, -walked) < (spatial_strided, -spatial_walked)

    def _count_access_patterns(self, axis: LoopAxis) -> tuple[int, int]:
        """Return the number of contiguous and of strided loads along an axis."""
        steps = [self.analyzer.coefficient(i, axis.var) for i in self.accesses.load_indices]
        return steps.count(1), sum(s not in (0, 1) for s in steps)

    def initial_value(self, lanes: int = 1) -> PrimExpr:
        """Return the initial value of an accumulator."""
        return broadcast(identity(self.kind, self.dtype), lanes)

    def emit_element(self) -> Stmt:
        """Emit the scalar reduction of one element.

        A vector loop around it makes it a vector of elements.
        """
        total = Buffer("total", (const(1),), self.dtype, "register")
        update = BufferStore(total, self.combine(total[0], self.source), (const(0),))
        finish = BufferStore(self.buffer, total[0], (self.index,))
        begin = BufferStore(total, self.initial_value(), (const(0),))
        return Allocate(total, flatten_seq(begin, serial_loops(self.reduced, update), finish))

    def emit_column_groups(self, inner: LoopAxis, group_size: int, work: int, top: bool) -> Stmt:
        """Emit groups of column vectors, row by row within a group, then the tail one vector at a
        time.

        Args:
            inner: The axis of the columns.
            group_size: Vectors of a group.
            work: The estimated elements of one result.
            top: Whether the nest is at the top of a function, where its loops may be parallel.
        """
        assert isinstance(inner.extent, IntImm)
        step, group = (
            group_size * self.lanes,
            LoopAxis(Var("group"), const(inner.extent.value // (group_size * self.lanes))),
        )
        sums = Buffer(
            "sums", (const(group_size),), dt.with_lanes(self.dtype, self.lanes), "register"
        )
        vectorizers = [
            Vectorizer(inner.var, group.var * step + n * self.lanes, self.lanes)
            for n in range(group_size)
        ]
        begin = [
            BufferStore(sums, self.initial_value(self.lanes), (const(n),))
            for n in range(group_size)
        ]
        # Vectors run along the result, so each lane is a sum of its own: no horizontal operation at
        # the end.
        row_updates = [
            self._emit_step(sums, n, v, self.lanes, None) for n, v in enumerate(vectorizers)
        ]
        result = Var("result", self.dtype)
        finish: list[Stmt] = []
        for n, vectors in enumerate(vectorizers):
            vectors.define(result, sums[n])
            finish.append(vectors.visit(BufferStore(self.buffer, result, (self.index,))))
        group_body = Allocate(
            sums,
            flatten_seq(*begin, serial_loops(self.reduced, flatten_seq(*row_updates)), *finish),
        )
        outer = [*self.axes[:-1], group]
        groups = (
            parallel_outer_loops(outer, work * step, group_body)
            if top
            else serial_loops(outer, group_body)
        )
        done = const(inner.extent.value // step * step)
        tail_axis = LoopAxis(inner.var, simplify(inner.extent - done))
        if is_const(tail_axis.extent, 0):
            return groups
        # Columns behind the last whole group, a vector at a time; the very last vector is masked.
        tail = vectorized_loop(tail_axis, self.lanes, self.emit_element(), done)
        return flatten_seq(groups, self._emit_outer_loops(tail, tail_axis.extent, work, top))

    # Vectors along the reduced axis.

    def emit_accumulators(self) -> Stmt:
        """Emit the reduction of one element in several accumulator vectors, combined at the end."""
        last = self.reduced[-1]
        lanes = self.lanes
        if isinstance(last.extent, IntImm):
            # A short row takes narrower vectors instead of a single masked step.
            lanes = min(lanes, tail_lanes(last.extent.value, lanes))
        num_accumulators = self._num_accumulators(last, lanes)
        sums = Buffer(
            "sums", (const(num_accumulators),), dt.with_lanes(self.dtype, lanes), "register"
        )
        begin = [
            BufferStore(sums, self.initial_value(lanes), (const(n),))
            for n in range(num_accumulators)
        ]
        loops = serial_loops(self.reduced[:-1], self._emit_row(sums, last, lanes, num_accumulators))
        # Lanes are combined once, after the accumulators: horizontal operations are slow.
        total: PrimExpr = sums[0]
        for n in range(1, num_accumulators):
            total = self.combine(total, sums[n])
        value = VectorReduce(total, self.kind, self.dtype) if lanes > 1 else total
        return Allocate(
            sums, flatten_seq(*begin, loops, BufferStore(self.buffer, value, (self.index,)))
        )

    def _num_accumulators(self, last: LoopAxis, lanes: int) -> int:
        # Computing an element takes longer than combining it: one accumulator never waits.
        if element_cost(self.values) > 1:
            return 1
        if not isinstance(last.extent, IntImm):
            return NUM_ACCUMULATORS
        return max(1, min(NUM_ACCUMULATORS, last.extent.value // lanes))

    def _emit_row(self, sums: Buffer, last: LoopAxis, lanes: int, group_size: int) -> Stmt:
        """Emit the reduction along the last axis: groups of vectors, single vectors, then a masked
        tail.
        """
        step = lanes * group_size
        # Several accumulators hide the latency of the operation; singles and the tail use the
        # first.
        groups = simplify(last.extent // step)
        singles = simplify(last.extent % step // lanes)
        tail_lanes_count = simplify(last.extent % lanes)
        k, s = Var("k"), Var("k")
        together = [
            self._emit_update(sums, n, last, k * step + n * lanes, lanes) for n in range(group_size)
        ]
        group = For(k, const(0), groups, ForKind.SERIAL, flatten_seq(*together))
        after = groups * step
        single = For(
            s,
            const(0),
            singles,
            ForKind.SERIAL,
            self._emit_update(sums, 0, last, after + s * lanes, lanes),
        )
        if is_const(tail_lanes_count, 0):
            return flatten_seq(group, single)
        tail = self._emit_masked_update(
            sums, last, after + singles * lanes, lanes, tail_lanes_count
        )
        guarded = (
            tail if isinstance(tail_lanes_count, IntImm) else IfThenElse(tail_lanes_count > 0, tail)
        )
        return flatten_seq(group, single if group_size > 1 else NO_OP, guarded)

    def _emit_update(
        self, sums: Buffer, n: int, last: LoopAxis, base: PrimExpr, lanes: int
    ) -> Stmt:
        """Emit `sums[n] = combine(sums[n], vector at base)`."""
        return self._emit_step(sums, n, Vectorizer(last.var, base, lanes), lanes, None)

    def _emit_masked_update(
        self, sums: Buffer, last: LoopAxis, base: PrimExpr, lanes: int, tail_width: PrimExpr
    ) -> Stmt:
        """Emit `_emit_update` for the first `tail_width` lanes."""
        wide = dt.with_lanes("bool", lanes)
        mask = LT(
            ramp(const(0, "int32"), 1, lanes), broadcast(tail_width.astype("int32"), lanes), wide
        )
        return self._emit_step(sums, 0, Vectorizer(last.var, base, lanes, mask), lanes, mask)

    def _emit_step(
        self, sums: Buffer, n: int, vectors: Vectorizer, lanes: int, mask: PrimExpr | None
    ) -> Stmt:
        stream = self.stream
        if stream is None:
            return self._emit_add(sums, n, vectors, lanes, mask)
        stream_value = broadcast(vectors.rewrite_expr(stream.value), lanes)
        wide = Var(stream.var.name, stream_value.dtype)
        vectors.define(stream.var, wide)
        keep = vectors.visit(BufferStore(stream.buffer, stream.var, (stream.index,)))
        return LetStmt(
            wide, stream_value, flatten_seq(keep, self._emit_add(sums, n, vectors, lanes, mask))
        )

    def _emit_add(
        self, sums: Buffer, n: int, vectors: Vectorizer, lanes: int, mask: PrimExpr | None
    ) -> Stmt:
        value = broadcast(vectors.rewrite_expr(self.source), lanes)
        if mask is not None:
            # Masked lanes take the identity, which leaves their accumulator unchanged.
            value = Select(mask, value, self.initial_value(lanes), value.dtype)
        return BufferStore(sums, self.combine(sums[n], value), (const(n),))
