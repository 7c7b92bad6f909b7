"""The chat endpoint of OpenAI's protocol, for models of text.

Paths: /v1/models, /v1/models/NAME, /v1/chat/completions (also as a stream of events).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.connections import EndingWithClient
from ekiden.serve.engine import Engine
from ekiden.serve.generation import Generation
from ekiden.serve.http_messages import is_brief
from ekiden.serve.json_scan import read_json
from ekiden.serve.routes import Route
from ekiden.serve.text import Message, Sampling

__all__ = ["ChatRequest", "ChatRoutes", "read_chat"]

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_STOP_LETTERS = 1024
"""Of a text that stops an answer: what is held back is compared with each of its beginnings."""
_IGNORED = frozenset({"user", "metadata", "store", "stream_options", "service_tier"})
"""What says nothing about the answer."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
"""What is not there, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation that wants an answer."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    stream: bool
    usage: bool
    """Whether the stream ends with the count of tokens."""


def read_chat(given: dict[str, Any]) -> ChatRequest:
    """The request that a body says. Raises RequestError for what is wrong or not there."""
    known = {
        "model", "messages", "stream", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "seed", "stop", *_IGNORED, *_NEUTRAL,
    }  # fmt: skip
    for key, value in given.items():
        if key not in known:
            raise RequestError(f"'{key[:64]}' is not supported")
        if key in _NEUTRAL and value is not None and value not in _NEUTRAL[key]:
            raise RequestError(f"'{key}': this value is not supported")
    model, messages = given.get("model"), given.get("messages")
    if not isinstance(model, str):
        raise RequestError("'model': a name expected")
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages': a list of messages expected")
    stream = given.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError("'stream': true or false expected")
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("'stream_options': an object expected")
    usage = options.get("include_usage") is True
    found = tuple(_message(at, each) for at, each in enumerate(messages))
    return ChatRequest(model, found, _sampling(given), stream, usage)


def _message(at: int, given: object) -> Message:
    if not isinstance(given, dict) or given.get("role") not in ROLES:
        raise RequestError(f"'messages[{at}]': a role of {', '.join(ROLES)} expected")
    content = given.get("content")
    if isinstance(content, list):  # parts, of which only texts are taken
        texts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            content = "".join(map(str, texts))
    if not isinstance(content, str):
        raise RequestError(f"'messages[{at}]': content of text expected")
    return Message(given["role"], content)


def _sampling(given: dict[str, Any]) -> Sampling:
    tokens = given.get("max_completion_tokens")
    tokens = given.get("max_tokens") if tokens is None else tokens
    stop = given.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stop, list)
        or len(stop) > 4
        or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_LETTERS for s in stop)
    ):
        raise RequestError(
            f"'stop': a text of up to {MAX_STOP_LETTERS} letters, or up to 4 of them, expected"
        )
    return Sampling(
        None if tokens is None else int(_number("max_tokens", tokens, 1, 2**31, whole=True)),
        _number_or_none(given, "temperature", 0, 2),
        _number_or_none(given, "top_p", 0, 1),
        None if given.get("seed") is None else int(
            _number("seed", given["seed"], -(2**63), 2**63 - 1, whole=True)
        ),
        tuple(stop),
    )  # fmt: skip


def _number_or_none(given: dict[str, Any], key: str, least: float, most: float) -> float | None:
    value = given.get(key)
    return None if value is None else float(_number(key, value, least, most))


def _number(key: str, value: object, least: float, most: float, whole: bool = False) -> float:
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not least <= value <= most:  # type: ignore[operator]  # a number
        raise RequestError(f"'{key}': a number from {least} to {most} expected")
    return value  # type: ignore[return-value]  # it is one


class ChatRoutes:
    """The paths of OpenAI's protocol."""

    def __init__(
        self, engine: Engine, read_body: Callable[[Request], Awaitable[bytes | bytearray]]
    ) -> None:
        self._engine, self._read_body = engine, read_body
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """Path and endpoint of each."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model}", self.model),
            Route("/v1/chat/completions", self.chat, methods=("POST",)),
        ]

    def _row(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "ekiden"}

    async def models(self, request: Request) -> Response:
        """The models of text."""
        names = [n for n, m in sorted(self._engine.repository.models.items()) if m.text is not None]
        return _json({"object": "list", "data": [self._row(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """One of them. Raises RequestError for another name."""
        name = request.path_params["model"]
        if self._engine.repository.get(name).text is None:
            raise RequestError("no model of text has that name", "unknown")
        return _json(self._row(name))

    async def chat(self, request: Request) -> Response:
        """An answer to a conversation, whole or as it comes."""
        body = await self._read_body(request)
        read = partial(_read, body)
        wanted = read() if is_brief(body) else await self._engine.off_loop(read)
        with EndingWithClient(request.scope):
            generation = await Generation.begin(
                self._engine, wanted.model, wanted.messages, wanted.sampling
            )
            answer = Answer(wanted, generation)
            if wanted.stream:
                return EventResponse(answer.events(), generation)
            try:
                return _json(await answer.whole())
            finally:
                generation.close()


def _read(body: bytes | bytearray) -> ChatRequest:
    return read_chat(read_json(body))


class EventResponse(StreamingResponse):
    """A stream of events, whose generation ends with it, however it ends."""

    def __init__(self, events: AsyncIterator[bytes], generation: Generation) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


class Answer:
    """The answer to one conversation in OpenAI's words."""

    def __init__(self, request: ChatRequest, generation: Generation) -> None:
        self._request, self._generation = request, generation
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id, "object": kind, "created": self._created, "model": self._request.model,
        }  # fmt: skip

    async def whole(self) -> dict[str, object]:
        """All of it at once."""
        texts = [piece.text async for piece in self._generation.pieces()]
        message = {"role": "assistant", "content": "".join(texts), "refusal": None}
        choice = {
            "index": 0, "message": message, "logprobs": None,
            "finish_reason": self._generation.finish,
        }  # fmt: skip
        head = self._head("chat.completion")
        return {**head, "choices": [choice], "usage": self._generation.usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """Piece by piece; an error after the beginning is an event of its own."""
        try:
            yield self._event({"role": "assistant", "content": ""}, None)
            async for piece in self._generation.pieces():
                yield self._event({"content": piece.text}, None)
            yield self._event({}, self._generation.finish)
            if self._request.usage:
                head = self._head("chat.completion.chunk")
                yield _data({**head, "choices": [], "usage": self._generation.usage()})
            yield b"data: [DONE]\n\n"
        except RequestError as error:
            yield _data({"error": {"message": str(error), "type": "server_error", "param": None,
                                   "code": error.reason}})  # fmt: skip

    def _event(self, delta: dict[str, object], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data({**self._head("chat.completion.chunk"), "choices": [choice]})


def _data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
