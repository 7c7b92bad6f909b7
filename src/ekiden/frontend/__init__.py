"""Model formats: each package imports one of them as an IRModule."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
