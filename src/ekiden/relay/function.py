"""Function expressions, at TVM's place."""

from ekiden.ir.expr import BaseFunc
from ekiden.relay.expr import Function

__all__ = ["BaseFunc", "Function"]
