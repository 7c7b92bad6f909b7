"""Counts and times for Prometheus: one row for each metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from ekiden.runtime.memory import memory_stats

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = made = CollectorRegistry()
        self._requests = Counter(
            "ekiden_requests", "Requests by how they ended", ["model", "outcome"], registry=made
        )
        self._seconds = Histogram(
            "ekiden_request_seconds", "From the parsed request to its outputs", ["model"],
            registry=made, buckets=_SECONDS,
        )  # fmt: skip
        self._rows = Histogram(
            "ekiden_run_rows", "Rows of a run", ["model"], registry=made, buckets=_ROWS
        )
        self._run_seconds = Counter("ekiden_run_seconds", "Time in runs", ["model"], registry=made)
        self._tokens = Counter(
            "ekiden_generated_tokens", "Tokens of generated text", ["model"], registry=made
        )
        self.connections = Gauge("ekiden_connections", "Open connections of HTTP", registry=made)
        self._waiting: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {}
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        made.register(_Gauges(self._waiting))

    def watch(self, model: str, waiting: Callable[[], int], sequences: Callable[[], int]) -> None:
        """Show how many requests of a model wait, and how many sequences it has."""
        self._waiting[model] = waiting, sequences

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """A request ended; `model` is a name that there is, or empty."""
        found = self._children.get((model, outcome))
        if found is None:
            found = self._requests.labels(model, outcome), self._seconds.labels(model)
            self._children[model, outcome] = found
        found[0].inc()
        found[1].observe(seconds)

    def run(self, model: str, rows: int, seconds: float) -> None:
        """A run ended."""
        self._rows.labels(model).observe(rows)
        self._run_seconds.labels(model).inc(seconds)

    def tokens(self, model: str, count: int) -> None:
        """Tokens were generated."""
        self._tokens.labels(model).inc(count)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)


class _Gauges:
    """What is asked when it is read: queues, sequences, memory."""

    def __init__(self, waiting: dict[str, tuple[Callable[[], int], Callable[[], int]]]) -> None:
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """The metrics of now."""
        queue = GaugeMetricFamily("ekiden_waiting", "Requests that wait", labels=["model"])
        alive = GaugeMetricFamily("ekiden_sequences", "Sequences alive", labels=["model"])
        for model, (waiting, sequences) in self._waiting.items():
            queue.add_metric([model], waiting())
            alive.add_metric([model], sequences())
        yield queue
        yield alive
        stats = memory_stats()
        for name in ("held", "in_use", "peak", "limit"):
            value = getattr(stats, name)
            yield GaugeMetricFamily(f"ekiden_memory_{name}_bytes", "Of programs", value=value)
