"""The engine loop: admission, cancellation, deadlines, failures, shutdown."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from test_chat import lines
from tiny_models import tiny

from ekiden import llm
from ekiden.llm.engine_loop import EngineLoop, TokenUpdate
from ekiden.runtime.errors import RequestError, RunError
from ekiden.serve.decoders import DecoderTextModel
from ekiden.serve.text import Message, Sampling, TextEngine

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
WAIT = 60


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama", vocab_size=256), page=16, sequences=2, tokenizer=lines())


class Gated:
    """An engine whose steps are made when the test lets them, and a clock that the test sets."""

    def __init__(self, model: llm.Model) -> None:
        self.engine = llm.Engine(model, sequences=2)
        self.time = 0.0
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._is_open = False
        step = self.engine.step

        def gated() -> None:
            """Make a step when there are texts and one is let through."""
            if not self._is_open:
                self._go.acquire()
            try:
                step()
            finally:
                self._done.release()

        self.engine.step = gated  # type: ignore[method-assign]  # as a test watches it
        self.loop = EngineLoop(self.engine, lambda: self.time)

    def steps(self, count: int = 1) -> None:
        """Let the loop make so many steps, and wait for them."""
        for _ in range(count):
            self._go.release()
            assert self._done.acquire(timeout=WAIT)

    def open(self) -> None:
        """Let it make all further ones by itself."""
        self._is_open = True
        self._go.release()

    def begin(self, prompt: list[int], count: int, deadline: float = math.inf) -> Text:
        stream = self.engine.prepare(prompt, llm.Sampling(max_tokens=count, ignore_end=True))
        text = Text(stream)
        self.loop.add(stream, text.updates.put, deadline)
        return text


class Text:
    """A text of the loop, and what was delivered of it."""

    def __init__(self, stream: llm.Stream) -> None:
        self.stream = stream
        self.updates: queue.Queue[TokenUpdate] = queue.Queue()

    def end(self) -> tuple[list[int], str]:
        """All its tokens, and why it ended; waits for that."""
        tokens: list[int] = []
        while True:
            update = self.updates.get(timeout=WAIT)
            tokens += update.tokens
            if update.finish:
                return tokens, update.finish


@pytest.fixture
def gated(model: llm.Model) -> Iterator[Gated]:
    result = Gated(model)
    yield result
    result.loop.close()
    result.open()
    result.loop._thread.join(WAIT)
    assert not result.loop._thread.is_alive()
    assert result.engine.pages.num_available == 2 * model.most_pages


def alone(model: llm.Model, prompt: list[int], count: int) -> list[int]:
    sampling = llm.Sampling(max_tokens=count, ignore_end=True)
    return llm.Engine(model, sequences=1).run([prompt], sampling)[0]


def test_texts_beyond_the_limit_wait_without_blocking_others(
    model: llm.Model, gated: Gated
) -> None:
    long = [gated.begin(prompt, 40) for prompt in PROMPTS[:2]]
    gated.steps(3)
    late = gated.begin(PROMPTS[2], 4)
    before = [len(text.stream.tokens) for text in long]
    gated.steps(10)  # each of which gives both texts their next token
    assert [len(text.stream.tokens) for text in long] == [n + 10 for n in before]
    assert late.updates.empty()
    gated.open()
    for text, prompt, count in zip([*long, late], PROMPTS, (40, 40, 4), strict=True):
        assert text.end() == (alone(model, prompt, count), "length")


def test_deadline_ends_a_text_and_frees_its_place(model: llm.Model, gated: Gated) -> None:
    long = [gated.begin(prompt, 100, deadline=5.0) for prompt in PROMPTS[:2]]
    waiting = gated.begin(PROMPTS[2], 100, deadline=5.0)
    gated.steps(3)
    later = gated.begin(PROMPTS[2], 3, deadline=50.0)
    gated.time = 6.0
    gated.open()
    assert [text.end()[1] for text in (*long, waiting)] == ["deadline"] * 3
    assert later.end() == (alone(model, PROMPTS[2], 3), "length")


@pytest.mark.parametrize("is_running", [True, False])
def test_text_that_is_cancelled_frees_its_place(
    model: llm.Model, gated: Gated, is_running: bool
) -> None:
    texts = [gated.begin(prompt, 100) for prompt in PROMPTS]
    gated.steps(3)
    dropped = texts[0] if is_running else texts[2]
    gated.loop.cancel(dropped.stream)
    gated.steps(2)
    assert dropped.stream.finish == "closed"
    known = dropped.updates.qsize()
    gated.steps(2)
    assert dropped.updates.qsize() == known  # nothing is delivered any more
    for text in texts:
        gated.loop.cancel(text.stream)
    again = gated.begin(PROMPTS[1], 3)
    gated.open()
    assert again.end() == (alone(model, PROMPTS[1], 3), "length")


def test_run_that_fails_ends_its_texts_and_no_later_ones(
    model: llm.Model, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [gated.begin(prompt, 100) for prompt in PROMPTS[:2]]
    gated.steps(2)

    def fail(*_: object) -> object:
        raise RunError("the machine is on fire")

    with monkeypatch.context() as patched:
        patched.setattr(model, "decode", fail)
        gated.steps()
    gated.open()
    assert [text.end()[1] for text in both] == ["failed"] * 2
    assert gated.begin(PROMPTS[2], 3).end() == (alone(model, PROMPTS[2], 3), "length")


def test_failing_delivery_ends_only_its_text(model: llm.Model, gated: Gated) -> None:
    def fail(update: TokenUpdate) -> None:
        raise ZeroDivisionError

    stream = gated.engine.prepare(PROMPTS[0], llm.Sampling(max_tokens=100))
    gated.loop.add(stream, fail, math.inf)
    other = gated.begin(PROMPTS[1], 5)
    gated.open()
    assert other.end() == (alone(model, PROMPTS[1], 5), "length")
    assert stream.finish == "closed"


def test_closing_the_loop_ends_all_sequences(gated: Gated) -> None:
    texts = [gated.begin(prompt, 100) for prompt in PROMPTS]
    gated.steps(2)
    gated.loop.close()
    gated.open()
    assert [text.end()[1] for text in texts] == ["closed"] * 3


def test_caller_never_waits_for_a_step(model: llm.Model, gated: Gated) -> None:
    gated.begin(PROMPTS[0], 100)
    with gated.engine._lock:  # as in the middle of a step
        stream = gated.engine.prepare(PROMPTS[1], llm.Sampling(max_tokens=3))
        gated.loop.add(stream, lambda update: None, math.inf)
        gated.loop.cancel(stream)


def answer_of(served: DecoderTextModel, sampling: Sampling, deadline: float = math.inf) -> Answered:
    answer = served.prepare([Message("user", "hello")], sampling)
    taken: queue.Queue[TokenUpdate] = queue.Queue()
    answer.start(deadline, taken.put)
    return Answered(lambda: answer.pieces(taken.get(timeout=WAIT)))


class Answered:
    """The pieces of an answer."""

    def __init__(self, take: Callable[[], list[object]]) -> None:
        self.texts: list[str] = []
        self.finish = ""
        while not self.finish:
            for piece in take():
                self.texts.append(piece.text)  # type: ignore[attr-defined]  # a Piece
                self.finish = piece.finish  # type: ignore[attr-defined]  # a Piece


def test_decoder_implements_text_engine(model: llm.Model) -> None:
    served = DecoderTextModel(model)
    assert isinstance(served, TextEngine)
    talk = [Message("user", "hello")]
    for sampling in (
        Sampling(max_tokens=6, temperature=0.0), Sampling(max_tokens=40, temperature=1.0, seed=3),
    ):  # fmt: skip
        pieces = list(served.generate(talk, sampling))
        answer = answer_of(served, sampling)
        assert "".join(answer.texts) == "".join(piece.text for piece in pieces)
        assert answer.finish == pieces[-1].finish
    whole = "".join(piece.text for piece in pieces)
    stop = Sampling(max_tokens=40, temperature=1.0, seed=3, stop=(whole[5:8],))
    answer = answer_of(served, stop)
    assert "".join(answer.texts) == whole[: whole.index(whole[5:8])] and answer.finish == "stop"
    with pytest.raises(RequestError, match="the time of the request is over"):
        answer_of(served, sampling, deadline=0.0)
    served.close()
    assert np.asarray(model.logits([1])).shape == (1, 256)


def test_step_reads_a_chunk_and_gives_every_running_text_its_token(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts work and no time: tokens that the program reads, tokens that the host copies, and
    compilations, while a long prompt comes, texts are closed and others wait.
    """
    chunk, sizes, copied = 16, [], [0]
    call, part = llm.Model._call_entry, llm.Stream.part

    def counted_call(own: llm.Model, entry: str, *inputs: NDArray[np.int32]) -> object:
        is_prefill = entry == "prefill"
        sizes.append(inputs[1].size if is_prefill else inputs[2].shape[0])
        return call(own, entry, *inputs)

    def counted_part(stream: llm.Stream, first: int, count: int) -> list[int]:
        tokens = part(stream, first, count)
        copied[0] += len(tokens)
        return tokens

    def refuse(*_: object) -> None:
        raise AssertionError("a step compiles")

    monkeypatch.setattr(llm.Model, "_call_entry", counted_call)
    monkeypatch.setattr(llm.Stream, "part", counted_part)
    monkeypatch.setattr("ekiden.compiler.build.compile_model", refuse)
    engine = llm.Engine(model, sequences=3, chunk=chunk)
    sampling = llm.Sampling(max_tokens=40, ignore_end=True)
    running = [engine.submit(prompt, sampling) for prompt in PROMPTS[:2]]
    engine.step()
    long = engine.submit(list(range(200)), sampling)
    waiting = [engine.submit([7, n], sampling) for n in range(4)]
    for number in range(30):
        before, copied[0] = [len(text.tokens) for text in running], 0
        engine.step()
        assert [len(text.tokens) for text in running] == [n + 1 for n in before]
        assert sizes[-1] <= chunk + len(running)
        # What a step copies of texts depends on the chunk alone: two tokens more for each text.
        assert copied[0] <= chunk + 3 * engine.sequences
        if number == 5:
            running.pop().close()
    assert len(long.tokens) > 0 and len(sizes) == 31  # one call a step
    engine.close(long)
    assert [len(list(text)) for text in waiting] == [40] * 4
