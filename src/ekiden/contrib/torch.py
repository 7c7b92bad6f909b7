"""PyTorch modules that run loop programs, with the interface of TVM's `contrib.torch`.

`torch.compile(module, backend="ekiden")` is the way for modules of PyTorch itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch

from ekiden.compiler.lowering import build
from ekiden.ir.module import IRModule
from ekiden.meta_schedule.tir_integration import compile_tir, tune_tir
from ekiden.runtime import Module, from_dlpack
from ekiden.runtime.errors import InputError
from ekiden.target import TargetLike
from ekiden.tir import PrimFunc

__all__ = ["OperatorModuleWrapper", "as_torch"]


class OperatorModuleWrapper(torch.nn.Module):
    """PyTorch module of a loop program, called with tensors for its parameters, the last of which
    is its output.
    """

    def __init__(self, module: IRModule | PrimFunc) -> None:
        super().__init__()
        functions = [module] if isinstance(module, PrimFunc) else list(module.functions.values())
        if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
            raise InputError(f"as_torch: one loop program expected, got {len(functions)} functions")
        self.func: PrimFunc = functions[0]
        self._built: Module | None = None

    def tune(self, target: TargetLike = "llvm", max_trials_global: int = 64) -> None:
        """Tune the program for a target, and apply the best schedule.

        Raises:
            CompileError: No rule has a schedule for it.
        """
        with tempfile.TemporaryDirectory(prefix="ekiden-") as folder:
            database = tune_tir(self.func, target, folder, max_trials_global)
            schedule = compile_tir(database, self.func, target)
        if schedule is not None:
            (self.func,) = (f for f in schedule.mod.functions.values() if isinstance(f, PrimFunc))
        self.build(target)

    def script(self) -> str:
        """Return the program as text."""
        return self.func.script()

    def build(self, target: TargetLike | None = None) -> None:
        """Compile the program for a target."""
        self._built = build(self.func, target)

    def forward(self, *torch_inputs: torch.Tensor) -> Any:  # noqa: ANN401  as given, or several
        """Run the program on tensors, and return the output tensor."""
        if self._built is None:
            self.build()
        assert self._built is not None
        self._built[self.func.name](*(from_dlpack(x.contiguous()) for x in torch_inputs))
        return torch_inputs[-1]


def as_torch(
    func: IRModule | PrimFunc | Callable[..., IRModule | PrimFunc],
) -> OperatorModuleWrapper | Callable[..., OperatorModuleWrapper]:
    """Wrap a loop program in a PyTorch module; wrap a function that returns programs in one that
    returns modules.
    """
    if isinstance(func, (IRModule, PrimFunc)):
        return OperatorModuleWrapper(func)
    return lambda *args, **kwargs: OperatorModuleWrapper(func(*args, **kwargs))
