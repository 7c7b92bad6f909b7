"""Hybrid scripts: computations written as Python functions over elements. TVM's hybrid script.

    @te.hybrid.script
    def outer(a, b):
        c = output_tensor((a.shape[0], b.shape[0]), a.dtype)
        for i in range(a.shape[0]):
            for j in range(b.shape[0]):
                c[i, j] = a[i] * b[j]
        return c

Called with tensors of te it gives tensors, whose operation has the statements; called with NumPy's
arrays it runs as Python, with `ekiden.te.hybrid.runtime` for its names.
"""

from ekiden.te.hybrid.parser import HybridFunction, script
from ekiden.te.hybrid.runtime import HYBRID_GLOBALS

__all__ = ["HYBRID_GLOBALS", "HybridFunction", "script"]
