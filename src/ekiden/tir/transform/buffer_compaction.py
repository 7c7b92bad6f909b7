"""Shrink intermediates to what one iteration of the loops around all their accesses needs, and
allocate them there; one that stays in place shrinks to its accessed region.

    t = alloc(64, 32)                      for i in range(64):
    for i in range(64):                        t = alloc(1, 32)
        for j in range(32):                    for j in range(32):
            t[i, j] = A[i, j]        ->            t[i - i, j] = A[i, j]
        for j in range(32):                    for j in range(32):
            B[i, j] = t[i, 31 - j]                 B[i, j] = t[i - i, 31 - j]

An allocation moves into a loop only where each iteration first writes all that it reads, so that
nothing is carried between iterations. FlattenBuffer simplifies the indices later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden.arith import prove_equal
from ekiden.arith.injectivity import image_box
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, is_same_expr, post_order
from ekiden.ir.range import Range
from ekiden.tir.access_regions import (
    Access,
    bounding_region,
    buffer_accesses,
    shared_conditions,
)
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad, Ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)
from ekiden.tir.stmt_summary import accessed_buffers
from ekiden.tir.visitor import (
    NO_OP,
    ExprRewriter,
    StmtMutator,
    flatten_seq,
    has_only_region_accesses,
    pre_order_stmts,
    stmt_exprs,
    sub_statements,
)

MAX_PRIVATE_BYTES = 1 << 10
"""Maximum size of a buffer that becomes thread-private, a part of a thread's registers."""


def _subtract_offset(index: PrimExpr, low: PrimExpr) -> PrimExpr:
    """Return index - low; a Ramp stays a Ramp, which is a contiguous load, whereas a difference of
    vectors is a gather.
    """
    if isinstance(index, Ramp):
        return index.with_fields(base=index.base - low)
    return index - low


class _OffsetRewriter(ExprRewriter):
    """A rewriter of a buffer's accesses to accesses of its compact form."""

    def __init__(self, old: Buffer, new: Buffer, ranges: Sequence[Range]) -> None:
        super().__init__(self._rewrite_load)
        self._old, self._new = old, new
        self._low = [r.min for r in ranges]

    def _subtract_offsets(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return tuple(_subtract_offset(i, low) for i, low in zip(indices, self._low, strict=True))

    def _rewrite_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer is self._old:
            return e.with_fields(buffer=self._new, indices=self._subtract_offsets(e.indices))
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite t[i] = v to t[i - low] = v."""
        if stmt.buffer is not self._old:
            return super().visit_store(stmt)
        indices = self._subtract_offsets(self.exprs(stmt.indices))
        return stmt.with_fields(
            buffer=self._new, value=self.rewrite_expr(stmt.value), indices=indices
        )


class _BufferCompactor(StmtMutator):
    def __init__(self) -> None:
        self._loops: list[For] = []
        self._names: set[Var] = set()

    def visit_for(self, stmt: For) -> Stmt:
        """Track the enclosing loops: an allocation may move into them."""
        self._loops.append(stmt)
        new = super().visit_for(stmt)
        self._loops.pop()
        return new

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Track the enclosing lets: each thread has its own value of one."""
        self._names.add(stmt.var)
        new = super().visit_let(stmt)
        self._names.discard(stmt.var)
        return new

    # The region of such an access is that of one thread, whose part of the memory it is.
    def _is_indexed_by_thread(self, buffer: Buffer, touched: Sequence[Access]) -> bool:
        """Return whether memory shared by threads is indexed by variables with a value per
        thread.
        """
        used = {v for access in touched for v in free_vars(*access.indices)}
        return not used.isdisjoint(self._names) and any(
            _is_shared_by_threads(buffer, f) for f in self._loops
        )

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Compact inner buffers first; leave a buffer with flat accesses or a taken address in
        place.
        """
        stmt = stmt.with_fields(body=self.visit(stmt.body))
        touched = buffer_accesses(stmt.body, stmt.buffer)
        rank = len(stmt.buffer.shape)
        flat = any(len(a.indices) != rank for a in touched)
        handed = any(a.extents is not None for a in touched)
        if handed and not has_only_region_accesses(stmt.body, stmt.buffer):
            return stmt
        # A compact buffer has another layout: whoever knows the old one (flat indices, strides,
        # views) would read wrong elements.
        if flat or stmt.buffer.strides or _has_view(stmt.body, stmt.buffer):
            return stmt
        if self._is_indexed_by_thread(stmt.buffer, touched):
            return stmt
        # Tried as thread-private first: only then may it move inside loops over threads.
        if stmt.buffer.scope == "global":
            thread_local = stmt.buffer.with_fields(scope="local")
            body = _OffsetRewriter(stmt.buffer, thread_local, _full_region(thread_local)).visit(
                stmt.body
            )
            if _is_thread_private(body, thread_local, list(self._loops)):
                return _sink_allocation(body, thread_local, list(self._loops), [])
        return _sink_allocation(stmt.body, stmt.buffer, list(self._loops), [])


# Threads that compute the same elements (where a stencil overlaps, or an edge cuts off) would write
# over what another is still adding to.
def _is_thread_private(s: Stmt, buffer: Buffer, outer: list[For]) -> bool:
    """Return whether each thread of a block first writes all that it reads of a small buffer, which
    can then be thread-private.
    """
    crosses = False
    while True:
        if isinstance(s, For) and _is_rewritten_each_iteration(s.body, buffer, [*outer, s]):
            crosses = crosses or _thread_axis(s).startswith("threadIdx")
            outer = [*outer, s]
            s = s.body
        elif isinstance(s, (LetStmt, Allocate)):
            s = s.body
        elif isinstance(s, SeqStmt):
            touching = [
                stmt_of_seq for stmt_of_seq in s.seq if buffer in accessed_buffers(stmt_of_seq)
            ]
            if len(touching) != 1:
                break
            s = touching[0]
        else:
            break
    size = dt.itemsize(buffer.dtype)
    for axis_range in bounding_region(buffer, buffer_accesses(s, buffer), outer) if crosses else ():
        if not isinstance(axis_range.extent, IntImm):
            return False
        size *= int(axis_range.extent.value)
    # Private arrays beyond this size spill from registers to local memory, which is as slow as
    # global memory.
    return crosses and size <= MAX_PRIVATE_BYTES


def _sink_allocation(s: Stmt, buffer: Buffer, outer: list[For], crossed: list[For]) -> Stmt:
    """Sink a buffer's allocation as deep into a statement as all its accesses allow."""
    match s:
        case For() if not _is_shared_by_threads(buffer, s) and _is_rewritten_each_iteration(
            s.body, buffer, [*outer, s]
        ):
            return s.with_fields(body=_sink_allocation(s.body, buffer, [*outer, s], [*crossed, s]))
        case Allocate():
            return s.with_fields(body=_sink_allocation(s.body, buffer, outer, crossed))
        case LetStmt() if not any(
            _is_shared_by_threads(buffer, f) for f in outer if f not in crossed
        ):
            return s.with_fields(body=_sink_allocation(s.body, buffer, outer, crossed))
        case SeqStmt():
            touching = [
                n for n, stmt_of_seq in enumerate(s.seq) if buffer in accessed_buffers(stmt_of_seq)
            ]
            # All accesses are in one child of the sequence, so the live range ends within it.
            if len(touching) == 1:
                inner = _sink_allocation(s.seq[touching[0]], buffer, outer, crossed)
                return flatten_seq(*s.seq[: touching[0]], inner, *s.seq[touching[0] + 1 :])
    return _allocate_compact(s, buffer, outer, crossed)


def _has_view(root: Stmt, buffer: Buffer) -> bool:
    """Return whether another buffer is a view of this one."""
    return any(isinstance(s, DeclBuffer) and s.source is buffer for s in pre_order_stmts(root))


def _thread_axis(loop: For) -> str:
    """Return the GPU thread axis that a loop is bound to; "" for other loops."""
    thread = str((loop.annotations or {}).get("thread", ""))
    is_virtual = thread.startswith("vthread")
    return thread if loop.kind is ForKind.THREAD_BINDING and not is_virtual else ""


def _is_shared_by_threads(buffer: Buffer, loop: For) -> bool:
    """Return whether the threads that a loop is bound to share the buffer, so that it stays
    outside.
    """
    thread = _thread_axis(loop)
    if not thread:
        return False
    return buffer.scope == "global" or (buffer.scope == "shared" and thread.startswith("threadIdx"))


def _is_rewritten_each_iteration(body: Stmt, buffer: Buffer, outer: Sequence[For]) -> bool:
    """Return whether an iteration begins with a write and writes all that it reads: nothing is
    carried from the previous one.
    """
    touched = buffer_accesses(body, buffer, shared_conditions(body, buffer))
    if _is_defined_before_read(buffer, touched, outer):
        return True
    # What no iteration of an inner loop carries, none of an outer one does.
    inner = _only_accessing_child(body, buffer)
    within = [*outer, body] if isinstance(body, For) else outer
    return inner is not None and _is_rewritten_each_iteration(inner, buffer, within)


def _only_accessing_child(s: Stmt, buffer: Buffer) -> Stmt | None:
    """Return the statement directly inside that makes all accesses of a buffer; None where there is
    none, or where a loop without bounds repeats it.
    """
    touching = [child for child in sub_statements(s) if buffer in accessed_buffers(child)]
    loads = (e for e in post_order(*stmt_exprs(s)) if isinstance(e, (BufferLoad, BufferAddress)))
    if len(touching) != 1 or isinstance(s, While) or any(e.buffer is buffer for e in loads):
        return None
    return touching[0]


def _is_defined_before_read(
    buffer: Buffer, touched: Sequence[Access], outer: Sequence[For]
) -> bool:
    """Return whether the first of a statement's accesses is a store that happens, and some store
    covers all that they touch before the first read.
    """
    # A read, or a store that may not happen, would see what the previous iteration left.
    if not touched or not touched[0].is_store or touched[0].is_conditional:
        return False
    touched = [_expand_region_access(a) for a in touched]
    needed = bounding_region(buffer, touched, outer)
    first_read = next((n for n, a in enumerate(touched) if not a.is_store), len(touched))
    reads = touched[first_read:]
    return any(
        _covers_box(buffer, store, needed, outer)
        and all(a.is_store or _is_stored_before(buffer, store, a, outer) for a in reads)
        for store in touched[:first_read]
    )


def _is_stored_before(buffer: Buffer, store: Access, read: Access, outer: Sequence[For]) -> bool:
    """Return whether a store, which is earlier in a statement and covers a read, has also stored
    all that the read sees at that time.

    In `for j: t[j] = x; y = t[(j + 1) % n]` it has not: all but the last read see what an earlier
    execution of the loop has left.
    """
    num_shared = 0
    for loop, read_loop in zip(store.loops, read.loops, strict=False):
        if loop is not read_loop:
            break
        num_shared += 1
    if not num_shared:
        return True
    inner_store = replace(store, loops=store.loops[num_shared:])
    inner_read = replace(read, loops=read.loops[num_shared:])
    if all(map(is_same_expr, store.indices, read.indices)) and not inner_store.loops:
        return not store.is_conditional
    within = [*outer, *store.loops[:num_shared]]
    needed = bounding_region(buffer, [inner_store, inner_read], within)
    return _covers_box(buffer, inner_store, needed, within)


def _expand_region_access(access: Access) -> Access:
    """Return a call's access to a region as loops over its elements."""
    if access.extents is None:
        return access
    loops = [
        For(Var("each", e.dtype), const(0, e.dtype), e, ForKind.SERIAL, NO_OP)
        for e in access.extents
    ]
    indices = tuple(i + f.loop_var for i, f in zip(access.indices, loops, strict=True))
    return replace(access, indices=indices, loops=(*access.loops, *loops), extents=None)


def _covers_box(
    buffer: Buffer, store: Access, needed: Sequence[Range], outer: Sequence[For]
) -> bool:
    """Return whether a store is unconditional and covers every element of a box."""
    if store.is_conditional or not all(
        map(_is_same_access, bounding_region(buffer, [store], outer), needed)
    ):
        return False
    moving = {loop.loop_var for loop in store.loops}
    plain = [i for i in store.indices if isinstance(i, Var) and i in moving]
    # Distinct loop variables and constants reach every element of the box; others need a proof.
    if len(set(plain)) == len(plain) and all(i in plain or is_const(i) for i in store.indices):
        return True
    iters = {f.loop_var: Range.from_min_extent(f.min, f.extent) for f in store.loops}
    return not isinstance(image_box(store.indices, iters), str)


def _is_same_access(a: Range, b: Range) -> bool:
    return prove_equal(a.min, b.min) and prove_equal(a.extent, b.extent)


def _allocate_compact(s: Stmt, buffer: Buffer, outer: list[For], crossed: list[For]) -> Stmt:
    # Threads that share the buffer use it at the same time: the region covers all of them.
    together = [f for f in outer if f not in crossed and _is_shared_by_threads(buffer, f)]
    touched = [replace(a, loops=(*together, *a.loops)) for a in buffer_accesses(s, buffer)]
    ranges = bounding_region(buffer, touched, outer) if touched else _full_region(buffer)
    if not crossed and all(map(_is_same_access, ranges, _full_region(buffer))):
        return Allocate(buffer, s)
    new = buffer.with_fields(shape=tuple(r.extent for r in ranges))
    return Allocate(new, _OffsetRewriter(buffer, new, ranges).visit(s))


def _full_region(buffer: Buffer) -> list[Range]:
    return [Range.from_min_extent(const(0), extent) for extent in buffer.shape]


def compact_buffers(func: PrimFunc) -> PrimFunc:
    """Return the function with compacted intermediates. Blocks must have been lowered: iterators
    are not resolved.
    """
    return func.with_fields(body=_BufferCompactor().visit(func.body))
