"""Families of kernels as SPIR-V on the first OpenCL device, against NumPy: prints those that agree.

python spirv_results.py TARGET NAME...
"""

from __future__ import annotations

import sys

import test_thread_families as families

import ekiden
from ekiden.runtime import get_global_func
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


main()
