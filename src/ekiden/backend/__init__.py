"""Backend: from an optimised module to an executable; kernels, and the executors that call them."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
