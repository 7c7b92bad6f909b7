"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""

from ekiden.tir.printer import astext
from ekiden.tir.verify import verify

__all__ = ["astext", "verify"]
