"""Model importers, one package per format, which convert models to an IRModule."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
