"""Prometheus metrics: one row for each metric.

They are numbers that the event loop's thread adds to, and become Prometheus' families where they
are read: its own counters take a lock and several calls each, for every request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ekiden.runtime.devices.memory import memory_stats
from ekiden.serve.residency import ResidentModels

__all__ = ["PROMETHEUS_CONTENT_TYPE", "ServerMetrics"]

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Histogram of values by model."""

    def __init__(self, name: str, meaning: str, bounds: tuple[float, ...]) -> None:
        self._name, self._meaning, self._bounds = name, meaning, bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, model: str, value: float) -> None:
        """Count one value."""
        counts = self._counts.get(model)
        if counts is None:
            counts = self._counts[model] = [0] * (len(self._bounds) + 1)
            self._sums[model] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[model] += value

    def to_family(self) -> Metric:
        """Return it as a Prometheus metric."""
        metric = HistogramMetricFamily(self._name, self._meaning, labels=["model"])
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        for model, counts in self._counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            metric.add_metric([model], buckets, self._sums[model])
        return metric


class ServerMetrics:
    """Metrics of one server, used only on the thread of the event loop."""

    def __init__(self) -> None:
        self.connections = 0
        """Of HTTP, open."""
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram(
            "ekiden_request_seconds", "From the parsed request to its outputs", _SECONDS_BOUNDS
        )
        self._rows = Histogram("ekiden_run_rows", "Rows of a run", _ROWS_BOUNDS)
        self._run_seconds: dict[str, float] = {}
        self._tokens: Counter[str] = Counter()
        self._waiting: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {}
        self._prompt_tokens: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._residents: ResidentModels | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def register_model(
        self, model: str, waiting: Callable[[], int], sequences: Callable[[], int]
    ) -> None:
        """Register gauges of a model's queued requests and active sequences."""
        self._waiting[model] = waiting, sequences

    def register_prompts(self, model: str, tokens: Callable[[], Mapping[str, int]]) -> None:
        """Register the counts of a model's prompt tokens by their source."""
        self._prompt_tokens[model] = tokens

    def has_model(self, model: str) -> bool:
        """Return whether a model is registered."""
        return model in self._waiting

    def register_residents(self, residents: ResidentModels) -> None:
        """Register gauges of the number and bytes of loaded models, and of evictions."""
        self._residents = residents

    def count_request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a finished request; `model` is a known name, or empty."""
        self._requests[model, outcome] += 1
        self._seconds.observe(model, seconds)

    def count_run(self, model: str, rows: int, seconds: float) -> None:
        """Count a finished run."""
        self._rows.observe(model, rows)
        self._run_seconds[model] = self._run_seconds.get(model, 0.0) + seconds

    def count_tokens(self, model: str, count: int) -> None:
        """Count generated tokens."""
        self._tokens[model] += count

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as Prometheus families, for the registry."""
        requests = CounterMetricFamily(
            "ekiden_requests", "Requests by how they ended", labels=["model", "outcome"]
        )
        for labels, count in self._requests.items():
            requests.add_metric(list(labels), count)
        yield requests
        yield self._seconds.to_family()
        yield self._rows.to_family()
        run_seconds = CounterMetricFamily("ekiden_run_seconds", "Time in runs", labels=["model"])
        for model, seconds in self._run_seconds.items():
            run_seconds.add_metric([model], seconds)
        yield run_seconds
        tokens = CounterMetricFamily(
            "ekiden_generated_tokens", "Tokens of generated text", labels=["model"]
        )
        for model, count in self._tokens.items():
            tokens.add_metric([model], count)
        yield tokens
        prompts = CounterMetricFamily(
            "ekiden_prompt_tokens", "Tokens of prompts by where their keys and values came from",
            labels=["model", "source"],
        )  # fmt: skip
        for model, count_by_source in self._prompt_tokens.items():
            for source, count in count_by_source().items():
                prompts.add_metric([model, source], count)
        yield prompts
        yield from self._collect_gauges()

    def _collect_residency(self) -> Iterator[Metric]:
        """Yield the metrics of the loaded models."""
        if (residents := self._residents) is None:
            return
        yield GaugeMetricFamily("ekiden_resident_models", "Models in memory", value=len(residents))
        yield GaugeMetricFamily(
            "ekiden_resident_model_bytes", "Bytes of their files", value=residents.num_bytes
        )
        yield CounterMetricFamily(
            "ekiden_evictions", "Models that made room for others", value=residents.num_evictions
        )

    def _collect_gauges(self) -> Iterator[Metric]:
        """Yield the gauges read on demand: connections, queues, sequences, memory."""
        yield GaugeMetricFamily(
            "ekiden_connections", "Open connections of HTTP", value=self.connections
        )
        queue = GaugeMetricFamily("ekiden_waiting", "Requests that wait", labels=["model"])
        alive = GaugeMetricFamily("ekiden_sequences", "Sequences alive", labels=["model"])
        for model, (waiting, sequences) in self._waiting.items():
            queue.add_metric([model], waiting())
            alive.add_metric([model], sequences())
        yield queue
        yield alive
        yield from self._collect_residency()
        stats = memory_stats()
        for name in ("held", "in_use", "peak", "limit"):
            value = getattr(stats, name)
            yield GaugeMetricFamily(f"ekiden_memory_{name}_bytes", "Of programs", value=value)
