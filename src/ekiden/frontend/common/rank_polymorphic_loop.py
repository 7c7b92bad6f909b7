"""Loops whose carried values change rank: those values are carried together as one sum value.

    let %loop = fn (%i, %held: OneOf2[(Tensor[(2)],), (Tensor[(1, 2)],)]) { ... match (%held) ... }

The set of ranks is found by importing the body for the known ones until it produces no further
ones, or there are MAX_ALTERNATIVES: the run ends where a value has yet another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden.frontend.common.loop import CarriedRankChange, CollectedSlices, Iteration, Loop
from ekiden.frontend.common.rank_cases import inject_values, sum_members, type_alternatives
from ekiden.frontend.common.scope import is_as_specific
from ekiden.frontend.common.sum_value import (
    MAX_ALTERNATIVES,
    SumValue,
    TypeCombination,
    merge_first_alternatives,
    possible_dtypes,
)
from ekiden.frontend.common.value import Value
from ekiden.ir.expr_text import format_type
from ekiden.ir.type import TupleType


class _MoreRanksError(Exception):
    """Signal that the body produces ranks or extents not yet known: import it again with these
    alternatives.
    """

    def __init__(self, alternatives: list[TypeCombination]) -> None:
        super().__init__()
        self.alternatives = alternatives


def build_loop(loop: Loop) -> tuple[list[Value], list[CollectedSlices], bool]:
    """Build a loop that may change the rank of carried values; the result is that of Loop.build."""
    try:
        return loop.build()
    except CarriedRankChange as error:
        return build_rank_polymorphic_loop(loop, error)


def build_rank_polymorphic_loop(
    loop: Loop, first: CarriedRankChange
) -> tuple[list[Value], list[CollectedSlices], bool]:
    """Build a loop in which a carried value is known to change its rank. Raises CarriedRankChange
    for one that changes its dtype.
    """
    error, ranked = first, set[int]()
    # Terminates: each round adds one carried value to the sum.
    while error.index is not None and error.index not in ranked:
        ranked.add(error.index)
        try:
            return _RankChangingLoop(loop, sorted(ranked)).build()
        except CarriedRankChange as next_error:
            error = next_error
    raise error


class _RankChangingLoop:
    """Loop that carries the values numbered `ranked` as one sum value, after the others."""

    def __init__(self, loop: Loop, ranked: Sequence[int]) -> None:
        self.loop, self.ranked, self.scope = loop, ranked, loop.node.scope
        self.plain = [i for i in range(len(loop.initial_values)) if i not in ranked]
        self.alternatives = type_alternatives(
            self.scope, self._rank_changing_values(loop.initial_values)
        )

    def build(self) -> tuple[list[Value], list[CollectedSlices], bool]:
        """Return the last carried values in their order, the parts, and whether the limit alone
        ends the loop."""
        names = [*(self.loop.names[i] for i in self.plain), "held"]
        while True:
            start = self._pack_values(self.loop.initial_values)
            loop = replace(
                self.loop,
                names=names,
                initial_values=start,
                import_iteration=self._import_iteration,
            )
            try:
                last, slices, endless = loop.build()
            except _MoreRanksError as more:
                self.alternatives = more.alternatives
                continue
            except CarriedRankChange as error:
                index = None if error.index is None else self.plain[error.index]
                raise CarriedRankChange(str(error), index) from error
            return self._unpack_values(last), slices, endless

    def _rank_changing_values(self, values: Sequence[Value]) -> list[Value]:
        """Return the values whose rank changes."""
        return [values[i] for i in self.ranked]

    def _pack_values(self, values: Sequence[Value]) -> list[Value]:
        """Return the plain values followed by the sum of the others."""
        scope, held = self.scope, self._rank_changing_values(values)
        scope.declare_sum_type(len(self.alternatives))
        _, numbers = merge_first_alternatives([*self.alternatives, *type_alternatives(scope, held)])
        names = ", ".join(repr(self.loop.names[i]) for i in self.ranked)
        reason = f"{names}: more than {MAX_ALTERNATIVES} combinations of ranks in an iteration"
        loop_numbers = numbers[len(self.alternatives) :]
        expr = inject_values(scope, held, self.alternatives, loop_numbers, reason)
        sum_value = SumValue(scope.attach_span(expr), self.alternatives)
        return [*(values[i] for i in self.plain), sum_value]

    def _unpack_values(self, values: Sequence[Value]) -> list[Value]:
        """Return the carried values in the loop's own order."""
        *plain, sum_value = values
        assert isinstance(sum_value, SumValue)
        by_number = dict(zip(self.plain, plain, strict=True))
        by_number |= zip(self.ranked, sum_members(self.scope, sum_value), strict=True)
        return [by_number[i] for i in range(len(by_number))]

    def _import_iteration(self, index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration; raise _MoreRanksError where it produces a rank that is not yet an
        alternative.
        """
        result = self.loop.import_iteration(index, go, self._unpack_values(values))
        for number in self.ranked:
            self._check_dtype(number, result.carried[number])
        after = type_alternatives(self.scope, self._rank_changing_values(result.carried))
        every, _ = merge_first_alternatives([*self.alternatives, *after])
        old, new = (TupleType(tuple(map(TupleType, k))) for k in (self.alternatives, every))
        if not is_as_specific(new, old):
            raise _MoreRanksError(every)
        return replace(result, carried=self._pack_values(result.carried))

    def _check_dtype(self, number: int, value: Value) -> None:
        old_type, new_type = self.loop.initial_values[number].relay_type, value.relay_type
        if possible_dtypes(old_type) != possible_dtypes(new_type):
            raise CarriedRankChange(
                f"the carried value {self.loop.names[number]!r} must keep its dtype, but is "
                f"{format_type(old_type)} before an iteration and {format_type(new_type)} after it"
            )
