"""Kernels of all families below oclgrind, which interprets them and sees wrong accesses, data races
and barriers that not all threads reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_gpu_kernel_families as families

from long_runs import alike

HERE = Path(__file__).parent
TARGETS = {
    "threads": "opencl -device=any",
    "vectors": "opencl -device=any -vector-bits=256",
    "warps": "opencl -device=any -thread_warp_size=32",
}
PARTS = 4


LIBRARY = Path("lib/oclgrind/liboclgrind-rt-icd.so")
"""Beside the folder of its command: the loader of OpenCL takes it in place of other drivers."""


def watched(folder: Path, target: str, *names: str) -> str:
    """What oclgrind says of a run of them."""
    command = shutil.which("oclgrind")
    library = Path(command or "/").resolve().parent.parent / LIBRARY
    if not library.exists():
        pytest.skip("needs oclgrind: apt-get install oclgrind")
    (folder / "oclgrind.icd").write_text(f"{library}\n")
    log = folder / "log"
    log.touch()
    own = {"OCL_ICD_VENDORS": str(folder), "OCLGRIND_DATA_RACES": "1", "OCLGRIND_LOG": str(log)}
    completed = subprocess.run(
        [sys.executable, str(HERE / "oclgrind_programs.py"), target, *names],
        env={
            **os.environ,
            **own,
            "EKIDEN_CACHE_DIR": str(folder),
            "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    message = log.read_text()
    assert completed.returncode == 0, (
        f"{completed.stdout[-1000:]}{completed.stderr[-3000:]}{message[-3000:]}"
    )
    device, *ran = completed.stdout.splitlines()
    assert "Oclgrind" in device and ran == [n for n in names if n in families.CASES]
    return message


@alike(12)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", TARGETS)
def test_kernel_families_pass_oclgrind(tmp_path: Path, kind: str, part: int) -> None:
    names = list(families.CASES)[part::PARTS]
    assert watched(tmp_path, TARGETS[kind], *names) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [("access", "Invalid write"), ("race", "data race"), ("divergence", "divergence")],
)
def test_oclgrind_detects_faulty_kernels(tmp_path: Path, name: str, message: str) -> None:
    """Controls: what is wrong is found."""
    output = watched(tmp_path, TARGETS["threads"], name)
    assert message in output, output


def test_oclgrind_accepts_correct_kernels(tmp_path: Path) -> None:
    assert watched(tmp_path, TARGETS["threads"], "nothing", "awaited") == ""
