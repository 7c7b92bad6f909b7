"""AutoTVM's log format: one JSON line per measurement.

    {"input": [target, task, args, {}], "config": {"index": 5, "code_hash": null, "entity": [...]},
     "result": [[seconds], error, seconds of the batch, time], "version": 0.2, "ekiden": {...}}

"ekiden" is Ekiden's own record of the trial (`tune.records`), which AutoTVM's lines do not have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ekiden import __version__
from ekiden.autotvm.measure.measure import MeasureInput, MeasureResult
from ekiden.autotvm.task.space import ConfigEntity
from ekiden.autotvm.task.task import Task
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import PathName, write_text
from ekiden.target import Target
from ekiden.tune.records import Best, parse_record, serialize_record

__all__ = [
    "decode",
    "encode",
    "load_from_buffer",
    "load_from_file",
    "measure_str_key",
    "pick_best",
    "split_workload",
]

AUTOTVM_LOG_VERSION = 0.2
FAILED_COST_S = 1e9
"""Seconds that AutoTVM writes for what failed."""


def measure_str_key(inp: MeasureInput, include_config: bool = True) -> str:
    """Return a key of a measure input, identical for equal inputs."""
    config = str(inp.config) if include_config else ""
    return f"{inp.target}{inp.task.name}{inp.task.args}{config}"


def encode(inp: MeasureInput, result: MeasureResult, protocol: str = "json") -> str:
    """Encode a measurement as a log line. Raises LoadError for a protocol other than "json":
    pickles are code.
    """
    _check_protocol(protocol)
    worked = result.error_no == 0
    line = {
        "input": [str(inp.target), inp.task.name, inp.task.args, inp.task.kwargs],
        "config": inp.config.to_json_dict(),
        "result": [
            result.costs if worked else [FAILED_COST_S],
            int(result.error_no),
            result.all_cost,
            result.timestamp,
        ],
        "version": AUTOTVM_LOG_VERSION,
        "tvm_version": f"ekiden {__version__}",
    }
    if inp.config.record is not None:
        line["ekiden"] = json.loads(serialize_record(inp.config.record))
    return json.dumps(line)


def decode(row: str, protocol: str = "json") -> tuple[MeasureInput, MeasureResult] | None:
    """Decode the measurement of a log line; return None for AutoTVM's first version. Raises
    LoadError for anything else.
    """
    _check_protocol(protocol)
    try:
        line = json.loads(row)
        if line.get("v") == 0.1:
            return None
        target, name, args, *_ = line["input"]
        task = Task(str(name), _as_tuples(args))
        config = ConfigEntity.from_json_dict(line["config"])
        result = MeasureResult(*_as_tuples(line["result"]))
        config.cost = float(np.mean(result.costs))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LoadError(f"autotvm: a line of a log expected, got {row[:80]!r}: {error}") from None
    task.target = Target(target)
    if "ekiden" in line:
        config.record = parse_record(json.dumps(line["ekiden"]))
    return MeasureInput(task.target, task, config), result


def _check_protocol(protocol: str) -> None:
    if protocol != "json":
        raise LoadError(f"autotvm: logs are of the protocol 'json' here, got {protocol!r}")


def _as_tuples(value: Any) -> Any:  # noqa: ANN401  JSON
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def load_from_buffer(file: Iterable[str]) -> Iterator[tuple[MeasureInput, MeasureResult]]:
    """Yield the measurements of an open log file, skipping comment lines that begin with #."""
    for row in file:
        if row.strip() and not row.startswith("#"):
            pair = decode(row)
            if pair is not None:
                yield pair


def load_from_file(filepath: PathName) -> Iterator[tuple[MeasureInput, MeasureResult]]:
    """Yield the measurements of a log. Raises OSError."""
    with open(filepath) as file:
        yield from load_from_buffer(file)


def split_workload(in_file: PathName, clean: bool = True) -> None:
    """Split a log into one file per workload, `FILE.0`, `FILE.1`, ..., with `clean` without
    duplicate lines.
    """
    groups: dict[str, list[str]] = {}
    for inp, result in load_from_file(in_file):
        key = measure_str_key(inp, include_config=False)
        groups.setdefault(key, []).append(encode(inp, result))
    for number, lines in enumerate(groups.values()):
        written_lines = dict.fromkeys(lines) if clean else lines
        write_text(f"{os.fspath(in_file)}.{number}", "".join(f"{line}\n" for line in written_lines))


def pick_best(in_file: PathName, out_file: PathName) -> None:
    """Write the best measurement of each workload to another log: one confirmed by Ekiden if there
    is one, else the fastest.
    """
    best: dict[str, tuple[MeasureInput, MeasureResult]] = {}
    for inp, result in load_from_file(in_file):
        key = measure_str_key(inp, include_config=False)
        if result.error_no == 0 and (key not in best or _rank(inp, result) < _rank(*best[key])):
            best[key] = inp, result
    Path(out_file).write_text("".join(f"{encode(*pair)}\n" for pair in best.values()))


def _rank(inp: MeasureInput, result: MeasureResult) -> tuple[bool, float]:
    return not isinstance(inp.config.record, Best), float(np.mean(result.costs))
