"""Stand-ins for the libraries of devices, compiled for a test."""

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
"""Whether what is said to CUDA goes to the machine's GPU, and not to stand-ins."""


def stand_in(kind: str, library: Path, flags: Sequence[str] = ()) -> None:
    """Compile the stand-in for one of the libraries, "cuda", "nvrtc" or "opencl"."""
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-shared", "-fPIC", *flags]
    command += ["-fvisibility=hidden", f"-I{DRIVERS}", f"-I{runtime.include_dir()}"]
    command += [f'-DFIBRE_HEADER="{HERE / "fibre.h"}"', str(HERE / f"{kind}_stand_in.c")]
    command += [f"-Wl,-soname,{library.name}", "-ldl", "-lpthread", "-o", str(library)]
    subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins for NVIDIA's libraries, libcuda.so.1 and libnvrtc.so."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("needs a C and a C++ compiler: apt-get install g++")
    folder = tmp_path_factory.mktemp("cuda")
    stand_in("cuda", folder / "libcuda.so.1")
    stand_in("nvrtc", folder / "libnvrtc.so")
    return folder


@pytest.fixture(scope="session")
def fibres(request: pytest.FixtureRequest) -> Device:
    """A device of the kind "cuda", by the driver of CUDA over stand-ins for NVIDIA's libraries:
    kernels run on this processor. With EKIDEN_TEST_CUDA=1 it is the machine's GPU.
    """
    result = runtime.device("cuda", 0)
    if not GPU:
        folder: Path = request.getfixturevalue("stand_ins")
        ctypes.CDLL(str(folder / "libcuda.so.1"))  # what is loaded already is found by its name
        os.environ["EKIDEN_NVRTC"] = str(folder / "libnvrtc.so")
    runtime.get_global_func("ek.device.open")(result)
    return result


@pytest.fixture(scope="session")
def doomed_devices() -> Iterator[Device]:
    """What `doomed` takes from: the devices of the stand-in for CUDA after the first two."""
    return iter([runtime.device("cuda", number) for number in range(2, 16)])


@pytest.fixture
def doomed(fibres: Device, doomed_devices: Iterator[Device]) -> Device:
    """A device that a test may lose: a failed kernel takes it from all of the process, and no other
    test is given it.
    """
    if GPU:
        pytest.skip("needs the stand-in for libcuda.so.1, which has devices to lose")
    return next(doomed_devices)
