"""Routes of OpenAI's endpoints for text models.

Paths: /v1/models, /v1/models/NAME, /v1/chat/completions, /v1/completions and /v1/responses (also as
streams of events), /v1/embeddings, /v1/rerank; and / with a page that talks to them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ekiden.runtime.errors import RequestError
from ekiden.serve.bounded_json import parse_bounded_object
from ekiden.serve.connections import CancelOnDisconnect
from ekiden.serve.engine import ServingEngine
from ekiden.serve.generation import Generation
from ekiden.serve.http_messages import is_short_body
from ekiden.serve.openai_answers import OpenAIAnswer
from ekiden.serve.openai_embeddings import embed, parse_embedding_request
from ekiden.serve.openai_requests import (
    RESPONSES,
    OpenAIRequest,
    parse_chat_request,
    parse_completion_request,
)
from ekiden.serve.openai_responses import ResponsesAnswer, parse_responses_request
from ekiden.serve.rerank import parse_rerank_request, rerank
from ekiden.serve.routes import Route

__all__ = ["OpenAIRoutes", "openai_error"]

Parser = Callable[[Mapping[str, Any]], OpenAIRequest]
Parsed = TypeVar("Parsed")
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
"""Jina's and vLLM's, Cohere's, and that of older servers."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src"
    " 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The page loads nothing, sends to this server alone, and stands in no other page."""


class OpenAIRoutes:
    """Routes of OpenAI's protocol."""

    def __init__(
        self, engine: ServingEngine, read_body: Callable[[Request], Awaitable[bytes | bytearray]]
    ) -> None:
        self._engine, self._read_body = engine, read_body
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """Return the endpoint of each path."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{model}", self.model),
            Route("/v1/chat/completions", self.chat, methods=("POST",)),
            Route("/v1/completions", self.completions, methods=("POST",)),
            Route("/v1/responses", self.responses, methods=("POST",)),
            Route("/v1/embeddings", self.embeddings, methods=("POST",)),
            *(Route(path, self.rerank, methods=("POST",)) for path in RERANK_PATHS),
            Route("", self.page),
        ]

    def _model_row(self, name: str) -> dict[str, object]:
        """Return the description of a text model or adapter. Raises RequestError."""
        model, adapter = self._engine.repository.find_text(name)
        if not model.is_text:
            raise RequestError("no model of text has that name", "unknown")
        row = {"id": name, "object": "model", "created": self._started, "owned_by": "ekiden"}
        # The names of vLLM and of llama.cpp's server, for what OpenAI's own answer does not have.
        parent = {"parent": model.name} if adapter else {}
        return {**row, **parent, **(getattr(model.text, "sizes", None) or {})}

    async def models(self, request: Request) -> Response:
        """List the text models, each followed by its adapters."""
        models = self._engine.repository.models
        texts = [(name, model) for name, model in sorted(models.items()) if model.is_text]
        names = [name for own, model in texts for name in (own, *model.adapters)]
        # A model's name comes before that of another one's adapter.
        rows = [self._model_row(name) for name in dict.fromkeys(names)]
        return _json_response({"object": "list", "data": rows})

    async def model(self, request: Request) -> Response:
        """Describe a text model or an adapter. Raises RequestError for an unknown name."""
        return _json_response(self._model_row(request.path_params["model"]))

    async def chat(self, request: Request) -> Response:
        """Create a chat completion, complete or streamed."""
        return await self._respond(request, parse_chat_request)

    async def completions(self, request: Request) -> Response:
        """Create text completions, complete or streamed."""
        return await self._respond(request, parse_completion_request)

    async def responses(self, request: Request) -> Response:
        """Create a response, complete or streamed."""
        return await self._respond(request, parse_responses_request)

    async def embeddings(self, request: Request) -> Response:
        """Create embeddings."""
        return await self._call(request, parse_embedding_request, embed)

    async def rerank(self, request: Request) -> Response:
        """Score documents for a query."""
        return await self._call(request, parse_rerank_request, rerank)

    async def _call(
        self,
        request: Request,
        parse: Callable[[Mapping[str, Any]], Parsed],
        call: Callable[[ServingEngine, Parsed], Awaitable[object]],
    ) -> Response:
        """Handle a request without streaming."""
        body = await self._read_body(request)
        read = partial(_parse_body, parse, body)
        parsed = read() if is_short_body(body) else await self._engine.run_on_reader(read)
        with CancelOnDisconnect(request.scope):
            return _json_response(await call(self._engine, parsed))

    async def page(self, request: Request) -> Response:
        """Return the chat page; it contains no secrets, and asks for a token itself."""
        return Response(_chat_page(), media_type="text/html", headers=PAGE_HEADERS)

    async def _respond(self, request: Request, parse: Parser) -> Response:
        body = await self._read_body(request)
        read = partial(_parse_body, parse, body)
        openai_request = read() if is_short_body(body) else await self._engine.run_on_reader(read)
        with CancelOnDisconnect(request.scope):
            answer = await self._begin(openai_request)
            if openai_request.stream:
                return EventStreamResponse(answer)
            try:
                return _json_response(await answer.complete())
            finally:
                answer.close()

    async def _begin(self, request: OpenAIRequest) -> OpenAIAnswer:
        """Start the generations of a request. Raises RequestError, with none left under way."""
        generations: list[Generation] = []
        model, adapter = self._engine.repository.find_text(request.model)
        try:
            for text_request in request.requests:
                if adapter and text_request.adapter not in ("", adapter):
                    raise RequestError("'lora': another adapter than the one of 'model'")
                adapted = replace(text_request, adapter=text_request.adapter or adapter)
                generations.append(await Generation.begin(self._engine, model.name, adapted))
        except BaseException:
            for generation in generations:
                generation.close()
            raise
        kind = ResponsesAnswer if request.endpoint == RESPONSES else OpenAIAnswer
        return kind(request, generations)


def _parse_body(parse: Callable[[Mapping[str, Any]], Parsed], body: bytes | bytearray) -> Parsed:
    return parse(parse_bounded_object(body))


@cache
def _chat_page() -> bytes:
    return files("ekiden.serve").joinpath("chat.html").read_bytes()


class EventStreamResponse(StreamingResponse):
    """Server-sent event stream that closes its answer however it ends."""

    def __init__(self, answer: OpenAIAnswer) -> None:
        super().__init__(_iter_events(answer), media_type="text/event-stream")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _iter_events(answer: OpenAIAnswer) -> AsyncIterator[bytes]:
    """Yield the answer as server-sent events; an error after the first chunk becomes an event."""
    try:
        async for chunk in answer.chunks():
            # Events of responses have names; chunks of completions have none.
            name = chunk.get("type")
            yield _sse_data(chunk) if name is None else b"event: %b\n%b" % (
                str(name).encode(), _sse_data(chunk),
            )  # fmt: skip
        if not isinstance(answer, ResponsesAnswer):
            yield b"data: [DONE]\n\n"
    except RequestError as error:
        yield _sse_data({"error": openai_error(error, "server_error")})


def openai_error(error: RequestError, kind: str) -> dict[str, object]:
    """Return an error in OpenAI's form; `param` is the field that its message begins with."""
    message = str(error)
    param = message[1:].partition("'")[0] if message.startswith("'") else None
    return {"message": message, "type": kind, "param": param, "code": error.reason}


def _sse_data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _json_response(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
