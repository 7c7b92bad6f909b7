"""A manifest's models on a device, compared with ONNX Runtime: which agree, how long they take.

    python benchmarks/device_models.py run models.json --device opencl [--only ID ...] [--cases all]
    python benchmarks/device_models.py table device_models.jsonl

`run` takes each model to the device in a process of its own, with limits of time and memory, and
appends a line of JSON for it to a file; what has a line is not run again, so that it can be
interrupted. Models come through the `fetch_models.py` beside the manifest. A result agrees where no
element is further from ONNX Runtime's than the model's tolerance (relative, absolute, of the
largest one); its sums of bytes are not to saturate, as they do where processors lack VNNI. `table`
writes what the lines say.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import ekiden

Line = dict[str, Any]
Array = np.ndarray[Any, Any]

DEVICE_TOLERANCE = (1e-3, 1e-4, 0.0)
"""Where an entry has none of its own."""


def manifest_entries(options: argparse.Namespace) -> Iterator[Line]:
    """Yield the requested entries of the manifest."""
    selected = set(options.only or ())
    for entry in _import_fetch_models(options).load(options.manifest):
        if not selected or entry["id"] in selected or selected & set(entry["tags"]):
            yield entry


def _import_fetch_models(options: argparse.Namespace) -> Any:  # noqa: ANN401
    sys.path.insert(0, str(options.manifest.resolve().parent))
    return importlib.import_module("fetch_models")


def run_missing_models(options: argparse.Namespace) -> None:
    """Append a result line for each model that has none."""
    have = {line["id"] for line in _read_results(options.out)}
    for entry in manifest_entries(options):
        if entry["id"] in have:
            continue
        line = {"id": entry["id"], **_run_in_subprocess(entry["id"], options)}
        with open(options.out, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(line["id"], line["state"], line.get("why", line.get("error", "")), flush=True)


def _read_results(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _run_in_subprocess(name: str, options: argparse.Namespace) -> Line:
    """Return the result line of a model that is run in a separate process."""
    arguments = ["one", str(options.manifest), "--only", name, "--device", options.device,
                 "--cases", options.cases, "--rounds", str(options.rounds)]  # fmt: skip
    memory_limit = options.gigabytes << 30
    try:
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=options.seconds,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit)),
        )
    except subprocess.TimeoutExpired:
        return {"state": "out of time", "why": f"{options.seconds} s"}
    if done.returncode != 0:
        last_line = done.stderr.strip().rpartition("\n")[2]
        return {"state": "fails", "why": f"{done.returncode}: {last_line[:500]}"}
    line: Line = json.loads(done.stdout.splitlines()[-1])
    return line


def run_one_model(options: argparse.Namespace) -> None:
    """Print the result line of one model, in its separate process."""
    (entry,) = manifest_entries(options)
    fetching = _import_fetch_models(options)
    file = fetching.fetch([entry], options.cache)[entry["id"]]
    path = str(fetching.prepare(entry, file, options.cache))
    cases = entry["cases"][: None if options.cases == "all" else 1]
    start = time.perf_counter()
    exe = ekiden.compile(path, options.device)
    line: Line = {"compile_s": round(time.perf_counter() - start, 2)}
    exact = onnxruntime.SessionOptions()
    # Exact int8 products in the reference: otherwise saturation would count as our error.
    exact.add_session_config_entry("session.x64quantprecision", "1")
    peer = onnxruntime.InferenceSession(path, exact, providers=["CPUExecutionProvider"])
    tolerance = entry.get("tolerance") or DEVICE_TOLERANCE
    worst = 0.0
    for case in cases:
        feed = fetching.make_inputs(entry, case, 0)
        times = _call_seconds(exe, feed, options.rounds)
        line.setdefault("first_s", round(times[0], 2))
        line.setdefault("ms", round(statistics.median(times[1:]) * 1e3, 3))
        worst = max(
            worst, max_relative_error(peer.run(None, feed), fetch_outputs(exe, feed), tolerance)
        )
    line |= {"error": round(worst, 4), "state": "agrees" if worst <= 1 else "differs"}
    line["cases"] = len(cases)
    print(json.dumps(line))


def _call_seconds(exe: ekiden.Executable, feed: Mapping[str, Array], rounds: int) -> list[float]:
    """Return the seconds of calls with outputs fetched; the first includes the device compiler."""
    spent = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        fetch_outputs(exe, feed)
        spent.append(time.perf_counter() - start)
    return spent


def fetch_outputs(exe: ekiden.Executable, feed: Mapping[str, Array]) -> list[Array]:
    """Return the outputs as host arrays."""
    outputs = exe(**feed)
    return [v.numpy() for v in (outputs if isinstance(outputs, tuple) else (outputs,))]


def max_relative_error(
    expected: Sequence[Array], actual: Sequence[Array], tolerance: Sequence[float]
) -> float:
    """Return the largest difference of any output in multiples of the tolerance; infinite for
    different shapes.
    """
    if [w.shape for w in expected] != [f.shape for f in actual]:
        return float("inf")
    return max(
        (_array_error(w, f, *tolerance) for w, f in zip(expected, actual, strict=True)), default=0.0
    )


def _array_error(
    expected: Array, actual: Array, rtol: float, atol: float, of_largest: float
) -> float:
    """Return the largest difference of two arrays in multiples of the tolerance."""
    if expected.dtype.kind not in "fc":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return float("inf")
    size = np.abs(expected[finite])
    allowed = atol + rtol * size + of_largest * size.max(initial=0.0)
    return float(np.max(np.abs(expected[finite] - actual[finite]) / allowed, initial=0.0))


def format_markdown(options: argparse.Namespace) -> None:
    """Print the results as Markdown."""
    lines = _read_results(options.file)
    agree = sum(line["state"] == "agrees" for line in lines)
    print(f"{agree} of {len(lines)} agree\n")
    print("| model | result | error, in tolerances | compile, s | first run, s | run, ms |")
    print("|---|---|--:|--:|--:|--:|")
    for line in lines:
        figures = (line.get(k, "") for k in ("error", "compile_s", "first_s", "ms"))
        why = f": {line['why']}" if "why" in line else ""
        print(f"| {line['id']} | {line['state']}{why} | {' | '.join(map(str, figures))} |")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (("run", run_missing_models), ("one", run_one_model)):
        command = commands.add_parser(name)
        command.set_defaults(does=does)
        command.add_argument("manifest", type=Path)
        command.add_argument("--device", default="opencl", help="a target, as of ekiden.compile")
        command.add_argument("--only", nargs="+", metavar="ID")
        command.add_argument("--cases", choices=["first", "all"], default="first")
        command.add_argument("--rounds", type=int, default=3)
        command.add_argument("--cache", default=str(Path.home() / ".cache" / "ekiden-bench"))
        command.add_argument("--seconds", type=int, default=900)
        command.add_argument("--gigabytes", type=int, default=24)
        command.add_argument("--out", type=Path, default=Path("device_models.jsonl"))
    writing = commands.add_parser("table")
    writing.set_defaults(does=format_markdown)
    writing.add_argument("file", type=Path)
    options = parser.parse_args()
    options.does(options)


if __name__ == "__main__":
    main()
