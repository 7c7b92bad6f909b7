"""Injectivity of index expressions: whether distinct iterations have distinct indices, for
reordering and parallel loops.

For i, j in [0, 4), the index i * 4 + j tells both; i * 2 + j neither, as 2 is (1, 0) and (0, 2);
and of (i * 2 + j, j) the second shows j, but the first, by itself, still not i. The proof is by
digits in mixed radix (`iter_map`), which are shown where no carry can reach them. It is one-sided:
`None` says that two iterations never meet, a text only that this was not shown.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence

from ekiden.arith.iter_map import (
    IterMapDetector,
    IterMapError,
    IterMapLevel,
    IterMark,
    IterSplit,
    IterSum,
    Size,
    detect_iter_map,
)
from ekiden.ir.prim import IntImm, PrimExpr, Var, convert
from ekiden.ir.range import Range


class _InjectivityChecker(IterMapDetector):
    """Injectivity checker; unlike an iteration map, indices may have gaps and reuse a split."""

    def __init__(self, iters: Mapping[Var, Range], whole_sums: bool = False) -> None:
        super().__init__(iters, IterMapLevel.NO_CHECK, trivial=True, whole_sums=whole_sums)

    def distinguishable_splits(self, a: IterSum) -> list[IterSplit]:
        """Return the splits that the value of a sum determines.

        By rising scale, a digit is shown if its step is longer than all below it together and all
        above it are longer than it. Digits that overlap form a group: none of them is shown, but
        those around the group are.

        Raises:
            IterMapError: No digit can be shown.
        """
        # -s * d and s * (extent - 1 - d) differ by a constant: a falling digit is as good.
        rising = (
            IterSplit(s.source, s.lower_factor, s.extent, -s.scale)
            if isinstance(s.scale, int) and s.scale < 0
            else s
            for s in a.args
        )
        a = IterSum(tuple(rising), 0)
        shown: list[IterSplit] = []
        total: Size = 0
        for group in self._group_by_scale(a):
            step = math.gcd(*(s.scale for s in group if isinstance(s.scale, int)))
            # Overlapping digits cannot be told apart; together they show what is below their common
            # step.
            smallest = group[0].scale if len(group) == 1 else step
            if not self.size_arithmetic.can_prove_at_most(
                self.size_arithmetic.simplify(total + 1), smallest
            ):
                raise IterMapError("the parts of an index overlap")
            if len(group) == 1:
                shown.append(group[0])
            for s in group:
                total = self.size_arithmetic.simplify(total + (s.extent - 1) * s.scale)
        return shown

    # A digit of scale s is told from those below if they add up to less than s, whatever they are:
    # then (value // s) is it, up to what is above, whose scales are larger than all of that.
    # `total` is one more than the largest sum of the digits so far.
    def _group_by_scale(self, a: IterSum) -> list[list[IterSplit]]:
        """Group the splits by rising scale; overlapping ones form one group."""
        if not all(isinstance(s.scale, int) for s in a.args):
            return [[s] for s in self._order_by_symbolic_scale(a)]
        groups: list[list[IterSplit]] = []
        total: Size = 1
        for split in sorted(a.args, key=lambda s: s.scale if isinstance(s.scale, int) else 0):
            if not self.size_arithmetic.can_prove_at_most(1, split.scale):
                raise IterMapError("an index falls where an iterator rises")
            if groups and not self.size_arithmetic.can_prove_at_most(total, split.scale):
                groups[-1].append(split)
            else:
                groups.append([split])
            total = self.size_arithmetic.simplify(total + (split.extent - 1) * split.scale)
        return groups

    def _order_by_symbolic_scale(self, a: IterSum) -> list[IterSplit]:
        remaining, by_scale = list(a.args), []
        while remaining:
            lowest = [
                s
                for s in remaining
                if all(self._is_smaller_scale(s, o) for o in remaining if o is not s)
            ]
            if not lowest:
                raise IterMapError("the parts of an index overlap")
            by_scale.append(lowest[0])
            remaining.remove(lowest[0])
        return by_scale

    def _is_smaller_scale(self, a: IterSplit, b: IterSplit) -> bool:
        if isinstance(a.scale, int) and isinstance(b.scale, int):
            return a.scale < b.scale
        return self.size_arithmetic.can_prove_at_most(
            self.size_arithmetic.multiply(a.scale, a.extent), b.scale
        )

    def contiguous_extent(self, a: IterSum) -> Size | None:
        """Return the number of contiguous values that a sum of independent splits reaches, or None
        if it has gaps.
        """
        reach: Size = 1
        remaining = list(a.args)
        while remaining:
            # A step of at most what is covered leaves no gap.
            fitting = [
                s
                for s in remaining
                if self.size_arithmetic.can_prove_at_most(1, s.scale)
                and self.size_arithmetic.can_prove_at_most(s.scale, reach)
            ]
            if not fitting:
                return None
            remaining.remove(fitting[0])
            reach = self.size_arithmetic.simplify(
                reach + (fitting[0].extent - 1) * fitting[0].scale
            )
        return reach

    def check_determined(self, indices: Sequence[PrimExpr], required: Collection[Var]) -> None:
        """Check that equal indices imply equal required iterators.

        Raises:
            IterMapError: They may differ.
        """
        used: dict[IterMark, list[IterSplit]] = {}
        for index in indices:
            for split in self.distinguishable_splits(self.parse(index)):
                used.setdefault(split.source, []).append(split)
        shown: set[Var] = set()
        # A fused mark comes before the marks it is made of: its digits are added to theirs.
        while used:
            # The digits of a fused mark are known only after the fused value itself is.
            mark = self._outermost_mark(used)
            fault = self._find_missing_split(
                [*used.pop(mark), *self._lift_splits(mark, used)], mark
            )
            if isinstance(mark.source, Var):
                if fault is None:
                    shown.add(mark.source)
                elif mark.source in required:
                    raise IterMapError(fault)
            elif fault is None:
                for split in mark.source.args:
                    used.setdefault(split.source, []).append(split)
        for var in required:
            if var not in shown:
                raise IterMapError(f"no index tells the steps of {var.name!r} apart")

    def _lift_splits(
        self, mark: IterMark, used: Mapping[IterMark, Sequence[IterSplit]]
    ) -> list[IterSplit]:
        """Express the splits of a fused mark's topmost part as splits of the fused mark.

        Of i * 6 + j, j < 6, the digit i // 6 is (i * 6 + j) // 36.
        """
        fused = mark.source
        if isinstance(fused, Var) or fused.base != 0:
            return []
        try:
            *below, top = self._order_by_symbolic_scale(fused)
        except IterMapError:
            return []
        reach_below: Size = 1
        for s in below:
            reach_below = self.size_arithmetic.simplify(reach_below + (s.extent - 1) * s.scale)
        is_whole = top.lower_factor == 1 and self.is_topmost_split(top)
        if not is_whole or not self.size_arithmetic.can_prove_at_most(reach_below, top.scale):
            return []
        times = self.size_arithmetic.multiply
        return [
            IterSplit(mark, times(top.scale, s.lower_factor), s.extent, 1)
            for s in used.get(top.source, ())
        ]

    def _outermost_mark(self, used: Mapping[IterMark, object]) -> IterMark:
        inside = {s.source for m in used if isinstance(m.source, IterSum) for s in m.source.args}
        return next((m for m in used if m not in inside), next(iter(used)))

    def _find_missing_split(self, splits: Sequence[IterSplit], mark: IterMark) -> str | None:
        """Return an error text for a part of a mark that no index determines, or None."""
        name = repr(mark.source.name) if isinstance(mark.source, Var) else "a fused loop"
        remaining = [s for s in splits if s.extent != 1]
        reached: Size = 1
        top = False
        while remaining and not top:
            following = [
                s
                for s in remaining
                if self.size_arithmetic.can_prove_at_most(s.lower_factor, reached)
            ]
            if not following:
                return f"a part of {name} is in no index"
            remaining.remove(following[0])
            joined = self.size_arithmetic.can_prove_equal(following[0].lower_factor, reached)
            end = self.size_arithmetic.multiply(following[0].lower_factor, following[0].extent)
            top = self.is_topmost_split(following[0])
            reached = (
                end if joined or self.size_arithmetic.can_prove_at_most(reached, end) else reached
            )
        if top or self.size_arithmetic.can_prove_at_most(mark.extent, reached):
            return None
        return f"a part of {name} is in no index"


def injectivity_error(
    indices: Sequence[PrimExpr], iters: Mapping[Var, Range], required: Collection[Var]
) -> str | None:
    """Return why indices may not be injective in some iterators, or None if they provably are.

    Args:
        indices: The index expressions.
        iters: The range of each iterator.
        required: The iterators in which the indices must be injective: two iterations that differ
            in one of them, with the others anywhere in their ranges, have different indices.
    """
    varying = [v for v in required if not _is_single_iteration(iters[v])]
    if not varying:
        return None
    plain = {e for e in indices if isinstance(e, Var)}
    if plain.issuperset(varying):
        return None
    varying_indices = [e for e in indices if not isinstance(e, IntImm)]
    fault = ""
    # Cheapest first; simplified indices show digits that were cancelled by hand, whole sums those
    # of fused loops.
    for simplify, whole_sums in ((False, False), (True, False), (False, True)):
        detector = _InjectivityChecker(iters, whole_sums)
        try:
            detector.check_determined(
                [detector.size_arithmetic.analyzer.simplify(e) for e in varying_indices]
                if simplify
                else varying_indices,
                varying,
            )
        except IterMapError as error:
            fault = fault or str(error)
        else:
            return None
    return fault


def determines(
    indices: Sequence[PrimExpr], iters: Mapping[Var, Range], wanted: Collection[Var]
) -> str | None:
    """Return `injectivity_error(indices, iters, wanted)`, with a DeprecationWarning."""
    warnings.warn("determines is now injectivity_error", DeprecationWarning, stacklevel=2)
    return injectivity_error(indices, iters, wanted)


def image_box(
    indices: Sequence[PrimExpr], iters: Mapping[Var, Range]
) -> list[tuple[PrimExpr, PrimExpr]] | str:
    """Return the (low, size) per axis of the box that the indices fill, or an error text.

    An iteration map that is onto fills one; so do windows that overlap: i * 2 + j, j < 3.
    """
    exact = detect_iter_map(indices, iters, check_level=IterMapLevel.SURJECTIVE)
    if not exact.errors:
        return [(convert(t.base), _extent_product(t)) for t in exact.indices]
    detector = _InjectivityChecker(iters)
    used: set[IterMark] = set()
    box: list[tuple[PrimExpr, PrimExpr]] = []
    try:
        for index in indices:
            total = detector.parse(index)
            marks = {s.source for s in total.args}
            # One iterator in two axes moves along a diagonal.
            if not used.isdisjoint(marks) or len(marks) < len(total.args):
                return exact.errors[0]
            used |= marks
            size = detector.contiguous_extent(total)
            if size is None:
                return exact.errors[0]
            box.append((convert(total.base), convert(size)))
    except IterMapError as error:
        return str(error)
    return box


def _extent_product(total: IterSum) -> PrimExpr:
    size = convert(1)
    for split in total.args:
        size = size * split.extent
    return size


def _is_single_iteration(domain: Range) -> bool:
    return isinstance(domain.extent, IntImm) and domain.extent.value <= 1
