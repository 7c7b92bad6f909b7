"""Statistics and configuration of models, in the form of Triton's extensions.

Clients such as perf_analyzer read both: the configuration tells them how to send batches, the
statistics how long requests waited and ran (Triton's protocol extensions "statistics" and
"model_configuration").
"""

from __future__ import annotations

import time
from dataclasses import field

from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.config import ModelConfig
from ekiden.serve.signature import ModelSignature, TensorPort

__all__ = ["TRITON_DATA_TYPES", "Duration", "VersionStatistics", "model_configuration"]

MAX_BATCH_SIZES = 256
"""Numbers of rows whose runs are counted apart."""


@dataclass(slots=True)
class Duration:
    """Number of events and the sum of their durations."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add events that took `seconds` together."""
        self.count += count
        self.ns += int(seconds * 1e9)

    def as_fields(self) -> dict[str, int]:
        """Return the fields of Triton's StatisticDuration."""
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class VersionStatistics:
    """Statistics of one version since the server began: of its requests, and of the runs that
    computed them. Used on the event loop's thread.
    """

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    """From the arrival of a request to the begin of its run."""
    infer: Duration = field(default_factory=Duration)
    """The run of each request; requests of one run count it once each."""
    runs_by_rows: dict[int, Duration] = field(default_factory=dict)
    num_rows: int = 0
    num_runs: int = 0
    last_request_ms: int = 0
    """Milliseconds since the epoch."""

    def count_request(self, seconds: float, has_failed: bool) -> None:
        """Count a finished request."""
        (self.fail if has_failed else self.success).add(seconds)
        self.last_request_ms = int(time.time() * 1e3)

    def count_run(self, rows: int, seconds: float, num_requests: int, queued: float) -> None:
        """Count a run of `num_requests` requests that were queued for `queued` seconds together."""
        self.num_rows += rows
        self.num_runs += 1
        self.queue.add(queued, num_requests)
        self.infer.add(seconds * num_requests, num_requests)
        runs = self.runs_by_rows.get(rows)
        # Bounded, because clients choose the rows.
        if runs is None and len(self.runs_by_rows) < MAX_BATCH_SIZES:
            runs = self.runs_by_rows[rows] = Duration()
        if runs is not None:
            runs.add(seconds)

    def as_fields(self, name: str, version: int) -> dict[str, object]:
        """Return the fields of Triton's ModelStatistics. Copies of inputs and outputs are part of
        the runs, and so no durations of their own.
        """
        no_time = {"count": self.infer.count, "ns": 0}
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_request_ms,
            "inference_count": self.num_rows,
            "execution_count": self.num_runs,
            "inference_stats": {
                "success": self.success.as_fields(),
                "fail": self.fail.as_fields(),
                "queue": self.queue.as_fields(),
                "compute_input": no_time,
                "compute_infer": self.infer.as_fields(),
                "compute_output": no_time,
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": {"count": runs.count, "ns": 0},
                    "compute_infer": runs.as_fields(),
                    "compute_output": {"count": runs.count, "ns": 0},
                }
                for rows, runs in sorted(self.runs_by_rows.items())
            ],
        }


TRITON_DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "STRING", "BF16",
)  # fmt: skip
"""Triton's data types in the order of the numbers that its model_config.proto gives them."""


def model_configuration(
    name: str, signature: ModelSignature, config: ModelConfig, is_stateful: bool
) -> dict[str, object]:
    """Return the fields of Triton's ModelConfig of a version.

    Args:
        name: The name of the model.
        signature: Its inputs and outputs. With a batch dimension, `max_batch_size` is the largest
            batch and the dimension is left out of the shapes, as Triton does.
        config: Its configuration.
        is_stateful: Whether its requests belong to sequences.
    """
    is_batched = bool(signature.batch_symbol)
    fields: dict[str, object] = {
        "name": name,
        "platform": "ekiden_eki",
        "backend": "ekiden",
        "max_batch_size": config.batching.rows if is_batched else 0,
        "input": [_port_fields(port, is_batched) for port in signature.inputs],
        "output": [_port_fields(port, is_batched) for port in signature.outputs],
    }
    if is_stateful:
        idle_us = int(config.sequences.idle_seconds * 1e6)
        fields["sequence_batching"] = {"max_sequence_idle_microseconds": idle_us}
    elif is_batched:
        wait_us = int(config.batching.wait_ms * 1e3)
        fields["dynamic_batching"] = {"max_queue_delay_microseconds": wait_us}
    return fields


def _port_fields(port: TensorPort, is_batched: bool) -> dict[str, object]:
    data_type = "STRING" if port.datatype.is_text else port.datatype.name
    dims = port.shape[1:] if is_batched else port.shape
    return {"name": port.name, "data_type": f"TYPE_{data_type}", "dims": list(dims)}
