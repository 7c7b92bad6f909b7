"""What TVM's users look for under `contrib`: the graph executor and its debugger."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
