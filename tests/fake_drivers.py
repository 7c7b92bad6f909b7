"""Fake device drivers, compiled for a test."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ekiden import runtime
from ekiden.runtime import Device

HERE = Path(__file__).parent / "device"
DRIVERS = HERE.parents[1] / "runtime" / "drivers"
GPU = os.environ.get("EKIDEN_TEST_CUDA") == "1"
"""Whether CUDA tests use the machine's GPU instead of the fake driver."""


def compile_fake_driver(kind: str, library: Path, flags: Sequence[str] = ()) -> None:
    """Compile a fake library: "cuda", "nvrtc" or "opencl"."""
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-shared", "-fPIC", *flags]
    command += ["-fvisibility=hidden", f"-I{DRIVERS}", f"-I{runtime.include_dir()}"]
    command += [f'-DFIBRE_HEADER="{HERE / "fibre.h"}"', str(HERE / f"{kind}_stand_in.c")]
    command += [f"-Wl,-soname,{library.name}", "-ldl", "-lpthread", "-o", str(library)]
    subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def fake_cuda_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with fakes of NVIDIA's libraries, libcuda.so.1 and libnvrtc.so."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("needs a C and a C++ compiler: apt-get install g++")
    folder = tmp_path_factory.mktemp("cuda")
    compile_fake_driver("cuda", folder / "libcuda.so.1")
    compile_fake_driver("nvrtc", folder / "libnvrtc.so")
    return folder


@pytest.fixture(scope="session")
def fake_cuda(request: pytest.FixtureRequest) -> Device:
    """Return a CUDA device whose kernels run on this processor, by the CUDA driver over fakes of
    NVIDIA's libraries. With EKIDEN_TEST_CUDA=1 it is the machine's GPU.
    """
    result = runtime.device("cuda", 0)
    if not GPU:
        folder: Path = request.getfixturevalue("fake_cuda_libraries")
        ctypes.CDLL(str(folder / "libcuda.so.1"))  # what is loaded already is found by its name
        os.environ["EKIDEN_NVRTC"] = str(folder / "libnvrtc.so")
    runtime.get_global_func("ek.device.open")(result)
    return result


@pytest.fixture(scope="session")
def disposable_cuda_devices() -> Iterator[Device]:
    """Return the devices of the fake CUDA driver after the first two, for `disposable_cuda`."""
    return iter([runtime.device("cuda", number) for number in range(2, 16)])


@pytest.fixture
def disposable_cuda(fake_cuda: Device, disposable_cuda_devices: Iterator[Device]) -> Device:
    """Return a device that a test may break: a failed kernel loses it for the whole process, and no
    other test gets it.
    """
    if GPU:
        pytest.skip("needs the stand-in for libcuda.so.1, which has devices to lose")
    return next(disposable_cuda_devices)
