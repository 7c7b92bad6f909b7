"""Turn vectorised loops into vector operations: full vectors, then one masked vector for the tail.

    for i in vectorized(n):      for i in range(n // 16):
        B[i] = A[i]                  B[i * 16 : +16] = A[i * 16 : +16]
                            ->   if n % 16 > 0:
                                     mask = (0, 1, .. 15) < n % 16
                                     B[n // 16 * 16 : +16] = A[the same] where mask, else not stored

A masked load yields 0 in disabled lanes, so nothing outside of a buffer is read. A loop of
`vscale() * 4` iterations is one scalable vector.

Inside, what depends on the loop variable becomes a vector; everything else stays scalar and is
broadcast where the two meet: an index `i + 3` is a Ramp, a divergent condition a mask of both sides
of the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ekiden.arith import Analyzer
from ekiden.arith.ramp_broadcast import fold_vector_op
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.pass_context import DISABLE_VECTORIZE_OPTION, PassContext
from ekiden.ir.prim import (
    LT,
    Add,
    And,
    BinaryExpr,
    Cast,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Mul,
    Not,
    PrimExpr,
    Select,
    Sub,
    Var,
    const,
    fold_binary,
    logical_and,
)
from ekiden.ir.prim_visitor import children, rebuild, unvisited_post_order
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    While,
)
from ekiden.tir.transform.simplification import Simplifier
from ekiden.tir.visitor import StmtMutator, all_exprs, flatten_seq, pre_order_stmts

DEFAULT_VECTOR_LANES = 16
"""Number of lanes of a loop without the annotation `lanes`."""


# Legal inside: no effects, no while whose condition differs between lanes, no store of several
# lanes to one element. After: nothing depends on the loop's variable; an index that was affine in
# it is a Ramp, which codegen knows to be one load, and any other vector index a gather.
class Vectorizer(StmtMutator):
    """A mutator that rewrites the inside of a loop for `lanes` values of its variable at once:
    base, base + 1, ...

    `mask` (a bool vector) restricts loads and stores to the enabled lanes. Buffers allocated inside
    become vectors.
    """

    def __init__(
        self, var: Var, base: PrimExpr, lanes: int | str, mask: PrimExpr | None = None
    ) -> None:
        self._lanes = dt.lanes_suffix(f"x{lanes}")
        self._mask = mask
        self._has_scalar_branch = False
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []
        self._values: dict[Var, PrimExpr] = {var: ramp(base, 1, lanes)}
        self._buffers: dict[Buffer, Buffer] = {}
        self._merged_buffers: set[Buffer] = set()
        """Widened buffers that masked stores change in some lanes only."""

    def define(self, var: Var, value: PrimExpr) -> None:
        """Bind another scalar variable to a vector."""
        self._values[var] = value

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression, as a vector where it depends on the variable."""
        self._keepalive.append(expr)
        self.rewrite_nodes(unvisited_post_order((expr,), self._memo))
        return self._memo[id(expr)]

    def rewrite_nodes(self, nodes: Iterable[PrimExpr]) -> None:
        """Rewrite nodes of expressions that the caller keeps alive, each behind its children."""
        memo = self._memo
        for node in nodes:
            memo[id(node)] = self._vectorize_node(node, [memo[id(c)] for c in children(node)])

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        """Return the vector form of a buffer allocated inside."""
        return self._buffers.get(buffer, buffer)

    def _vectorize_node(self, e: PrimExpr, new: list[PrimExpr]) -> PrimExpr:
        if isinstance(e, Var):
            return self._values.get(e, e)
        if isinstance(e, BufferLoad):
            return self._vectorize_load(e, new)
        if isinstance(e, Intrinsic) and find_intrinsic(e.op).has_effects:
            raise ScheduleError(f"vectorize: a call of {e.op!r} cannot be one of vectors: {e!r}")
        if not any(dt.lanes_suffix(c.dtype) for c in new) or isinstance(
            e, (Broadcast, Ramp, VectorReduce)
        ):
            return rebuild(e, new)
        if isinstance(e, (Add, Sub, Mul)) and e.dtype == "int64":
            affine = _fold_ramp_arithmetic(type(e), new[0], new[1])
            if affine is not None:
                return affine
        wide = self._widen(e, new)
        return _simplify_ramp_division(wide) if isinstance(wide, (FloorDiv, FloorMod)) else wide

    def _widen(self, e: PrimExpr, new: list[PrimExpr]) -> PrimExpr:
        lanes = _max_lanes_text(new)
        # A uniform condition stays a scalar: a branch for all lanes, not a mask.
        scalar_condition = (
            isinstance(e, Intrinsic)
            and e.op == "if_then_else"
            and not dt.lanes_suffix(new[0].dtype)
        )
        wide = [
            c if scalar_condition and n == 0 else broadcast(c, lanes) for n, c in enumerate(new)
        ]
        if isinstance(e, BinaryExpr):
            return fold_binary(type(e), wide[0], wide[1])
        return rebuild(e, wide).with_fields(dtype=dt.with_lanes(e.dtype, lanes))

    def _vectorize_load(self, e: BufferLoad, new: list[PrimExpr]) -> PrimExpr:
        if e.buffer in self._buffers:
            wide = self._buffers[e.buffer]
            return BufferLoad(wide, tuple(new), wide.dtype)
        lanes = dt.lanes_suffix(new[-1].dtype) if new else ""
        if not lanes and not (self._has_scalar_branch and new):
            return rebuild(e, new)
        if not lanes:  # one element for all lanes, loaded if any lane is active
            lanes, new = self._lanes, [*new[:-1], broadcast(new[-1], self._lanes)]
        # A masked load must not touch disabled lanes, whose addresses may be unmapped; they read as
        # 0.
        dtype = dt.with_lanes(e.dtype, lanes)
        load = BufferLoad(e.buffer, tuple(new), dtype)
        if self._mask is None:
            return load
        return Intrinsic(
            "if_then_else", (self._mask, load, broadcast(const(0, e.dtype), lanes)), dtype
        )

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Turn a store with a per-lane index into a vector store; a store to a buffer allocated
        inside stores the vector. Raises ScheduleError where lanes would store different values
        to one element.
        """
        value, indices = self.rewrite_expr(stmt.value), self.exprs(stmt.indices)
        if stmt.buffer in self._buffers:
            buffer, wide = self.rewrite_buffer(stmt.buffer), broadcast(value, self._lanes)
            if self._has_scalar_branch and self._mask is not None:
                # A lane-private buffer has no masked store: old and new lanes are blended, so the
                # buffer must be initialised.
                self._merged_buffers.add(buffer)
                old = BufferLoad(buffer, indices, wide.dtype)
                wide = Select(self._mask, wide, old, wide.dtype)
            return BufferStore(buffer, wide, indices)
        lanes = dt.lanes_suffix(indices[-1].dtype)
        if not lanes and self._has_scalar_branch:
            raise ScheduleError(
                f"vectorize: the store to {stmt.buffer.name!r} is under a condition that differs "
                "between lanes, and to one element"
            )
        if not lanes and dt.lanes_suffix(value.dtype) and not dt.lanes_suffix(stmt.value.dtype):
            raise ScheduleError(
                f"vectorize: every lane has a value of its own to store to one element of"
                f" {stmt.buffer.name!r}"
            )
        predicate = self._mask if lanes else None
        if stmt.predicate is not None:
            own_predicate = broadcast(self.rewrite_expr(stmt.predicate), lanes)
            predicate = (
                own_predicate if predicate is None else logical_and(predicate, own_predicate)
            )
        return BufferStore(stmt.buffer, broadcast(value, lanes), indices, predicate)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rewrite let x = e in s to let xv = vector e in s[x := xv], where e depends on the
        variable.
        """
        value = self.rewrite_expr(stmt.value)
        if value.dtype == stmt.var.dtype:
            return LetStmt(stmt.var, value, self.visit(stmt.body))
        wide = Var(stmt.var.name, value.dtype)
        self._values[stmt.var] = wide
        return LetStmt(wide, value, self.visit(stmt.body))

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Turn a divergent condition into the mask of both sides; its uniform part stays a
        branch.
        """
        condition = self.rewrite_expr(stmt.condition)
        if not dt.lanes_suffix(condition.dtype):
            return super().visit_if(stmt)
        if stmt.else_case is None and isinstance(stmt.condition, And):
            inner = stmt.with_fields(condition=stmt.condition.b)
            return self.visit_if(stmt.with_fields(condition=stmt.condition.a, then_case=inner))
        if isinstance(condition, Intrinsic) and condition.op == "likely":
            marked = stmt.condition
            assert isinstance(marked, Intrinsic)
            return self.visit_if(stmt.with_fields(condition=marked.args[0]))
        then_case = self._simplify_under(condition, stmt.then_case)
        if stmt.else_case is None:
            return then_case
        return flatten_seq(
            then_case, self._simplify_under(Not(condition, condition.dtype), stmt.else_case)
        )

    def visit_for(self, stmt: For) -> Stmt:
        """Run an inner loop serially; one with divergent bounds runs as often as its longest lane,
        under the mask of the lanes that have the iteration.
        """
        if stmt.kind in (ForKind.VECTORIZED, ForKind.PARALLEL):
            stmt = stmt.with_fields(kind=ForKind.SERIAL, annotations=None)
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        if not dt.lanes_suffix(low.dtype) and not dt.lanes_suffix(extent.dtype):
            return super().visit_for(stmt)
        step = Var(stmt.loop_var.name, stmt.loop_var.dtype)
        wide = broadcast(extent, self._lanes)
        self._values[stmt.loop_var] = broadcast(low, self._lanes) + broadcast(step, self._lanes)
        # Lanes with different trip counts run as long as the longest, each masked behind its own
        # end.
        longest = VectorReduce(wide, "max", dt.element_dtype(wide.dtype))
        body = self._simplify_under(broadcast(step, self._lanes) < wide, stmt.body)
        return For(step, const(0), longest, ForKind.SERIAL, body)

    def visit_while(self, stmt: While) -> Stmt:
        """Visit a while loop; raise ScheduleError for a divergent condition."""
        if dt.lanes_suffix(self.rewrite_expr(stmt.condition).dtype):
            raise ScheduleError(
                "vectorize: the condition of a while loop inside differs between lanes"
            )
        self._memo = {}
        return super().visit_while(stmt)

    # `_has_scalar_branch` tells a branch's mask from that of the tail: under the former lanes keep
    # what they had, so stores to buffers of the loop's own must merge; lanes of a tail are
    # nobody's.
    def _simplify_under(self, condition: PrimExpr, side: Stmt) -> Stmt:
        """Visit a statement in the lanes for which a condition holds."""
        outer = self._mask, self._memo, self._has_scalar_branch
        self._mask = condition if self._mask is None else logical_and(self._mask, condition)
        self._memo, self._has_scalar_branch = {}, True  # a load is another one under another mask
        new = self.visit(side)
        self._mask, self._memo, self._has_scalar_branch = outer
        return new

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Widen an allocation inside the loop: float32[n] -> float32x16[n]."""
        old = stmt.buffer
        self._buffers[old] = old.with_fields(dtype=dt.with_lanes(old.dtype, self._lanes))
        wide = self._buffers[old]
        body = self.visit(stmt.body)
        return Allocate(
            wide, flatten_seq(_emit_zero_fill(wide), body) if wide in self._merged_buffers else body
        )


def _emit_zero_fill(buffer: Buffer) -> Stmt:
    """Return the zero fill of a buffer some of whose lanes may never be stored, but are merged with
    others.
    """
    n = Var("n")
    size: PrimExpr = const(1)
    for extent in buffer.shape:
        size = size * extent
    zero = broadcast(const(0, dt.element_dtype(buffer.dtype)), dt.lanes_suffix(buffer.dtype))
    kind = ForKind.UNROLLED if buffer.scope == "register" else ForKind.SERIAL
    return For(n, const(0), size, kind, BufferStore(buffer, zero, (n,)))


def _max_lanes_text(values: Sequence[PrimExpr]) -> str:
    """Return the lanes of the widest of values, in the notation of `dt.vector`."""
    lanes = {dt.lanes_suffix(v.dtype) for v in values} - {""}
    return max(lanes, key=lambda count: int(count.removeprefix(dt.VSCALE_PREFIX)))


def _fold_ramp_arithmetic(kind: type[BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """Return Ramp + s, Ramp - s, s + Ramp, Ramp * s or s * Ramp as a Ramp, else None."""
    if kind is Mul:
        a, b = (b, a) if isinstance(b, Ramp) else (a, b)
        if isinstance(a, Ramp) and not dt.lanes_suffix(b.dtype):
            return Ramp(a.base * b, a.stride * b, a.lanes, a.dtype)
        return None
    combine: Callable[[PrimExpr, PrimExpr], PrimExpr] = lambda x, y: fold_binary(kind, x, y)  # noqa: E731
    # Strides that cancel leave one value for all lanes, which is no Ramp.
    if isinstance(a, Ramp) and isinstance(b, Ramp):
        stride = combine(a.stride, b.stride)
        return (
            None
            if isinstance(stride, IntImm) and stride.value == 0
            else Ramp(combine(a.base, b.base), stride, a.lanes, a.dtype)
        )
    if isinstance(a, Ramp) and not dt.lanes_suffix(b.dtype):
        return Ramp(combine(a.base, b), a.stride, a.lanes, a.dtype)
    if isinstance(b, Ramp) and not dt.lanes_suffix(a.dtype):
        return Ramp(
            combine(a, b.base),
            combine(const(0), b.stride) if kind is Sub else b.stride,
            b.lanes,
            b.dtype,
        )
    return None


# The channel of a group, o // 32 for o = i * 16 + (0, 1, .. 7), is one number for all lanes: taken
# for a vector it would make a gather of every load that it is an index of.
def _simplify_ramp_division(e: BinaryExpr) -> PrimExpr:
    """Simplify Ramp // s and Ramp % s to a scalar where all lanes are in one multiple of s, or to a
    Ramp.
    """
    simplified = fold_vector_op(e, Analyzer().modular_set)
    if simplified is None:
        return e
    return simplified.value if isinstance(simplified, Broadcast) else simplified


# 5 remaining elements of 16 take a masked vector of 8 lanes, not of 16.
def tail_lanes(tail: int, lanes: int) -> int:
    """Return the narrowest power-of-two vector width that holds `tail` elements, at most
    `lanes`.
    """
    wide = 1
    while wide < tail:
        wide *= 2
    return min(wide, lanes)


class _LoopVectorizer(Simplifier):
    """A simplifier of what vectorisation creates; code outside vectorised loops is unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        return super().rewrite_expr(expr) if self._inside else expr

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Simplify a store inside a vectorised loop."""
        return super().visit_store(stmt) if self._inside else stmt

    def visit_for(self, stmt: For) -> Stmt:
        """Vectorise marked loops; bind the ranges of other loops for the analyzer."""
        if stmt.kind is ForKind.VECTORIZED and _has_extern_call(stmt.body):
            stmt = stmt.with_fields(
                kind=ForKind.SERIAL, annotations=None
            )  # a call is of one element
        if stmt.kind is ForKind.VECTORIZED:
            outer, self._inside = self._inside, True
            vectors = self._vectorize_loop(stmt)
            self._inside = outer
            return vectors
        if self._inside:
            return super().visit_for(stmt)
        self.analyzer.bind(stmt.loop_var, stmt.min, stmt.extent)
        return StmtMutator.visit_for(self, stmt)

    def _vectorize_loop(self, stmt: For) -> Stmt:
        lanes = (stmt.annotations or {}).get("lanes", DEFAULT_VECTOR_LANES)
        assert isinstance(lanes, int)
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        if isinstance(extent, IntImm):
            return self._vectorize_constant_extent(stmt, low, extent.value, lanes)
        if (factor := _vscale_factor(extent)) is not None:
            return self.visit(_vector_body(stmt, low, dt.scalable_lanes(factor)))
        outer = Var(stmt.loop_var.name)
        vector_count = self.analyzer.simplify(extent // lanes)
        tail_count = self.analyzer.simplify(extent % lanes)
        main = For(
            outer,
            const(0),
            vector_count,
            ForKind.SERIAL,
            _vector_body(stmt, low + outer * lanes, lanes),
        )
        tail = IfThenElse(
            tail_count > 0, _vector_body(stmt, low + vector_count * lanes, lanes, tail_count)
        )
        return self.visit(flatten_seq(main, tail))

    def _vectorize_constant_extent(self, stmt: For, low: PrimExpr, extent: int, lanes: int) -> Stmt:
        vector_count, tail = divmod(extent, lanes)
        statements: list[Stmt] = []
        if vector_count:
            outer = Var(stmt.loop_var.name)
            body = _vector_body(stmt, low + outer * lanes, lanes)
            statements.append(For(outer, const(0), const(vector_count), ForKind.SERIAL, body))
        if tail:
            wide = tail_lanes(tail, lanes)
            statements.append(
                _vector_body(
                    stmt, low + vector_count * lanes, wide, None if tail == wide else const(tail)
                )
            )
        return self.visit(flatten_seq(*statements))


def _has_extern_call(body: Stmt) -> bool:
    """Return whether a statement calls a function, which accepts scalars and no vectors."""
    return any(
        isinstance(e, Intrinsic) and find_intrinsic(e.op).is_function_call for e in all_exprs(body)
    )


def _vscale_factor(extent: PrimExpr) -> int | None:
    """Return the factor of an extent `vscale() * factor`, or None."""
    value = extent.value if isinstance(extent, Cast) else extent
    if isinstance(value, Intrinsic) and value.op == "vscale":
        return 1
    if isinstance(value, Mul):
        for candidate, factor in ((value.a, value.b), (value.b, value.a)):
            if isinstance(factor, IntImm) and _vscale_factor(candidate) == 1:
                return int(factor.value)
    return None


def _vector_body(stmt: For, base: PrimExpr, lanes: int | str, tail: PrimExpr | None = None) -> Stmt:
    """Return the body for the vector at base; only its first `tail` lanes if given."""
    mask = None
    if tail is not None and lanes != 1:
        wide = dt.with_lanes("bool", lanes)
        # In int32 16 lane numbers fill one 512-bit register; in int64 they would take two.
        mask = LT(ramp(const(0, "int32"), 1, lanes), broadcast(_int32(tail), lanes), wide)
    return Vectorizer(stmt.loop_var, base, lanes, mask).visit(stmt.body)


def _int32(value: PrimExpr) -> PrimExpr:
    return value.astype("int32")


def vectorize_loops(func: PrimFunc) -> PrimFunc:
    """Return the function without vectorised loops. A loop's `annotations["lanes"]` sets the width;
    with the option `tir.disable_vectorize` they become serial.
    """
    if not any(
        isinstance(s, For) and s.kind is ForKind.VECTORIZED for s in pre_order_stmts(func.body)
    ):
        return func
    is_serial = PassContext.current().option(DISABLE_VECTORIZE_OPTION)
    return func.with_fields(
        body=(_VectorLoopSerializer() if is_serial else _LoopVectorizer()).visit(func.body)
    )


class _VectorLoopSerializer(StmtMutator):
    """A mutator that makes vectorised loops serial."""

    def visit_for(self, stmt: For) -> Stmt:
        """Convert a vectorised loop to a serial one."""
        visited = super().visit_for(stmt)
        is_vector = isinstance(visited, For) and visited.kind is ForKind.VECTORIZED
        return visited.with_fields(kind=ForKind.SERIAL, annotations=None) if is_vector else visited
