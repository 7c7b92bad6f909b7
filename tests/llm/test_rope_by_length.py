"""LongRoPE by the length of a text: short factors up to the original positions, long ones beyond,
as transformers chooses them for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference_decoder import Reference
from test_decoders import transformers_model
from tiny_models import CONFIGS, Memory, tiny

from ekiden import llm

ORIGINAL = 24
Logits = Callable[[Sequence[int]], NDArray[Any]]
IDS = np.random.default_rng(1).integers(0, 97, 60).tolist()
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


@pytest.fixture(scope="module")
def checkpoint() -> Memory:
    return tiny("longrope", original_max_position_embeddings=ORIGINAL)


@pytest.fixture(scope="module")
def model(checkpoint: Memory) -> llm.Model:
    return llm.load(checkpoint, page=16, sequences=4, context=64)


@pytest.fixture(scope="module", params=["numpy", "transformers"])
def expected(checkpoint: Memory, request: pytest.FixtureRequest) -> Logits:
    """Logits after each token of a text that is read whole."""
    if request.param == "numpy":
        return Reference(checkpoint, 64).logits
    other = transformers_model(checkpoint)
    import torch

    def logits(text: Sequence[int]) -> NDArray[Any]:
        with torch.no_grad():
            return np.asarray(other(torch.tensor([list(text)])).logits[0].numpy())

    return logits


def check_greedy(expected: Logits, prompt: list[int], answer: list[int]) -> None:
    """Check that an answer is of the likeliest tokens: those up to the switch after a text of the
    original positions, later ones after the whole text.
    """
    text = [*prompt, *answer]
    likeliest = expected(text).argmax(-1)
    if len(text) > ORIGINAL:
        likeliest[:ORIGINAL] = expected(text[:ORIGINAL]).argmax(-1)
    assert likeliest[len(prompt) - 1 : -1].tolist() == answer


@pytest.mark.parametrize("count", [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 60])
def test_length_of_a_text_chooses_its_factors(
    model: llm.Model, expected: Logits, count: int
) -> None:
    logits = expected(IDS[:count])
    assert np.abs(model.logits(IDS[:count]) - logits).max() <= 1e-5 * np.abs(logits).max()


def test_texts_that_grow_beyond_the_original_positions_are_read_again(
    model: llm.Model, expected: Logits
) -> None:
    prompts = [IDS[:5], IDS[:20], IDS[:40], IDS[:20]]  # short, about to switch, long; one twice
    for steps in (1, 4):
        engine = llm.Engine(model, sequences=4, chunk=8, steps=steps)
        for _ in range(2):  # the second time pages are shared, by the lengths that they are of
            answers = engine.run(prompts, llm.Sampling(max_tokens=22))
            for prompt, answer in zip(prompts, answers, strict=True):
                check_greedy(expected, prompt, answer)
        assert engine.pages.num_available == 4 * model.most_pages


@pytest.fixture(scope="module")
def fast(checkpoint: Memory) -> llm.Model:
    return llm.load(checkpoint, page=16, sequences=2, context=64, draft=checkpoint, proposals=3)


def test_proposals_of_a_smaller_model_change_no_text(fast: llm.Model, expected: Logits) -> None:
    prompts = [IDS[:9], IDS[:22]]
    for steps in (1, 8):
        answers = llm.Engine(fast, steps=steps).run(prompts, llm.Sampling(max_tokens=24))
        for prompt, answer in zip(prompts, answers, strict=True):
            check_greedy(expected, prompt, answer)


def test_context_of_the_original_positions_takes_the_short_factors_alone(
    checkpoint: Memory,
) -> None:
    config = llm.load(checkpoint, page=16, sequences=1, context=ORIGINAL).config
    assert config.switch_tokens == 0
    assert CONFIGS["longrope"]["rope_scaling"]["short_factor"][0] == 1.0
    assert config.ropes[0].frequencies[0] == 1.0
