"""`relay.build` and `relay.optimize`: TVM's names for compiling a module."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden import runtime
from ekiden.backend.vm.pipeline import optimize as optimize_module
from ekiden.driver.build import compile_model
from ekiden.driver.factory import ExecutorFactoryModule
from ekiden.frontend.common.options import NO_OPTIONS
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.relay.backend import Executor
from ekiden.relay.build_module import bind_params_in_module
from ekiden.relay.transform import InferType
from ekiden.target import TargetLike
from ekiden.target.virtual_device import Targets, compilation_config, with_host

Params = Mapping[str, object]


def _module(ir_mod: IRModule | BaseFunc, params: Params | None) -> IRModule:
    module = ir_mod if isinstance(ir_mod, IRModule) else IRModule.from_expr(ir_mod)
    return bind_params_in_module(module, params) if params else module


def build(
    ir_mod: IRModule | BaseFunc,
    target: Targets = None,
    *,
    target_host: TargetLike | None = None,
    params: Params | None = None,
    executor: str | Executor = "graph",
) -> ExecutorFactoryModule:
    """Compile a module or function; `params` become constants by name. `executor` "aot", or
    `relay.backend.Executor("aot")`, adds native code of the functions to their bytecode.

    The result can be called; `["default"](device)` makes a graph executor of it. `target_host` is
    the target of the code around kernels, which must be of the same machine.
    """
    target = with_host(target, target_host)
    kind = executor if isinstance(executor, str) else executor.name
    kind = "vm" if kind == "graph" else kind
    return ExecutorFactoryModule(to_executable(ir_mod, target, params, kind, in_place=False))


def to_executable(
    ir_mod: IRModule | BaseFunc,
    target: Targets,
    params: Params | None,
    executor: str = "vm",
    *,
    in_place: bool = True,
) -> runtime.Executable:
    """The executable of a module or function; `in_place` as in `pipeline`."""
    made = compile_model(_module(ir_mod, params), target, NO_OPTIONS, executor, in_place)
    return runtime.Executable.from_bytes(made.artifact)


def optimize(
    mod: IRModule | BaseFunc, target: Targets = None, params: Params | None = None
) -> tuple[IRModule, dict[str, object]]:
    """The module as it is lowered to kernels, and no parameters: they are constants in it."""
    config = compilation_config(target)
    assert config.target is not None
    return optimize_module(InferType()(_module(mod, params)), config.target, config), {}


__all__ = ["build", "optimize"]
