"""Recursive programs train to the losses of PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
STEPS = 12
ROUNDING = 64 * 2.0**-24
"""Losses below 1 of sums of 64 rounded terms and fewer; a step carries a rate of it on at most."""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a module
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import train_recursive

    yield train_recursive
    for name in ("train_recursive", "train_rnn", "train_tree_lstm"):
        sys.modules.pop(name, None)


@pytest.mark.long
def test_tree_lstm_trains_to_the_losses_of_torch(programs: Any) -> None:  # noqa: ANN401
    model = programs.tree_lstm
    weights = model.initial_weights()
    result = programs.ekiden_step(model.loss_module(), weights, model.RATE)
    reference = programs.torch_step(programs.torch_tree_loss, weights, model.RATE)
    for tree, label in model.examples(STEPS):
        loss = result(model.as_value(tree), np.array([label], "int32"))
        assert loss == pytest.approx(reference(tree, label), abs=ROUNDING)


def test_rnn_trains_to_the_losses_of_torch(programs: Any) -> None:  # noqa: ANN401
    model = programs.train_rnn
    weights = model.initial_weights()
    result = programs.ekiden_step(model.loss_module(), weights, model.RATE)
    reference = programs.torch_step(programs.torch_rnn_loss, weights, model.RATE)
    for x, labels in model.batches(STEPS):
        loss = result(model.as_list(x), labels)
        assert loss == pytest.approx(reference(x, labels), abs=ROUNDING)
