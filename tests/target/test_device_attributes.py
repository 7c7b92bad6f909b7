"""Device targets take attributes of this machine's device, unless they are stated."""

from __future__ import annotations

import pytest

from ekiden import runtime
from ekiden.runtime.errors import CompileError
from ekiden.target import Target, device_attributes


def test_target_facts_come_from_the_device() -> None:
    if not runtime.device("opencl").exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")
    asked = runtime.get_global_func("ek.device.attribute")
    result, device = Target("opencl"), runtime.device("opencl")
    assert result.max_num_threads == asked(device, 5)
    assert result.cores == asked(device, 7)
    assert result.vector_bits == asked(device, 12) and result.lanes("float32") >= 1
    assert result == Target("opencl -from_device=0") == Target(str(result))
    assert Target("opencl -cores=7").cores == 7
    assert Target("opencl -cores=7").max_num_threads == result.max_num_threads


def test_stated_facts_override_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("ekiden.target.target.query_device_attributes", no_driver)
    mali = Target("opencl -device=mali -vector-bits=128 -cores=3")
    assert (mali.lanes("float32"), mali.registers, mali.cores) == (4, 16, 3)
    assert Target("opencl -device=mali").lanes("float32") == 1
    assert Target(str(mali)) == mali
    assert Target("cuda -model=other").thread_warp_size == 32


def test_gpu_says_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has tensor cores or not; what its kind has no option for is left."""
    message = {"arch": "sm_90", "cores": 132, "thread_warp_size": 32, "local_memory": 1}
    monkeypatch.setattr("ekiden.target.target.query_device_attributes", lambda *_: message)
    result = Target("cuda")
    assert (result.arch, result.cores) == ("sm_90", 132) and result.has("tensor_cores")
    assert not Target("cuda -arch=sm_75").has("tensor_cores")
    assert not Target("cuda -model=other").has("tensor_cores")
    assert not Target("nvptx").has("tensor_cores")
    assert Target(str(result)) == result


def test_missing_device_is_refused() -> None:
    with pytest.raises(CompileError, match="-from_device=77: there is no such device"):
        Target("opencl -from_device=77")
    assert device_attributes.query_device_attributes(4, 77) == {}
