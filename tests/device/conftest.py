"""Devices that tests need: skipped, with what to install, where they are not there."""

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
def fibres(tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A device of the kind "cuda" that is none: its driver is fibre_driver.c, in the folder that
    EKIDEN_DRIVERS names, and runs the text of kernels on this processor.
    """
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("c++") is None:
        pytest.skip("needs a C and a C++ compiler: apt-get install g++")
    folder = tmp_path_factory.mktemp("drivers")
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-w"]
    command += [f"-I{runtime.include_dir()}", str(HERE / "fibre_driver.c")]
    subprocess.run([*command, "-o", str(folder / "libekiden_cuda.so")], check=True)
    os.environ["EKIDEN_DRIVERS"] = str(folder)
    os.environ["FIBRE_HEADER"] = str(HERE / "fibre.h")
    return runtime.device("cuda", 0)


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
