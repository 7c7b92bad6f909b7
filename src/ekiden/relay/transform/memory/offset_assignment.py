"""Offset assignment: place storages in one arena so that simultaneously live ones do not overlap
(dynamic storage allocation).

Constant sizes are placed greedily, largest first, each at the lowest bytes that are free while it
is alive. Symbolic sizes are placed in the same way at one value of the symbols, which decides for
each two that are alive together which one is below the other. The offset of each is then where the
last of those below it ends: at other values all stay disjoint, and move together. Where such
offsets would become long expressions, sizes that are equal follow each other instead.

Placing intervals with sizes on a line so that the top is lowest is NP-complete (dynamic storage
allocation: Garey and Johnson 1979, SR2), so constant sizes are tried in several orders. The lower
bound is what is alive at once; where an order reaches it, no other is tried. Rivals are found by a
segment tree, so that an order costs n log n and what it finds, not all pairs.

Of symbols: offset(x) = max over y placed below x and alive with it of (offset(y) + size(y)). The
order is taken at one value of the symbols, the offsets hold at all values; elsewhere the arena may
be larger than the best for it, and never is too small.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import field

from ekiden.arith import Analyzer, evaluate, simplify
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, const, maximum
from ekiden.ir.prim_visitor import ExprInterner, children, free_vars, unvisited_post_order
from ekiden.relay.transform.fusion.kernel_order import KernelOrder
from ekiden.relay.transform.memory.storage_lifetimes import (
    LiveRange,
    StorageRequest,
    are_mutually_exclusive,
)
from ekiden.runtime.lazy_dataclass import dataclass

ARENA_ALIGNMENT_BYTES = 64
MAX_OFFSET_NODES = 4_000
"""Maximum tree size of an offset expression computed at function entry."""
MAX_PLACEMENT_ROUNDS, MAX_PLACEMENTS_TRIED = 24, 20_000
"""Maximum placement orders tried, and placements over all orders."""
TYPICAL_SYMBOL_VALUE = 128
"""Assumed value of a symbol, capped by its upper bound."""


@dataclass(slots=True, eq=False)
class Placement:
    """Placement of a request in the arena: its aligned size, live ranges and offset."""

    request: StorageRequest
    size: PrimExpr
    live_ranges: list[LiveRange]
    order: KernelOrder | None = None
    offset: PrimExpr = field(default_factory=lambda: const(0))
    byte_range: tuple[int, int] = (0, 0)
    """Byte range of the last placement, for constant sizes."""

    def place_at(self, offset: int) -> int:
        """Set the offset, and return the end."""
        end = offset + _int_value(self.size)
        self.offset, self.byte_range = const(offset), (offset, end)
        return end


def assign_offsets(
    requests: Sequence[StorageRequest],
    order: KernelOrder | None = None,
    alignment: int = ARENA_ALIGNMENT_BYTES,
) -> tuple[list[Placement], PrimExpr]:
    """Assign an offset to each request; return the placements and the arena's size.

    Args:
        requests: The storages.
        order: The order of kernels that run as soon as it lets them; None for one after another.
        alignment: The alignment of offsets.
    """
    placements = [
        Placement(r, round_up(r.size, alignment), _extended_live_ranges(r, order), order)
        for r in requests
    ]
    fixed = [p for p in placements if isinstance(p.size, IntImm)]
    symbolic = [p for p in placements if not isinstance(p.size, IntImm)]
    return placements, _place_symbolic(symbolic, _place_static(fixed))


def _extended_live_ranges(request: StorageRequest, order: KernelOrder | None) -> list[LiveRange]:
    return (
        request.live_ranges()
        if order is None
        else order.extend_live_ranges(request, request.live_ranges())
    )


def assign_memory_pools(
    requests: Sequence[StorageRequest], limits: Sequence[int | None], alignment: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Assign static requests to memory pools by first fit, largest first; return (pool, offset) of
    each and the bytes used per pool.

    Args:
        requests: The storages.
        limits: The bytes of each memory; None for no limit.
        alignment: The alignment of offsets.

    Returns:
        The number of the memory and the offset there, per request; and the bytes used of each
        memory.

    Raises:
        ValueError: With a request's size where no memory has room for it.
    """
    assigned: dict[StorageRequest, tuple[int, int]] = {}
    used: list[int] = []
    for number, limit in enumerate(limits):
        # What no memory had room for: the error names its largest size.
        remaining = [r for r in requests if r not in assigned]
        placements, total = assign_offsets(remaining, alignment=alignment)
        if limit is not None and _int_value(total) > limit:
            placements = _place_within_limit(placements, limit)
        used.append(max((_byte_range(p)[1] for p in placements), default=0))
        assigned |= {p.request: (number, _int_value(p.offset)) for p in placements}
    remaining = [r for r in requests if r not in assigned]
    if remaining:
        raise ValueError(str(max(_int_value(simplify(r.size)) for r in remaining)))
    return [assigned[r] for r in requests], used


def _place_within_limit(placements: Sequence[Placement], limit: int) -> list[Placement]:
    """Return the placements that fit below a limit, largest first."""
    timeline, placed = _new_interval_index(placements), list[Placement]()
    # Large storages first: small ones fill the gaps that they leave.
    for placement in sorted(placements, key=lambda p: (-_int_value(p.size), p.live_ranges)):
        offset = _lowest_free_offset(timeline, placement)
        if offset + _int_value(placement.size) <= limit:
            placement.place_at(offset)
            timeline.add(placement)
            placed.append(placement)
    return placed


def round_up(size: PrimExpr, alignment: int = ARENA_ALIGNMENT_BYTES) -> PrimExpr:
    """Round a size up to a multiple of the alignment."""
    return simplify((size + (alignment - 1)) // alignment * alignment)


class _IntervalIndex:
    """Interval index of placements by the positions at which they are alive (segment tree).

    A segment tree over the positions finds those alive at the first one asked for, a sorted list
    those that begin later: a search costs the logarithm of their number, and what it finds.
    """

    def __init__(self, length: int) -> None:
        self.size = max(length, 1)
        self.nodes: dict[int, list[Placement]] = {}
        self.range_begins: list[tuple[int, int]] = []
        self.range_owners: list[Placement] = []

    def add(self, placement: Placement) -> None:
        """Add a placement."""
        for first, last in placement.live_ranges:
            # Ranges that contain a position are found in the tree; those that begin inside one, by
            # bisection.
            insort(self.range_begins, (first, len(self.range_owners)))
            self.range_owners.append(placement)
            low, high = first + self.size, last + self.size
            while low <= high:
                if low % 2:
                    self.nodes.setdefault(low, []).append(placement)
                if not high % 2:
                    self.nodes.setdefault(high, []).append(placement)
                low, high = (low + 1) // 2, (high - 1) // 2

    def overlapping(self, placement: Placement) -> list[Placement]:
        """Return the placements whose live ranges intersect the given one's."""
        candidates: dict[Placement, None] = {}
        for first, last in placement.live_ranges:
            position = first + self.size
            # Spans that hold the first position lie on the path from its leaf to the root of the
            # segment tree.
            while position:
                candidates.update(dict.fromkeys(self.nodes.get(position, ())))
                position //= 2
            # The other rivals begin inside the span, after its first position.
            start = bisect_right(self.range_begins, (first, len(self.range_owners)))
            end = bisect_right(self.range_begins, (last, len(self.range_owners)))
            candidates.update((self.range_owners[n], None) for _, n in self.range_begins[start:end])
        if (
            placement.order is None
        ):  # of many thousands that are alive together most are of one block
            block = placement.request.block
            return [
                p for p in candidates if p.request.block is block or not _may_overlap(p, placement)
            ]
        return [p for p in candidates if not _may_overlap(p, placement)]


def _may_overlap(a: Placement, b: Placement) -> bool:
    """Return whether two storages with intersecting live ranges may still share bytes."""
    if a.order is not None and a.order.are_ordered(a.request, b.request):
        return True
    return are_mutually_exclusive(a.request, b.request)


def _new_interval_index(placements: Sequence[Placement]) -> _IntervalIndex:
    return _IntervalIndex(
        max((last for p in placements for _, last in p.live_ranges), default=0) + 1
    )


def _place_static(placements: Sequence[Placement]) -> int:
    """Place requests of static size, and return the arena bytes they need.

    Several orders, as long as one may be better: the largest first, or those alive longest, or in
    order of use; then the best of these, with what reached its top moved to the front.
    """
    if not placements:
        return 0
    # No order needs less, so one that reaches it ends the search.
    lower_bound = _max_live_bytes(placements)
    orders: list[list[Placement]] = [
        sorted(placements, key=lambda p: (-_int_value(p.size), p.live_ranges)),
        sorted(
            placements, key=lambda p: (-_total_live_length(p) * _int_value(p.size), p.live_ranges)
        ),
        sorted(placements, key=lambda p: (p.live_ranges, -_int_value(p.size))),
    ]
    best, offsets, order = _place_first_fit(orders[0]), [p.offset for p in placements], orders[0]
    # The optimal assignment is NP-hard; the search is bounded by placements, not by time, to be
    # deterministic.
    total, rounds = best, min(MAX_PLACEMENT_ROUNDS, MAX_PLACEMENTS_TRIED // len(placements))
    for number in range(1, rounds):
        # No placement can need less than the peak of live bytes.
        if best == lower_bound:
            break
        if number < len(orders):
            tried = orders[number]
        else:
            top = {p for p in placements if _byte_range(p)[1] == total}
            # What reached the top goes first next time: a stable sort keeps the rest of the order.
            tried = sorted(order, key=lambda p: p not in top)
        total = _place_first_fit(tried)
        if total < best:
            best, offsets = total, [p.offset for p in placements]
        order = tried
    # The last order tried need not be the best one.
    for placement, offset in zip(placements, offsets, strict=True):
        placement.offset = offset
    return best


def _total_live_length(placement: Placement) -> int:
    return sum(last - first + 1 for first, last in placement.live_ranges)


def _max_live_bytes(placements: Sequence[Placement]) -> int:
    """Return the peak of live bytes, a lower bound of the arena; mutually exclusive branches are
    summed.
    """
    changes: list[tuple[int, int]] = []
    for placement in placements:
        for first, last in placement.live_ranges:
            changes += [
                (first, _int_value(placement.size)),
                (last + 1, -_int_value(placement.size)),
            ]
    live = peak = 0
    # At equal positions releases sort before acquisitions, since they are negative.
    for _, change in sorted(changes):
        live += change
        peak = max(peak, live)
    return peak


def _place_first_fit(order: Sequence[Placement]) -> int:
    """Place requests by first fit in the given order, and return the arena bytes they need."""
    timeline = _new_interval_index(order)
    total = 0
    for placement in order:
        total = max(total, placement.place_at(_lowest_free_offset(timeline, placement)))
        timeline.add(placement)
    return total


def _lowest_free_offset(timeline: _IntervalIndex, placement: Placement) -> int:
    """Return the lowest offset at which a placement overlaps no live one."""
    offset, size = 0, _int_value(placement.size)
    # First fit: a sweep over the occupied intervals in ascending order.
    for begin, end in sorted([rival.byte_range for rival in timeline.overlapping(placement)]):
        if offset + size <= begin:
            break
        offset = max(offset, end)
    return offset


def _byte_range(placement: Placement) -> tuple[int, int]:
    """Return the first byte and the one past the last."""
    begin = _int_value(placement.offset)
    return begin, begin + _int_value(placement.size)


def _int_value(expr: PrimExpr) -> int:
    assert isinstance(expr, IntImm)
    return expr.value


def _place_symbolic(placements: Sequence[Placement], start: int) -> PrimExpr:
    """Place requests of symbolic size from byte `start`, and return the arena bytes they need."""
    if not placements:
        return const(start)
    # The order follows a placement at typical sizes; the offsets themselves stay symbolic.
    typical = {
        p: Placement(p.request, const(_typical_size(p.size)), p.live_ranges, p.order)
        for p in placements
    }
    _place_static(list(typical.values()))
    order = sorted(placements, key=lambda p: (_int_value(typical[p].offset), p.live_ranges))
    total = _place_stacked(order, start)
    return _place_by_equal_size(placements, start) if total is None else total


def _place_stacked(order: Sequence[Placement], start: int) -> PrimExpr | None:
    """Place each request above the live ones before it; return the end of the last, or None where
    an offset expression grows too long.

    Of those below only the ones that touch count: what is under another that is under this one ends
    lower anyhow. `tops` are the ends that nothing rests on, whose greatest is the size of the
    arena.
    """
    timeline, largest, length = _new_interval_index(order), _SymbolicMaximum(), _ExpressionSize()
    below: dict[Placement, set[Placement]] = {}
    ends: dict[Placement, PrimExpr] = {}
    tops: dict[Placement, PrimExpr] = {}
    for placement in order:
        below[placement] = under = set(timeline.overlapping(placement))
        # A rival below another rival is already below that one's end.
        touching = under.difference(*(below[rival] for rival in under))
        largest_end = largest([ends[p] for p in ends if p in touching] or [const(start)])
        placement.offset = largest.analyzer.simplify(largest_end)
        if length(placement.offset) > MAX_OFFSET_NODES:
            return None
        end = largest.analyzer.simplify(placement.offset + placement.size)
        ends[placement] = tops[placement] = end
        for below_it in touching:
            tops.pop(below_it, None)
        timeline.add(placement)
    return largest(list(tops.values()))


def _place_by_equal_size(placements: Sequence[Placement], start: int) -> PrimExpr:
    """Place requests in order of first use: reuse the offset of a dead one of equal size, else
    extend the arena.

    One queue for each size, of what dies, by its last position: linear but for the heap, with sums
    of sizes as the only expressions.
    """
    total: PrimExpr = const(start)
    dying: dict[int, list[tuple[int, int, PrimExpr]]] = {}
    one = ExprInterner()
    for number, placement in enumerate(sorted(placements, key=lambda p: p.live_ranges)):
        # Equal sizes are one object among the interned expressions, so the identity is a key.
        queue = dying.setdefault(id(one(placement.size)), [])
        # The head of the heap is the one that dies first.
        if queue and queue[0][0] < placement.live_ranges[0][0]:
            placement.offset = heapq.heappop(queue)[2]
        else:
            placement.offset, total = total, simplify(total + placement.size)
        heapq.heappush(queue, (placement.live_ranges[-1][1], number, placement.offset))
    return total


class _ExpressionSize:
    """Number of nodes of an expression written as a tree."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, PrimExpr]] = {}

    def __call__(self, expr: PrimExpr) -> int:
        for node in unvisited_post_order((expr,), self._known):
            count = 1 + sum(self._known[id(c)][0] for c in children(node))
            # The node is kept beside its count: otherwise its id could be reused.
            self._known[id(node)] = count, node
        return self._known[id(expr)][0]


class _SymbolicMaximum:
    """Maximum of expressions, without those that are provably dominated."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()

    def __call__(self, exprs: Sequence[PrimExpr]) -> PrimExpr:
        maximal: list[PrimExpr] = []
        for expr in exprs:
            # Only maximal elements stay, which keeps nested maxima short.
            if not any(self._is_proven_at_least(k, expr) for k in maximal):
                maximal = [*(k for k in maximal if not self._is_proven_at_least(expr, k)), expr]
        result = maximal[0]
        for expr in maximal[1:]:
            result = maximum(result, expr)
        return result

    def _is_proven_at_least(self, a: PrimExpr, b: PrimExpr) -> bool:
        return a is b or self.analyzer.can_prove_greater_equal(a - b, 0)


def _typical_size(size: PrimExpr) -> int:
    """Return a symbolic size evaluated at typical values of its symbols."""
    values = {
        v: min(TYPICAL_SYMBOL_VALUE, v.upper)
        if isinstance(v, SizeVar) and v.upper is not None
        else TYPICAL_SYMBOL_VALUE
        for v in free_vars(size)
    }
    return int(evaluate(size, values))
