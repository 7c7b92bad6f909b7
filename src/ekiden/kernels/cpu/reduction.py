"""Nests that combine many values into each element.

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
    Accesses,
    Axis,
    cost,
    estimate,
    parallel_outer,
    serial,
    vector_lanes,
    vectorized,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.reducer import COMBINE, identity
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt
from ekiden.tir.transform.vectorize_loops import Vectorizer, tail_lanes
from ekiden.tir.visitor import NOTHING, sequence

ACCUMULATORS = 4
"""Independent vectors of a cheap reduction, to hide the latency of its operation."""


COLUMNS = 8
"""Vectors of columns that a reduction over rows keeps in registers, of at least as many rows."""


def reduces_contiguous(tensor: Tensor) -> bool:
    """Whether the last reduced axis is the last axis of what is read."""
    op = tensor.op
    assert isinstance(op, ComputeOp)
    reduced = op.reduce_axis[-1]
    reads = [e for e in post_order(*op.body) if isinstance(e, ProducerLoad) and e.indices]
    walks = [e for e in reads if any(x is reduced for x in post_order(e.indices[-1]))]
    longest = max((e.producer.ndim for e in reads), default=0)
    return any(e.producer.ndim == longest for e in walks)


@dataclass(frozen=True, slots=True)
class Stream:
    """An intermediate computed and stored on the way of the reduction that reads it first: its
    element as a variable of the reduction's source, what it is, and where it goes.
    """

    var: Var
    value: PrimExpr
    buffer: Buffer
    index: PrimExpr


class ReduceNest:
    """One reduction being built: `buffer[index] = combine(source)` over `reduced`, for all values
    of `axes`.
    """

    def __init__(
        self,
        buffer: Buffer,
        index: PrimExpr,
        kind: str,
        source: PrimExpr,
        axes: Sequence[Axis],
        reduced: Sequence[Axis],
        analyzer: Analyzer,
        target: Target,
        stream: Stream | None = None,
    ) -> None:
        self.stream = stream
        self.buffer, self.index, self.kind, self.source = buffer, index, kind, source
        self.axes, self.reduced = list(axes), list(reduced)
        self.analyzer = analyzer
        self.dtype = source.dtype
        streamed = [] if stream is None else [stream.value]
        self.values = [source, *streamed]
        self.accesses = Accesses([index], self.values)
        loaded = [x.dtype for x in self.accesses.loads]
        self.lanes = vector_lanes(target, self.dtype, loaded, self.values)
        self.combine: Callable[[PrimExpr, PrimExpr], PrimExpr] = COMBINE[kind]

    def build(self, top: bool) -> Stmt:
        """The loops; with parallel ones at the top of a function."""
        work = estimate([a.extent for a in self.reduced]) * cost(self.values)
        along = self.along_reduced()
        if along or not self.axes:
            body = self.over_reduced() if along else self.element()
            return parallel_outer(self.axes, work, body) if top else serial(self.axes, body)
        inner = self.axes[-1]
        many = self._columns(inner)
        if many > 1:
            return self.over_columns(inner, many, work, top)
        return self._rows(vectorized(inner, self.lanes, self.element()), inner.extent, work, top)

    def _rows(self, body: Stmt, columns: PrimExpr, work: int, top: bool) -> Stmt:
        """The body, which makes so many columns, within the loops over the outer axes."""
        outer = self.axes[:-1]
        if not top:
            return serial(outer, body)
        return parallel_outer(outer, work * estimate([columns]), body)

    def _columns(self, inner: Axis) -> int:
        """Vectors of columns summed together: all that stands in a row, where it is read in
        order and rows are many.
        """
        in_order = all(
            self.analyzer.coefficient(i, inner.var) in (0, 1) for i in self.accesses.indices
        )
        if not in_order or not isinstance(inner.extent, IntImm) or cost(self.values) > 1:
            return 1
        few = estimate([a.extent for a in self.reduced]) < COLUMNS
        return 1 if few else min(COLUMNS, inner.extent.value // self.lanes)

    def along_reduced(self) -> bool:
        """Whether vectors run along the last reduced axis: fewer loads stride there, or more walk
        it.
        """
        if not self.reduced:
            return False
        last = self.reduced[-1]
        if isinstance(last.extent, IntImm) and last.extent.value < 4:
            return False
        walked, strided = self._walks(last)
        if not walked or not self.axes:
            return walked > 0
        spatial_walked, spatial_strided = self._walks(self.axes[-1])
        return (strided, -walked) < (spatial_strided, -spatial_walked)

    def _walks(self, axis: Axis) -> tuple[int, int]:
        """How many loads are contiguous along an axis, and how many stride along it."""
        steps = [self.analyzer.coefficient(i, axis.var) for i in self.accesses.load_indices]
        return steps.count(1), sum(s not in (0, 1) for s in steps)

    def start(self, lanes: int = 1) -> PrimExpr:
        """What an accumulator starts from."""
        return broadcast(identity(self.kind, self.dtype), lanes)

    def element(self) -> Stmt:
        """One element, all reduced axes in loops; a vector loop around it makes it a vector of
        elements.
        """
        total = Buffer("total", (const(1),), self.dtype, "register")
        update = BufferStore(total, self.combine(total[0], self.source), (const(0),))
        finish = BufferStore(self.buffer, total[0], (self.index,))
        begin = BufferStore(total, self.start(), (const(0),))
        return Allocate(total, sequence(begin, serial(self.reduced, update), finish))

    def over_columns(self, inner: Axis, many: int, work: int, top: bool) -> Stmt:
        """Groups of `many` vectors of columns, each row of a group read before the next; then the
        columns left, a vector at a time.
        """
        assert isinstance(inner.extent, IntImm)
        step, group = (
            many * self.lanes,
            Axis(Var("group"), const(inner.extent.value // (many * self.lanes))),
        )
        sums = Buffer("sums", (const(many),), dt.with_lanes(self.dtype, self.lanes), "register")
        places = [
            Vectorizer(inner.var, group.var * step + n * self.lanes, self.lanes)
            for n in range(many)
        ]
        begin = [BufferStore(sums, self.start(self.lanes), (const(n),)) for n in range(many)]
        each = [self._step(sums, n, v, self.lanes, None) for n, v in enumerate(places)]
        result = Var("result", self.dtype)
        finish: list[Stmt] = []
        for n, vectors in enumerate(places):
            vectors.define(result, sums[n])
            finish.append(vectors.visit(BufferStore(self.buffer, result, (self.index,))))
        made = Allocate(sums, sequence(*begin, serial(self.reduced, sequence(*each)), *finish))
        outer = [*self.axes[:-1], group]
        groups = parallel_outer(outer, work * step, made) if top else serial(outer, made)
        done = const(inner.extent.value // step * step)
        rest = Axis(inner.var, simplify(inner.extent - done))
        if is_const(rest.extent, 0):
            return groups
        left = vectorized(rest, self.lanes, self.element(), done)
        return sequence(groups, self._rows(left, rest.extent, work, top))

    # Vectors along the reduced axis.

    def over_reduced(self) -> Stmt:
        """One element: accumulator vectors along the last reduced axis, combined at the end."""
        last = self.reduced[-1]
        lanes = self.lanes
        if isinstance(last.extent, IntImm):
            lanes = min(lanes, tail_lanes(last.extent.value, lanes))
        many = self._accumulators(last, lanes)
        sums = Buffer("sums", (const(many),), dt.with_lanes(self.dtype, lanes), "register")
        begin = [BufferStore(sums, self.start(lanes), (const(n),)) for n in range(many)]
        loops = serial(self.reduced[:-1], self._row(sums, last, lanes, many))
        total: PrimExpr = sums[0]
        for n in range(1, many):
            total = self.combine(total, sums[n])
        value = VectorReduce(total, self.kind, self.dtype) if lanes > 1 else total
        return Allocate(
            sums, sequence(*begin, loops, BufferStore(self.buffer, value, (self.index,)))
        )

    def _accumulators(self, last: Axis, lanes: int) -> int:
        if cost(self.values) > 1:
            return 1
        if not isinstance(last.extent, IntImm):
            return ACCUMULATORS
        return max(1, min(ACCUMULATORS, last.extent.value // lanes))

    def _row(self, sums: Buffer, last: Axis, lanes: int, many: int) -> Stmt:
        """All of the last axis: groups of `many` vectors, single vectors, a masked rest."""
        step = lanes * many
        groups = simplify(last.extent // step)
        singles = simplify(last.extent % step // lanes)
        rest = simplify(last.extent % lanes)
        k, s = Var("k"), Var("k")
        together = [self._update(sums, n, last, k * step + n * lanes, lanes) for n in range(many)]
        group = For(k, const(0), groups, ForKind.SERIAL, sequence(*together))
        after = groups * step
        single = For(
            s,
            const(0),
            singles,
            ForKind.SERIAL,
            self._update(sums, 0, last, after + s * lanes, lanes),
        )
        if is_const(rest, 0):
            return sequence(group, single)
        tail = self._masked(sums, last, after + singles * lanes, lanes, rest)
        guarded = tail if isinstance(rest, IntImm) else IfThenElse(rest > 0, tail)
        return sequence(group, single if many > 1 else NOTHING, guarded)

    def _update(self, sums: Buffer, n: int, last: Axis, base: PrimExpr, lanes: int) -> Stmt:
        """`sums[n] = combine(sums[n], the vector at base)`."""
        return self._step(sums, n, Vectorizer(last.var, base, lanes), lanes, None)

    def _masked(self, sums: Buffer, last: Axis, base: PrimExpr, lanes: int, rest: PrimExpr) -> Stmt:
        """As `_update`, for the first `rest` lanes alone."""
        wide = dt.with_lanes("bool", lanes)
        mask = LT(ramp(const(0, "int32"), 1, lanes), broadcast(rest.astype("int32"), lanes), wide)
        return self._step(sums, 0, Vectorizer(last.var, base, lanes, mask), lanes, mask)

    def _step(
        self, sums: Buffer, n: int, vectors: Vectorizer, lanes: int, mask: PrimExpr | None
    ) -> Stmt:
        stream = self.stream
        if stream is None:
            return self._add(sums, n, vectors, lanes, mask)
        made = broadcast(vectors.expr(stream.value), lanes)
        wide = Var(stream.var.name, made.dtype)
        vectors.define(stream.var, wide)
        keep = vectors.visit(BufferStore(stream.buffer, stream.var, (stream.index,)))
        return LetStmt(wide, made, sequence(keep, self._add(sums, n, vectors, lanes, mask)))

    def _add(
        self, sums: Buffer, n: int, vectors: Vectorizer, lanes: int, mask: PrimExpr | None
    ) -> Stmt:
        value = broadcast(vectors.expr(self.source), lanes)
        if mask is not None:
            value = Select(mask, value, self.start(lanes), value.dtype)
        return BufferStore(sums, self.combine(sums[n], value), (const(n),))
