"""Kernels of SPIR-V for a driver that has reasons not to take them: prints what comes of each.

    LD_LIBRARY_PATH=FOLDER python spirv_refused.py FOLDER/libOpenCL.so.1

Then as many damaged modules as do not reach the driver, of how many.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys

import numpy as np

from ekiden import runtime
from ekiden.codegen.device import DeviceKernel, pack_kernels
from ekiden.runtime.errors import EkidenError

MODES = (
    "",
    "extension",
    "nothing behind the extension",
    "takes none",
    "unknown question",
    "takes 1.0",
    "refuses",
    "no memory",
    "does not build",
    "no memory to build",
)
HEAD = struct.pack("<5I", 0x07230203, 0x10200, 0, 8, 0)
MODULE = HEAD + struct.pack("<5I", 2 << 16 | 17, 6, 3 << 16 | 14, 2, 2)
"""OpCapability, OpMemoryModel."""


def called(code: bytes, name: str = "f") -> str:
    """What comes of a kernel of one thread: the number that it wrote, or an error."""
    there = runtime.nd.array(np.zeros(2, "float32"), runtime.device("opencl", 0))
    kernel = DeviceKernel(name, 4, "spirv", "b", code)
    try:
        module = runtime.load_device_code(pack_kernels([kernel]))
        module[name](0, 1, 1, 1, 1, 1, 1, there)
        return str(there.numpy().tolist())
    except (EkidenError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def damaged(rng: random.Random) -> bytes:
    """A module that is cut, or of which a few bytes are others."""
    code = bytearray(MODULE)
    for _ in range(rng.randrange(1, 4)):
        code[rng.randrange(len(code))] = rng.randrange(256)
    return bytes(code[: rng.randrange(len(code) + 1)] if rng.random() < 0.5 else code)


def main() -> None:
    """Print the lines."""
    library = ctypes.CDLL(sys.argv[1])
    for mode in MODES:
        library.stand_in_says(mode.encode())
        print(f"{mode}|{called(MODULE)}")
    library.stand_in_says(b"")
    print(f"other name|{called(MODULE, 'g')}")
    library.stand_in_modules.restype = ctypes.c_long
    before, rng = library.stand_in_modules(), random.Random(1)
    message = [called(damaged(rng)) for _ in range(2000)]
    refused = sum("its code is no SPIR-V" in s or "it is SPIR-V" in s for s in message)
    reached = library.stand_in_modules() - before
    print(f"damaged|{refused} refused, {reached} reached it of {len(message)}")


main()
