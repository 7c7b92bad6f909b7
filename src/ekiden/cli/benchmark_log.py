"""Entries in TVM's Benchmark Performance Log Format (schema 0.1), for `ekiden bench`:
https://tvm.apache.org/docs/arch/benchmark.html.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ekiden.ir.package_versions import package_version
from ekiden.runtime.files import check_folder

LOG_SCHEMA_VERSION = "0.1"


def build_log_entry(
    workload: str,
    inputs: Mapping[str, str],
    seconds: Sequence[float],
    target: str,
    threads: int | None,
    hardware: str = "",
) -> dict[str, object]:
    """Return the fields of a log entry for the measured `seconds` of whole calls.

    Args:
        workload: The name of the model.
        inputs: The dtype and shape of each input, as text.
        seconds: The time of each call.
        target: The target of the code.
        threads: The number of threads.
        hardware: The machine; by default this one's processor.
    """
    times = [run_seconds * 1e3 for run_seconds in seconds]
    environment = {"os": platform.platform(), "python": platform.python_version()}
    return {
        "workload": workload,
        "engine": "ekiden",
        "hardware": hardware or cpu_model_name(),
        "runtime_ms_mean": statistics.fmean(times),
        "runtime_ms_std": statistics.pstdev(times),
        "timestamp": time.time(),
        "schema_version": LOG_SCHEMA_VERSION,
        "metadata": {},
        "workload_args": {"inputs": dict(inputs)},
        "workload_metadata": {},
        "engine_version": package_version("ekiden"),
        "engine_config": {"tvm_target": target},
        "compilation_config": {},
        "software_config": {} if hardware else environment,
        "runtime_config": {} if threads is None else {"num_cpu_threads": threads},
        "hardware_config": {} if hardware else {"cpu_count": os.cpu_count()},
        "execution_config": {"number": 1, "repeat": len(times), "min_repeat_ms": 0},
        "metrics": {},
        "runtime_raw": [{"runtime_ms": milliseconds} for milliseconds in times],
    }


def cpu_model_name() -> str:
    """Return the model name of this machine's CPU, or its architecture if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def append_log_entry(path: str, fields: Mapping[str, object]) -> None:
    """Append a JSON line to a log file, which is created if missing. Raises OSError."""
    check_folder(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")
