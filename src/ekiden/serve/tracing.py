"""OpenTelemetry spans, if enabled and the package is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import ServeError

__all__ = ["PARENT_CONTEXT", "Tracer"]

PARENT_CONTEXT: ContextVar[str] = ContextVar("PARENT_CONTEXT", default="")
"""The `traceparent` of the request under way; empty where it has none."""


class Tracer:
    """Tracer of requests: spans carry the model and nothing that a client sent."""

    def __init__(self, enabled: bool) -> None:
        """Set up tracing. Raises ServeError if OpenTelemetry is requested but missing."""
        self._tracer: Any = None
        if not enabled:
            return
        try:
            self._trace = import_module("opentelemetry.trace")
            propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError:
            raise ServeError("traces: pip install opentelemetry-sdk") from None
        self._format = propagation.TraceContextTextMapPropagator()
        self._tracer = self._trace.get_tracer("ekiden.serve")

    def span(self, name: str, model: str) -> AbstractContextManager[object]:
        """Open a span, within the client's span if it sent one."""
        if self._tracer is None:
            return nullcontext()
        context = self._format.extract({"traceparent": PARENT_CONTEXT.get()})
        span_context: AbstractContextManager[object] = self._tracer.start_as_current_span(
            name, context=context, kind=self._trace.SpanKind.SERVER,
            attributes={"ekiden.model": model}, record_exception=False,
            set_status_on_exception=False,
        )  # fmt: skip
        return span_context
