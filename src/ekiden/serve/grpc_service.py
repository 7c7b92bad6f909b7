"""The gRPC service: the protocol's service, on the loop of the engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve.config import ServerConfig
from ekiden.serve.engine import Engine
from ekiden.serve.grpc_messages import (
    METHODS,
    SERVICE,
    Proto,
    message,
    parse,
    parse_request,
    write_response,
)
from ekiden.serve.grpc_scan import field_bytes, is_brief_message
from ekiden.serve.http_messages import is_brief_answer
from ekiden.serve.reasons import REASONS, refusal
from ekiden.serve.requests import InferRequest
from ekiden.serve.security import Tokens
from ekiden.serve.traces import PARENT_CONTEXT

__all__ = ["start_grpc"]

OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
"""What is answered without a token."""
INFER_RESPONSE_FIELD = 2
"""The number of that field of a ModelStreamInferResponse."""
Context: TypeAlias = Any
"""grpc has no types."""
Handler: TypeAlias = Any
Method = Callable[[Any, Context], Awaitable[Any]]


class Service:
    """Methods of the gRPC service, each from a message and its context to a message."""

    def __init__(self, engine: Engine, tokens: Tokens) -> None:
        self._engine, self._tokens = engine, tokens

    def handlers(self) -> dict[str, Handler]:
        """Return a handler for each method. Messages arrive as bytes, so that invalid ones are
        refused in the protocol's terms.
        """
        by_method = {name: self._handler(name) for name in METHODS}
        by_method["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self.stream)
        return by_method

    def _handler(self, name: str) -> Handler:
        method: Method = getattr(self, f"_{name}", _no_method)

        async def call(data: bytes, context: Context) -> bytes:
            """Handle one call: check the token, parse the message, run the method. A refusal ends
            the call with a status; the server's own failures are also logged.
            """
            try:
                if name not in OPEN_METHODS:
                    self._enter(context)
                if name == "ModelInfer":
                    return await self._infer(data, context)
                if not is_brief_message(data):
                    raise RequestError(f"the message is too large for {name}", "too_large")
                answer = await method(parse(f"{name}Request", data), context)
                return bytes(answer.SerializeToString())
            except RequestError as error:
                await self._abort(context, error)
            except Exception as error:  # of our own making: the client is told that much
                self._engine.log.failure("", error)
                await self._abort(context, refusal(error))
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(call)

    def _enter(self, context: Context) -> None:
        """Check the token, and record the parent of spans. Raises RequestError."""
        metadata = dict(context.invocation_metadata() or ())
        self._tokens.check(_authorization(context))
        PARENT_CONTEXT.set(str(metadata.get("traceparent", "")))

    async def _abort(self, context: Context, error: RequestError) -> None:
        row = REASONS[error.reason]
        seconds = str(math.ceil(error.retry_after))
        trailing = (("retry-after", seconds),) if error.retry_after else ()
        await context.abort(getattr(grpc.StatusCode, row.grpc), str(error), trailing)

    async def _infer(self, data: bytes, context: Context) -> bytes:
        """Run an inference request from and to serialised messages. Raises RequestError."""
        engine, limits = self._engine, self._engine.config.limits

        def read() -> InferRequest:
            return parse_request(data, limits.body_bytes)

        if is_brief_message(data):
            request = engine.read("", read)
        else:
            request = await engine.read_off_loop("", read)
        remaining = context.time_remaining()
        if remaining is not None:
            requested_seconds = request.parameters.seconds
            seconds = max(
                1e-6, min(remaining, requested_seconds) if requested_seconds else remaining
            )
            request.parameters = dataclasses.replace(request.parameters, seconds=seconds)
        response = await engine.infer(request)
        request.inputs.clear()
        if is_brief_answer(request, response):
            return write_response(request, response)
        return await engine.off_loop(lambda: write_response(request, response))

    async def stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """Answer the requests of a stream one after the other; an error is an answer, after which
        the stream continues.
        """
        try:
            self._enter(context)
        except RequestError as error:
            await self._abort(context, error)
        async for data in requests:
            try:
                yield field_bytes(INFER_RESPONSE_FIELD, await self._infer(data, context))
            except RequestError as error:
                error_answer = message("ModelStreamInferResponse", error_message=str(error))
                yield error_answer.SerializeToString()

    async def _ServerLive(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report that the server is live."""
        return message("ServerLiveResponse", live=True)

    async def _ServerReady(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report whether all models are ready."""
        return message("ServerReadyResponse", ready=self._engine.is_ready)

    async def _ModelReady(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report whether a model is ready."""
        is_ready = self._engine.is_model_ready(request.name, request.version)
        return message("ModelReadyResponse", ready=is_ready)

    async def _ServerMetadata(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Describe the server."""
        return message("ServerMetadataResponse", **self._engine.server_metadata())

    async def _ModelMetadata(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Describe a model."""
        values = self._engine.model_metadata(request.name, request.version)
        return message("ModelMetadataResponse", **values)

    async def _RepositoryIndex(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """List the models and their states."""
        return message("RepositoryIndexResponse", models=self._engine.index(request.ready))

    async def _RepositoryModelLoad(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Load a model."""
        self._check_control(request, context, {})
        await self._engine.repository.load(request.model_name)
        return message("RepositoryModelLoadResponse")

    async def _RepositoryModelUnload(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Unload a model."""
        self._check_control(request, context, {"unload_dependents": False})
        await self._engine.repository.unload(request.model_name)
        return message("RepositoryModelUnloadResponse")

    def _check_control(self, request: Proto, context: Context, allowed: dict[str, object]) -> None:
        """Raise RequestError without a control token, or for unsupported parameters."""
        self._tokens.check_control(_authorization(context))
        for name, value in request.parameters.items():
            field = value.WhichOneof("parameter_choice")
            if name not in allowed or getattr(value, field or "", None) is not allowed[name]:
                raise RequestError("parameters: none expected: the folder says what a model is")


async def _no_method(request: Proto, context: Context) -> Proto:
    """Stand in for a method that `Service` handles separately."""
    raise AssertionError("never called")


def _authorization(context: Context) -> bytes:
    """Return the authorization header."""
    metadata = dict(context.invocation_metadata() or ())
    return str(metadata.get("authorization", "")).encode()


async def start_grpc(engine: Engine, tokens: Tokens, port: int) -> tuple[Handler, int]:
    """Start a gRPC server and return it with its port. Raises ServeError if the port is taken."""
    config = engine.config
    limits = config.limits
    options = [
        ("grpc.max_receive_message_length", min(limits.grpc_bytes, limits.body_bytes)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 64 << 10),
        ("grpc.max_concurrent_streams", 1024),
        ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1e3)),
        ("grpc.so_reuseport", 0),
    ]
    grpc_server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
    handlers = Service(engine, tokens).handlers()
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{host}:{port}"
    try:
        credentials = _credentials(config)
        bound_port = (
            grpc_server.add_insecure_port(address)
            if credentials is None
            else grpc_server.add_secure_port(address, credentials)
        )
        if bound_port == 0:
            raise RuntimeError
    except RuntimeError:
        raise ServeError(f"listen on {address} for gRPC: the port cannot be had") from None
    await grpc_server.start()
    return grpc_server, bound_port


def _credentials(config: ServerConfig) -> Handler:
    """Return the TLS credentials of the server; None without TLS."""
    if not config.tls_certificate:
        return None
    certificate = Path(config.tls_certificate).read_bytes()
    key = Path(config.tls_key or config.tls_certificate).read_bytes()
    authority = Path(config.tls_client_ca).read_bytes() if config.tls_client_ca else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)
