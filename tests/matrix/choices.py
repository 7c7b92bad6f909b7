"""Sequences of choices, from which programs are drawn, and smaller sequences that show the
same.

A program is a function of the integers that its generator draws. Drawn from a seed they are
recorded; played back, shortened or made smaller, they give smaller programs, as 0 is the
smallest choice of each (the internal shrinking of Hypothesis: MacIver and Donaldson 2020).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Choices:
    """Integers within bounds: those of `recorded` first, then zeros; or of a seed, without end."""

    def __init__(self, seed: str | None = None, recorded: Sequence[int] = ()) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._recorded = recorded
        self.taken: list[int] = []
        """What was drawn, each as its distance from the least."""

    def integer(self, low: int, high: int) -> int:
        """Draw a number from low to high."""
        position = len(self.taken)
        if self._random is not None:
            offset = self._random.randint(0, high - low)
        elif position < len(self._recorded):
            offset = min(self._recorded[position], high - low)
        else:
            offset = 0
        self.taken.append(offset)
        return low + offset

    def chance(self, one_in: int) -> bool:
        """Draw whether, once in so many."""
        return self.integer(0, one_in - 1) == one_in - 1

    def pick(self, items: Sequence[_T]) -> _T:
        """Draw one of them."""
        return items[self.integer(0, len(items) - 1)]

    def some(self, items: Sequence[_T]) -> list[_T]:
        """Draw a part of them, in order; it may be none."""
        return [item for item in items if self.integer(0, 1)]

    def order(self, count: int) -> list[int]:
        """Draw a permutation of range(count) (Fisher and Yates)."""
        numbers = list(range(count))
        for last in range(count - 1, 0, -1):
            other = last - self.integer(0, last)
            numbers[last], numbers[other] = numbers[other], numbers[last]
        return numbers


def shrink(
    recorded: Sequence[int], shows: Callable[[Sequence[int]], bool], attempts: int
) -> list[int]:
    """Return smaller choices for which `shows` is true as it is for `recorded`, after at most so
    many calls of it."""
    best, left = list(recorded), attempts
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in _smaller(best):
            if left <= 0:
                break
            left -= 1
            if shows(candidate):
                best, is_smaller = candidate, True
                break
    return best


def _smaller(recorded: Sequence[int]) -> Iterator[list[int]]:
    """Yield sequences without a run of choices, large runs first, then with a run of zeros, then
    with one choice halved."""
    size = len(recorded)
    while size >= 1:
        for start in range(max(0, len(recorded) - size), -1, -size):
            yield [*recorded[:start], *recorded[start + size :]]
        for start in range(0, len(recorded), size):
            if any(recorded[start : start + size]):
                zeros = [0] * len(recorded[start : start + size])
                yield [*recorded[:start], *zeros, *recorded[start + size :]]
        size //= 2
    for position, choice in enumerate(recorded):
        if choice > 1:
            yield [*recorded[:position], choice // 2, *recorded[position + 1 :]]
