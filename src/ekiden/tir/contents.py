"""Summaries of what a loop program contains, computed in one walk and cached by object: passes skip
programs that contain nothing of theirs, and walks for one buffer skip subtrees that do not touch
it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ekiden.ir import dtype as dt
from ekiden.ir.prim import Intrinsic
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, DeclBuffer, Prefetch, Stmt
from ekiden.tir.visitor import expressions, post_order, sub_statements, walk


@dataclass(frozen=True, slots=True)
class Contents:
    """Kinds of statements, names of intrinsics, the types of elements of the buffers that are
    allocated, read or written, whether any value is a vector, and whether a buffer or any value on
    the way is of a byte or less and no integer of a byte."""

    statements: frozenset[type[Stmt]]
    intrinsics: frozenset[str]
    elements: frozenset[str]
    has_vectors: bool
    has_small_types: bool


_CONTENTS_CACHE: WeakKeyDictionary[Stmt, Contents] = WeakKeyDictionary()


def contents(root: Stmt) -> Contents:
    """Return the summary of a statement, cached by object: a pass that changes nothing returns the
    object it was passed, whose entry stays valid.
    """
    cached = _CONTENTS_CACHE.get(root)
    if cached is None:
        cached = _CONTENTS_CACHE[root] = _contents(root)
    return cached


def _contents(root: Stmt) -> Contents:
    """Compute the summary of a statement in one walk."""
    stmts = list(walk(root))
    roots = [e for stmt in stmts for e in expressions(stmt)]
    intrinsics, elements = set(), set()
    for stmt in stmts:
        if isinstance(stmt, (BufferStore, Prefetch, Allocate)):
            elements.add(dt.element(stmt.buffer.dtype))
    order = post_order(*roots)  # what statements share comes once
    for e in order:
        if isinstance(e, Intrinsic):
            intrinsics.add(e.op)
        elif isinstance(e, (BufferLoad, BufferAddress)):
            elements.add(dt.element(e.buffer.dtype))
    values = {e.dtype for e in order}
    has_vectors = any(dt.lanes(kind) > 1 for kind in values)
    has_small = any(map(dt.is_small, elements.union(map(dt.element, values))))
    kinds = frozenset(map(type, stmts))
    return Contents(kinds, frozenset(intrinsics), frozenset(elements), has_vectors, has_small)


_BUFFERS_CACHE: WeakKeyDictionary[Stmt, frozenset[Buffer]] = WeakKeyDictionary()


def buffers_inside(root: Stmt) -> frozenset[Buffer]:
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
        unknown = [s for s in sub_statements(stmt) if s not in _BUFFERS_CACHE]
        if unknown:
            stack += unknown
            continue
        # Keys are weak references to immutable statements, so an entry can neither be stale nor
        # keep a program alive.
        _BUFFERS_CACHE[stack.pop()] = _buffers_inside(stmt)
    return _BUFFERS_CACHE[root]


def _buffers_inside(stmt: Stmt) -> frozenset[Buffer]:
    """Return the buffers of a statement from its own expressions and its children's cached sets.

    Where it adds nothing to the largest child set, that set object is shared, so a deep nest stores
    few sets.
    """
    order = post_order(*expressions(stmt))
    own = {e.buffer for e in order if isinstance(e, (BufferLoad, BufferAddress))}
    if isinstance(stmt, (BufferStore, Prefetch)):
        own.add(stmt.buffer)
    elif isinstance(stmt, DeclBuffer):
        own.add(stmt.source)
    inside = [_BUFFERS_CACHE[s] for s in sub_statements(stmt)]
    # The largest child's set is shared where it is a superset: a nest of n loops then has one set,
    # not n equal copies.
    largest = max(inside, key=len, default=frozenset[Buffer]())
    return largest if largest.issuperset(own.union(*inside)) else largest.union(own, *inside)
