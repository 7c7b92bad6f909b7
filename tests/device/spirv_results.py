"""Families of kernels as SPIR-V on the first OpenCL device, against NumPy: prints those that agree,
and what the first thread says whose check fails.

python spirv_results.py TARGET NAME...
"""

from __future__ import annotations

import sys

import numpy as np
import test_gpu_kernel_families as families
import test_ptx as ptx

import ekiden
from ekiden.runtime import get_global_func, nd
from ekiden.target import Target

ABILITIES = 4


def main() -> None:
    """Print a line for each case, or that the device takes no SPIR-V."""
    abilities = get_global_func("ek.device.attribute")(ekiden.opencl(0), ABILITIES)
    if "spirv" not in str(abilities).split():
        print("takes none")
        return
    for name in sys.argv[2:]:
        for shared in (0, 1) if name in families.PRODUCTS else (None,):
            families.check(name, Target(sys.argv[1]), shared)
        print(name)
    there = nd.array(np.zeros(64, "float32"), ekiden.opencl(0))
    try:
        ekiden.build(ptx.a_function(), sys.argv[1])["f"](there)
    except ValueError as error:
        print(error)


main()
