"""OpenAI's chat endpoint, for text models.

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

from ekiden.llm.json_schema import json_schema_pattern
from ekiden.runtime.errors import InputError, RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.bounded_json import parse_bounded_object
from ekiden.serve.connections import CancelOnDisconnect
from ekiden.serve.engine import ServingEngine
from ekiden.serve.generation import Generation
from ekiden.serve.http_messages import is_short_body
from ekiden.serve.routes import Route
from ekiden.serve.text import Message, Sampling

__all__ = ["ChatRequest", "ChatRoutes", "parse_chat_request"]

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_STOP_CHARS = 1024
"""Of a text that stops an answer: what is held back is compared with each of its beginnings."""
_IGNORED_KEYS = frozenset({"user", "metadata", "store", "stream_options", "service_tier"})
"""What says nothing about the answer."""
_ACCEPTED_DEFAULT_VALUES: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
}
"""What is not there, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to be answered."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    stream: bool
    usage: bool
    """Whether the stream ends with the count of tokens."""


def parse_chat_request(fields: dict[str, Any]) -> ChatRequest:
    """Parse a request body. Raises RequestError for what is invalid or unsupported."""
    known_keys = {
        "model", "messages", "stream", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "seed", "stop", "response_format", *_IGNORED_KEYS, *_ACCEPTED_DEFAULT_VALUES,
    }  # fmt: skip
    for key, value in fields.items():
        if value is None:
            continue  # clients send null for settings that they do not make
        if key not in known_keys:
            raise RequestError(f"'{key[:64]}' is not supported")
        if key in _ACCEPTED_DEFAULT_VALUES and value not in _ACCEPTED_DEFAULT_VALUES[key]:
            raise RequestError(f"'{key}': this value is not supported")
    model, messages = fields.get("model"), fields.get("messages")
    if not isinstance(model, str):
        raise RequestError("'model': a name expected")
    if not isinstance(messages, list) or not messages:
        raise RequestError("'messages': a list of messages expected")
    stream = fields.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError("'stream': true or false expected")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("'stream_options': an object expected")
    usage = options.get("include_usage") is True
    parsed_messages = tuple(_parse_message(at, entry) for at, entry in enumerate(messages))
    return ChatRequest(model, parsed_messages, _parse_sampling(fields), stream, usage)


def _parse_message(at: int, entry: object) -> Message:
    """Parse one message. Raises RequestError."""
    if not isinstance(entry, dict) or entry.get("role") not in CHAT_ROLES:
        raise RequestError(f"'messages[{at}]': a role of {', '.join(CHAT_ROLES)} expected")
    role, content = entry["role"], entry.get("content")
    if content is None and role == "assistant":  # it may have called functions alone
        content = ""
    if isinstance(content, list):  # parts, of which only texts are taken
        texts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            content = "".join(map(str, texts))
    if not isinstance(content, str):
        raise RequestError(f"'messages[{at}]': content of text expected")
    for key in ("tool_call_id", "name"):
        if not isinstance(entry.get(key) or "", str):
            raise RequestError(f"'messages[{at}].{key}': a text expected")
    calls = entry.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise RequestError(f"'messages[{at}].tool_calls': calls by an assistant expected")
    return Message(
        role,
        content,
        tuple(_parse_tool_call(f"messages[{at}].tool_calls[{n}]", c) for n, c in enumerate(calls)),
        entry.get("tool_call_id") or "",
        entry.get("name") or "",
    )


def _parse_tool_call(where: str, call: object) -> dict[str, Any]:
    """Parse a call of a function, decoding its arguments, which templates read as an object.
    Raises RequestError.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"'{where}': a function with a name expected")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"'{where}': an object in JSON expected as arguments")
    assert isinstance(call, dict)
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_sampling(fields: dict[str, Any]) -> Sampling:
    """Parse the sampling parameters. Raises RequestError."""
    tokens = fields.get("max_completion_tokens")
    tokens = fields.get("max_tokens") if tokens is None else tokens
    stop = fields.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stop, list)
        or len(stop) > 4
        or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in stop)
    ):
        raise RequestError(
            f"'stop': a text of up to {MAX_STOP_CHARS} letters, or up to 4 of them, expected"
        )
    return Sampling(
        None
        if tokens is None
        else int(_check_number("max_tokens", tokens, 1, 2**31, is_integer=True)),
        _parse_optional_number(fields, "temperature", 0, 2),
        _parse_optional_number(fields, "top_p", 0, 1),
        None
        if fields.get("seed") is None
        else int(_check_number("seed", fields["seed"], -(2**63), 2**63 - 1, is_integer=True)),
        tuple(stop),
        _parse_response_format(fields.get("response_format") or {"type": "text"}),
    )


def _parse_response_format(form: object) -> str:
    """Return the pattern of the answers that a "response_format" allows; empty for any. Raises
    RequestError.
    """
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return ""
    described = form.get("json_schema") if isinstance(form, dict) else None
    if kind != "json_schema" or not isinstance(described, dict) or "schema" not in described:
        raise RequestError("'response_format': 'text', or 'json_schema' with a schema, expected")
    try:
        return json_schema_pattern(described["schema"])
    except InputError as error:
        raise RequestError(f"'response_format': {error}") from error


def _parse_optional_number(
    fields: dict[str, Any], key: str, minimum: float, maximum: float
) -> float | None:
    """Parse an optional number. Raises RequestError."""
    value = fields.get(key)
    return None if value is None else float(_check_number(key, value, minimum, maximum))


def _check_number(
    key: str, value: object, minimum: float, maximum: float, is_integer: bool = False
) -> float:
    """Check that a value is a number in a range. Raises RequestError."""
    kinds = (int,) if is_integer else (int, float)
    if type(value) not in kinds or not minimum <= value <= maximum:  # type: ignore[operator]  # a number
        raise RequestError(f"'{key}': a number from {minimum} to {maximum} expected")
    return value  # type: ignore[return-value]  # it is one


class ChatRoutes:
    """Routes of OpenAI's chat protocol."""

    def __init__(
        self, engine: ServingEngine, read_body: Callable[[Request], Awaitable[bytes | bytearray]]
    ) -> None:
        self._engine, self._read_body = engine, read_body
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """Return each path and its endpoint."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model}", self.model),
            Route("/v1/chat/completions", self.chat, methods=("POST",)),
        ]

    def _model_row(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "ekiden"}

    async def models(self, request: Request) -> Response:
        """List the text models."""
        names = [n for n, m in sorted(self._engine.repository.models.items()) if m.text is not None]
        return _json_response({"object": "list", "data": [self._model_row(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Describe a text model. Raises RequestError for an unknown name."""
        name = request.path_params["model"]
        if self._engine.repository.get(name).text is None:
            raise RequestError("no model of text has that name", "unknown")
        return _json_response(self._model_row(name))

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, at once or as a stream."""
        body = await self._read_body(request)
        read = partial(_parse_body, body)
        chat_request = read() if is_short_body(body) else await self._engine.run_on_reader(read)
        with CancelOnDisconnect(request.scope):
            generation = await Generation.begin(
                self._engine, chat_request.model, chat_request.messages, chat_request.sampling
            )
            answer = ChatAnswer(chat_request, generation)
            if chat_request.stream:
                return EventStreamResponse(answer.iter_events(), generation)
            try:
                return _json_response(await answer.complete())
            finally:
                generation.close()


def _parse_body(body: bytes | bytearray) -> ChatRequest:
    return parse_chat_request(parse_bounded_object(body))


class EventStreamResponse(StreamingResponse):
    """A stream of events that closes its generation however it ends."""

    def __init__(self, events: AsyncIterator[bytes], generation: Generation) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


class ChatAnswer:
    """The answer to one conversation, in OpenAI's format."""

    def __init__(self, request: ChatRequest, generation: Generation) -> None:
        self._request, self._generation = request, generation
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def _response_head(self, kind: str) -> dict[str, object]:
        return {
            "id": self._id, "object": kind, "created": self._created, "model": self._request.model,
        }  # fmt: skip

    async def complete(self) -> dict[str, object]:
        """Return the complete answer."""
        texts = [piece.text async for piece in self._generation.pieces()]
        message = {"role": "assistant", "content": "".join(texts), "refusal": None}
        choice = {
            "index": 0, "message": message, "logprobs": None,
            "finish_reason": self._generation.finish,
        }  # fmt: skip
        head = self._response_head("chat.completion")
        return {**head, "choices": [choice], "usage": self._generation.usage()}

    async def iter_events(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events; an error after the first piece is an event of its
        own.
        """
        try:
            yield self._format_event({"role": "assistant", "content": ""}, None)
            async for piece in self._generation.pieces():
                yield self._format_event({"content": piece.text}, None)
            yield self._format_event({}, self._generation.finish)
            if self._request.usage:
                head = self._response_head("chat.completion.chunk")
                yield _sse_data({**head, "choices": [], "usage": self._generation.usage()})
            yield b"data: [DONE]\n\n"
        except RequestError as error:
            yield _sse_data({"error": {"message": str(error), "type": "server_error", "param": None,
                                       "code": error.reason}})  # fmt: skip

    def _format_event(self, delta: dict[str, object], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _sse_data({**self._response_head("chat.completion.chunk"), "choices": [choice]})


def _sse_data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _json_response(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
