"""Loops whose carried values change rank: they are carried together as one sum value.

    let %loop = fn (%i, %held: OneOf2[(Tensor[(2)],), (Tensor[(1, 2)],)]) { ... match (%held) ... }

The set of ranks is found by importing the body for the known ones until it produces no further
ones, or there are MAX_ALTERNATIVES: the run ends where a value has yet another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden.frontend.common.cases import alternatives_of, injected, members
from ekiden.frontend.common.loop import ChangesRank, Iteration, Loop, Parts
from ekiden.frontend.common.scope import says_as_much
from ekiden.frontend.common.sum_value import MAX_ALTERNATIVES, Kinds, SumValue, dtypes, first_merged
from ekiden.frontend.common.value import Value
from ekiden.ir.text import type_text
from ekiden.ir.type import TupleType


class _MoreRanksError(Exception):
    """Signal that the body produces ranks or extents not yet known: import it again with these
    alternatives.
    """

    def __init__(self, alternatives: list[Kinds]) -> None:
        super().__init__()
        self.alternatives = alternatives


def built(loop: Loop) -> tuple[list[Value], list[Parts], bool]:
    """Build a loop that may change the rank of carried values; the result is that of Loop.build."""
    try:
        return loop.build()
    except ChangesRank as error:
        return build_ranked(loop, error)


def build_ranked(loop: Loop, first: ChangesRank) -> tuple[list[Value], list[Parts], bool]:
    """Build a loop in which a carried value is known to change its rank. Raises ChangesRank for one
    that changes its dtype.
    """
    error, ranked = first, set[int]()
    # Terminates: each round adds one carried value to the sum.
    while error.index is not None and error.index not in ranked:
        ranked.add(error.index)
        try:
            return _RankedLoop(loop, sorted(ranked)).build()
        except ChangesRank as next_error:
            error = next_error
    raise error


class _RankedLoop:
    """Loop that carries the values numbered `ranked` as one sum value, after the others."""

    def __init__(self, loop: Loop, ranked: Sequence[int]) -> None:
        self.loop, self.ranked, self.scope = loop, ranked, loop.node.scope
        self.plain = [i for i in range(len(loop.start)) if i not in ranked]
        self.alternatives = alternatives_of(self.scope, self._of_sum(loop.start))

    def build(self) -> tuple[list[Value], list[Parts], bool]:
        """Return the last carried values in their order, the parts, and whether the limit alone
        ends the loop."""
        names = [*(self.loop.names[i] for i in self.plain), "held"]
        while True:
            start = self._grouped(self.loop.start)
            loop = replace(self.loop, names=names, start=start, step=self._step)
            try:
                last, slices, endless = loop.build()
            except _MoreRanksError as more:
                self.alternatives = more.alternatives
                continue
            except ChangesRank as error:
                index = None if error.index is None else self.plain[error.index]
                raise ChangesRank(str(error), index) from error
            return self._apart(last), slices, endless

    def _of_sum(self, values: Sequence[Value]) -> list[Value]:
        """Return the values whose rank changes."""
        return [values[i] for i in self.ranked]

    def _grouped(self, values: Sequence[Value]) -> list[Value]:
        """Return the plain values followed by the sum of the others."""
        scope, held = self.scope, self._of_sum(values)
        scope.use_sum(len(self.alternatives))
        _, numbers = first_merged([*self.alternatives, *alternatives_of(scope, held)])
        names = ", ".join(repr(self.loop.names[i]) for i in self.ranked)
        reason = f"{names}: more than {MAX_ALTERNATIVES} combinations of ranks in an iteration"
        own = numbers[len(self.alternatives) :]
        expr = injected(scope, held, self.alternatives, own, reason)
        sum_value = SumValue(scope.spanned(expr), self.alternatives)
        return [*(values[i] for i in self.plain), sum_value]

    def _apart(self, values: Sequence[Value]) -> list[Value]:
        """Return the carried values in the loop's own order."""
        *plain, sum_value = values
        assert isinstance(sum_value, SumValue)
        by_number = dict(zip(self.plain, plain, strict=True))
        by_number |= zip(self.ranked, members(self.scope, sum_value), strict=True)
        return [by_number[i] for i in range(len(by_number))]

    def _step(self, index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration; raise _MoreRanksError where it produces a rank that is not yet an
        alternative.
        """
        result = self.loop.step(index, go, self._apart(values))
        for number in self.ranked:
            self._check_dtype(number, result.carried[number])
        after = alternatives_of(self.scope, self._of_sum(result.carried))
        every, _ = first_merged([*self.alternatives, *after])
        old, new = (TupleType(tuple(map(TupleType, k))) for k in (self.alternatives, every))
        if not says_as_much(new, old):
            raise _MoreRanksError(every)
        return replace(result, carried=self._grouped(result.carried))

    def _check_dtype(self, number: int, value: Value) -> None:
        old_type, new_type = self.loop.start[number].kind, value.kind
        if dtypes(old_type) != dtypes(new_type):
            raise ChangesRank(
                f"the carried value {self.loop.names[number]!r} must keep its dtype, but is "
                f"{type_text(old_type)} before an iteration and {type_text(new_type)} after it"
            )
