"""Devices for tests, skipped with the package to install where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wgpu_driver import Driver

from ekiden import runtime
from ekiden.runtime import Device

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def opencl() -> Device:
    """The first OpenCL device."""
    found = runtime.device("opencl", 0)
    try:
        runtime.get_global_func("ek.device.open")(found)
    except runtime.errors.DeviceError as error:
        pytest.skip(f"needs an OpenCL driver: apt-get install pocl-opencl-icd ({error})")
    return found


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """The first device of Vulkan."""
    device = runtime.device("vulkan", 0)
    try:
        runtime.get_global_func("ek.device.open")(device)
    except runtime.errors.DeviceError as error:
        pytest.skip(f"needs a driver of Vulkan: apt-get install mesa-vulkan-drivers ({error})")
    return device


@pytest.fixture(params=["opencl", "vulkan"])
def device(request: pytest.FixtureRequest) -> Device:
    """A device whose threads wait for each other, of each driver that runs on processors."""
    found: Device = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A device of the kind "rocm", by the driver in other_driver.c."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("other")
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    library = folder / "libekiden_rocm.so"
    subprocess.run([*command, str(HERE / "other_driver.c"), "-o", str(library)], check=True)
    os.environ["EKIDEN_DRIVERS"] = str(folder)
    return runtime.device("rocm", 0)


@pytest.fixture(scope="session")
def webgpu() -> Device:
    """The first device of WebGPU, through the package wgpu: a driver in Python."""
    wgpu = pytest.importorskip("wgpu", reason="needs WebGPU: pip install wgpu")
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # the libraries of Vulkan want one
    found = wgpu.gpu.enumerate_adapters_sync()
    if not found:
        pytest.skip("needs an adapter of WebGPU: apt-get install mesa-vulkan-drivers")
    Driver(found[0].request_device_sync()).register()
    return runtime.device("webgpu", 0)
