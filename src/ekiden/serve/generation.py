"""Streamed generation of a text model's answer, within its limits.

A model that makes its answers on a loop of its own (`TextEngine`) puts them in a queue here. One
that is an iterator (`TextModel`) is asked for a piece at a time, on the model's threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ekiden.llm.answer_parser import AnswerParser
from ekiden.llm.stop_filter import StopFilter
from ekiden.runtime.errors import RequestError
from ekiden.serve.engine import ServingEngine
from ekiden.serve.failure_reasons import to_request_error
from ekiden.serve.repository import ModelVersion
from ekiden.serve.text import (
    EmbeddingModel,
    Message,
    Piece,
    RequestEngine,
    Sampling,
    ScoredToken,
    TextAnswer,
    TextEngine,
    TextModel,
    TextRequest,
    constrains_answers,
)

__all__ = ["Generation"]

Result = TypeVar("Result")


class PieceSource(Protocol):
    """Interface of a source of answer increments."""

    prompt: int

    async def next_pieces(self) -> list[Piece]:
        """Return the next increments; an empty list at the end of the answer."""

    def close(self) -> None:
        """End the answer."""


class EngineSource:
    """Increment source of an answer from a model with its own engine loop."""

    def __init__(self, answer: TextAnswer, deadline: float) -> None:
        """Begin the answer."""
        loop = asyncio.get_running_loop()
        self._answer, self.prompt = answer, answer.prompt
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

        # Called on the engine's thread; only call_soon_threadsafe may touch the loop from there.
        def enqueue_item(item: Any) -> None:  # noqa: ANN401  # the engine's own
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._queue.put_nowait, item)

        answer.start(deadline, enqueue_item)

    async def next_pieces(self) -> list[Piece]:
        """Return the next pieces; see `PieceSource`."""
        while True:
            pieces = self._answer.pieces(await self._queue.get())
            if pieces:
                return pieces

    def close(self) -> None:
        """End the answer; see `PieceSource`."""
        self._answer.cancel()


class IteratorSource:
    """Increment source of an answer from an iterator, which one thread at a time advances."""

    def __init__(self, pool: ThreadPoolExecutor, model: TextModel) -> None:
        self._pool, self._model = pool, model
        self._iterator: Iterator[Piece] | None = None
        self._pending: Future[Any] | None = None
        """The call that was made last."""
        self.prompt = 0

    async def begin(self, messages: Sequence[Message], sampling: Sampling) -> None:
        """Start the answer."""
        self.prompt = await self._call_in_thread(lambda: self._model.prompt_tokens(messages))
        self._iterator = await self._call_in_thread(
            lambda: iter(self._model.generate(messages, sampling))
        )

    async def next_pieces(self) -> list[Piece]:
        """Return the next pieces; see `PieceSource`."""
        iterator = self._iterator
        assert iterator is not None
        piece = await self._call_in_thread(lambda: next(iterator, None))
        return [] if piece is None else [piece]

    async def _call_in_thread(self, function: Callable[[], Result]) -> Result:
        self._pending = future = self._pool.submit(function)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the answer; see `PieceSource`. A call under way has the iterator: it is closed when
        that ends.
        """
        pending = self._pending
        if pending is not None and not pending.done():
            # A generator must not be closed while another thread is inside it.
            pending.add_done_callback(self._close_iterator)
        else:
            with suppress(RuntimeError):  # the threads have ended with the model
                self._pool.submit(self._close_iterator, None)

    def _close_iterator(self, iterator_future: Future[Any] | None) -> None:
        """Close the iterator, even if it was only just created."""
        iterator = self._iterator
        if iterator is None and iterator_future is not None and not iterator_future.cancelled():
            iterator = iterator_future.result() if iterator_future.exception() is None else None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


class HeldBackScores:
    """Token scores whose text is held back by the stop filter."""

    def __init__(self) -> None:
        self._begin = self._released = 0
        self._held: deque[tuple[int, tuple[ScoredToken, ...]]] = deque()
        """Where a piece begins in the answer's text, and its scores."""

    def hold(self, piece: Piece) -> None:
        """Hold the scores of a piece."""
        if piece.scores:
            self._held.append((self._begin, piece.scores))
        self._begin += len(piece.text)

    def release(self, text: str) -> tuple[ScoredToken, ...]:
        """Return the scores of tokens whose text begins before the end of the released text; `text`
        is the newest part.
        """
        self._released += len(text)
        scores: list[ScoredToken] = []
        # A piece without text, as half a character, goes with the text before it.
        while self._held and (self._held[0][0] < self._released or self._released == self._begin):
            scores += self._held.popleft()[1]
        return tuple(scores)


def check_basic_request(name: str, request: TextRequest) -> None:
    """Raise RequestError for a setting that a model without `RequestEngine.open` does not
    support.
    """
    if request.prompt is not None:
        raise RequestError(f"'prompt': model '{name}' answers conversations alone")
    if request.adapter:
        raise RequestError(f"'lora': model '{name}' has no adapters")
    sampling = request.sampling
    settings: dict[str, object] = {
        "tools": request.tools, "chat_template_kwargs": request.template_options,
        "top_k": sampling.top_k is not None, "min_p": sampling.min_p is not None,
        "repetition_penalty": sampling.repetition_penalty is not None,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": sampling.logit_bias, "logprobs": sampling.logprobs is not None,
        "ignore_eos": sampling.ignore_end,
    }  # fmt: skip
    for setting, is_asked in settings.items():
        if is_asked:
            raise RequestError(f"'{setting}': model '{name}' does not honour it")


class Generation:
    """Answer being generated: its slot, deadline, token counts and pieces."""

    def __init__(
        self, engine: ServingEngine, name: str, version: ModelVersion, request: TextRequest
    ) -> None:
        self._engine, self._name, self._version = engine, name, version
        self._request, self._sampling = request, request.sampling
        self.parser = AnswerParser()
        """What tells the parts of the answer apart."""
        self._started = time.perf_counter()
        self._deadline = time.monotonic() + version.config.seconds
        self._source: PieceSource | None = None
        self._is_open = False
        self._outcome = "ok"
        self.prompt = self.completion = 0
        self.finish = "stop"

    @classmethod
    async def begin(cls, engine: ServingEngine, name: str, request: TextRequest) -> Generation:
        """Start an answer. Raises RequestError for a model that is no text model, or does not
        honour a setting, too many answers in progress, or a conversation that the model refuses.
        """
        model = await engine.repository.acquire(name)
        version = model.get()
        text = version.program.text
        if text is None:
            raise RequestError(f"model '{name}' is none of text: ask for /v2/models/{name}/infer")
        if not isinstance(text, TextModel):
            kind, path = ("embeddings", "embeddings")
            if not isinstance(text, EmbeddingModel):
                kind, path = ("scores of documents", "rerank")
            raise RequestError(f"model '{name}' makes {kind} alone: ask for /v1/{path}")
        if request.sampling.pattern and not constrains_answers(text):
            raise RequestError(f"'response_format': model '{name}' gives texts of any form alone")
        if not isinstance(text, RequestEngine):
            check_basic_request(name, request)
        # An answer holds its slot for its whole duration, so the queue bounds concurrent answers.
        if version.num_users >= version.config.queue:
            raise RequestError(f"{version.num_users} answers are under way already", "busy", 1.0)
        generation = cls(engine, name, version, request)
        generation._open_source()
        try:
            await generation._await_with_deadline(generation._check_and_start(text))
        # CancelledError included: the slot must be released when the client disconnects.
        except BaseException:
            generation.close()
            raise
        return generation

    async def _check_and_start(self, text: TextModel) -> None:
        request, messages = self._request, self._request.messages
        if isinstance(text, RequestEngine):
            opener = text
            opened = await self._engine.run_on_reader(lambda: opener.open(request))
            self.parser = opened.parser
            self._source = EngineSource(opened, self._deadline)
        elif isinstance(text, TextEngine):
            engine = text
            answer = await self._engine.run_on_reader(
                lambda: engine.prepare(messages, self._sampling)
            )
            self._source = EngineSource(answer, self._deadline)
        else:
            source = IteratorSource(text_thread_pool(self._version), text)
            self._source = source
            await source.begin(messages, self._sampling)
        self.prompt = self._source.prompt

    def _open_source(self) -> None:
        self._engine.begin_request()
        self._version.add_user()
        self._is_open = True

    def close(self) -> None:
        """Release the slot, and end the answer."""
        # Idempotent: the stream and an error handler may both close it.
        if not self._is_open:
            return
        self._is_open = False
        if self._source is not None:
            self._source.close()
        self._version.remove_user()
        self._engine.end_request()
        seconds = time.perf_counter() - self._started
        self._engine.metrics.count_request(self._name, self._outcome, seconds)
        self._engine.metrics.count_tokens(self._name, self.completion)
        self._engine.log.log_request(self._name, self._outcome, seconds)

    async def _await_with_deadline(self, work: Awaitable[Result]) -> Result:
        """Await the model's result until the deadline. Raises RequestError, also for a timeout."""
        remaining = self._deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(remaining, 0.0)):
                return await work
        except TimeoutError:
            self._outcome = "deadline"
            raise RequestError("the time of the request is over", "deadline") from None
        except asyncio.CancelledError:
            self._outcome = "gone"
            raise
        except Exception as error:  # of code that is not ours
            client_error = to_request_error(error)
            self._outcome = client_error.reason
            if client_error.reason == "failed":
                self._engine.log.log_failure(self._name, error)
            raise client_error from error

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the increments of the answer, cut before a stop string, each with the scores of the
        tokens whose text begins in it.
        """
        assert self._source is not None
        # A stop text may span pieces, so its possible beginnings are held back.
        held, scores = StopFilter(self._sampling.stop), HeldBackScores()
        is_over = False
        while not (held.has_stopped or is_over):
            pieces = await self._await_with_deadline(self._source.next_pieces())
            is_over = not pieces
            for piece in pieces:
                self.completion += piece.tokens
                scores.hold(piece)
                text = held.feed(piece.text)
                released = scores.release(text)
                if text or released:
                    yield Piece(text, scores=released)
                self.finish = self._finish_reason(piece) or self.finish
                is_over = is_over or bool(self._finish_reason(piece))
                if is_over or held.has_stopped:
                    break
        if held.has_stopped:
            self.finish = "stop"
        elif text := held.flush():
            yield Piece(text, 0, scores=scores.release(text))

    def _finish_reason(self, piece: Piece) -> str:
        """Return the finish reason of an increment ("stop", "length"); empty if it is not
        the last.
        """
        max_tokens = self._sampling.max_tokens
        if piece.finish:
            return piece.finish
        return "length" if max_tokens is not None and self.completion >= max_tokens else ""

    def usage(self) -> dict[str, int]:
        """Return the token counts in OpenAI's format."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


def text_thread_pool(version: ModelVersion) -> ThreadPoolExecutor:
    """Return the thread pool of a text model."""
    if version.text_thread_pool is None:
        version.text_thread_pool = ThreadPoolExecutor(
            version.config.instances, f"text {version.number}"
        )
    return version.text_thread_pool
