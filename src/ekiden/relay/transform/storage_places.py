"""Places in one arena for storages that are not all alive together.

Constant sizes are placed greedily, largest first, each at the lowest bytes that are free while it
is alive. Symbolic sizes are placed in the same way at one value of the symbols, which says of each
two that are alive together which one lies below the other. The offset of each is then where the
last of those below it ends: at other values all stay apart, and move together. Where such offsets
would become long expressions, sizes that are equal follow each other instead.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ekiden.arith import Analyzer, evaluate, simplify
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, const, maximum
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.structural import structural_key
from ekiden.ir.text import prim_text
from ekiden.relay.transform.kernel_order import KernelOrder
from ekiden.relay.transform.storage_lifetimes import Request, Span, exclude_each_other

ALIGNMENT = 64
LONGEST = 20_000
"""Letters of the longest offset that is computed when a function is entered."""
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


def place_all(
    requests: Sequence[Request], order: KernelOrder | None = None
) -> tuple[list[Place], PrimExpr]:
    """A place for each request, and the size of the arena they are in.

    With `order` kernels run as soon as it lets them, not one after another.
    """
    places = [Place(r, round_up(r.size), _spans(r, order), order) for r in requests]
    fixed = [p for p in places if isinstance(p.size, IntImm)]
    symbolic = [p for p in places if not isinstance(p.size, IntImm)]
    return places, _place_symbolic(symbolic, _place_constant(fixed))


def _spans(request: Request, order: KernelOrder | None) -> list[Span]:
    return request.spans() if order is None else order.widened(request, request.spans())


def round_up(size: PrimExpr) -> PrimExpr:
    """The next multiple of ALIGNMENT."""
    return simplify((size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)


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
        return [p for p in found if not _may_share(p, place)]


def _may_share(a: Place, b: Place) -> bool:
    """Whether two storages that are alive at the same positions may have the same bytes."""
    if a.order is not None and a.order.are_apart(a.request, b.request):
        return True
    return exclude_each_other(a.request, b.request)


def _timeline(places: Sequence[Place]) -> _Timeline:
    return _Timeline(max((last for p in places for _, last in p.spans), default=0) + 1)


def _place_constant(places: Sequence[Place]) -> int:
    """Offsets for constant sizes; gives the bytes needed in all."""
    timeline = _timeline(places)
    total = 0
    for place in sorted(places, key=lambda p: (-_value(p.size), p.spans)):
        size, offset = _value(place.size), 0
        for begin, end in sorted(_bytes(rival) for rival in timeline.rivals(place)):
            if offset + size <= begin:
                break
            offset = max(offset, end)
        place.offset = const(offset)
        timeline.add(place)
        total = max(total, offset + size)
    return total


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
    """
    timeline, largest = _timeline(order), _Largest()
    below: dict[Place, set[Place]] = {}
    ends: dict[Place, PrimExpr] = {}
    tops: dict[Place, PrimExpr] = {}
    for place in order:
        below[place] = under = set(timeline.rivals(place))
        touching = under.difference(*(below[each] for each in under))
        place.offset = largest([ends[p] for p in ends if p in touching] or [const(start)])
        if len(prim_text(place.offset)) > LONGEST:
            return None
        end = largest.analyzer.simplify(place.offset + place.size)
        ends[place] = tops[place] = end
        for each in touching:
            tops.pop(each, None)
        timeline.add(place)
    return largest(list(tops.values()))


def _place_in_turn(places: Sequence[Place], start: int) -> PrimExpr:
    """Offsets in order of first use: those of a dead one of the same size, else behind all."""
    total: PrimExpr = const(start)
    dying: dict[Hashable, list[tuple[int, int, PrimExpr]]] = {}
    for number, place in enumerate(sorted(places, key=lambda p: p.spans)):
        queue = dying.setdefault(structural_key(place.size), [])
        if queue and queue[0][0] < place.spans[0][0]:
            place.offset = heapq.heappop(queue)[2]
        else:
            place.offset, total = total, simplify(total + place.size)
        heapq.heappush(queue, (place.spans[-1][1], number, place.offset))
    return total


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
