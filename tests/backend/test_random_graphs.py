"""Random operator graphs: both tiers of the compiler give the interpreter's results."""

from __future__ import annotations

import pytest
from random_graphs import check

from long_runs import LONG

FEW = 8


@pytest.mark.parametrize("number", range(FEW))
def test_few_random_graphs_match_interpreter(number: int) -> None:
    assert check(0, number, runs=1) == []


@LONG
@pytest.mark.parametrize("seed", range(1, 21))
def test_many_random_graphs_match_interpreter(seed: int) -> None:
    """150 of each seed."""
    result = [(number, line) for number in range(150) for line in check(seed, number)]
    assert result == []
