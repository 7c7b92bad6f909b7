"""How many elements a thread of a device accesses as one vector, and along which axes.

Threads that run one after the other compute with vectors (`Lanes.of`). Threads that run together
read and write contiguous elements as one: they begin at a multiple of their number, and nothing
tells them apart, so that an expression over tensors reads contiguous elements, or the same,
whatever else its axes are. Where memory itself begins, a kernel tests (`codegen.wide_access`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import Analyzer, simplify
from ekiden.codegen.wide_access import MAX_ACCESS_BYTES
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import row_of
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const, maximum, minimum
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.kernels.cpu.loops import product
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import Block, BufferStore, For, ForKind, IterKind, Stmt
from ekiden.tir.transform.vectorize_loops import Vectorizer
from ekiden.tir.visitor import expressions, walk

MOST_LANES = 16
"""Of the vectors that languages of devices have."""


def coordinates(index: PrimExpr, extents: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Where the element of a number stands, the last axis fastest; axes of one have 0."""
    found: list[PrimExpr] = [const(0)] * len(extents)
    long = [n for n, extent in enumerate(extents) if not is_const(extent, 1)]
    for n in reversed(long):
        found[n] = index % extents[n] if n != long[0] else index
        index = index // extents[n]
    return found


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which axes of a computation vectors run over: those from `first` on, `count` elements at a
    time."""

    first: int
    count: int

    @staticmethod
    def of(block: Block, target: Target, least: int = 0) -> Lanes | None:
        """The most axes across which all that is read and written are neighbours; None where there
        are none, or the target's threads have no vectors. What a block adds to, it may not add to
        twice: then vectors fit the axes exactly. Axes before `least` stay out."""
        if not has_vectors(target):
            return None
        loads, stores = accesses_of(block.body)
        most = most_lanes(target, (buffer.dtype for buffer, _ in (*loads, *stores)))
        axes = [i for i in block.iter_vars if i.kind is IterKind.SPATIAL]
        step, adds = Var("step"), len(axes) < len(block.iter_vars)
        for first in range(least, len(axes)):
            extents = [i.extent for i in axes[first:]]
            size = simplify(product(extents))
            count = lanes_of(most, size.value if isinstance(size, IntImm) else None)
            while adds and count > 1 and not is_const(simplify(size % count), 0):
                count //= 2
            at = coordinates(step, extents)
            places = {i.var: value for i, value in zip(axes[first:], at, strict=True)}
            is_near = are_contiguous(loads, places, step) and are_contiguous(
                stores, places, step, 1
            )
            if count > 1 and is_near:
                return Lanes(first, count)
        return None


def has_vectors(target: Target) -> bool:
    """Whether threads run one after the other, and each computes with vectors."""
    return target.thread_warp_size == 1 and target.lanes("float32") > 1


def most_lanes(target: Target, dtypes: Iterable[str]) -> int:
    """Of vectors that registers have of all of some types."""
    widest = max((dt.itemsize(dtype) for dtype in dtypes), default=1)
    return min(target.vector_bits // (8 * widest), MOST_LANES)


def lanes_of(most: int, size: int | None) -> int:
    """Of vectors that fit a size; 1 where it is not known."""
    return next((n for n in (16, 8, 4, 2) if size is not None and n <= min(most, size)), 1)


Access: TypeAlias = tuple[Buffer, tuple[PrimExpr, ...]]


def loads_of(*exprs: PrimExpr) -> list[Access]:
    """What expressions read, and where."""
    return [(e.buffer, e.indices) for e in post_order(*exprs) if isinstance(e, BufferLoad)]


def accesses_of(body: Stmt) -> tuple[list[Access], list[Access]]:
    """What a statement reads, and what it writes."""
    loads: list[Access] = []
    stores: list[Access] = []
    for s in walk(body):
        loads += loads_of(*expressions(s))
        if isinstance(s, BufferStore):
            stores.append((s.buffer, s.indices))
    return loads, stores


def are_contiguous(
    accesses: Iterable[Access], places: Mapping[Var, PrimExpr], step: Var, most: int = 2
) -> bool:
    """Whether steps of a variable access the same, neighbours, or those up to so far away."""
    return all(
        isinstance(d, IntImm) and 0 <= d.value <= most
        for d in (distance_of(b.shape, at, places, step) for b, at in accesses)
    )


def distance_of(
    shape: Sequence[PrimExpr],
    indices: Sequence[PrimExpr],
    places: Mapping[Var, PrimExpr],
    step: Var,
) -> PrimExpr:
    """Elements from what is accessed to what is at the next value of a variable, which others are
    given in terms of."""
    flat: PrimExpr = const(0)
    for index, extent in zip(indices, shape, strict=True):
        flat = flat * extent + index
    here = simplify(substitute(flat, dict(places)))
    return simplify(substitute(here, {step: step + 1}) - here)


def first_of(tile: PrimExpr, width: int, extent: PrimExpr) -> PrimExpr:
    """Where a tile of so many elements begins: the last ends where its axis does, and has some of
    those before once more."""
    size = extent.value if isinstance(extent, IntImm) else None
    if size is not None and size % width == 0:
        return tile * width
    last = extent - width if size is not None and size >= width else maximum(extent - width, 0)
    return minimum(tile * width, simplify(last))


ABILITY = "near_memory"
WIDTHS = (16, 8, 4, 2)
ShapedAccess: TypeAlias = tuple[Sequence[PrimExpr], Sequence[PrimExpr]]
"""The shape of what is accessed, and where."""


def max_access_width(target: Target, *dtypes: str) -> int:
    """Return the most elements that a target's threads access as one, of all of some types."""
    has_none = not target.has(ABILITY) or any(dt.is_small(d) or d == "bool" for d in dtypes)
    return 1 if has_none else max(1, MAX_ACCESS_BYTES // max(map(dt.itemsize, dtypes)))


def reads_of(value: PrimExpr) -> list[ProducerLoad]:
    """Return the loads of an expression over tensors."""
    return [e for e in post_order(value) if isinstance(e, ProducerLoad)]


def read_width(value: PrimExpr, axes: Sequence[Var], extents: Sequence[PrimExpr], most: int) -> int:
    """Return how many elements an expression over tensors reads as one, along axes that are counted
    through; 1 where none, or where a condition is not the same for all of them."""
    reads = reads_of(value)
    widths = [MAX_ACCESS_BYTES // dt.itemsize(e.dtype) for e in reads if not dt.is_small(e.dtype)]
    if len(widths) < len(reads):
        return 1
    given = [(e.producer.shape, e.indices) for e in reads]
    return access_width(given, axes, extents, min([most, *widths]), _conditions(value))


def access_lanes(block: Block, target: Target, threads: int) -> Lanes | None:
    """Return the axes of a computation, from one on, along which elements are one access of a
    target whose threads run together; None where there are none, or fewer such than its units have
    threads."""
    body, axes = block.body, list(block.iter_vars)
    is_plain = all(i.kind is IterKind.SPATIAL for i in axes) and isinstance(body, BufferStore)
    if target.thread_warp_size == 1 or not is_plain:
        return None
    assert isinstance(body, BufferStore)
    nodes = post_order(body.value)
    if any(isinstance(e, Intrinsic) and row_of(e.op).effects for e in nodes):
        return None
    loads, stores = accesses_of(body)
    accesses = [(buffer.shape, at) for buffer, at in (*loads, *stores)]
    most = max_access_width(target, *(buffer.dtype for buffer, _ in (*loads, *stores)))
    whole = simplify(product([i.extent for i in axes])) if axes else const(1)
    conditions = _conditions(body.value)
    for first in range(len(axes)) if most > 1 else ():
        extents = [i.extent for i in axes[first:]]
        lanes = access_width(accesses, [i.var for i in axes[first:]], extents, most, conditions)
        if isinstance(whole, IntImm) and whole.value < lanes * threads * target.cores:
            return None
        if lanes > 1:
            return Lanes(first, lanes)
    return None


def _conditions(value: PrimExpr) -> list[PrimExpr]:
    """Return the conditions under which parts of an expression are evaluated."""
    found = [e for e in post_order(value) if isinstance(e, Intrinsic)]
    return [e.args[0] for e in found if e.op == "if_then_else"]


def access_width(
    accesses: Iterable[ShapedAccess],
    axes: Sequence[Var],
    extents: Sequence[PrimExpr],
    most: int,
    conditions: Sequence[PrimExpr] = (),
) -> int:
    """Return how many elements of the axes all accesses have as one; 1 where that is none."""
    size = simplify(product(extents)) if extents else const(1)
    first, lane = Var("first"), Var("lane")
    for lanes in WIDTHS:
        if lanes > most or not is_const(simplify(size % lanes), 0):
            continue
        at = dict(zip(axes, coordinates(first * lanes + lane, extents), strict=True))
        is_same = all(lane not in free_vars(simplify(substitute(c, at))) for c in conditions)
        if is_same and all(_is_contiguous(access, at, lane, lanes) for access in accesses):
            return lanes
    return 1


def _is_contiguous(access: ShapedAccess, at: Mapping[Var, PrimExpr], lane: Var, lanes: int) -> bool:
    flat: PrimExpr = const(0)
    for index, extent in zip(access[1], access[0], strict=True):
        flat = flat * extent + index
    analyzer = Analyzer()
    analyzer.bind(lane, 0, lanes)
    here = analyzer.simplify(substitute(flat, dict(at)))
    if lane not in free_vars(here):
        return True
    index = Vectorizer(lane, const(0), lanes).expr(here)
    if not isinstance(index, Ramp) or not is_const(simplify(index.stride), 1):
        return False
    known = Analyzer().modular_set(index.base)
    return bool(known.coeff % lanes == known.base % lanes == 0)


def vector_loop(lane: Var, count: int, body: Stmt) -> Stmt:
    """Return a vectorised loop over so many values of a lane."""
    return For(lane, const(0), const(count), ForKind.VECTORIZED, body, {"lanes": count})
