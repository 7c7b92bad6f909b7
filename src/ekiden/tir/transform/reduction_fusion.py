"""Fusion of reductions over a buffer into the stores that fill it, while the values are in
registers.

    for i in parallel(n):                       for i in parallel(n):
        for j in range(m):                          best[0:8] = -inf
            out[i * m + j] = f(i, j)                for j in range(m):
    high[0] = -inf                                      x = f(i, j)
    for k in range(n * m):  # reduce_stores             out[i * m + j] = x
        high[0] = max(high[0], out[k])                  best[j & 7] = max(best[j & 7], x)
                                                    part[i] = max(best[0], ..., best[7])
                                                for i in range(n): ...max(part[i])
                                                high[0] = ...

The loop is marked by who knows that every element is stored, and that each store is of a final
value; storing one twice is no harm, as maxima and minima do not count. One that is read elsewhere
may hold a partial sum: then the loop stays. Accumulators rotate, as each waits for its own last
store to be forwarded.

Maxima of floats that are at least 0 are taken of their bits as unsigned integers, which have the
same order: one instruction, where a maximum that NaN passes through takes three. Only NaN and -0.0
are beyond infinity so; if there is one, the loop runs after all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    GT,
    FloatImm,
    IntImm,
    Max,
    Min,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    fold_binary,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import (
    Broadcast,
    Buffer,
    BufferAddress,
    BufferLoad,
    VectorReduce,
    broadcast,
    ramp,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.visitor import StmtMutator, all_exprs, pre_order_stmts, sub_statements

REDUCED_STORES_KEY = "reduce_stores"
"""The annotation of a loop that reduces a stored buffer: "max" or "min"."""
RUNNING_LOOP_KINDS = (ForKind.SERIAL, ForKind.PARALLEL, ForKind.UNROLLED)
COMBINE_BY_KIND = {"max": Max, "min": Min}
BITS_DTYPE = "uint32"
"""Integer dtype of a float32 bit pattern."""
INFINITY_BITS = 0x7F800000
NUM_ACCUMULATORS = 8
"""Accumulators of a scope, a power of two: a load waits about eight cycles for the store before it,
and processors store one vector a cycle or two."""
MAX_PARALLEL_PARTS = 64
"""Parts of a parallel loop that have accumulators of their own: enough to balance cores."""


def reduction_identity(kind: str, dtype: str) -> PrimExpr:
    """Return the identity element of a float maximum or minimum."""
    return const(float("-inf" if kind == "max" else "inf"), dtype)


def emit_reduction_of_stores(
    source: Buffer, target: Buffer, size: PrimExpr, kind: str
) -> tuple[Stmt, Stmt]:
    """Return the statements `target = max(source)` for a source whose every element is stored once
    or with equal values: the initial value, and the marked loop.

    Args:
        source: The buffer whose stores are reduced.
        target: A buffer of one element.
        size: The elements of the source.
        kind: "max" or "min".
    """
    position, zero = Var("at"), (const(0),) if target.shape else ()
    value = BufferLoad(
        source, (position,), source.dtype
    )  # a single index is flat, whatever the buffer's shape
    combined = COMBINE_BY_KIND[kind](target[zero], value, target.dtype)
    start = BufferStore(target, reduction_identity(kind, target.dtype), zero)
    body = BufferStore(target, combined, zero)
    return start, For(position, const(0), size, ForKind.SERIAL, body, {REDUCED_STORES_KEY: kind})


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Reduction of stored values: its kind, on floats or on the bit patterns of floats."""

    kind: str
    dtype: str

    @property
    def identity(self) -> PrimExpr:
        """Return the identity element."""
        is_bits = self.dtype == BITS_DTYPE
        return const(0, BITS_DTYPE) if is_bits else reduction_identity(self.kind, self.dtype)

    def encode(self, value: PrimExpr) -> PrimExpr:
        """Return a stored value in the representation that is reduced."""
        if dt.element_dtype(value.dtype) == self.dtype:
            return value
        kind = dt.with_lanes(self.dtype, dt.lanes(value.dtype))
        return call_intrin("reinterpret", value, dtype=kind)


class _Accumulators:
    """Accumulators of one thread's scope, a few vectors for each store width."""

    def __init__(self, reduction: _Reduction) -> None:
        self.reduction, self.kind, self.dtype = reduction, reduction.kind, reduction.dtype
        self.buffers: dict[int, Buffer] = {}

    def combine(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return COMBINE_BY_KIND[self.kind](a, b, a.dtype)

    def load(self, lanes: int, slot: PrimExpr) -> tuple[Buffer, PrimExpr, PrimExpr]:
        """Return the buffer of a store width, the index of an accumulator in it, and its value."""
        if lanes not in self.buffers:
            shape = (const(NUM_ACCUMULATORS * lanes),)
            self.buffers[lanes] = Buffer(f"best{lanes}", shape, self.dtype, "local")
        buffer = self.buffers[lanes]
        index = simplify(slot * lanes)
        index = index if lanes == 1 else ramp(index, 1, lanes)
        return buffer, index, BufferLoad(buffer, (index,), dt.with_lanes(self.dtype, lanes))

    def emit_update(self, value: PrimExpr, slot: PrimExpr, mask: PrimExpr | None = None) -> Stmt:
        """Emit the update of an accumulator by the lanes of a value that the mask enables."""
        lanes = dt.lanes(value.dtype)
        buffer, index, best = self.load(lanes, slot)
        new = self.combine(best, self.reduction.encode(value))
        if mask is not None:
            new = Select(mask, new, best, new.dtype)
        return BufferStore(buffer, new, (index,))

    def result(self) -> PrimExpr:
        """Return the combination of all accumulators."""
        total = self.reduction.identity
        for lanes in self.buffers:
            values = [self.load(lanes, const(slot))[2] for slot in range(NUM_ACCUMULATORS)]
            while len(values) > 1:
                values = [
                    self.combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)
                ]
            best = values[0]
            best = best if lanes == 1 else VectorReduce(best, self.kind, self.dtype)
            total = self.combine(best, total)
        return total

    def wrap_with_accumulators(self, body: Stmt) -> Stmt:
        """Emit the body within the accumulators' allocations, initialised with the identity."""
        identity = self.reduction.identity
        starts = [
            BufferStore(
                buffer,
                broadcast(identity, lanes),
                (const(slot) if lanes == 1 else ramp(const(slot * lanes), 1, lanes),),
            )
            for lanes, buffer in self.buffers.items()
            for slot in range(NUM_ACCUMULATORS)
        ]
        body = seq(*starts, body)
        for buffer in self.buffers.values():
            body = Allocate(buffer, body)
        return body


class _StoreReducer(StmtMutator):
    """A rewriter of the stores to the source of a marked loop, and of the loop."""

    def __init__(self, loop: For, reduction: _Reduction) -> None:
        assert isinstance(loop.body, BufferStore)
        self.loop, self.target, self.reduction = loop, loop.body, reduction
        self.source = _reduced_buffer(loop)
        self.accumulators = _Accumulators(reduction)
        self.loop_var: Var | None = None
        self.num_sites = self.site = 0

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite out[i] = f(x) to a store and an update of an accumulator."""
        if stmt.buffer is not self.source:
            return stmt
        value = Var("stored", stmt.value.dtype)
        update = self.accumulators.emit_update(value, self.next_accumulator_index(), stmt.predicate)
        return LetStmt(value, stmt.value, seq(stmt.with_fields(value=value), update))

    def next_accumulator_index(self) -> PrimExpr:
        """Return the accumulator of the next store of the innermost loop."""
        site = self.site
        self.site += 1
        if self.loop_var is None or self.num_sites >= NUM_ACCUMULATORS:
            return const(site % NUM_ACCUMULATORS)
        store_index = cast(self.loop_var, "int64") * self.num_sites + site
        return call_intrin("bitwise_and", store_index, const(NUM_ACCUMULATORS - 1), dtype="int64")

    def visit_for(self, stmt: For) -> Stmt:
        """Rewrite a loop that stores to the source, and replace the marked loop by the result."""
        if stmt is self.loop:
            return self.emit_result(stmt)
        if not any(_has_store_to(s, self.source) for s in pre_order_stmts(stmt.body)):
            return stmt
        if stmt.kind is ForKind.PARALLEL:
            return self.visit_parallel(stmt)
        outer = self.loop_var, self.num_sites, self.site
        self.loop_var, self.site = stmt.loop_var, 0
        self.num_sites = _num_direct_stores(stmt.body, self.source)
        body = self.visit(stmt.body)
        self.loop_var, self.num_sites, self.site = outer
        return stmt.with_fields(body=body)

    def emit_result(self, loop: For) -> Stmt:
        """Emit the store of the result in place of the marked loop."""
        best = Var("best", self.reduction.dtype)
        result = self.accumulators.result()
        if self.reduction.dtype != BITS_DTYPE:
            return LetStmt(best, result, self.target.with_fields(value=best))
        value = call_intrin("reinterpret", best, dtype=self.source.dtype)
        beyond = fold_binary(GT, best, const(INFINITY_BITS, BITS_DTYPE))
        again = loop.with_fields(annotations=None)
        store = self.target.with_fields(value=value)
        return LetStmt(best, result, IfThenElse(beyond, again, store))

    def visit_parallel(self, stmt: For) -> Stmt:
        """Rewrite a parallel loop: each chunk has its own accumulators, and stores its result."""
        outer = self.accumulators, self.loop_var, self.num_sites, self.site
        self.accumulators = _Accumulators(self.reduction)
        num_chunks, chunk, loop = _split_parallel(stmt)
        if loop is None:
            self.loop_var, self.num_sites, self.site = None, 0, 0
            body = self.visit(stmt.body)
        else:
            body = self.visit_for(loop)
        accumulators = self.accumulators
        self.accumulators, self.loop_var, self.num_sites, self.site = outer
        results = Buffer("parts", (num_chunks,), self.reduction.dtype)
        first = stmt.min if loop is None else const(0)
        number = simplify(chunk - first)
        body = accumulators.wrap_with_accumulators(
            seq(body, BufferStore(results, accumulators.result(), (number,)))
        )
        n = Var("n")
        slot = call_intrin("bitwise_and", n, const(NUM_ACCUMULATORS - 1), dtype="int64")
        collect = self.accumulators.emit_update(results[n], slot)
        return Allocate(
            results,
            seq(
                For(
                    chunk,
                    first,
                    num_chunks,
                    ForKind.PARALLEL,
                    body,
                    _scaled_parallel_annotations(stmt, loop is not None),
                ),
                For(n, const(0), num_chunks, ForKind.SERIAL, collect),
            ),
        )


def _split_parallel(stmt: For) -> tuple[PrimExpr, Var, For | None]:
    """Return the chunks of a parallel loop, their variable, and the loop over one chunk; None where
    each iteration is a chunk.
    """
    extent = stmt.extent
    if not isinstance(extent, IntImm) or extent.value <= MAX_PARALLEL_PARTS:
        return extent, stmt.loop_var, None
    chunk, num_chunks = Var("part"), const(MAX_PARALLEL_PARTS)
    begin, end = chunk * extent // num_chunks, (chunk + 1) * extent // num_chunks
    inner = For(
        stmt.loop_var, simplify(stmt.min + begin), simplify(end - begin), ForKind.SERIAL, stmt.body
    )
    return num_chunks, chunk, inner


def _scaled_parallel_annotations(stmt: For, is_split: bool) -> dict[str, object] | None:
    """Return the annotations of a parallel loop, scaled to larger iterations where it was split."""
    notes = dict(stmt.annotations or {})
    if is_split:
        assert isinstance(stmt.extent, IntImm)
        grain = int(str(notes.get("grain", 1)))
        notes["grain"] = max(1, -(-grain * MAX_PARALLEL_PARTS // stmt.extent.value))
    return notes or None


def _has_store_to(stmt: Stmt, buffer: Buffer) -> bool:
    return isinstance(stmt, BufferStore) and stmt.buffer is buffer


def _num_direct_stores(body: Stmt, buffer: Buffer) -> int:
    """Return the number of stores to a buffer that no inner loop repeats."""
    count, stack = 0, [body]
    while stack:
        stmt = stack.pop()
        count += _has_store_to(stmt, buffer)
        if not isinstance(stmt, For):
            stack.extend(sub_statements(stmt))
    return count


def _reduced_buffer(loop: For) -> Buffer:
    """Return the buffer that a marked loop reduces."""
    assert isinstance(loop.body, BufferStore)
    target, combined = loop.body.buffer, loop.body.value
    assert isinstance(combined, (Max, Min))
    (source,) = (
        e.buffer
        for e in (combined.a, combined.b)
        if isinstance(e, BufferLoad) and e.buffer is not target
    )
    return source


def _choose_reduction(root: Stmt, loop: For) -> _Reduction:
    """Select the reduction of the values that a marked loop reads."""
    kind, source = str((loop.annotations or {})[REDUCED_STORES_KEY]), _reduced_buffer(loop)
    has_elements = isinstance(loop.extent, IntImm) and loop.extent.value > 0
    names: dict[Var, PrimExpr] = {}
    stored: list[PrimExpr] = []
    for stmt in pre_order_stmts(root):
        if isinstance(stmt, LetStmt):
            names[stmt.var] = stmt.value
        elif isinstance(stmt, BufferStore) and stmt.buffer is source:
            stored.append(stmt.value)
    is_positive = all(_is_nonnegative(names.get(v, v) if isinstance(v, Var) else v) for v in stored)
    if kind == "max" and has_elements and source.dtype == "float32" and is_positive:
        return _Reduction(kind, BITS_DTYPE)
    return _Reduction(kind, source.dtype)


def _is_nonnegative(value: PrimExpr) -> bool:
    """Return whether each lane of a float is clipped to at least 0, or is NaN or -0.0."""
    match value:
        case Max(a=a, b=b):
            return _is_nonnegative(a) or _is_nonnegative(b)
        case Min(a=a, b=b):
            return _is_nonnegative(a) and _is_nonnegative(b)
        case Broadcast(value=inner):
            return _is_nonnegative(inner)
        case FloatImm(value=number):
            return number >= 0
    return False


def _has_plain_stores(root: Stmt, source: Buffer, loops: Sequence[For]) -> bool:
    """Return whether a buffer is stored in vectors or elements by loops that run as they are, and
    read only by marked loops.
    """
    for stmt in pre_order_stmts(root):
        if isinstance(stmt, Block) or (isinstance(stmt, DeclBuffer) and stmt.source is source):
            return False
        if isinstance(stmt, For) and stmt.kind not in RUNNING_LOOP_KINDS:
            return False
    nested_exprs = {id(e) for loop in loops for e in all_exprs(loop)}
    return not any(
        isinstance(e, (BufferLoad, BufferAddress))
        and e.buffer is source
        and id(e) not in nested_exprs
        for e in all_exprs(root)
    )


def reduce_stores(func: PrimFunc) -> PrimFunc:
    """Return the function with its marked loops fused into the stores that they read."""
    loops = [
        s
        for s in pre_order_stmts(func.body)
        if isinstance(s, For) and REDUCED_STORES_KEY in (s.annotations or {})
    ]
    for loop in loops:
        if _has_plain_stores(func.body, _reduced_buffer(loop), loops):
            reducer = _StoreReducer(loop, _choose_reduction(func.body, loop))
            body = reducer.visit(func.body)
            func = func.with_fields(body=reducer.accumulators.wrap_with_accumulators(body))
    return func


__all__ = [
    "REDUCED_STORES_KEY",
    "emit_reduction_of_stores",
    "reduce_stores",
    "reduction_identity",
]
