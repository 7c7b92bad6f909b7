"""What TVM's users look for under `contrib`: the graph executor and its debugger.

A module is loaded when it is first used.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
from ekiden.runtime.late import lend

__all__ = lend(__name__, {})
