"""Model formats: each folder turns one of them into an IRModule."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
