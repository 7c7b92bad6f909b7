"""Tuner callbacks, called after each batch with its inputs and results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from io import TextIOBase
from typing import Any, TypeAlias

import numpy as np

from ekiden.autotvm.measure.measure import MeasureInput, MeasureResult
from ekiden.autotvm.record import encode
from ekiden.autotvm.utils import format_si_prefix
from ekiden.runtime.files import PathName, check_folder

__all__ = ["Monitor", "log_to_file", "progress_bar"]

Callback: TypeAlias = Callable[[Any, Sequence[MeasureInput], Sequence[MeasureResult]], None]


def log_to_file(file_out: PathName | TextIOBase, protocol: str = "json") -> Callback:
    """Return a callback that appends each measurement to a log."""
    path = check_folder(file_out) if isinstance(file_out, (str, os.PathLike)) else None

    def append_lines(
        _: object, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]
    ) -> None:
        """Append a line for each measured candidate to the log."""
        lines = [f"{encode(i, r, protocol)}\n" for i, r in zip(inputs, results, strict=False)]
        if path is not None:
            with open(path, "a") as file:
                file.writelines(lines)
        elif isinstance(file_out, TextIOBase):
            file_out.writelines(lines)

    return append_lines


class Monitor:
    """Callback that records the throughput and the time of every trial."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.timestamps: list[float] = []

    def __call__(
        self, tuner: object, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]
    ) -> None:
        """Record the operations per second of each measurement, 0 for failed ones."""
        for inp, result in zip(inputs, results, strict=False):
            worked = result.error_no == 0
            self.scores.append(inp.task.flop / np.mean(result.costs) if worked else 0.0)
            self.timestamps.append(result.timestamp)

    def reset(self) -> None:
        """Discard all recorded trials."""
        self.scores, self.timestamps = [], []

    def trial_scores(self) -> np.ndarray[Any, Any]:
        """Return the operations per second of each trial."""
        return np.array(self.scores)

    def trial_timestamps(self) -> np.ndarray[Any, Any]:
        """Return when each trial was measured, in seconds since 1970."""
        return np.array(self.timestamps)


def progress_bar(total: int, prefix: str = "", si_prefix: str = "G") -> Callback:
    """Return a callback that prints the number of finished trials and the best throughput."""
    best, done, start = 0.0, 0, time.monotonic()

    def print_progress(
        tuner: object, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]
    ) -> None:
        """Print the current and the best throughput and the number of trials."""
        nonlocal best, done
        throughput = 0.0
        for inp, result in zip(inputs, results, strict=False):
            if result.error_no == 0:
                throughput = float(inp.task.flop / np.mean(result.costs))
                best = max(best, throughput)
        done += len(inputs)
        speeds = "/".join(f"{format_si_prefix(s, si_prefix):7.2f}" for s in (throughput, best))
        sys.stdout.write(
            f"\r{prefix} Current/Best: {speeds} {si_prefix}FLOPS | Progress: ({done}/{total}) "
            f"| {time.monotonic() - start:.2f} s"
        )
        if done >= total:
            sys.stdout.write(" Done.\n")
        sys.stdout.flush()

    return print_progress
