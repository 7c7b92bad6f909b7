"""The fuzzer of inputs: some cases of each kind, all of them in long runs; it sees finds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from random import Random
from typing import Any

import fuzz_inputs
import numpy as np
import pytest
from case_kinds import Kind
from fuzz_inputs import KINDS, Tally
from onnx import TensorProto, helper, numpy_helper

from ekiden.runtime.errors import InputError


def _shown(tally: Tally) -> str:
    return "\n".join(f"{f.place} [number {f.number}]: {f.text}" for f in tally.finds.values())


def _tally(kind: Kind, cases: int, first: int = 0) -> Tally:
    tally = Tally(kind.name)
    for _, outcome, find in fuzz_inputs.tried(kind, 0, range(first, first + cases)):
        tally.outcomes[outcome] += bool(outcome)
        if find is not None:
            tally.add(find)
    return tally


def _skip_without_packages(kind: Kind) -> None:
    if missing := kind.missing():
        pytest.skip(f"needs {', '.join(missing)}")


MILLION = ("onnx", "tflite", "stablehlo", "relay")
"""Kinds of extreme attributes."""
SLOW = ("pt2", "stablehlo")
"""Kinds whose libraries take seconds to import."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in KINDS]
)
def test_changed_inputs_are_refused_or_accepted(name: str) -> None:
    _skip_without_packages(KINDS[name])
    tally = _tally(KINDS[name], 12)
    assert not tally.finds, _shown(tally)
    assert tally.outcomes["refused"] + tally.outcomes["accepted"] == 12


@pytest.mark.long
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("name", KINDS)
def test_hundred_thousand_changed_inputs(name: str) -> None:
    _skip_without_packages(KINDS[name])
    cases = 1_000_000 if name in MILLION else 100_000
    tally = fuzz_inputs.fuzz(name, cases)
    assert not tally.finds, _shown(tally)


def _kind(load: Callable[[Any], None]) -> Kind:
    def make(rng: Random) -> bytes:
        return b"x" * 100 + bytes([rng.randrange(4)])

    return Kind("own", "", lambda: (make, load))


def test_python_errors_are_finds_and_are_shrunk() -> None:
    def load(case: bytes) -> None:
        if b"\3" in case:
            raise KeyError("raw")
        raise InputError("refused")

    tally = _tally(_kind(load), 40)
    (find,) = tally.finds.values()
    assert find.place.startswith("KeyError at") and find.count > 1
    assert find.case == repr(b"\3")
    assert tally.outcomes["refused"] + find.count == 40


def test_cases_are_determined_by_their_number() -> None:
    kind = _kind(lambda case: None)
    make, _ = kind.start()
    assert make(fuzz_inputs.rng_of("own", 1, 7)) == make(fuzz_inputs.rng_of("own", 1, 7))


@pytest.mark.long
def test_worker_that_dies_is_a_find_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a command that ends itself at its third case."""
    script = (
        "import json, os, sys\nfor n in range(*map(int, sys.argv[-2:])):\n"
        "    print(json.dumps([n]), flush=True)\n"
        f"    if n == 2: os.kill(os.getpid(), {int(signal.SIGSEGV)})\n"
        "    print(json.dumps([n, 'accepted', None]), flush=True)\n"
    )
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"ekiden-dying-{os.getpid()}.py")
    with open(path, "w") as file:
        file.write(script)
    monkeypatch.setattr(fuzz_inputs, "__file__", path)
    tally = fuzz_inputs.fuzz("own", 5)
    os.unlink(path)
    (find,) = tally.finds.values()
    assert find.number == 2 and "signal" in find.place
    assert tally.cases == 5 and tally.outcomes["accepted"] == 4


def test_signal_that_is_shorter_than_a_frame_has_none() -> None:
    """ONNX's inference divides towards 0, and says that it has one."""
    constants = {"step": np.int64(2**40), "length": np.int64(127)}
    graph = helper.make_graph(
        [helper.make_node("STFT", ["x", "step", "", "length"], ["y"], onesided=1)],
        "frames",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    _, load = KINDS["onnx"].start()
    load(model.SerializeToString())
