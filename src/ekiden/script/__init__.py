"""Programs as Python text: `from ekiden.script import tir as T, ir as I`, as in TVM.

@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            B[i] = A[i] + 1.0
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.tir import script
from ekiden.tir.script import from_source, ir_module

tir = script.T
"""The names of loop programs."""
ir = script.I
"""What makes modules: `I.ir_module`, `I.relay`, `I.module_attrs`."""

__all__ = ["from_source", "ir", "ir_module", "tir"]
