"""Code generators: from lowered loop programs to code."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
