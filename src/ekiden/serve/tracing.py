"""OpenTelemetry spans of requests, and their export.

A program that has set a tracer provider, such as one started by `opentelemetry-instrument`, exports
the spans itself. Otherwise a provider is set up from OpenTelemetry's environment variables, since
without one its API discards every span.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import entry_points
from os import environ
from typing import Any

from ekiden.runtime.errors import ServeError

__all__ = ["PARENT_CONTEXT", "Tracer"]

EXPORT_TIMEOUT_MS = 5000
"""How long the end of the server waits for a collector."""
INSTALL_COMMAND = "pip install opentelemetry-sdk opentelemetry-exporter-otlp"
PARENT_CONTEXT: ContextVar[str] = ContextVar("PARENT_CONTEXT", default="")
"""The `traceparent` of the request under way; empty where it has none."""


class Tracer:
    """Tracer of requests: spans carry the model and nothing that a client sent."""

    def __init__(self, enabled: bool) -> None:
        """Set up tracing. Raises ServeError if OpenTelemetry or its exporter is missing."""
        self._tracer: Any = None
        self._provider: Any = None
        self.exporter_name = ""
        """The exporter that was set up here; empty if there is none."""
        if not enabled:
            return
        try:
            self._trace = import_module("opentelemetry.trace")
            propagation = import_module("opentelemetry.trace.propagation.tracecontext")
            sdk = import_module("opentelemetry.sdk.trace")
        except ImportError:
            raise ServeError(f"traces: {INSTALL_COMMAND}") from None
        self._format = propagation.TraceContextTextMapPropagator()
        if not isinstance(self._trace.get_tracer_provider(), sdk.TracerProvider):
            self._set_provider(sdk)
        self._tracer = self._trace.get_tracer("ekiden.serve")

    def _set_provider(self, sdk: Any) -> None:  # noqa: ANN401  # the module opentelemetry.sdk.trace
        """Set a provider that exports in batches to the exporter of OTEL_TRACES_EXPORTER."""
        self.exporter_name = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
        environ.setdefault("OTEL_SERVICE_NAME", "ekiden")
        self._provider = sdk.TracerProvider()
        if self.exporter_name != "none":
            export = import_module("opentelemetry.sdk.trace.export")
            self._provider.add_span_processor(
                export.BatchSpanProcessor(_create_exporter(self.exporter_name))
            )
        self._trace.set_tracer_provider(self._provider)

    def close(self) -> None:
        """Export the buffered spans."""
        if self._provider is not None:
            self._provider.force_flush(EXPORT_TIMEOUT_MS)

    def span(self, name: str, model: str) -> AbstractContextManager[object]:
        """Open a span, as a child of the client's span if the request has one."""
        if self._tracer is None:
            return nullcontext()
        context = self._format.extract({"traceparent": PARENT_CONTEXT.get()})
        span_context: AbstractContextManager[object] = self._tracer.start_as_current_span(
            name, context=context, kind=self._trace.SpanKind.SERVER,
            attributes={"ekiden.model": model}, record_exception=False,
            set_status_on_exception=False,
        )  # fmt: skip
        return span_context


def _create_exporter(name: str) -> Any:  # noqa: ANN401  # a class of an optional package
    """Return the exporter that a package registers under a name. Raises ServeError."""
    # "otlp" is registered under the name of its transport, as OpenTelemetry's own set-up maps it.
    protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").partition("/")[0]
    registered_name = f"otlp_proto_{protocol}" if name == "otlp" else name
    matches = entry_points(group="opentelemetry_traces_exporter", name=registered_name)
    for entry_point in matches:
        return entry_point.load()()
    raise ServeError(
        f"traces: no package has the exporter '{name}' (OTEL_TRACES_EXPORTER); {INSTALL_COMMAND}"
    )
