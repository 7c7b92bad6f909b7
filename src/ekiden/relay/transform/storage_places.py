"""Places in one arena for storages that are not all alive together.

Constant sizes are placed greedily, largest first, each at the lowest bytes that are free while it
is alive. Symbolic sizes get slots: one after another, each as large as the largest of those that
have it in turn. Which of them share a slot is decided by their sizes at one value of the symbols;
that they fit follows from the slot's size for every value.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from ekiden.arith import Analyzer, evaluate, simplify
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, const, maximum
from ekiden.ir.prim_visitor import free_vars
from ekiden.relay.transform.storage_lifetimes import Request, Span, exclude_each_other

ALIGNMENT = 64
TYPICAL = 128
"""The value of a symbol at which slots are chosen, where its upper bound is not below."""


@dataclass(slots=True, eq=False)
class Place:
    """A request that is given a place: `size` is a multiple of ALIGNMENT."""

    request: Request
    size: PrimExpr
    spans: list[Span]
    offset: PrimExpr = field(default_factory=lambda: const(0))


def place_all(requests: Sequence[Request]) -> tuple[list[Place], PrimExpr]:
    """A place for each request, and the size of the arena they are in."""
    places = [Place(r, round_up(r.size), r.spans()) for r in requests]
    fixed = [p for p in places if isinstance(p.size, IntImm)]
    symbolic = [p for p in places if not isinstance(p.size, IntImm)]
    return places, _place_symbolic(symbolic, _place_constant(fixed))


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
        return [p for p in found if not exclude_each_other(p.request, place.request)]


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


class _Slot:
    """Bytes that several storages have in turn."""

    def __init__(self, typical: int) -> None:
        self.typical = typical
        self.members: list[Place] = []
        self.sizes: list[PrimExpr] = []
        """Of the members, those that no other is known to be as large as."""

    def add(self, place: Place, analyzer: Analyzer) -> None:
        """Give the slot to one more."""
        self.members.append(place)
        if not any(_is_at_least(s, place.size, analyzer) for s in self.sizes):
            rest = [s for s in self.sizes if not _is_at_least(place.size, s, analyzer)]
            self.sizes = [*rest, place.size]

    def size(self) -> PrimExpr:
        """The largest of the members' sizes."""
        largest = self.sizes[0]
        for each in self.sizes[1:]:
            largest = maximum(largest, each)
        return largest


def _is_at_least(a: PrimExpr, b: PrimExpr, analyzer: Analyzer) -> bool:
    return a is b or analyzer.can_prove_greater_equal(a - b, 0)


def _place_symbolic(places: Sequence[Place], start: int) -> PrimExpr:
    """Offsets for symbolic sizes, from byte `start`; gives the bytes needed in all."""
    timeline = _timeline(places)
    analyzer = Analyzer()
    sizes = {p: _typical(p.size) for p in places}
    slots: list[_Slot] = []
    slot_of: dict[Place, _Slot] = {}
    for place in sorted(places, key=lambda p: (-sizes[p], p.spans)):
        taken = {slot_of[rival] for rival in timeline.rivals(place)}
        slot = next((s for s in reversed(slots) if s not in taken), None)
        if slot is None:
            slot = _Slot(sizes[place])
            slots.append(slot)
        slot.add(place, analyzer)
        slot_of[place] = slot
        timeline.add(place)
    total: PrimExpr = const(start)
    for slot in slots:
        for place in slot.members:
            place.offset = total
        total = simplify(total + slot.size())
    return total


def _typical(size: PrimExpr) -> int:
    """A size at a usual value of its symbols."""
    values = {
        v: min(TYPICAL, v.upper) if isinstance(v, SizeVar) and v.upper is not None else TYPICAL
        for v in free_vars(size)
    }
    return int(evaluate(size, values))
