#!/usr/bin/env python3
"""Run ONNX's own backend tests through `ekiden.driver.onnx_backend` and write docs/onnx-coverage.md.

    scripts/onnx_coverage.py [--only REGEX] [--no-write] [--jobs N] [--timeout SECONDS] [--slow N]

Each test runs in a forked process that is replaced when it crashes or takes too long, so that one
bad test costs one line of the table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import onnx
from onnx.backend.test.case.test_case import TestCase

from ekiden.driver import onnx_backend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner, _normalize_tensor

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TABLE = Path(__file__).parents[1] / "docs" / "onnx-coverage.md"


@dataclass
class Outcome:
    """What became of a test. reason: empty for one that passed. note: what is worth knowing of it."""

    reason: str
    seconds: float = 0.0
    note: str = ""


def run_case(case: TestCase) -> str:
    """Run a test as ONNX's runner does; raises what it raises. Returns a note."""
    model = case.model
    data = case.data_sets
    if model is None:
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        data = list(stored_data(folder, model))
    rep = onnx_backend.prepare(model, "CPU")
    for inputs, expected in data:
        found = rep.run([_normalize_tensor(i) for i in inputs])
        wanted = [_normalize_tensor(e) for e in expected]
        Runner.assert_similar_outputs(wanted, found, case.rtol, case.atol, case.model_dir)
    return f"compiled for each value of {', '.join(rep.fixed)}" if rep.fixed else ""


def stored_data(folder: Path, model: onnx.ModelProto):
    """The (inputs, outputs) that lie beside a stored model."""
    for each in sorted(folder.glob("test_data_set*")):
        yield tuple(
            [load_value(each / f"{kind}_{i}.pb", v.type) for i, v in enumerate(values)]
            for kind, values in (("input", stored_inputs(each, model)), ("output", model.graph.output))
        )


def stored_inputs(folder: Path, model: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
    """The inputs that data are stored for: not those with initializers."""
    return model.graph.input[: len(list(folder.glob("input_*.pb")))]


def load_value(path: Path, kind: onnx.TypeProto) -> object:
    """A stored tensor, sequence or optional."""
    readers = {
        "sequence_type": (onnx.SequenceProto, onnx.numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, onnx.numpy_helper.to_optional),
    }
    proto, read = readers.get(kind.WhichOneof("value"), (onnx.TensorProto, onnx.numpy_helper.to_array))
    return read(proto.FromString(path.read_bytes()))


def outcome(case: TestCase) -> Outcome:
    """Run a test; an error becomes its reason."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = run_case(case)
        found = Outcome("", note=note)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        found = Outcome("wrong result: " + " ".join(lines[:3])[:160])
    except Exception as error:  # noqa: BLE001 - any error is a line of the table
        lines = str(error).splitlines() or [""]
        text = lines[1].strip() if len(lines) > 1 and "not supported" in lines[0] else lines[0]
        found = Outcome(f"{type(error).__name__}: {text}"[:200])
        if __debug__ and VERBOSE:
            traceback.print_exc()
    found.seconds = time.perf_counter() - start
    return found


VERBOSE = False


def work(cases: Sequence[TestCase], pipe: Connection) -> None:
    """Serve positions of tests until told -1."""
    while (at := pipe.recv()) >= 0:
        pipe.send(outcome(cases[at]))


class Worker:
    """A forked process that runs one test at a time."""

    def __init__(self, cases: Sequence[TestCase]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=work, args=(cases, theirs), daemon=False
        )
        self.process.start()
        theirs.close()
        self.at = -1
        self.since = 0.0

    def give(self, at: int) -> None:
        """Start a test."""
        self.at, self.since = at, time.monotonic()
        self.pipe.send(at)

    def end(self) -> None:
        """Stop the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_all(cases: Sequence[TestCase], jobs: int, timeout: float) -> list[Outcome]:
    """The outcome of each test."""
    found: list[Outcome] = [Outcome("not run") for _ in cases]
    left = deque(range(len(cases)))
    workers = [Worker(cases) for _ in range(jobs)]
    try:
        while left or any(w.at >= 0 for w in workers):
            for worker in workers:
                if worker.at < 0 and left:
                    worker.give(left.popleft())
            ready = wait([w.pipe for w in workers if w.at >= 0], timeout=1.0)
            for index, worker in enumerate(workers):
                if worker.at < 0:
                    continue
                if worker.pipe in ready:
                    try:
                        found[worker.at] = worker.pipe.recv()
                        worker.at = -1
                        continue
                    except EOFError:
                        found[worker.at] = Outcome("the process crashed")
                elif time.monotonic() - worker.since > timeout:
                    found[worker.at] = Outcome(f"took more than {timeout:g} s", timeout)
                else:
                    continue
                worker.end()
                workers[index] = Worker(cases)
    finally:
        for worker in workers:
            worker.end()
    return found


def table(kinds: Sequence[tuple[str, Sequence[TestCase], Sequence[Outcome]]]) -> str:
    """The page."""
    lines = [
        "# ONNX coverage",
        "",
        f"ONNX's own backend tests (onnx {onnx.__version__}), run through its backend interface"
        " (`ekiden.driver.onnx_backend`). Made by `scripts/onnx_coverage.py`; do not edit.",
        "",
        "| tests | pass | of |",
        "|---|---|---|",
    ]
    for kind, cases, outcomes in kinds:
        lines.append(f"| {kind} | {sum(not o.reason for o in outcomes)} | {len(cases)} |")
    for kind, cases, outcomes in kinds:
        lines += ["", f"## {kind}", "", "| test | result |", "|---|---|"]
        for case, each in sorted(zip(cases, outcomes, strict=True), key=lambda p: p[0].name):
            result = each.reason.replace("|", "\\|") or "pass" + (f" ({each.note})" if each.note else "")
            lines.append(f"| {case.name} | {result} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, write, and print what does not pass."""
    global VERBOSE
    parser = argparse.ArgumentParser(description="Run ONNX's backend tests through Ekiden.")
    parser.add_argument("--only", default="", help="a regular expression on names")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--no-write", action="store_true", help="leave the table alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--slow", type=int, default=0, help="show the slowest tests")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    VERBOSE = options.trace
    done = []
    for kind in options.kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cases = [c for c in load_model_tests(kind=kind) if re.search(options.only, c.name)]
        outcomes = run_all(cases, options.jobs, options.timeout)
        done.append((kind, cases, outcomes))
        for case, each in zip(cases, outcomes, strict=True):
            if each.reason:
                print(f"{case.name}: {each.reason}")
        for each, case in sorted(zip([o.seconds for o in outcomes], [c.name for c in cases]), reverse=True)[: options.slow]:
            print(f"{each:8.2f} s {case}")
    for kind, cases, outcomes in done:
        passed = sum(not o.reason for o in outcomes)
        seconds = sum(o.seconds for o in outcomes)
        print(f"{kind}: {passed} of {len(cases)} pass, {seconds:.0f} s")
        print(Counter(o.reason.split(":")[0] for o in outcomes if o.reason).most_common(5))
    if not options.no_write and not options.only:
        TABLE.write_text(table(done))


if __name__ == "__main__":
    main()
