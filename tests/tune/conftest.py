"""Small tasks, and workers that find this folder's modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekiden import relay, runtime
from ekiden.ir.module import IRModule
from ekiden.runtime import Device
from ekiden.target import Target
from ekiden.tune import Task
from ekiden.tune.task import module_tasks


def product(rows: int = 24, depth: int = 48, columns: int = 80) -> IRModule:
    """The product of two computed matrices."""
    a = relay.var("a", shape=(rows, depth), dtype="float32")
    b = relay.var("b", shape=(depth, columns), dtype="float32")
    return IRModule.from_expr(relay.Function([a, b], relay.nn.relu(relay.nn.matmul(a, b))))


@pytest.fixture
def task() -> Task:
    """One kernel."""
    return module_tasks(product(), Target("llvm")).tasks[0]


@pytest.fixture
def opencl() -> Device:
    """The first OpenCL device."""
    result = runtime.device("opencl", 0)
    try:
        runtime.get_global_func("ek.device.open")(result)
    except runtime.errors.DeviceError as error:
        pytest.skip(f"needs an OpenCL driver: apt-get install pocl-opencl-icd ({error})")
    return result


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find what is imported here."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
