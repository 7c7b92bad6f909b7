"""Targets of devices have the facts of this machine's, or what is said."""

from __future__ import annotations

import pytest

from ekiden import runtime
from ekiden.runtime.errors import CompileError
from ekiden.target import Target, device_attributes


def test_target_facts_come_from_the_device() -> None:
    if not runtime.device("opencl").exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")
    asked = runtime.get_global_func("ek.device.attribute")
    found, device = Target("opencl"), runtime.device("opencl")
    assert found.max_num_threads == asked(device, 5)
    assert found.cores == asked(device, 7)
    assert found.vector_bits == asked(device, 12) and found.lanes("float32") >= 1
    assert found == Target("opencl -from_device=0") == Target(str(found))
    assert Target("opencl -cores=7").cores == 7
    assert Target("opencl -cores=7").max_num_threads == found.max_num_threads


def test_stated_facts_override_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("ekiden.target.target.query_device_attributes", no_driver)
    mali = Target("opencl -device=mali -vector-bits=128 -cores=3")
    assert (mali.lanes("float32"), mali.registers, mali.cores) == (4, 16, 3)
    assert Target("opencl -device=mali").lanes("float32") == 1
    assert Target(str(mali)) == mali
    assert Target("cuda -model=other").thread_warp_size == 32


def test_a_gpu_says_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has tensor cores or not; what its kind has no option for is left."""
    said = {"arch": "sm_90", "cores": 132, "thread_warp_size": 32, "local_memory": 1}
    monkeypatch.setattr("ekiden.target.target.query_device_attributes", lambda *_: said)
    found = Target("cuda")
    assert (found.arch, found.cores) == ("sm_90", 132) and found.has("tensor_cores")
    assert not Target("cuda -arch=sm_75").has("tensor_cores")
    assert not Target("cuda -model=other").has("tensor_cores")
    assert not Target("nvptx").has("tensor_cores")
    assert Target(str(found)) == found


def test_missing_device_is_refused() -> None:
    with pytest.raises(CompileError, match="-from_device=77: there is no such device"):
        Target("opencl -from_device=77")
    assert device_attributes.query_device_attributes(4, 77) == {}
