"""`relay.vm`: TVM's names for compiling to the virtual machine."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.relay.backend.build import Params, optimize, to_executable
from ekiden.relay.backend.executors import VMExecutor
from ekiden.runtime.errors import CompileError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import TargetLike
from ekiden.target.virtual_device import Targets, with_host


def compile(
    mod: IRModule | BaseFunc,
    target: Targets = None,
    params: Params | None = None,
    *,
    target_host: TargetLike | None = None,
) -> Executable:
    """Compile a module or function for the VM; `params` become constants, `target_host` is as in
    `relay.build`.

    `ekiden.runtime.vm.VirtualMachine` runs the result, which can be called as well.
    """
    return Executable(to_executable(mod, with_host(target, target_host), params))


class VMCompiler:
    """Stepwise VM compiler with TVM's interface: `set_params`, `lower`, `get_exec`."""

    def __init__(self) -> None:
        self._params: dict[str, object] = {}
        self._executable: Executable | None = None

    def set_params(self, params: Mapping[str, object]) -> None:
        """Set parameters that become constants."""
        self._params.update(params)

    def optimize(
        self, mod: IRModule, target: Targets = None, params: Params | None = None
    ) -> tuple[IRModule, dict[str, object]]:
        """Return the module as it is lowered to kernels, and no parameters."""
        return optimize(mod, target, {**self._params, **(params or {})})

    def lower(
        self, mod: IRModule, target: Targets = None, target_host: TargetLike | None = None
    ) -> None:
        """Compile a module."""
        self._executable = compile(mod, target, self._params, target_host=target_host)

    def codegen(self) -> None:
        """Do nothing: `lower` has already generated code."""

    def get_exec(self) -> Executable:
        """Return the compiled executable.

        Raises:
            CompileError: `lower` was not called before.
        """
        if self._executable is None:
            raise CompileError("get_exec: nothing is compiled yet: call lower first")
        return self._executable


__all__ = ["VMCompiler", "VMExecutor", "compile"]
