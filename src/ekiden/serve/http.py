"""HTTP service of the Open Inference Protocol: the protocol's paths, and around them tokens, limits
and errors.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ekiden.runtime.errors import RequestError
from ekiden.serve.bounded_json import parse_bounded_object
from ekiden.serve.connections import ABORT_KEY, CancelOnDisconnect, has_complete_body
from ekiden.serve.content_encoding import CONTENT_ENCODINGS, decompress_body
from ekiden.serve.engine import ServingEngine
from ekiden.serve.failure_reasons import FAILURE_REASONS, to_request_error
from ekiden.serve.http_messages import (
    HEADER_LENGTH,
    is_short_answer,
    is_short_body,
    parse_infer_request,
    serialize_infer_response,
)
from ekiden.serve.iteration_shares import SendTurns
from ekiden.serve.metrics import PROMETHEUS_CONTENT_TYPE
from ekiden.serve.openai_routes import OpenAIRoutes, openai_error
from ekiden.serve.origin_check import (
    PAGE_PATH,
    OriginChecker,
    reject_form_types,
    require_json,
)
from ekiden.serve.requests import InferRequest
from ekiden.serve.routes import DEFAULT_ROUTE_METHODS, Route, RoutingTable
from ekiden.serve.security import TokenStore
from ekiden.serve.tracing import PARENT_CONTEXT

__all__ = ["HttpApplication", "json_response", "read_body"]

UNAUTHENTICATED_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""What is answered without a token: a machine that asks whether the server lives has none."""
BINARY_CONTENT_TYPE = "application/octet-stream"
MAX_CONTROL_BYTES = 64 << 10
"""The most bytes of a request to load, unload or list."""
SEND_CHUNK_BYTES = 256 << 10
"""Bytes of an answer that are given to the connection at once."""
HELD_BYTES_KEY = "ekiden.held"
"""Where a request's scope has the bytes that it counts in `Engine.hold_bytes`."""
REQUEST_HEADERS_KEY = "ekiden.headers"
"""Where a request's scope has its headers by their names, both as bytes."""
_HEADER_LENGTH = HEADER_LENGTH.encode()
_MODEL_PATH = "/v2/models/{model}"
_VERSION_PATH = _MODEL_PATH + "/versions/{version}"


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(value), status, media_type="application/json")


async def read_body(
    request: Request, max_bytes: int, seconds: float, hold: Callable[[int], None]
) -> bytes | bytearray:
    """Read the body of a request, and decompress it; `hold(count)` is called with the bytes of each
    chunk. Raises RequestError if it is too large, too slow or not what its encoding says, what
    `hold` raises, and ClientDisconnect if the client has gone.
    """
    headers = request.scope[REQUEST_HEADERS_KEY]
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding in CONTENT_ENCODINGS:
        compressed = await _read_raw_body(request, max_bytes, seconds, hold)
        return await decompress_body(compressed, encoding, max_bytes, hold)
    if encoding != b"identity":
        raise RequestError("content-encoding: gzip, deflate or none expected", "media")
    return await _read_raw_body(request, max_bytes, seconds, hold)


async def _read_raw_body(
    request: Request, max_bytes: int, seconds: float, hold: Callable[[int], None]
) -> bytes | bytearray:
    headers = request.scope[REQUEST_HEADERS_KEY]
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > max_bytes:
        raise RequestError(f"the body: at most {max_bytes} bytes expected", "too_large")
    if has_complete_body(request.scope):  # in one piece
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        full_body: bytes = message["body"]
        if len(full_body) > max_bytes:
            raise RequestError(f"the body: at most {max_bytes} bytes expected", "too_large")
        if not is_short_body(full_body):
            hold(len(full_body))
        return full_body
    body = bytearray()  # grown, so that no second copy of the whole is made
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > max_bytes:
                    raise RequestError(f"the body: at most {max_bytes} bytes expected", "too_large")
                hold(len(chunk))
                body += chunk
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {seconds:g} s", "slow") from None
    return body


class ChunkedResponse(Response):
    """Response of known size, sent in chunks as its client reads it, in turn with others."""

    def __init__(
        self,
        pieces: Sequence[bytes | memoryview],
        media_type: str,
        headers: dict[str, str],
        turns: SendTurns,
    ) -> None:
        self._pieces, self._turns = pieces, turns
        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(None, 200, {**headers, **length}, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        for piece in self._pieces:
            view = memoryview(piece)
            for at in range(0, len(view), SEND_CHUNK_BYTES):
                send_chunk = view[at : at + SEND_CHUNK_BYTES]
                await self._turns.wait()
                await send({"type": "http.response.body", "body": send_chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class HttpApplication:
    """ASGI application that uvicorn calls for each request."""

    def __init__(self, engine: ServingEngine, tokens: TokenStore) -> None:
        self._engine, self._tokens = engine, tokens
        self._limits = engine.config.limits
        self._send_turns = SendTurns()
        self._browsers = OriginChecker(engine.config)
        texts = OpenAIRoutes(engine, self._read_text_body)
        self._routes = RoutingTable([*self._route_rows(), *texts.routes()])

    def _route_rows(self) -> list[Route]:
        control = "/v2/repository"
        return [
            # Before the patterns, which would take it for a model.
            Route("/v2/models/stats", self.model_statistics),
            *(
                Route(f"{at}/infer", self.infer, methods=("POST",))
                for at in (_MODEL_PATH, _VERSION_PATH)
            ),
            *(Route(f"{at}/ready", self.model_ready) for at in (_MODEL_PATH, _VERSION_PATH)),
            *(Route(at, self.model_metadata) for at in (_MODEL_PATH, _VERSION_PATH)),
            *(Route(f"{at}/config", self.model_config) for at in (_MODEL_PATH, _VERSION_PATH)),
            *(Route(f"{at}/stats", self.model_statistics) for at in (_MODEL_PATH, _VERSION_PATH)),
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route(f"{control}/index", self.repository_index, methods=("POST",)),
            Route(f"{control}/models/{{model}}/load", self.load_model, methods=("POST",)),
            Route(f"{control}/models/{{model}}/unload", self.unload_model, methods=("POST",)),
            Route(
                f"{_MODEL_PATH}/sequences/{{sequence}}",
                self.sequence_state,
                methods=(*DEFAULT_ROUTE_METHODS, "PUT"),
            ),
            Route("/metrics", self.metrics),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; the client gets a response even after an internal error."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        self._engine.arrivals.mark_begun()
        guarded = GuardedSend(send, self._limits.body_seconds)
        headers = scope[REQUEST_HEADERS_KEY] = dict(scope["headers"])
        try:
            if scope["path"] not in UNAUTHENTICATED_PATHS:
                self._browsers.check(scope, headers)
                if scope["path"] != PAGE_PATH:  # which is the same for all, and asks for a token
                    self._tokens.check(headers.get(b"authorization", b""))
            if b"traceparent" in headers:
                PARENT_CONTEXT.set(headers[b"traceparent"].decode("latin-1"))
            endpoint, scope["path_params"] = self._routes.match(scope["method"], scope["path"])
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, guarded)
        except RequestError as error:
            await self._send_error(error, scope, guarded)
        except asyncio.CancelledError:
            raise
        except ClientDisconnect:  # nobody is left to be answered
            pass
        except SlowReaderError:
            scope[ABORT_KEY]()
        except Exception as error:  # of our own making: the client is told that much
            self._engine.log.log_failure("", error)
            await self._send_error(to_request_error(error), scope, guarded)
        finally:
            if HELD_BYTES_KEY in scope:
                self._engine.release_bytes(scope[HELD_BYTES_KEY])

    async def _send_error(self, error: RequestError, scope: Scope, send: GuardedSend) -> None:
        if send.has_begun:
            raise error  # the answer has begun: the connection is closed
        response = error_response(error, is_openai=scope["path"].startswith("/v1/"))
        await response(scope, _no_message, send)

    def _read_body(self, request: Request, max_bytes: int = 0) -> Awaitable[bytes | bytearray]:
        """Read the body of a request within the limits."""

        def hold_bytes(count: int) -> None:
            self._engine.hold_bytes(count)
            request.scope[HELD_BYTES_KEY] = request.scope.get(HELD_BYTES_KEY, 0) + count

        limits = self._limits
        return read_body(request, max_bytes or limits.body_bytes, limits.body_seconds, hold_bytes)

    async def _read_text_body(self, request: Request) -> bytes | bytearray:
        return await self._read_body(request, min(self._limits.text_bytes, self._limits.body_bytes))

    async def infer(self, request: Request) -> Response:
        """Run a model on the inputs in the body."""
        engine = self._engine
        body = await self._read_body(request)
        if is_short_body(body):
            infer_request = self._parse_short(request, body)
        else:
            infer_request = await self._parse_long(request, body)
        del body  # the request has what it needs of it
        if infer_request.parameters.sequence is not None:  # which goes on, whoever has gone
            reject_form_types(request.scope[REQUEST_HEADERS_KEY])
            response = await engine.infer(infer_request)
        else:
            with CancelOnDisconnect(request.scope):
                response = await engine.infer(infer_request, engine.arrivals.none_waiting)
        infer_request.inputs.clear()
        if is_short_answer(infer_request, response):
            pieces, length = serialize_infer_response(infer_request, response)
        else:
            pieces, length = await engine.run_on_reader(
                lambda: serialize_infer_response(infer_request, response)
            )
        headers = {} if length is None else {HEADER_LENGTH: str(length)}
        kind = "application/json" if length is None else BINARY_CONTENT_TYPE
        if len(pieces) == 1 and len(pieces[0]) <= SEND_CHUNK_BYTES:
            return Response(pieces[0], media_type=kind, headers=headers or None)
        if sum(map(len, pieces)) > SEND_CHUNK_BYTES:
            return ChunkedResponse(pieces, kind, headers, self._send_turns)
        return Response(b"".join(pieces), media_type=kind, headers=headers)

    def _parse_short(self, request: Request, body: bytes | bytearray) -> InferRequest:
        model, version, header = _infer_fields(request)
        try:
            return parse_infer_request(model, version, body, header, self._limits.body_bytes)
        except RequestError as error:
            self._engine.count_rejected(model, error)
            raise

    async def _parse_long(self, request: Request, body: bytes | bytearray) -> InferRequest:
        model, version, header = _infer_fields(request)
        limit = self._limits.body_bytes
        return await self._engine.parse_on_reader(
            model, lambda: parse_infer_request(model, version, body, header, limit)
        )

    async def server_metadata(self, request: Request) -> Response:
        """Return the server's name, version and extensions."""
        return json_response(self._engine.server_metadata())

    async def live(self, request: Request) -> Response:
        """Report that the process answers."""
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        """Report whether all models are ready."""
        is_ready = self._engine.is_ready
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, request: Request) -> Response:
        """Report whether one model is ready."""
        names = request.path_params
        is_ready = self._engine.is_model_ready(names["model"], names.get("version", ""))
        return json_response({"name": names["model"], "ready": is_ready}, 200 if is_ready else 503)

    async def model_metadata(self, request: Request) -> Response:
        """Return a model's inputs and outputs."""
        names = request.path_params
        metadata = await self._engine.model_metadata(names["model"], names.get("version", ""))
        return json_response(metadata)

    async def model_config(self, request: Request) -> Response:
        """Return a model's configuration in Triton's form."""
        names = request.path_params
        configuration = await self._engine.model_configuration(
            names["model"], names.get("version", "")
        )
        return json_response(configuration)

    async def model_statistics(self, request: Request) -> Response:
        """Return the statistics of a model's versions, or of all models."""
        names = request.path_params
        rows = self._engine.model_statistics(names.get("model", ""), names.get("version", ""))
        return json_response({"model_stats": rows})

    async def repository_index(self, request: Request) -> Response:
        """List every version of every model with its state."""
        body = await self._read_body(request, MAX_CONTROL_BYTES)
        fields = parse_bounded_object(body) if body else {}
        ready = fields.get("ready", False)
        if not isinstance(ready, bool) or set(fields) - {"ready"}:
            raise RequestError("the body: 'ready', true or false, expected")
        return json_response(self._engine.repository_index(ready))

    async def load_model(self, request: Request) -> Response:
        """Load a model, or its changed versions."""
        self._check_control(request, await self._read_body(request, MAX_CONTROL_BYTES), {})
        await self._engine.repository.load(request.path_params["model"])
        return json_response({})

    async def unload_model(self, request: Request) -> Response:
        """Unload a model."""
        self._check_control(
            request, await self._read_body(request, MAX_CONTROL_BYTES), {"unload_dependents": False}
        )
        await self._engine.repository.unload(request.path_params["model"])
        return json_response({})

    def _check_control(
        self, request: Request, body: bytes | bytearray, allowed: dict[str, object]
    ) -> None:
        """Raise RequestError without a control token, for a content type that pages may send
        without preflight, and for unsupported parameters.
        """
        self._tokens.check_control(request.headers.get("authorization", "").encode("latin-1"))
        require_json(request.scope[REQUEST_HEADERS_KEY])
        parameters = parse_bounded_object(body).get("parameters", {}) if body else {}
        if not isinstance(parameters, dict) or not all(
            key in allowed and allowed[key] is value for key, value in parameters.items()
        ):
            raise RequestError("parameters: none expected: the folder says what a model is")

    async def sequence_state(self, request: Request) -> Response:
        """Return the state of a sequence as a safetensors file; PUT begins one from such a
        state.
        """
        names = request.path_params
        if request.method in ("GET", "HEAD"):
            data = await self._engine.save_sequence(names["model"], names["sequence"])
            return Response(data, media_type=BINARY_CONTENT_TYPE)
        body = await self._read_body(request)
        await self._engine.restore_sequence(names["model"], names["sequence"], bytes(body))
        return json_response({})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return Response(
            self._engine.metrics.exposition(), headers={"content-type": PROMETHEUS_CONTENT_TYPE}
        )


def _infer_fields(request: Request) -> tuple[str, str, str]:
    """Return the model, its version and the length of the JSON that a request names."""
    names = request.path_params
    header = request.scope[REQUEST_HEADERS_KEY].get(_HEADER_LENGTH, b"")
    return names["model"], names.get("version", ""), header.decode("latin-1")


def error_response(error: RequestError, is_openai: bool) -> Response:
    """Return the response for an error."""
    row = FAILURE_REASONS[error.reason]
    body: dict[str, object] = {"error": str(error)}
    if is_openai:
        body = {"error": openai_error(error, row.openai)}
    response = json_response(body, row.http)
    if error.retry_after:
        response.headers["retry-after"] = str(math.ceil(error.retry_after))
        response.headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1e3))
    if row.http == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


class SlowReaderError(Exception):
    """Error of a client that does not read its response within the time limit."""


class GuardedSend:
    """ASGI `send` with a time limit for slow clients, which records whether a response has
    begun.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.has_begun = self._is_stream = False

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        self.has_begun = True
        self._is_stream = self._is_stream or message.get("more_body", False)
        if not self._is_stream:  # the first piece never waits
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise SlowReaderError from None


async def _no_message() -> Message:
    return {"type": "http.disconnect"}
