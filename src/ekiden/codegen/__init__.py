"""Code generators: lowered loop programs to machine code, C and device source."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
