"""Broken models give an Ekiden error or a right answer; never a crash, a hang or the machine's
memory.

A child process compiles and runs them one after the other under a limit of memory, so that one that
dies or hangs is known by its number.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from mutated_models import base, mutated
from onnx_models import Array

import ekiden
from ekiden.runtime.errors import EkidenError, InternalError
from long_runs import sizes

SECONDS = 60
MEMORY = 4 << 30
"""What one model may take: more than the process has when it begins."""


def feed(model: onnx.ModelProto) -> dict[str, Array]:
    """An array for each input of a sound model, n = 2."""
    rng = np.random.default_rng(1)
    result: dict[str, Array] = {}
    for item in model.graph.input:
        kind = item.type.tensor_type
        shape = [d.dim_value or 2 for d in kind.shape.dim]
        array = rng.normal(size=shape)
        is_bool = kind.elem_type == onnx.TensorProto.BOOL
        result[item.name] = array > 0 if is_bool else array.astype(np.float32)
    return result


def try_one(number: int) -> str:
    """What became of a model: "refused", "ran", or "failed" where the inputs did not fit."""
    inputs = feed(base(number))
    try:
        executable = ekiden.compile(mutated(number))
    except InternalError:
        raise
    except EkidenError:
        return "refused"
    try:
        executable(**{i.name: inputs[i.name] for i in executable.inputs if i.name in inputs})
    except EkidenError:
        return "failed"
    return "ran"


def serve(first: int, last: int) -> None:
    """The child: a line before and after each model."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for number in range(first, last):
        print(f"begin {number}", flush=True)
        print(f"end {number} {try_one(number)}", flush=True)


@sizes("count", 50, 500)
def test_broken_models_are_refused_or_run(count: int, tmp_path: Path) -> None:
    log, failures = tmp_path / "log", []
    first, ends = 0, 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    while first < count:
        with log.open("w") as out:
            command = [sys.executable, __file__, str(first), str(count)]
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            try:
                child.wait(SECONDS * 5 + count)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        lines = log.read_text(errors="replace").splitlines()
        ends += sum(line.startswith("end ") for line in lines)
        begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
        if child.returncode == 0:
            break
        assert begun, "\n".join(lines[-20:])
        failures.append((begun[-1], child.returncode, lines[-1]))
        first = begun[-1] + 1
    assert not failures
    assert ends == count


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
