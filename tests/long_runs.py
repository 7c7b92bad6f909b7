"""Tests of two sizes: the default one, and that of `pytest -m long`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import pytest

HOURS = 3600
LONG = pytest.mark.long
"""The mark of what takes long; tests/conftest.py leaves it out where nobody asks for it."""


def sizes(name: str, usual: int, whole: int) -> pytest.MarkDecorator:
    """The argument `name` of a test, at its usual size and under the marker `long` at its whole."""
    return pytest.mark.parametrize(name, [usual, pytest.param(whole, marks=LONG)])


def share(one_in: int, by: Callable[..., Hashable] | None = None) -> pytest.MarkDecorator:
    """One in so many cases of a test is run usually, the others under the marker `long`.

    Each value of each parameter is in the share. Where a parameter has too many, `by` maps the
    arguments of a case, by name, to what of them must each be there.
    """
    return pytest.mark.share(one_in, by)


def alike(one_in: int) -> pytest.MarkDecorator:
    """As `share`, of cases that are alike: a value of a parameter may be left to long runs."""
    return share(one_in, by=lambda **_: None)


def mark_what_is_not_shared(items: Iterable[pytest.Item]) -> None:
    """Mark as `long` the cases of tests with a share that are not in it, of those that are not long
    anyway."""
    tests = defaultdict(list)
    for item in items:
        marked = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "share" in marked and "long" not in marked:
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        ordered = sorted(cases, key=lambda case: case.nodeid)
        random.Random(name).shuffle(ordered)
        kept = set(in_share(ordered))
        for case in ordered:
            if case not in kept:
                case.add_marker(LONG)


def give_time(items: Iterable[pytest.Item]) -> None:
    """What takes long has two hours, unless it says itself how many it needs."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(2 * HOURS))


def in_share(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """The first cases with a value that no earlier one has, and further ones up to the share."""
    seen: set[Hashable] = set()
    new, others = [], []
    for case in cases:
        mark = case.get_closest_marker("share")
        assert mark is not None
        one_in, by = mark.args
        params = case.callspec.params
        values = {by(**params)} if by else {(name, id(value)) for name, value in params.items()}
        (others if values <= seen else new).append(case)
        seen |= values
    expected = -(-len(cases) // one_in)
    return new + others[: max(0, expected - len(new))]
