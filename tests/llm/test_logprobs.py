"""Log-probabilities, penalties by count and biases of single tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny

from ekiden import llm
from ekiden.runtime.errors import InputError

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama"), page=16, sequences=4)


def log_softmax(logits: Any) -> Any:  # noqa: ANN401  # arrays
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_logprobs_are_those_of_the_logits(model: llm.Model) -> None:
    sampling = llm.Sampling(max_tokens=6, logprobs=3, temperature=0.7, seed=5, ignore_end=True)
    stream = model.engine.submit(PROMPT, sampling)
    tokens = list(stream)
    expected = log_softmax(model.logits([*PROMPT, *tokens]))[len(PROMPT) - 1 : -1]
    assert [score.token for score in stream.scores] == tokens
    for score, row in zip(stream.scores, expected, strict=True):
        assert abs(score.logprob - row[score.token]) < 1e-4
        best = np.argsort(-row, kind="stable")[:3]
        assert [token for token, _ in score.top] == best.tolist()
        assert np.allclose([p for _, p in score.top], row[best], atol=1e-4)


def test_logprobs_do_not_change_generation(model: llm.Model) -> None:
    plain = llm.Sampling(max_tokens=12, temperature=0.9, seed=3, ignore_end=True)
    alone = [list(model.engine.submit(prompt, plain)) for prompt in (PROMPT, [7, 8])]
    scored = llm.Sampling(max_tokens=12, temperature=0.9, seed=3, ignore_end=True, logprobs=0)
    both = [model.engine.submit(PROMPT, scored), model.engine.submit([7, 8], plain)]
    assert [list(stream) for stream in both] == alone
    assert len(both[0].scores) == 12 and both[0].scores[0].top == ()
    assert both[1].scores == []


@pytest.mark.parametrize(
    ("frequency", "presence", "bias"),
    [(0.7, 0.0, {}), (0.0, 1.3, {}), (0.3, -0.4, {5: 2.0, 9: -100.0}), (0.0, 0.0, {11: 50.0})],
)
def test_penalties_and_biases_are_added_to_logits(
    model: llm.Model, frequency: float, presence: float, bias: dict[int, float]
) -> None:
    sampling = llm.Sampling(
        max_tokens=10, frequency_penalty=frequency, presence_penalty=presence, logit_bias=bias,
        ignore_end=True,
    )  # fmt: skip
    tokens = list(model.engine.submit(PROMPT, sampling))
    expected: list[int] = []
    for _ in range(10):
        logits = model.logits([*PROMPT, *expected])[-1].astype(np.float64)
        for token, count in Counter(expected).items():
            logits[token] -= presence + frequency * count
        for token, change in bias.items():
            logits[token] += change
        expected.append(int(logits.argmax()))
    assert tokens == expected


def test_draft_model_changes_no_text_with_penalties(model: llm.Model) -> None:
    fast = llm.load(tiny("llama"), page=16, sequences=2, draft=tiny("llama", seed=1))
    sampling = llm.Sampling(max_tokens=12, presence_penalty=0.8, logprobs=1, ignore_end=True)
    stream = fast.engine.submit(PROMPT, sampling)
    beside = fast.engine.submit([9], llm.Sampling(max_tokens=20, ignore_end=True))
    assert list(stream) == list(model.engine.submit(PROMPT, sampling))
    assert list(beside) == list(
        model.engine.submit([9], llm.Sampling(max_tokens=20, ignore_end=True))
    )
    assert len(stream.scores) == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frequency_penalty": "1"}, "frequency_penalty: a number from"),
        ({"presence_penalty": float("nan")}, "presence_penalty: a number from"),
        ({"logit_bias": [1]}, "logit_bias: numbers by token expected"),
        ({"logit_bias": {"1": 2}}, "logit_bias: a number by token expected, got '1': 2"),
        ({"logit_bias": {1: 1e9}}, "logit_bias: .* of token 1 is out of range"),
        ({"logit_bias": {97: 1}}, "logit_bias: token 97 is none of the 97 of the model"),
        ({"logprobs": -1}, "logprobs: from 0 to 1024 expected, got -1"),
    ],
)
def test_values_out_of_range_are_refused(
    model: llm.Model, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.engine.submit(PROMPT, llm.Sampling(**settings))
