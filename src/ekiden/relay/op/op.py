"""The registry of operators under the module that TVM has it in."""

from ekiden.ir.op import Op, get

__all__ = ["Op", "get"]
