"""Stand-ins for the libraries of devices, compiled for a test."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ekiden import runtime

HERE = Path(__file__).parent
DRIVERS = HERE.parents[1] / "runtime" / "drivers"


def stand_in(kind: str, library: Path, flags: Sequence[str] = ()) -> None:
    """Compile the stand-in for one of the libraries, "cuda", "nvrtc" or "opencl"."""
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-shared", "-fPIC", *flags]
    command += ["-fvisibility=hidden", f"-I{DRIVERS}", f"-I{runtime.include_dir()}"]
    command += [f'-DFIBRE_HEADER="{HERE / "fibre.h"}"', str(HERE / f"{kind}_stand_in.c")]
    command += [f"-Wl,-soname,{library.name}", "-ldl", "-lpthread", "-o", str(library)]
    subprocess.run(command, check=True)
