"""Function expressions, under TVM's module name."""

from ekiden.ir.expr import BaseFunc
from ekiden.relay.expr import Function

__all__ = ["BaseFunc", "Function"]
