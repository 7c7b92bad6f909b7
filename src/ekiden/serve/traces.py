"""Spans for OpenTelemetry, where the server is told to make them and its package is there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import ServeError

__all__ = ["PARENT", "Tracer"]

PARENT: ContextVar[str] = ContextVar("PARENT", default="")
"""The `traceparent` of the request under way; empty where it has none."""


class Tracer:
    """Spans of requests: their model, and nothing that a client sent."""

    def __init__(self, enabled: bool) -> None:
        """Raises ServeError where OpenTelemetry is asked for and missing. Its own environment
        variables and `opentelemetry-instrument` say where spans go."""
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
        """A span while it is entered, within that of the client where it says one."""
        if self._tracer is None:
            return nullcontext()
        context = self._format.extract({"traceparent": PARENT.get()})
        made: AbstractContextManager[object] = self._tracer.start_as_current_span(
            name, context=context, kind=self._trace.SpanKind.SERVER,
            attributes={"ekiden.model": model}, record_exception=False,
            set_status_on_exception=False,
        )  # fmt: skip
        return made
