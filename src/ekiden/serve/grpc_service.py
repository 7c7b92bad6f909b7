"""gRPC service of the Open Inference Protocol: the protocol's service, on the loop of the
engine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve.config import ServerConfig
from ekiden.serve.engine import ServingEngine
from ekiden.serve.failure_reasons import FAILURE_REASONS, to_request_error
from ekiden.serve.grpc_messages import (
    GRPC_METHODS,
    GRPC_SERVICE_NAME,
    Proto,
    create_message,
    parse_message,
    parse_request,
    serialize_response,
)
from ekiden.serve.grpc_scan import encode_bytes_field, is_brief_message
from ekiden.serve.http_messages import is_short_answer
from ekiden.serve.requests import InferRequest
from ekiden.serve.security import TokenStore
from ekiden.serve.statistics import TRITON_DATA_TYPES
from ekiden.serve.tracing import PARENT_CONTEXT

__all__ = ["start_grpc"]

UNAUTHENTICATED_METHODS = frozenset({"ServerLive", "ServerReady"})
"""What is answered without a token."""
INFER_RESPONSE_FIELD = 2
"""The number of that field of a ModelStreamInferResponse."""
Context: TypeAlias = Any
"""grpc has no types."""
Handler: TypeAlias = Any
Method = Callable[[Any, Context], Awaitable[Any]]


class GrpcService:
    """Methods of the gRPC service, each from a message and its context to a message."""

    def __init__(self, engine: ServingEngine, tokens: TokenStore) -> None:
        self._engine, self._tokens = engine, tokens

    def handlers(self) -> dict[str, Handler]:
        """Return a handler for each method. Messages arrive as bytes, so that invalid ones are
        refused in the protocol's terms.
        """
        by_method = {name: self._handler(name) for name in GRPC_METHODS}
        by_method["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self.stream)
        return by_method

    def _handler(self, name: str) -> Handler:
        method: Method = getattr(self, f"_{name}", _unused_method)

        async def call(data: bytes, context: Context) -> bytes:
            """Handle one call: check the token, parse the message, run the method. A refusal ends
            the call with a status; the server's own failures are also logged.
            """
            try:
                if name not in UNAUTHENTICATED_METHODS:
                    self._enter(context)
                if name == "ModelInfer":
                    return await self._infer(data, context)
                if not is_brief_message(data):
                    raise RequestError(f"the message is too large for {name}", "too_large")
                answer = await method(parse_message(f"{name}Request", data), context)
                return bytes(answer.SerializeToString())
            except RequestError as error:
                await self._abort(context, error)
            except Exception as error:  # of our own making: the client is told that much
                self._engine.log.log_failure("", error)
                await self._abort(context, to_request_error(error))
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(call)

    def _enter(self, context: Context) -> None:
        """Check the token, and set the parent span of tracing. Raises RequestError."""
        metadata = dict(context.invocation_metadata() or ())
        self._tokens.check(_authorization_header(context))
        PARENT_CONTEXT.set(str(metadata.get("traceparent", "")))

    async def _abort(self, context: Context, error: RequestError) -> None:
        row = FAILURE_REASONS[error.reason]
        seconds = str(math.ceil(error.retry_after))
        trailing = (("retry-after", seconds),) if error.retry_after else ()
        await context.abort(getattr(grpc.StatusCode, row.grpc), str(error), trailing)

    async def _infer(self, data: bytes, context: Context) -> bytes:
        """Run an inference request from and to serialised messages. Raises RequestError."""
        engine, limits = self._engine, self._engine.config.limits

        def read() -> InferRequest:
            return parse_request(data, limits.body_bytes)

        if is_brief_message(data):
            request = engine.parse_request("", read)
        else:
            request = await engine.parse_on_reader("", read)
        remaining = context.time_remaining()
        if remaining is not None:
            requested_seconds = request.parameters.seconds
            seconds = max(
                1e-6, min(remaining, requested_seconds) if requested_seconds else remaining
            )
            request.parameters = dataclasses.replace(request.parameters, seconds=seconds)
        response = await engine.infer(request)
        request.inputs.clear()
        if is_short_answer(request, response):
            return serialize_response(request, response)
        return await engine.run_on_reader(lambda: serialize_response(request, response))

    async def stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """Answer the requests of a stream in order; an error is an answer, after which the stream
        continues.
        """
        try:
            self._enter(context)
        except RequestError as error:
            await self._abort(context, error)
        async for data in requests:
            try:
                yield encode_bytes_field(INFER_RESPONSE_FIELD, await self._infer(data, context))
            except RequestError as error:
                error_answer = create_message("ModelStreamInferResponse", error_message=str(error))
                yield error_answer.SerializeToString()

    async def _ServerLive(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report that the server is live."""
        return create_message("ServerLiveResponse", live=True)

    async def _ServerReady(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report whether all models are ready."""
        return create_message("ServerReadyResponse", ready=self._engine.is_ready)

    async def _ModelReady(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Report whether a model is ready."""
        is_ready = self._engine.is_model_ready(request.name, request.version)
        return create_message("ModelReadyResponse", ready=is_ready)

    async def _ServerMetadata(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Describe the server."""
        return create_message("ServerMetadataResponse", **self._engine.server_metadata())

    async def _ModelMetadata(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Describe a model."""
        values = await self._engine.model_metadata(request.name, request.version)
        return create_message("ModelMetadataResponse", **values)

    async def _RepositoryIndex(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """List the models and their states."""
        return create_message(
            "RepositoryIndexResponse", models=self._engine.repository_index(request.ready)
        )

    async def _RepositoryModelLoad(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Load a model."""
        self._check_control(request, context, {})
        await self._engine.repository.load(request.model_name)
        return create_message("RepositoryModelLoadResponse")

    async def _RepositoryModelUnload(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Unload a model."""
        self._check_control(request, context, {"unload_dependents": False})
        await self._engine.repository.unload(request.model_name)
        return create_message("RepositoryModelUnloadResponse")

    async def _ModelConfig(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Return a model's configuration."""
        config: Any = await self._engine.model_configuration(request.name, request.version)
        for port in (*config["input"], *config["output"]):
            port["data_type"] = TRITON_DATA_TYPES.index(port["data_type"].removeprefix("TYPE_"))
        return create_message("ModelConfigResponse", config=config)

    async def _ModelStatistics(self, request: Proto, context: Context) -> Proto:  # noqa: N802
        """Return the statistics of a model, or of all."""
        rows = self._engine.model_statistics(request.name, request.version)
        return create_message("ModelStatisticsResponse", model_stats=rows)

    def _check_control(self, request: Proto, context: Context, allowed: dict[str, object]) -> None:
        """Raise RequestError without a control token, or for unsupported parameters."""
        self._tokens.check_control(_authorization_header(context))
        for name, value in request.parameters.items():
            field = value.WhichOneof("parameter_choice")
            if name not in allowed or getattr(value, field or "", None) is not allowed[name]:
                raise RequestError("parameters: none expected: the folder says what a model is")


async def _unused_method(request: Proto, context: Context) -> Proto:
    """Stand in for a method that `GrpcService` handles separately."""
    raise AssertionError("never called")


def _authorization_header(context: Context) -> bytes:
    """Return the authorization header."""
    metadata = dict(context.invocation_metadata() or ())
    return str(metadata.get("authorization", "")).encode()


async def start_grpc(engine: ServingEngine, tokens: TokenStore, port: int) -> tuple[Handler, int]:
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
    handlers = GrpcService(engine, tokens).handlers()
    grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(GRPC_SERVICE_NAME, handlers),)
    )
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{host}:{port}"
    try:
        credentials = _tls_credentials(config)
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


def _tls_credentials(config: ServerConfig) -> Handler:
    """Return the TLS credentials of the server; None without TLS."""
    if not config.tls_certificate:
        return None
    certificate = Path(config.tls_certificate).read_bytes()
    key = Path(config.tls_key or config.tls_certificate).read_bytes()
    authority = Path(config.tls_client_ca).read_bytes() if config.tls_client_ca else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)
