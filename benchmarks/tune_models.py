"""Models before and after tuning: what tuning finds for each kernel, and what a whole run wins by
it.

    python benchmarks/tune_models.py tune --manifest models.json --out FOLDER [--trials 100]
    python benchmarks/tune_models.py compare --manifest models.json --out FOLDER

`tune` appends to FOLDER/ID.json and goes on where it was ended; with `--each` every kernel gets so
many trials, whatever it may win (`tuned_kernels.py` makes a page of that); `compare` runs each
model that has records both ways, in turns in one process by the thread's own time, checks that the
results agree, and prints untuned over tuned. One thread. Models come through the `fetch_models.py`
beside the manifest.
"""

from __future__ import annotations

import argparse
import math
import runpy
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ekiden
from ekiden.compiler.tune import prepare
from ekiden.runtime.errors import EkidenError
from ekiden.tune import Measurer, Records, Session
from ekiden.tune.session import TaskState

Feed = Mapping[str, np.ndarray]
INTERLEAVED_ROUNDS = 25
ROUND_SECONDS = 5e-3
"""What one timing takes at least."""
DEFAULT_TOLERANCE = (2e-3, 1e-4, 0.0)
"""Relative, absolute, and relative to the largest element: where the manifest says no other."""


def iter_models(options: argparse.Namespace) -> Iterator[tuple[str, Path, Feed, Sequence[float]]]:
    """Yield (name, file, inputs, tolerance) of each requested model."""
    tools = runpy.run_path(str(options.manifest.resolve().parent / "fetch_models.py"))
    for entry in tools["load"](str(options.manifest)):
        if entry["format"] != "onnx" or (options.only and entry["id"] not in options.only):
            continue
        file = tools["fetch"]([entry], options.cache)[entry["id"]]
        path = Path(tools["prepare"](entry, file, options.cache))
        feed = tools["make_inputs"](entry, entry["cases"][0], 0)
        yield entry["id"], path, feed, entry.get("tolerance", DEFAULT_TOLERANCE)


def symbol_sizes(exe: ekiden.Executable, feed: Feed) -> dict[str, int]:
    """Return the sizes of a model's symbolic dimensions for these inputs."""
    pairs = [(d, n) for i in exe.inputs for d, n in zip(i.shape, feed[i.name].shape, strict=True)]
    return {d: n for d, n in pairs if isinstance(d, str) and d.isidentifier()}


def run_tune_command(options: argparse.Namespace) -> None:
    """Run the command `tune`."""
    for name, path, feed, _ in iter_models(options):
        started = time.perf_counter()
        try:
            session = prepare(
                str(path), None, dims=symbol_sizes(ekiden.compile(str(path), records=()), feed),
                shape=None, kernels="", records=Records.open(options.out / f"{name}.json"),
                measurer=Measurer(threads=1), search=options.search, seed=0, progress=None,
            )  # fmt: skip
            if options.each:
                tune_each_kernel(session, options.trials)
            else:
                session.run(options.trials)
        except EkidenError as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        print(
            f"{name}: {format_session(session)}, {time.perf_counter() - started:.0f} s", flush=True
        )


def tune_each_kernel(session: Session, trials: int) -> None:
    """Run this many trials of every kernel, the heaviest first, including those that whole-model
    tuning skips.
    """
    heaviest = sorted(session.tasks, key=lambda t: t.calls * t.flops, reverse=True)
    states = []
    for task in heaviest:
        task_session = Session([task], session.records, session.measurer, session.search)
        task_session.run(trials)
        states += task_session.states
        print(f"  {format_kernel(task_session.states[0])}", flush=True)
    session.states = states


def format_kernel(state: TaskState) -> str:
    """Summarize one kernel's result in a line."""
    choice = state.best.choice if state.best else "the default"
    return (
        f"{state.trials:4} trials {state.default_seconds * 1e6:9.1f} us {state.ratio:5.2f}"
        f" {state.task.node or state.task.name}: {choice} {state.failures_by_status or ''}"
    )


def format_session(session: Session) -> str:
    """Summarize a session in a line."""
    before = sum(s.weight for s in session.states)
    after = sum(s.weight * s.ratio for s in session.states)
    wins = sum(s.best is not None for s in session.states)
    gone = {k: sum(s.failures_by_status.get(k, 0) for s in session.states) for s in session.states
            for k in s.failures_by_status}  # fmt: skip
    return (
        f"{session.trials} trials of {len(session.states)} kernels, {wins} better; kernels"
        f" {before * 1e3:.3f} -> {after * 1e3:.3f} ms {gone or ''}"
    )


def run_compare_command(options: argparse.Namespace) -> None:
    """Run the command `compare`."""
    ekiden.runtime.num_threads(1)
    ratios = []
    for name, path, feed, tolerance in iter_models(options):
        records = options.out / f"{name}.json"
        if not records.exists():
            continue
        records_found = Records.open(records)
        plain = ekiden.compile(str(path), records=())
        tuned = ekiden.compile(str(path), records=records_found)
        off = check_outputs(run_outputs(plain, feed), run_outputs(tuned, feed), tolerance)
        middle, best_ratio, seconds = measure_interleaved(plain, tuned, feed)
        ratios.append(best_ratio)
        print(
            f"{name:28} {seconds * 1e3:9.3f} ms  untuned/tuned {middle:.3f} by the median,"
            f" {best_ratio:.3f} by the least; {len(records_found.best())} records; results {off}",
            flush=True,
        )
    if ratios:
        print(f"{len(ratios)} models: geometric mean {statistics.geometric_mean(ratios):.3f},"
              f" worst {min(ratios):.3f}")  # fmt: skip


def run_outputs(exe: ekiden.Executable, feed: Feed) -> list[np.ndarray]:
    """Return a model's outputs, from its first call."""
    outputs: Any = exe(**feed)
    return [np.asarray(o) for o in (outputs if isinstance(outputs, tuple) else (outputs,))]


def check_outputs(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], tolerance: Sequence[float]
) -> str:
    """Return "" if two runs agree, else "DIFFER"."""
    relative, absolute, of_largest = (*tolerance, 0.0, 0.0)[:3]
    for x, y in zip(a, b, strict=True):
        if x.dtype.kind not in "f":
            if not np.array_equal(x, y):
                return "DIFFER"
            continue
        largest = float(np.abs(x).max()) if x.size else 0.0
        if not np.allclose(
            x, y, rtol=relative, atol=absolute + of_largest * largest, equal_nan=True
        ):
            return "DIFFER"
    return "agree"


def measure_interleaved(
    plain: ekiden.Executable, tuned: ekiden.Executable, feed: Feed
) -> tuple[float, float, float]:
    """Return the median of the rounds' ratios, the ratio of the minima, and the untuned seconds."""
    runs = [lambda exe=exe: exe(**feed) for exe in (plain, tuned)]
    once = min(thread_seconds(runs[0], 1) for _ in range(3))
    count = max(1, math.ceil(ROUND_SECONDS / once))
    times: list[list[float]] = [[], []]
    for round_index in range(INTERLEAVED_ROUNDS):
        # The order alternates, so that warm caches favour neither.
        for position in (0, 1) if round_index % 2 else (1, 0):
            times[position].append(thread_seconds(runs[position], count))
    middle = statistics.median(a / b for a, b in zip(*times, strict=True))
    return middle, min(times[0]) / min(times[1]), min(times[0])


def thread_seconds(call: Any, count: int) -> float:  # noqa: ANN401  whatever runs
    """Return the thread CPU seconds of `count` calls."""
    started = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - started) / count


def main() -> None:
    """Run the requested command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("tune", "compare"))
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--cache", default=str(Path.home() / ".cache" / "ekiden-bench"))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--each", action="store_true", help="so many trials of every kernel")
    parser.add_argument("--search", default="evolution")
    options = parser.parse_args()
    {"tune": run_tune_command, "compare": run_compare_command}[options.command](options)


if __name__ == "__main__":
    main()
