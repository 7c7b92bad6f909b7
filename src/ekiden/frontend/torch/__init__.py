"""PyTorch frontend: torch.export programs, modules, TorchScript, and torch.compile graphs.

`register` teaches the import an operator, a user's own among them (ekiden.frontend.torch.registry).
"""

from ekiden.frontend.torch.program import import_program
from ekiden.frontend.torch.registry import register

__all__ = ["import_program", "register"]
