"""Access regions: the box of a buffer that statements touch, as a function of outer variables.

What a block reads and writes is derived here from its body, never stored: the printer prints it
(`T.reads`, `T.writes`), and the parser checks the printed form against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ekiden.arith import Analyzer, prove_equal
from ekiden.ir import dtype as dt
from ekiden.ir.prim import LT, And, IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import (
    chain_operands,
    free_vars,
    is_same_expr,
    post_order,
    substitute,
)
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
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
from ekiden.tir.stmt_summary import accessed_buffers
from ekiden.tir.views import resolve_view
from ekiden.tir.visitor import direct_accesses, sub_statements

UNKNOWN_EXTENT_THRESHOLD = (1 << 31) - 1
"""Assumed upper bound of the trip count of a loop with an unknown int32 extent."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of a buffer: its indices over loop variables, and the loops between the root
    statement and the access.

    A call that is passed the buffer's address touches `extents` elements from the indices on; no
    indices mean all of the buffer. `is_conditional`: it may not happen, for another reason than
    that its element would be outside the buffer.
    """

    indices: tuple[PrimExpr, ...]
    loops: tuple[For, ...]
    is_store: bool
    is_conditional: bool
    extents: tuple[PrimExpr, ...] | None = None


@dataclass(frozen=True, slots=True)
class BufferRegion:
    """A rectangular region of a buffer."""

    buffer: Buffer
    region: tuple[Range, ...]


def buffer_accesses(root: Stmt, buffer: Buffer, assumed: Sequence[PrimExpr] = ()) -> list[Access]:
    """Return every access of a buffer inside a statement in program order (a store's loads before
    the store). Conditions that are `assumed` to hold make no access conditional.
    """
    return [access for _, access in iter_accesses(root, buffer, assumed)]


def shared_conditions(root: Stmt, buffer: Buffer) -> tuple[PrimExpr, ...]:
    """Return the conjuncts under which a statement makes all its accesses of a buffer, as far as
    they have one value throughout the statement: without loads and names bound inside.
    """
    if any(e.buffer is buffer for e in direct_accesses(root)):
        return ()
    children = [s for s in sub_statements(root) if buffer in accessed_buffers(s)]
    if not children or isinstance(root, While):
        return ()
    first, *others = [shared_conditions(s, buffer) for s in children]
    shared = [c for c in first if all(_has_expr(conditions, c) for conditions in others)]
    if isinstance(root, IfThenElse) and children == [root.then_case]:
        shared += _split_conjuncts(root.condition)
    bound = {root.loop_var} if isinstance(root, For) else set()
    bound |= {root.var} if isinstance(root, LetStmt) else set()
    return tuple(c for c in shared if bound.isdisjoint(free_vars(c)) and not _has_load(c))


def _has_expr(exprs: Iterable[PrimExpr], wanted: PrimExpr) -> bool:
    return any(is_same_expr(e, wanted) for e in exprs)


def _has_load(expr: PrimExpr) -> bool:
    return any(isinstance(e, (BufferLoad, BufferAddress, Intrinsic)) for e in post_order(expr))


# Indices leave here over loop variables alone: block iterators are replaced by what they are bound
# to and names by their values, outermost first. A condition that only says that an index is inside
# of its buffer does not make an access conditional: where it fails there is no element to speak of.
def iter_accesses(
    root: Stmt, only: Buffer | None = None, assumed: Sequence[PrimExpr] = ()
) -> Iterator[tuple[Buffer, Access]]:
    """Yield every access of every buffer, or of one, in program order; inner block iterators and
    let variables are replaced by their bindings. Conditions that are `assumed` to hold make no
    access conditional.
    """
    stack: list[tuple[Stmt, tuple[For, ...], dict[Var, PrimExpr], tuple[PrimExpr, ...]]] = [
        (root, (), {}, ())
    ]
    while stack:
        s, loops, values, conditions = stack.pop()
        if only is not None and only not in accessed_buffers(s):
            continue
        while isinstance(s, DeclBuffer):
            s = resolve_view(s)
        for e in direct_accesses(s):
            match e:
                case BufferLoad() | BufferAddress() if only is not None and e.buffer is not only:
                    continue
                case BufferLoad():
                    indices = tuple(substitute(i, values) for i in e.indices)
                    yield (
                        e.buffer,
                        Access(
                            indices, loops, False, _is_conditional(conditions, e.buffer, indices)
                        ),
                    )
                case BufferAddress():
                    for is_store in (False, True):
                        if "rw"[is_store] in e.access:
                            yield (
                                e.buffer,
                                _access_of_address(e, loops, values, is_store, bool(conditions)),
                            )
        if isinstance(s, BufferStore) and (only is None or s.buffer is only):
            indices = tuple(substitute(i, values) for i in s.indices)
            yield (
                s.buffer,
                Access(indices, loops, True, _is_conditional(conditions, s.buffer, indices)),
            )
        if isinstance(s, For):
            loops = (*loops, s)
        if isinstance(s, LetStmt):
            values = values | {s.var: substitute(s.value, values)}
        if isinstance(s, BlockRealize):
            bindings = (substitute(v, values) for v in s.iter_values)
            values = values | {i.var: v for i, v in zip(s.block.iter_vars, bindings, strict=False)}
        for n, child in reversed(list(enumerate(sub_statements(s)))):
            inner = conditions
            if isinstance(s, While):
                inner = (*conditions, s.condition)
            # In the else branch the whole condition is false, which says nothing of a single
            # conjunct.
            if isinstance(s, IfThenElse):
                conjuncts = _split_conjuncts(substitute(s.condition, values))
                uncertain = [c for c in conjuncts if not _has_expr(assumed, c)]
                inner = (*conditions, *(uncertain if n == 0 else (s.condition,)))
            stack.append((child, loops, values, inner))


def _split_conjuncts(condition: PrimExpr) -> tuple[PrimExpr, ...]:
    """Return the conjuncts of a condition, through `likely`."""
    if isinstance(condition, Intrinsic) and condition.op == "likely":
        condition = condition.args[0]
    return tuple(chain_operands(condition, And))


def _is_conditional(
    conditions: Sequence[PrimExpr], buffer: Buffer, indices: Sequence[PrimExpr]
) -> bool:
    """Return whether conditions may prevent an access to an element inside the buffer."""
    return not all(_is_bounds_check(c, buffer, indices) for c in conditions)


def _is_bounds_check(condition: PrimExpr, buffer: Buffer, indices: Sequence[PrimExpr]) -> bool:
    """Return whether a condition is a bounds check, `index < extent`, of an axis of the access."""
    if not isinstance(condition, LT) or len(indices) != len(buffer.shape):
        return False
    return any(
        prove_equal(condition.a, i) and prove_equal(condition.b, d)
        for i, d in zip(indices, buffer.shape, strict=True)
    )


def _access_of_address(
    e: BufferAddress,
    loops: tuple[For, ...],
    values: dict[Var, PrimExpr],
    is_store: bool,
    conditional: bool,
) -> Access:
    indices = tuple(substitute(i, values) for i in e.indices)
    extents = tuple(substitute(i, values) for i in e.extents)
    return Access(indices, loops, is_store, conditional, extents)


def bounding_region(buffer: Buffer, touched: Sequence[Access], outer: Iterable[For]) -> list[Range]:
    """Return the smallest box known to contain all accesses, as a function of the outer loops; a
    whole axis where no bounds are known.
    """
    analyzer = Analyzer()
    for loop in outer:
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
    for access in touched:
        for loop in access.loops:
            analyzer.bind(loop.loop_var, loop.min, loop.extent)
    return [_axis_range(n, dim, touched, analyzer) for n, dim in enumerate(buffer.shape)]


# The base is the first access's index in its first iteration, an expression over outer variables;
# other indices are compared by their difference from it. The differences need constant bounds:
# where the size of the box would depend on outer variables, the whole axis is returned.
def _axis_range(axis: int, dim: PrimExpr, touched: Sequence[Access], analyzer: Analyzer) -> Range:
    full_axis = Range.from_min_extent(const(0), dim)
    if is_const(dim, 1):
        return full_axis
    base: PrimExpr | None = None
    low, high = math.inf, -math.inf
    for access in touched:
        if len(access.indices) <= axis or dt.lanes(access.indices[axis].dtype) > 1:
            return full_axis
        index = access.indices[axis]
        if any(isinstance(e, BufferLoad) for e in post_order(index)):
            return full_axis  # a loaded index may differ each time
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
        return full_axis
    extent = int(high - low) + 1
    # Intervals without known bounds come out this large; a box of that size would only be a wrong
    # guess.
    if extent >= UNKNOWN_EXTENT_THRESHOLD:
        return full_axis
    if isinstance(dim, IntImm) and extent >= dim.value:
        return full_axis
    return Range.from_min_extent(analyzer.simplify(base + int(low)), const(extent))


def _accessed_box(buffer: Buffer, touched: Sequence[Access]) -> tuple[Range, ...]:
    """Return the box that accesses touch; the exact point where all of them access one point."""
    first = touched[0]
    is_point = len(first.indices) == len(buffer.shape) and all(
        a.extents is None
        and not a.loops
        and all(is_same_expr(i, j) for i, j in zip(a.indices, first.indices, strict=True))
        for a in touched
    )
    if is_point:
        return tuple(Range.from_min_extent(i, 1) for i in first.indices)
    box = bounding_region(buffer, touched, ())
    return tuple(box)


def block_regions(block: Block) -> tuple[list[BufferRegion], list[BufferRegion]]:
    """Return the regions that a block reads and those it writes, over its iterators.

    Buffers allocated inside are left out. A reduction (a block with an init) does not count reading
    its accumulators.
    """
    reads: dict[Buffer, list[Access]] = {}
    writes: dict[Buffer, list[Access]] = {}
    allocated: set[Buffer] = set()
    for root in (block.body,) if block.init is None else (block.init, block.body):
        allocated.update(_allocated_buffers(root))
        for buffer, access in iter_accesses(root):
            (writes if access.is_store else reads).setdefault(buffer, []).append(access)
    hidden = allocated | (set(writes) if block.init is not None else set())
    return (
        [BufferRegion(b, _accessed_box(b, a)) for b, a in reads.items() if b not in hidden],
        [BufferRegion(b, _accessed_box(b, a)) for b, a in writes.items() if b not in allocated],
    )


def _allocated_buffers(root: Stmt) -> Iterator[Buffer]:
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, Allocate):
            yield s.buffer
        stack.extend(sub_statements(s))
