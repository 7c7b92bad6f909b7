"""The answer of a model of text while it is made: on a thread, piece by piece, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ekiden.llm.stops import StopFilter
from ekiden.runtime.errors import RequestError
from ekiden.serve.engine import Engine
from ekiden.serve.reasons import refusal
from ekiden.serve.repository import Version
from ekiden.serve.text import Message, Piece, Sampling, TextModel

__all__ = ["Generation"]

Result = TypeVar("Result")


class Generation:
    """One answer. A step of the model's iterator is one call on the model's threads, of which
    there are as many as its `instances`; so a slow client holds no thread, only its place.
    """

    def __init__(
        self, engine: Engine, name: str, version: Version, model: TextModel, sampling: Sampling
    ) -> None:
        self._engine, self._name, self._version, self._model = engine, name, version, model
        self._sampling = sampling
        self._started = time.perf_counter()
        self._deadline = time.monotonic() + version.config.seconds
        self._iterator: Iterator[Piece] | None = None
        self._is_open = False
        self._outcome = "ok"
        self.prompt = self.completion = 0
        self.finish = "stop"

    @classmethod
    async def begin(
        cls, engine: Engine, name: str, messages: Sequence[Message], sampling: Sampling
    ) -> Generation:
        """An answer that has its place. Raises RequestError: for a model that is none of text,
        where too many answers are under way, for a conversation that the model refuses."""
        model = engine.repository.get(name)
        version = model.get()
        text = version.program.text
        if text is None:
            raise RequestError(f"model '{name}' is none of text: ask for /v2/models/{name}/infer")
        if version.users >= version.config.queue:
            raise RequestError(f"{version.users} answers are under way already", "busy", 1.0)
        made = cls(engine, name, version, text, sampling)
        made._open()
        try:
            made.prompt = await made._call(lambda: text.prompt_tokens(messages))
            made._iterator = await made._call(lambda: iter(text.generate(messages, sampling)))
        except BaseException:
            await made.close()
            raise
        return made

    def _open(self) -> None:
        self._engine.enter()
        self._version.hold()
        self._is_open = True

    async def close(self) -> None:
        """Give the place back, and end the model's iterator."""
        if not self._is_open:
            return
        self._is_open = False
        self._version.release()
        self._engine.leave()
        seconds = time.perf_counter() - self._started
        self._engine.metrics.request(self._name, self._outcome, seconds)
        self._engine.metrics.tokens(self._name, self.completion)
        self._engine.log.request(self._name, self._outcome, seconds)
        close = getattr(self._iterator, "close", None)
        if close is not None:
            pool_of(self._version).submit(close)

    async def _call(self, function: Callable[[], Result]) -> Result:
        """What a function of the model's gives. Raises RequestError."""
        loop = asyncio.get_running_loop()
        left = self._deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                return await loop.run_in_executor(pool_of(self._version), function)
        except TimeoutError:
            self._outcome = "deadline"
            raise RequestError("the time of the request is over", "deadline") from None
        except asyncio.CancelledError:
            self._outcome = "gone"
            raise
        except Exception as error:  # of code that is not ours
            made = refusal(error)
            self._outcome = made.reason
            if made.reason == "failed":
                self._engine.log.failure(self._name, error)
            raise made from error

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces of the answer, cut before a text that was to stop it."""
        assert self._iterator is not None
        iterator, held = self._iterator, StopFilter(self._sampling.stop)
        most = self._sampling.max_tokens
        while not held.has_stopped:
            piece = await self._call(lambda: next(iterator, None))
            if piece is None:
                break
            self.completion += piece.tokens
            if text := held.add(piece.text):
                yield Piece(text)
            if piece.finish or (most is not None and self.completion >= most):
                self.finish = piece.finish or "length"
                break
        if held.has_stopped:
            self.finish = "stop"
        elif text := held.rest():
            yield Piece(text, 0)

    def usage(self) -> dict[str, int]:
        """The count of tokens, in OpenAI's words."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


def pool_of(version: Version) -> ThreadPoolExecutor:
    """The threads that a model of text is asked on."""
    if version.pool is None:
        version.pool = ThreadPoolExecutor(version.config.instances, f"text {version.number}")
    return version.pool
