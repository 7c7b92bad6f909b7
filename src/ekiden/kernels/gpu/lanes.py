"""Vectors of threads that run one after the other: over which axes, and how many lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const, maximum, minimum
from ekiden.ir.prim_visitor import post_order, substitute
from ekiden.kernels.cpu.loops import product
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Block, BufferStore, IterKind, Stmt
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
            is_near = are_near(loads, places, step) and are_near(stores, places, step, 1)
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


def are_near(
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
