"""A line of TVM's Benchmark Performance Log Format (schema 0.1) for what `ekiden bench` measured:
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

from ekiden.ir.installed import version_of
from ekiden.runtime.files import check_folder

SCHEMA = "0.1"


def entry(
    workload: str,
    inputs: Mapping[str, str],
    seconds: Sequence[float],
    target: str,
    threads: int | None,
    hardware: str = "",
) -> dict[str, object]:
    """The fields that the format has for a measurement of whole calls, each so many `seconds`.
    `inputs` are dtypes and shapes by name; `hardware` the machine, by default this one's processor.
    """
    times = [each * 1e3 for each in seconds]
    here = {"os": platform.platform(), "python": platform.python_version()}
    return {
        "workload": workload,
        "engine": "ekiden",
        "hardware": hardware or processor(),
        "runtime_ms_mean": statistics.fmean(times),
        "runtime_ms_std": statistics.pstdev(times),
        "timestamp": time.time(),
        "schema_version": SCHEMA,
        "metadata": {},
        "workload_args": {"inputs": dict(inputs)},
        "workload_metadata": {},
        "engine_version": version_of("ekiden"),
        "engine_config": {"tvm_target": target},
        "compilation_config": {},
        "software_config": {} if hardware else here,
        "runtime_config": {} if threads is None else {"num_cpu_threads": threads},
        "hardware_config": {} if hardware else {"cpu_count": os.cpu_count()},
        "execution_config": {"number": 1, "repeat": len(times), "min_repeat_ms": 0},
        "metrics": {},
        "runtime_raw": [{"runtime_ms": each} for each in times],
    }


def processor() -> str:
    """What this machine's processor calls itself; its architecture where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def append(path: str, made: Mapping[str, object]) -> None:
    """Add a line to a log, which is made where there is none. Raises OSError."""
    check_folder(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(made) + "\n")
