"""Frontends: each package imports one model format as an IRModule."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
