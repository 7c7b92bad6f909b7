"""Concurrent sequences with one prompt share its pages: the first fills them, the others wait."""

from __future__ import annotations

import pytest
from tiny_models import tiny

from ekiden import llm
from ekiden.llm.engine import Engine

PROMPT = [n % 90 for n in range(50)]


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama", num_hidden_layers=2), page=16, sequences=4, cache="float32")


def settings(seed: int) -> llm.Sampling:
    return llm.Sampling(max_tokens=6, temperature=1.0, seed=seed)


def test_choices_of_one_prompt_share_its_pages(model: llm.Model) -> None:
    alone = [Engine(model, sequences=1).run([PROMPT], settings(n))[0] for n in range(4)]
    engine = Engine(model, sequences=4, chunk=16)
    streams = [engine.submit(PROMPT, settings(n)) for n in range(4)]
    other = engine.submit([7, 8, 9], settings(9))
    engine.step()
    # The other text does not wait for those before it that wait for pages.
    assert [s.read for s in streams] == [16, 0, 0, 0] and other.pages
    assert [list(stream) for stream in streams] == alone
    assert [stream.shared for stream in streams] == [0, 48, 48, 48]
    assert list(other) == Engine(model, sequences=1).run([[7, 8, 9]], settings(9))[0]


def test_sequence_continues_if_its_page_filler_ends(model: llm.Model) -> None:
    engine = Engine(model, sequences=2, chunk=16)
    first, second = (engine.submit(PROMPT, settings(n)) for n in range(2))
    engine.step()
    first.close()
    alone = Engine(model, sequences=1).run([PROMPT], settings(1))[0]
    assert list(second) == alone
    assert second.shared == 16


def test_prompts_wait_only_for_shared_prefix(model: llm.Model) -> None:
    engine = Engine(model, sequences=2, chunk=16)
    prompts = [PROMPT, PROMPT[:20] + [3] * 30]
    streams = [engine.submit(prompt, settings(0)) for prompt in prompts]
    engine.step()
    assert [stream.read for stream in streams] == [16, 0]
    engine.step()
    assert streams[1].shared == 16 and streams[1].read > 0
    expected = [Engine(model, sequences=1).run([prompt], settings(0))[0] for prompt in prompts]
    assert [list(stream) for stream in streams] == expected
