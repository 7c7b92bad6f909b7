"""CUDA's driver on every path, without a GPU: cuda_paths.c over stand-ins for NVIDIA's libraries,
under AddressSanitizer; and NVIDIA's own compiler, where it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from ekiden import runtime
from fake_drivers import DRIVERS, HERE, compile_fake_driver
from long_runs import alike

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PARTS = ("cuda", "cuda_build", "driver_cache")
SOURCES = [HERE / "cuda_paths.c", *(DRIVERS / f"{part}.c" for part in PARTS)]
NOTHING = ModuleSpec("nvidia", None)
LIBRARIES = {"cuda": "libcuda.so.1", "nvrtc": "libnvrtc.so.13"}


def program(folder: Path, flags: Sequence[str]) -> Path:
    """The folder, with the program and the libraries that it looks for."""
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("needs a C and a C++ compiler: apt-get install g++")
    for kind, name in LIBRARIES.items():
        compile_fake_driver(kind, folder / name, flags)
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", *flags]
    command += [f"-I{DRIVERS}", f"-I{runtime.include_dir()}", *map(str, SOURCES)]
    command += [str(folder / "libcuda.so.1"), "-ldl", "-lpthread"]
    subprocess.run([*command, "-o", str(folder / "paths")], check=True)
    return folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under sanitizers."""
    return program(tmp_path_factory.mktemp("paths"), SANITIZE)


def ran(paths: Path, name: str, tmp_path: Path, **environment: str) -> None:
    """What one part of the program does; its libraries are found in its folder."""
    inputs = {"LD_LIBRARY_PATH": str(paths), "EKIDEN_CACHE_DIR": str(tmp_path / "cache")}
    # leaks are told by the stand-in: of a device that is lost nothing can be given back
    inputs |= {"ASAN_OPTIONS": "detect_leaks=0", "EKIDEN_NVRTC": ""}
    result = subprocess.run(
        [str(paths / "paths"), name],
        env={**os.environ, **inputs, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@alike(4)
@pytest.mark.parametrize(
    "name",
    ["attributes", "memory", "streams", "code", "cached", "lost", "suspects", "no context",
     "old runtime", "no device"],
)  # fmt: skip
def test_cuda_driver_paths_pass_under_sanitizers(paths: Path, name: str, tmp_path: Path) -> None:
    ran(paths, name, tmp_path)


def test_missing_cuda_libraries_name_the_package(paths: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(paths / "libcuda.so.1", alone)
    expected = "pip install nvidia-cuda-nvrtc"
    ran(paths, "no NVRTC", tmp_path, LD_LIBRARY_PATH=str(alone), WANTED=expected)
    named = f"{alone}/libnvrtc.so"
    ran(paths, "no NVRTC", tmp_path, EKIDEN_NVRTC=named, WANTED="EKIDEN_NVRTC names no NVRTC")


def test_compiled_cubins_are_cached(paths: Path, tmp_path: Path) -> None:
    ran(paths, "cached", tmp_path)
    (kept,) = (tmp_path / "cache" / "device").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # damage is a miss
    ran(paths, "cached", tmp_path)
    assert kept.read_bytes() == whole
    ran(paths, "cached", tmp_path, PATH="")  # where there is no compiler
    with pytest.raises(AssertionError, match="refuses it"):
        ran(paths, "cached", tmp_path, EKIDEN_CACHE_DIR="", PATH="")


def test_nvrtc_compiles_kernels(tmp_path: Path) -> None:
    """NVIDIA's compiler through the driver: what it says of a wrong line, and binaries of the GPU
    that the stand-in claims to be, which it cannot load.
    """
    folders = [Path(f) for f in (find_spec("nvidia") or NOTHING).submodule_search_locations or ()]
    result = [p for f in folders for p in f.glob("*/lib/libnvrtc.so.1[1-3]")]
    if not result:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    plain = program(tmp_path, ())  # NVIDIA's library does not bear AddressSanitizer
    ran(plain, "NVRTC", tmp_path, EKIDEN_NVRTC=str(result[0]))
    (kept,) = (tmp_path / "cache" / "device").iterdir()
    assert b"\177ELF" in kept.read_bytes()[:32]
