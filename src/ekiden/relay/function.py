"""Functions under the module that TVM has them in."""

from ekiden.ir.expr import BaseFunc
from ekiden.relay.expr import Function

__all__ = ["BaseFunc", "Function"]
