"""Which part of a buffer statements touch, in terms of what is outside.

What a block reads and writes is derived here from its body, never stored: the text shows it
(`T.reads`, `T.writes`) and the parser checks what it finds written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ekiden.arith import Analyzer, prove_equal
from ekiden.ir import dtype as dt
from ekiden.ir.prim import LT, And, IntImm, Intrinsic, PrimExpr, Var, const
from ekiden.ir.prim_visitor import post_order, same, substitute
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.contents import buffers_inside
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
)
from ekiden.tir.views import resolved
from ekiden.tir.visitor import expressions, sub_statements

UNKNOWN = (1 << 31) - 1
"""Steps of a loop of which there is nothing known but that an int32 says how many they are."""


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a buffer: its indices over loop variables, and the loops between here
    and there.

    A call that gets the buffer's address touches `extents` elements from the indices on; no
    indices mean all of the buffer. `conditional`: it may not happen, for another reason than that
    its element would lie outside the buffer.
    """

    indices: tuple[PrimExpr, ...]
    loops: tuple[For, ...]
    is_store: bool
    conditional: bool
    extents: tuple[PrimExpr, ...] | None = None


@dataclass(frozen=True, slots=True)
class BufferRegion:
    """A box of a buffer."""

    buffer: Buffer
    region: tuple[Range, ...]


def accesses(root: Stmt, buffer: Buffer) -> list[Access]:
    """Every access of a buffer inside a statement in program order (a store's loads before the
    store).
    """
    return [access for _, access in all_accesses(root, buffer)]


# Indices leave here over loop variables alone: block iterators are replaced by what they are bound
# to and names by their values, outermost first. A condition that only says that an index is inside
# of its buffer does not make an access conditional: where it fails there is no element to speak of.
def all_accesses(root: Stmt, only: Buffer | None = None) -> Iterator[tuple[Buffer, Access]]:
    """Every access of every buffer, or of one, in program order; iterators of blocks inside, and
    what is named there, are replaced by what they are bound to.
    """
    stack: list[tuple[Stmt, tuple[For, ...], dict[Var, PrimExpr], tuple[PrimExpr, ...]]] = [
        (root, (), {}, ())
    ]
    while stack:
        s, loops, values, conditions = stack.pop()
        if only is not None and only not in buffers_inside(s):
            continue
        while isinstance(s, DeclBuffer):
            s = resolved(s)
        for e in post_order(*expressions(s)):
            match e:
                case BufferLoad() | BufferAddress() if only is not None and e.buffer is not only:
                    continue
                case BufferLoad():
                    at = tuple(substitute(i, values) for i in e.indices)
                    yield e.buffer, Access(at, loops, False, _cuts(conditions, e.buffer, at))
                case BufferAddress():
                    for is_store in (False, True):
                        if "rw"[is_store] in e.access:
                            yield e.buffer, _handed(e, loops, values, is_store, bool(conditions))
        if isinstance(s, BufferStore) and (only is None or s.buffer is only):
            at = tuple(substitute(i, values) for i in s.indices)
            yield s.buffer, Access(at, loops, True, _cuts(conditions, s.buffer, at))
        if isinstance(s, For):
            loops = (*loops, s)
        if isinstance(s, LetStmt):
            values = values | {s.var: substitute(s.value, values)}
        if isinstance(s, BlockRealize):
            given = (substitute(v, values) for v in s.iter_values)
            values = values | {i.var: v for i, v in zip(s.block.iter_vars, given, strict=False)}
        for n, each in reversed(list(enumerate(sub_statements(s)))):
            inner = conditions
            if isinstance(s, While):
                inner = (*conditions, s.condition)
            if isinstance(s, IfThenElse):
                asked = _conjuncts(substitute(s.condition, values))
                inner = (*conditions, *(asked if n == 0 else (s.condition,)))
            stack.append((each, loops, values, inner))


def _conjuncts(condition: PrimExpr) -> tuple[PrimExpr, ...]:
    """What must hold for a condition to hold."""
    if isinstance(condition, Intrinsic) and condition.op == "likely":
        condition = condition.args[0]
    found: list[PrimExpr] = []
    stack = [condition]
    while stack:
        e = stack.pop()
        if isinstance(e, And):
            stack += [e.b, e.a]
        else:
            found.append(e)
    return tuple(found)


def _cuts(conditions: Sequence[PrimExpr], buffer: Buffer, indices: Sequence[PrimExpr]) -> bool:
    """Whether conditions keep an access from happening whose element is in the buffer."""
    return not all(_is_bound(c, buffer, indices) for c in conditions)


def _is_bound(condition: PrimExpr, buffer: Buffer, indices: Sequence[PrimExpr]) -> bool:
    """`index < extent` of one axis."""
    if not isinstance(condition, LT) or len(indices) != len(buffer.shape):
        return False
    return any(
        prove_equal(condition.a, i) and prove_equal(condition.b, d)
        for i, d in zip(indices, buffer.shape, strict=True)
    )


def _handed(
    e: BufferAddress,
    loops: tuple[For, ...],
    values: dict[Var, PrimExpr],
    is_store: bool,
    conditional: bool,
) -> Access:
    at = tuple(substitute(i, values) for i in e.indices)
    extents = tuple(substitute(i, values) for i in e.extents)
    return Access(at, loops, is_store, conditional, extents)


def region(buffer: Buffer, touched: Sequence[Access], outer: Iterable[For]) -> list[Range]:
    """The smallest box known to hold all accesses, as a function of the loops outside; a whole axis
    where nothing is known.
    """
    analyzer = Analyzer()
    for loop in outer:
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
    for access in touched:
        for loop in access.loops:
            analyzer.bind(loop.loop_var, loop.min, loop.extent)
    return [_range(n, dim, touched, analyzer) for n, dim in enumerate(buffer.shape)]


# Of all indices the first access's first step is the base, an expression of what is outside; the
# others are looked at as differences from it. Those need constant bounds: a box whose size depends
# on what is outside is not looked for, and the whole axis taken.
def _range(axis: int, dim: PrimExpr, touched: Sequence[Access], analyzer: Analyzer) -> Range:
    whole = Range.from_min_extent(const(0), dim)
    base: PrimExpr | None = None
    low, high = math.inf, -math.inf
    for access in touched:
        if len(access.indices) <= axis or dt.lanes(access.indices[axis].dtype) > 1:
            return whole
        index = access.indices[axis]
        if any(isinstance(e, BufferLoad) for e in post_order(index)):
            return whole  # what it reads there may be another number each time
        # From the innermost loop out: the first step of one may be that of another.
        start = index
        for loop in reversed(access.loops):
            start = substitute(start, {loop.loop_var: loop.min})
        base = start if base is None else base
        bounds = analyzer.const_int_bound(index - base)
        last = bounds[1]
        if access.extents:
            last += analyzer.const_int_bound(access.extents[axis])[1] - 1
        low, high = min(low, bounds[0]), max(high, last)
    if base is None or math.isinf(low) or math.isinf(high):
        return whole
    extent = int(high - low) + 1
    if extent >= UNKNOWN:
        return whole
    if isinstance(dim, IntImm) and extent >= dim.value:
        return whole
    return Range.from_min_extent(analyzer.simplify(base + int(low)), const(extent))


def _box(buffer: Buffer, touched: Sequence[Access]) -> tuple[Range, ...]:
    """The box that accesses touch; the point itself where they all name one point."""
    first = touched[0]
    is_point = len(first.indices) == len(buffer.shape) and all(
        a.extents is None
        and not a.loops
        and all(same(i, j) for i, j in zip(a.indices, first.indices, strict=True))
        for a in touched
    )
    if is_point:
        return tuple(Range.from_min_extent(i, 1) for i in first.indices)
    found = region(buffer, touched, ())
    return tuple(found)


def block_regions(block: Block) -> tuple[list[BufferRegion], list[BufferRegion]]:
    """What a block reads and what it writes, over its iterators.

    Buffers allocated inside are not named. A reduction (a block with an init) does not count
    reading what it accumulates in.
    """
    reads: dict[Buffer, list[Access]] = {}
    writes: dict[Buffer, list[Access]] = {}
    own: set[Buffer] = set()
    for root in (block.body,) if block.init is None else (block.init, block.body):
        own.update(_allocated(root))
        for buffer, access in all_accesses(root):
            (writes if access.is_store else reads).setdefault(buffer, []).append(access)
    hidden = own | (set(writes) if block.init is not None else set())
    return (
        [BufferRegion(b, _box(b, a)) for b, a in reads.items() if b not in hidden],
        [BufferRegion(b, _box(b, a)) for b, a in writes.items() if b not in own],
    )


def _allocated(root: Stmt) -> Iterator[Buffer]:
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, Allocate):
            yield s.buffer
        stack.extend(sub_statements(s))
