#!/usr/bin/env python3
"""Run ONNX's backend tests through `ekiden.driver.onnx_backend`; write docs/onnx-coverage.md.

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
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from ekiden.driver import onnx_backend

TEST_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TABLE = Path(__file__).parents[1] / "docs" / "onnx-coverage.md"

_RANDOM_STREAM_REASON = (
    "its expected values are NumPy's random stream; Ekiden draws another, as distributed"
)
_ROUNDING_REASON = (
    "float16 is rounded between the steps of the operator, elsewhere than in the reference: "
    "results differ in the last one or two places"
)
FAILURE_REASONS = {
    r"test_bernoulli|test_training_dropout": _RANDOM_STREAM_REASON,
    r"test_attention_.*fp16|test_causal_conv_.*fp16": _ROUNDING_REASON,
    r"test_dft_inverse": "where the result is 0 it expects the rounding errors of NumPy's float32 "
    "transform; Ekiden, in float64, gives 0 to 15 digits",
    r"test_image_decoder": "images are decoded before a model, not in it: Ekiden has no codecs",
    r"test_loop16_seq_none": "a loop makes a sequence of a scalar and vectors; elements of one "
    "whose length is not known at import have one rank",
}
"""Why tests do not pass, by a pattern of their names; others show their error."""


@dataclass
class TestOutcome:
    """Outcome of one backend test. reason: why it failed, empty if it passed. note: a remark."""

    reason: str
    seconds: float = 0.0
    note: str = ""


def load_cases(kind: str) -> list[TestCase]:
    """Return ONNX's tests of a kind; making them warns of overflows that they mean."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind=kind))


def run_test(case: TestCase, device: str = "CPU") -> str:
    """Run a test as ONNX's runner does, and return a note on inputs that became constants. Raises
    what the test raises.
    """
    model = case.model
    data = case.data_sets
    if model is None:
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        data = list(load_data_sets(folder, model))
    rep = onnx_backend.prepare(model, device)
    for inputs, expected in data:
        outputs = rep.run([_normalize_tensor(i) for i in inputs])
        normalized = [_normalize_tensor(e) for e in expected]
        Runner.assert_similar_outputs(normalized, outputs, case.rtol, case.atol, case.model_dir)
    return f"compiled for each value of {', '.join(rep.fixed)}" if rep.fixed else ""


def load_data_sets(folder: Path, model: onnx.ModelProto) -> Iterator[tuple[list[object], ...]]:
    """Yield the (inputs, outputs) of each data set stored with a model."""
    for data_set in sorted(folder.glob("test_data_set*")):
        inputs = model.graph.input[: len(list(data_set.glob("input_*.pb")))]
        yield tuple(
            [load_value(data_set / f"{kind}_{i}.pb", v.type) for i, v in enumerate(values)]
            for kind, values in (("input", inputs), ("output", model.graph.output))
        )


def load_value(path: Path, kind: onnx.TypeProto) -> object:
    """Load a stored tensor, sequence or optional."""
    data = path.read_bytes()
    match kind.WhichOneof("value"):
        case "sequence_type":
            return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))


def run_and_classify(case: TestCase, trace: bool = False, device: str = "CPU") -> TestOutcome:
    """Run a test, and return its outcome with any error as the reason."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = TestOutcome("", note=run_test(case, device))
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        result = TestOutcome("wrong result: " + " ".join(lines[:3])[:160])
    except Exception as error:  # any error is a line of the table
        lines = str(error).splitlines() or [""]
        text = lines[1].strip() if len(lines) > 1 and "not supported" in lines[0] else lines[0]
        result = TestOutcome(f"{type(error).__name__}: {text}"[:200])
        if trace:
            traceback.print_exc()
    result.seconds = time.perf_counter() - start
    return result


def serve_tests(cases: Sequence[TestCase], pipe: Connection, trace: bool, device: str) -> None:
    """Run tests by index until the other end is closed."""
    while True:
        try:
            position = pipe.recv()
        except EOFError:
            return
        pipe.send(run_and_classify(cases[position], trace, device))


class TestWorker:
    """Forked process that runs one test at a time."""

    def __init__(self, cases: Sequence[TestCase], trace: bool, device: str) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=serve_tests, args=(cases, theirs, trace, device), daemon=False
        )
        self.process.start()
        theirs.close()
        self.at = -1
        self.since = 0.0

    def start_test(self, at: int) -> None:
        """Start a test."""
        self.at, self.since = at, time.monotonic()
        self.pipe.send(at)

    def poll_result(self, is_ready: bool, timeout: float) -> TestOutcome | None:
        """Return the outcome if the test has finished, killing a test that exceeds the timeout;
        None while it runs.
        """
        if is_ready:
            try:
                outcome = self.pipe.recv()
            except EOFError:
                self.process.join()
                return TestOutcome("the process crashed")
            assert isinstance(outcome, TestOutcome)
            return outcome
        if time.monotonic() - self.since < timeout:
            return None
        self.process.kill()
        self.process.join()
        return TestOutcome(f"took more than {timeout:g} s", timeout)

    def terminate(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_tests(cases: Sequence[TestCase], options: argparse.Namespace) -> list[TestOutcome]:
    """Return the outcome of each test."""
    outcomes = [TestOutcome("not run") for _ in cases]
    pending = deque(range(len(cases)))
    worker_args = cases, options.trace, options.device
    workers = [TestWorker(*worker_args) for _ in range(options.jobs)]
    while pending or any(w.at >= 0 for w in workers):
        for worker in workers:
            if worker.at < 0 and pending:
                worker.start_test(pending.popleft())
        busy = [w for w in workers if w.at >= 0]
        ready = wait([w.pipe for w in busy], timeout=1.0)
        for worker in busy:
            result = worker.poll_result(worker.pipe in ready, options.timeout)
            if result is None:
                continue
            outcomes[worker.at] = result
            worker.at = -1
            if not worker.process.is_alive():
                worker.terminate()
                workers[workers.index(worker)] = TestWorker(*worker_args)
    for worker in workers:
        worker.terminate()
    return outcomes


Tested = tuple[str, Sequence[TestCase], Sequence[TestOutcome]]
"""A kind of tests, and what became of each."""


def render_page(kinds: Sequence[Tested]) -> str:
    """Return the page."""
    lines = [
        "# ONNX coverage",
        "",
        f"ONNX's own backend tests (onnx {onnx.__version__}), run through its backend interface"
        " (`ekiden.driver.onnx_backend`). Made by `scripts/onnx_coverage.py`; do not edit.",
        "",
        *_summarize_node_tests(kinds),
        "",
        "| tests | pass, inputs as they come | pass, some inputs frozen to values | of |",
        "|---|---|---|---|",
    ]
    for kind, cases, outcomes in kinds:
        passed_unmodified, frozen = _count_passed(outcomes)
        lines.append(f"| {kind} | {passed_unmodified} | {frozen} | {len(cases)} |")
    for kind, cases, outcomes in kinds:
        lines += ["", f"## {kind}", "", "| test | result |", "|---|---|"]
        rows = {c.name: _result_cell(c, o) for c, o in zip(cases, outcomes, strict=True)}
        lines += [f"| {name} | {rows[name]} |" for name in sorted(rows)]
    return "\n".join(lines) + "\n"


def _count_passed(outcomes: Sequence[TestOutcome]) -> tuple[int, int]:
    """Return how many tests pass with unmodified inputs, and how many with some inputs frozen."""
    frozen = sum(not o.reason and bool(o.note) for o in outcomes)
    return sum(not o.reason for o in outcomes) - frozen, frozen


def _summarize_node_tests(kinds: Sequence[Tested]) -> list[str]:
    """Explain the two numbers, for the operators' own tests."""
    _, cases, outcomes = next(tested_kind for tested_kind in kinds if tested_kind[0] == "node")
    passed_unmodified, frozen = _count_passed(outcomes)
    return [
        f"Of the {len(cases)} node tests, {passed_unmodified} pass with all inputs given when "
        "the model",
        f"runs, as they come. {frozen} more pass with some inputs frozen: importing needs the",
        "values of these, so they were made constants of the model, which was compiled for them;",
        "their rows say *compiled for each value of* which. "
        f"{len(cases) - passed_unmodified - frozen} do not pass.",
    ]


def _result_cell(case: TestCase, test_outcome: TestOutcome) -> str:
    """Return a test's cell of the table."""
    if test_outcome.reason:
        reasons = (why for pattern, why in FAILURE_REASONS.items() if re.match(pattern, case.name))
        return "fails: " + next(reasons, test_outcome.reason).replace("|", "\\|")
    return f"pass; {test_outcome.note}" if test_outcome.note else "pass"


def print_summary(kinds: Sequence[Tested], slow: int) -> None:
    """Print failures, the slowest tests, and totals."""
    for _, cases, outcomes in kinds:
        for case, test_outcome in zip(cases, outcomes, strict=True):
            if test_outcome.reason:
                print(f"{case.name}: {test_outcome.reason}")
        times = [(o.seconds, c.name) for c, o in zip(cases, outcomes, strict=True)]
        for seconds, name in sorted(times, reverse=True)[:slow]:
            print(f"{seconds:8.2f} s {name}")
    for kind, cases, outcomes in kinds:
        passed = sum(not o.reason for o in outcomes)
        seconds = sum(o.seconds for o in outcomes)
        print(f"{kind}: {passed} of {len(cases)} pass, {seconds:.0f} s")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Run ONNX's backend tests through Ekiden.")
    parser.add_argument("--only", default="", help="a regular expression on names")
    parser.add_argument("--kinds", nargs="*", default=TEST_KINDS, choices=TEST_KINDS)
    parser.add_argument("--no-write", action="store_true", help="leave the table alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a test (60)")
    parser.add_argument("--slow", type=int, default=0, help="how many of the slowest to show")
    parser.add_argument(
        "--device",
        default="CPU",
        choices=onnx_backend.ONNX_DEVICES,
        help="not the CPU: write no table",
    )
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    return parser.parse_args()


def main() -> None:
    """Run the tests, print the results, and write the table if all tests were run."""
    options = parse_arguments()
    done: list[Tested] = []
    for kind in options.kinds:
        cases = [c for c in load_cases(kind) if re.search(options.only, c.name)]
        outcomes = run_tests(cases, options)
        done.append((kind, cases, outcomes))
    print_summary(done, options.slow)
    is_whole = not options.only and len(done) == len(TEST_KINDS)
    if is_whole and not options.no_write and options.device == "CPU":
        TABLE.write_text(render_page(done))


if __name__ == "__main__":
    main()
