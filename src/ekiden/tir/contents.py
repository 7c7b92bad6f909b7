"""What a loop program contains, found in one walk: passes that look for what is not there are
skipped."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ekiden.ir import dtype as dt
from ekiden.ir.prim import Intrinsic
from ekiden.tir.expr import BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, Prefetch, Stmt
from ekiden.tir.visitor import expressions, post_order, walk


@dataclass(frozen=True, slots=True)
class Contents:
    """Kinds of statements, names of intrinsics, the types of elements of the buffers that are
    allocated, read or written, and whether any value is a vector."""

    statements: frozenset[type[Stmt]]
    intrinsics: frozenset[str]
    elements: frozenset[str]
    has_vectors: bool

    @property
    def has_small_types(self) -> bool:
        """Whether a buffer has elements of a byte or less that are no integers of a byte."""
        return any(map(dt.is_small, self.elements))


_FOUND: WeakKeyDictionary[Stmt, Contents] = WeakKeyDictionary()


def contents(root: Stmt) -> Contents:
    """What a statement contains. Of one object it is found once: passes that change nothing give
    the object that they got."""
    found = _FOUND.get(root)
    if found is None:
        found = _FOUND[root] = _contents(root)
    return found


def _contents(root: Stmt) -> Contents:
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
    has_vectors = any(dt.lanes(kind) > 1 for kind in {e.dtype for e in order})
    kinds = frozenset(map(type, stmts))
    return Contents(kinds, frozenset(intrinsics), frozenset(elements), has_vectors)
