"""Backend, from an optimised module to an executable: kernels, VM bytecode, graphs, native code and
C.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
