"""Random numbers of exported programs, drawn from a generator state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ekiden
from ekiden.runtime.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

COUNT = 4000


class Draws(nn.Module):
    """Numbers of every kind, as many as `x` has; the last ones by its weights."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        count = x.shape[0]
        return (
            torch.rand(count, 2),
            torch.randn_like(x) * 2 + 1,
            torch.randint(-3, 5, (count,)),
            torch.randperm(count),
            torch.empty(count).bernoulli_(0.25),
            torch.bernoulli(x),
            torch.multinomial(torch.tensor([0.5, 0.0, 0.5]), 99, replacement=True),
            torch.multinomial(x.expand(3, count), 5),
            torch.empty(count).uniform_(2, 3),
            torch.normal(5.0, 0.5, (count,)),
            F.dropout(torch.ones(count), 0.75, training=True),
        )


def arrays(result: object) -> list[np.ndarray]:
    assert isinstance(result, Sequence)
    return [np.asarray(item) for item in result]


def test_numbers_have_their_distributions_and_every_run_its_own() -> None:
    x = torch.linspace(0, 1, COUNT)
    exe = ekiden.compile(Draws(), (x,), dynamic_shapes=({0: torch.export.Dim("count")},))
    first, second = arrays(exe(x)), arrays(exe(x))
    for reference, result, again in zip(Draws()(x), first, second, strict=True):
        assert result.shape == tuple(reference.shape) and result.dtype == reference.numpy().dtype
        assert not np.array_equal(result, again)
    unit, normal, whole, order, rare, own, few, some, moved, far, kept = first
    assert unit.min() >= 0 and unit.max() < 1 and abs(unit.mean() - 0.5) < 0.03
    assert abs(normal.mean() - 1) < 0.2 and abs(normal.std() - 2) < 0.2
    assert sorted(set(whole.tolist())) == list(range(-3, 5))
    assert sorted(order.tolist()) == list(range(COUNT))
    assert abs(rare.mean() - 0.25) < 0.04
    assert own[:500].mean() < 0.15 and own[-500:].mean() > 0.85
    assert set(few.tolist()) <= {0, 2}
    assert all(len(set(row)) == 5 for row in some.tolist())
    assert moved.min() >= 2 and moved.max() < 3
    assert abs(far.mean() - 5) < 0.1
    assert set(kept.tolist()) == {0.0, 4.0} and abs(kept.mean() - 1) < 0.2
    assert list(exe.state) == ["random_generator"]
    exe.reset_state()
    for result, again in zip(first, arrays(exe(x)), strict=True):
        np.testing.assert_array_equal(result, again)


def test_numbers_drawn_within_a_choice_are_refused() -> None:
    class Choice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result = torch.cond(
                x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x + 0, (x,)
            )
            assert isinstance(result, Tensor)
            return result

    with pytest.raises(UnsupportedError, match="random numbers are drawn by a program of"):
        ekiden.compile(Choice(), (torch.ones(2),))
