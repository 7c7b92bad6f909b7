"""Places in one arena for storages that are not all alive together.

Constant sizes are placed greedily, largest first, each at the lowest bytes that are free while it
is alive. Symbolic sizes are placed in the same way at one value of the symbols, which says of each
two that are alive together which one lies below the other. The offset of each is then where the
last of those below it ends: at other values all stay apart, and move together. Where such offsets
would become long expressions, sizes that are equal follow each other instead.

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
from ekiden.ir.prim_visitor import Interned, children, free_vars, pending
from ekiden.relay.transform.fusion.kernel_order import KernelOrder
from ekiden.relay.transform.memory.storage_lifetimes import Request, Span, exclude_each_other
from ekiden.runtime.lazy_dataclass import dataclass

ALIGNMENT = 64
LONGEST = 4_000
"""Nodes, as often as they are written, of the longest offset that is computed when a function is
entered."""
ROUNDS, EFFORT = 24, 20_000
"""Most orders that are tried; and most places in all these together."""
TYPICAL = 128
"""The value of a symbol at which sizes are placed, where its upper bound is not below."""


@dataclass(slots=True, eq=False)
class Place:
    """A request that is given a place: `size` is a multiple of ALIGNMENT."""

    request: Request
    size: PrimExpr
    spans: list[Span]
    order: KernelOrder | None = None
    offset: PrimExpr = field(default_factory=lambda: const(0))
    taken: tuple[int, int] = (0, 0)
    """Of a constant size the first byte, and the one after the last, where it was put last."""

    def put(self, offset: int) -> int:
        """Give it its place; gives where that ends."""
        end = offset + _value(self.size)
        self.offset, self.taken = const(offset), (offset, end)
        return end


def place_all(
    requests: Sequence[Request], order: KernelOrder | None = None, alignment: int = ALIGNMENT
) -> tuple[list[Place], PrimExpr]:
    """A place for each request, and the size of the arena they are in.

    With `order` kernels run as soon as it lets them, not one after another.
    """
    places = [Place(r, round_up(r.size, alignment), _spans(r, order), order) for r in requests]
    fixed = [p for p in places if isinstance(p.size, IntImm)]
    symbolic = [p for p in places if not isinstance(p.size, IntImm)]
    return places, _place_symbolic(symbolic, _place_constant(fixed))


def _spans(request: Request, order: KernelOrder | None) -> list[Span]:
    return request.spans() if order is None else order.widened(request, request.spans())


def place_in(
    requests: Sequence[Request], limits: Sequence[int | None], alignment: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """For each request of a constant size the number of a memory and the offset there; and the
    bytes used of each memory. What fits goes into the first, the largest first. None: no limit.

    Raises ValueError with a request's size where no memory has room for it.
    """
    found: dict[Request, tuple[int, int]] = {}
    used: list[int] = []
    for number, limit in enumerate(limits):
        left = [r for r in requests if r not in found]
        places, total = place_all(left, alignment=alignment)
        if limit is not None and _value(total) > limit:
            places = _fitting(places, limit)
        used.append(max((_bytes(p)[1] for p in places), default=0))
        found |= {p.request: (number, _value(p.offset)) for p in places}
    left = [r for r in requests if r not in found]
    if left:
        raise ValueError(str(max(_value(simplify(r.size)) for r in left)))
    return [found[r] for r in requests], used


def _fitting(places: Sequence[Place], limit: int) -> list[Place]:
    """Those that find a place below a limit, the largest first."""
    timeline, found = _timeline(places), list[Place]()
    for place in sorted(places, key=lambda p: (-_value(p.size), p.spans)):
        offset = _lowest(timeline, place)
        if offset + _value(place.size) <= limit:
            place.put(offset)
            timeline.add(place)
            found.append(place)
    return found


def round_up(size: PrimExpr, alignment: int = ALIGNMENT) -> PrimExpr:
    """The next multiple of an alignment."""
    return simplify((size + (alignment - 1)) // alignment * alignment)


class _Timeline:
    """Places that are taken, found by the positions at which their storages are alive.

    A segment tree over the positions finds those alive at the first one asked for, a sorted list
    those that begin later: a search costs the logarithm of their number, and what it finds.
    """

    def __init__(self, length: int) -> None:
        self.size = max(length, 1)
        self.nodes: dict[int, list[Place]] = {}
        self.begins: list[tuple[int, int]] = []
        self.spans: list[Place] = []

    def add(self, place: Place) -> None:
        """Remember a place."""
        for first, last in place.spans:
            insort(self.begins, (first, len(self.spans)))
            self.spans.append(place)
            low, high = first + self.size, last + self.size
            while low <= high:
                if low % 2:
                    self.nodes.setdefault(low, []).append(place)
                if not high % 2:
                    self.nodes.setdefault(high, []).append(place)
                low, high = (low + 1) // 2, (high - 1) // 2

    def rivals(self, place: Place) -> list[Place]:
        """The places whose storages may be alive together with that of one."""
        found: dict[Place, None] = {}
        for first, last in place.spans:
            at = first + self.size
            while at:
                found.update(dict.fromkeys(self.nodes.get(at, ())))
                at //= 2
            start = bisect_right(self.begins, (first, len(self.spans)))
            end = bisect_right(self.begins, (last, len(self.spans)))
            found.update((self.spans[n], None) for _, n in self.begins[start:end])
        if place.order is None:  # of many thousands that are alive together most are of one block
            block = place.request.block
            return [p for p in found if p.request.block is block or not _may_share(p, place)]
        return [p for p in found if not _may_share(p, place)]


def _may_share(a: Place, b: Place) -> bool:
    """Whether two storages that are alive at the same positions may have the same bytes."""
    if a.order is not None and a.order.are_apart(a.request, b.request):
        return True
    return exclude_each_other(a.request, b.request)


def _timeline(places: Sequence[Place]) -> _Timeline:
    return _Timeline(max((last for p in places for _, last in p.spans), default=0) + 1)


def _place_constant(places: Sequence[Place]) -> int:
    """Offsets for constant sizes; gives the bytes needed in all.

    Several orders, as long as one may be better: the largest first, or those alive longest, or in
    order of use; then the best of these, with what reached its top moved to the front.
    """
    if not places:
        return 0
    least = _most_alive(places)
    orders: list[list[Place]] = [
        sorted(places, key=lambda p: (-_value(p.size), p.spans)),
        sorted(places, key=lambda p: (-_duration(p) * _value(p.size), p.spans)),
        sorted(places, key=lambda p: (p.spans, -_value(p.size))),
    ]
    best, offsets, order = _placed(orders[0]), [p.offset for p in places], orders[0]
    total, rounds = best, min(ROUNDS, EFFORT // len(places))
    for number in range(1, rounds):
        if best == least:
            break
        if number < len(orders):
            tried = orders[number]
        else:
            top = {p for p in places if _bytes(p)[1] == total}
            tried = sorted(order, key=lambda p: p not in top)
        total = _placed(tried)
        if total < best:
            best, offsets = total, [p.offset for p in places]
        order = tried
    for place, offset in zip(places, offsets, strict=True):
        place.offset = offset
    return best


def _duration(place: Place) -> int:
    return sum(last - first + 1 for first, last in place.spans)


def _most_alive(places: Sequence[Place]) -> int:
    """The bytes that are alive at once, where branches that exclude each other count together."""
    changes: list[tuple[int, int]] = []
    for place in places:
        for first, last in place.spans:
            changes += [(first, _value(place.size)), (last + 1, -_value(place.size))]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _placed(order: Sequence[Place]) -> int:
    """Offsets in an order, each the lowest that is free; gives the bytes needed in all."""
    timeline = _timeline(order)
    total = 0
    for place in order:
        total = max(total, place.put(_lowest(timeline, place)))
        timeline.add(place)
    return total


def _lowest(timeline: _Timeline, place: Place) -> int:
    """The lowest offset at which nothing else lies while a place is taken."""
    offset, size = 0, _value(place.size)
    for begin, end in sorted([rival.taken for rival in timeline.rivals(place)]):
        if offset + size <= begin:
            break
        offset = max(offset, end)
    return offset


def _bytes(place: Place) -> tuple[int, int]:
    """The first byte, and the one after the last."""
    begin = _value(place.offset)
    return begin, begin + _value(place.size)


def _value(expr: PrimExpr) -> int:
    assert isinstance(expr, IntImm)
    return expr.value


def _place_symbolic(places: Sequence[Place], start: int) -> PrimExpr:
    """Offsets for symbolic sizes, from byte `start`; gives the bytes needed in all."""
    if not places:
        return const(start)
    typical = {p: Place(p.request, const(_typical(p.size)), p.spans, p.order) for p in places}
    _place_constant(list(typical.values()))
    order = sorted(places, key=lambda p: (_value(typical[p].offset), p.spans))
    total = _stack(order, start)
    return _place_in_turn(places, start) if total is None else total


def _stack(order: Sequence[Place], start: int) -> PrimExpr | None:
    """Put each place above those before it whose storages may be alive with its own; gives the end
    of the last, or None where an offset becomes too long an expression.

    Of those below only the ones that touch count: what lies under another that is under this one
    ends lower anyhow. `tops` are the ends that nothing stands on, whose greatest is the size of the
    arena.
    """
    timeline, largest, length = _timeline(order), _Largest(), _Length()
    below: dict[Place, set[Place]] = {}
    ends: dict[Place, PrimExpr] = {}
    tops: dict[Place, PrimExpr] = {}
    for place in order:
        below[place] = under = set(timeline.rivals(place))
        touching = under.difference(*(below[each] for each in under))
        found = largest([ends[p] for p in ends if p in touching] or [const(start)])
        place.offset = largest.analyzer.simplify(found)
        if length(place.offset) > LONGEST:
            return None
        end = largest.analyzer.simplify(place.offset + place.size)
        ends[place] = tops[place] = end
        for each in touching:
            tops.pop(each, None)
        timeline.add(place)
    return largest(list(tops.values()))


def _place_in_turn(places: Sequence[Place], start: int) -> PrimExpr:
    """Offsets in order of first use: those of a dead one of the same size, else behind all. One
    queue for each size, of what dies, by its last position: linear but for the heap, with sums of
    sizes as the only expressions."""
    total: PrimExpr = const(start)
    dying: dict[int, list[tuple[int, int, PrimExpr]]] = {}
    one = Interned()
    for number, place in enumerate(sorted(places, key=lambda p: p.spans)):
        queue = dying.setdefault(id(one(place.size)), [])
        if queue and queue[0][0] < place.spans[0][0]:
            place.offset = heapq.heappop(queue)[2]
        else:
            place.offset, total = total, simplify(total + place.size)
        heapq.heappush(queue, (place.spans[-1][1], number, place.offset))
    return total


class _Length:
    """How many nodes are written for an expression, one as often as it stands there."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, PrimExpr]] = {}

    def __call__(self, expr: PrimExpr) -> int:
        for each in pending((expr,), self._known):
            count = 1 + sum(self._known[id(c)][0] for c in children(each))
            self._known[id(each)] = count, each
        return self._known[id(expr)][0]


class _Largest:
    """The largest of several expressions, of which those are left out that another one is known to
    be as large as.
    """

    def __init__(self) -> None:
        self.analyzer = Analyzer()

    def __call__(self, exprs: Sequence[PrimExpr]) -> PrimExpr:
        kept: list[PrimExpr] = []
        for expr in exprs:
            if not any(self._covers(k, expr) for k in kept):
                kept = [*(k for k in kept if not self._covers(expr, k)), expr]
        found = kept[0]
        for expr in kept[1:]:
            found = maximum(found, expr)
        return found

    def _covers(self, a: PrimExpr, b: PrimExpr) -> bool:
        return a is b or self.analyzer.can_prove_greater_equal(a - b, 0)


def _typical(size: PrimExpr) -> int:
    """A size at a usual value of its symbols."""
    values = {
        v: min(TYPICAL, v.upper) if isinstance(v, SizeVar) and v.upper is not None else TYPICAL
        for v in free_vars(size)
    }
    return int(evaluate(size, values))
