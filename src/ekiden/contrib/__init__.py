"""Utility modules at TVM's `contrib` path: graph executor, debugger, compiler drivers, BLAS,
visualisation.

A module is loaded when it is first used.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

__all__: list[str] = []

__getattr__, __dir__ = attach(__name__, {})
