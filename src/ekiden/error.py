"""Ekiden's errors under TVM's names."""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.runtime.errors import CompileError as DiagnosticError
from ekiden.runtime.errors import EkidenError as TVMError
from ekiden.runtime.errors import InternalError, RPCError, RPCSessionTimeoutError
from ekiden.runtime.errors import UnsupportedError as OpNotImplemented

__all__ = [
    "DiagnosticError",
    "InternalError",
    "OpNotImplemented",
    "RPCError",
    "RPCSessionTimeoutError",
    "TVMError",
]
