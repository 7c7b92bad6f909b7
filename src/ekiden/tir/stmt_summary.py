"""Statement summaries (statement kinds, intrinsics, dtypes, accessed buffers), computed in one walk
and cached by object, so that passes skip subtrees without anything to rewrite.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ekiden.ir import dtype as dt
from ekiden.ir.prim import Intrinsic
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, DeclBuffer, Prefetch, Stmt
from ekiden.tir.visitor import (
    direct_accesses,
    post_order,
    pre_order_stmts,
    stmt_exprs,
    sub_statements,
)


@dataclass(frozen=True, slots=True)
class StmtSummary:
    """Summary of a statement: kinds of statements, names of intrinsics, element types of the
    accessed buffers, whether any value is a vector, and whether any type other than an 8-bit
    integer has at most 8 bits.
    """

    stmt_types: frozenset[type[Stmt]]
    intrinsics: frozenset[str]
    element_dtypes: frozenset[str]
    has_vectors: bool
    has_small_types: bool


_SUMMARY_CACHE: WeakKeyDictionary[Stmt, StmtSummary] = WeakKeyDictionary()


def summarize_stmt(root: Stmt) -> StmtSummary:
    """Return the summary of a statement, cached by object: a pass that changes nothing returns the
    object it was passed, whose entry stays valid.
    """
    cached = _SUMMARY_CACHE.get(root)
    if cached is None:
        cached = _SUMMARY_CACHE[root] = _compute_summary(root)
    return cached


def _compute_summary(root: Stmt) -> StmtSummary:
    """Compute the summary of a statement in one walk."""
    stmts = list(pre_order_stmts(root))
    roots = [e for stmt in stmts for e in stmt_exprs(stmt)]
    intrinsics, elements = set(), set()
    for stmt in stmts:
        if isinstance(stmt, (BufferStore, Prefetch, Allocate)):
            elements.add(dt.element_dtype(stmt.buffer.dtype))
    order = post_order(*roots)  # what statements share comes once
    for e in order:
        if isinstance(e, Intrinsic):
            intrinsics.add(e.op)
        elif isinstance(e, (BufferLoad, BufferAddress)):
            elements.add(dt.element_dtype(e.buffer.dtype))
    values = {e.dtype for e in order}
    has_vectors = any(dt.lanes(kind) > 1 for kind in values)
    has_small = any(map(dt.is_byte_stored, elements.union(map(dt.element_dtype, values))))
    kinds = frozenset(map(type, stmts))
    return StmtSummary(kinds, frozenset(intrinsics), frozenset(elements), has_vectors, has_small)


_ACCESSED_BUFFERS_CACHE: WeakKeyDictionary[Stmt, frozenset[Buffer]] = WeakKeyDictionary()


def accessed_buffers(root: Stmt) -> frozenset[Buffer]:
    """Return the buffers that a statement reads, writes or passes to a call, and the sources of
    views in it.

    Cached by object: a pass that moves buffers queries each level of a nest, and unchanged subtrees
    are not walked again.
    """
    stack = [root]
    while stack:
        stmt = stack[-1]
        # Post-order on an explicit stack: a statement stays on it until its children are cached, so
        # deep nests do not recurse.
        unknown = [s for s in sub_statements(stmt) if s not in _ACCESSED_BUFFERS_CACHE]
        if unknown:
            stack += unknown
            continue
        # Keys are weak references to immutable statements, so an entry can neither be stale nor
        # keep a program alive.
        _ACCESSED_BUFFERS_CACHE[stack.pop()] = _compute_accessed_buffers(stmt)
    return _ACCESSED_BUFFERS_CACHE[root]


def _compute_accessed_buffers(stmt: Stmt) -> frozenset[Buffer]:
    """Return the buffers of a statement from its own expressions and its children's cached sets.

    Where it adds nothing to the largest child set, that set object is shared, so a deep nest stores
    few sets.
    """
    direct_buffers = {e.buffer for e in direct_accesses(stmt)}
    if isinstance(stmt, (BufferStore, Prefetch)):
        direct_buffers.add(stmt.buffer)
    elif isinstance(stmt, DeclBuffer):
        direct_buffers.add(stmt.source)
    inside = [_ACCESSED_BUFFERS_CACHE[s] for s in sub_statements(stmt)]
    # The largest child's set is shared where it is a superset: a nest of n loops then has one set,
    # not n equal copies.
    largest = max(inside, key=len, default=frozenset[Buffer]())
    return (
        largest
        if largest.issuperset(direct_buffers.union(*inside))
        else largest.union(direct_buffers, *inside)
    )
