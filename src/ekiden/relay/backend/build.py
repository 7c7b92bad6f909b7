"""`relay.build` and `relay.optimize` (TVM's names): compile a module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ekiden.backend.crt.micro_module import POOL_ALIGNMENT_BYTES, Pool
from ekiden.backend.vm.pipeline import optimize_module as optimize_module
from ekiden.compiler.build import compile_model
from ekiden.compiler.export.micro import MicroProgram
from ekiden.compiler.export.micro import compile as compile_micro
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import identify_model
from ekiden.ir.expr import BaseFunc
from ekiden.ir.memory_pools import WorkspaceMemoryPools
from ekiden.ir.module import IRModule
from ekiden.relay.backend import Executor, Runtime
from ekiden.relay.backend.executor_factory import ExecutorFactoryModule
from ekiden.relay.backend.executor_options import combination_error
from ekiden.relay.build_module import bind_params_in_module
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.runtime import Executable as Compiled
from ekiden.runtime import Module, register_func
from ekiden.runtime.artifact.container_format import load_executable
from ekiden.runtime.errors import CompileError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import TargetLike
from ekiden.target.virtual_device import Targets, compilation_config, with_host

Params = Mapping[str, object]


def _to_module(ir_mod: IRModule | BaseFunc, params: Params | None) -> IRModule:
    module = ir_mod if isinstance(ir_mod, IRModule) else IRModule.from_expr(ir_mod)
    return bind_params_in_module(module, params) if params else module


def build(
    ir_mod: IRModule | BaseFunc,
    target: Targets = None,
    target_host: TargetLike | None = None,
    *,
    params: Params | None = None,
    executor: str | Executor = "graph",
    runtime: str | Runtime = "cpp",
    mod_name: str = "default",
    workspace_memory_pools: WorkspaceMemoryPools | None = None,
) -> ExecutorFactoryModule | MicroProgram:
    """Compile a module or function (TVM's relay.build).

    The result can be called; `["default"](device)`, or that of `mod_name`, creates a graph executor
    of it, here and where it was exported to. With `runtime` "crt" and executor "aot" it is C for a
    machine without an allocator, as `ekiden.micro.compile` produces.

    Args:
        ir_mod: The module or function.
        target: The targets of kernels.
        target_host: The target of the code around kernels, which must be of one machine.
        params: Values of parameters by name, which become constants.
        executor: "aot", or `relay.backend.Executor("aot")`, adds native code of the functions to
            their bytecode.
        runtime: "cpp" or "crt", or a `relay.backend.Runtime`.
        mod_name: The name of the module.
        workspace_memory_pools: The memories of a program for "crt".

    Raises:
        CompileError: An option would change nothing, or `mod_name` is no word, or the name of a
            function.
    """
    target = with_host(target, target_host)
    how = Executor(executor) if isinstance(executor, str) else executor
    on = Runtime(runtime) if isinstance(runtime, str) else runtime
    if reason := combination_error(how, on):
        raise CompileError(f"relay.build: {reason}")
    if on.name == "crt":
        return _build_micro(
            _to_module(ir_mod, params), target, how, mod_name, workspace_memory_pools
        )
    if workspace_memory_pools is not None:
        raise CompileError("relay.build: workspace_memory_pools are for runtime 'crt'")
    kind = "vm" if how.name == "graph" else how.name
    name = "" if mod_name == "default" else _check_module_name(mod_name, _to_module(ir_mod, None))
    executable = to_executable(ir_mod, target, params, kind, in_place=False, mod_name=name)
    return ExecutorFactoryModule(executable)


def _build_micro(
    module: IRModule,
    target: Targets,
    how: Executor,
    name: str,
    pools: WorkspaceMemoryPools | None,
) -> MicroProgram:
    """Compile a module to C code that needs no runtime library."""
    if isinstance(target, Mapping) or (
        isinstance(target, Sequence) and not isinstance(target, str)
    ):
        raise CompileError("relay.build: runtime 'crt': one target expected")
    return compile_micro(
        module,
        "c" if target is None else target,
        name=name,
        pools=[Pool(pool.pool_name, pool.size) for pool in pools.pools] if pools else (),
        packed=how["interface-api"] == "packed",
        alignment=_int_option(how, "workspace-byte-alignment", POOL_ALIGNMENT_BYTES),
        constant_alignment=_int_option(how, "constant-byte-alignment", 4),
    )


def _int_option(how: Executor, option: str, default: int) -> int:
    value = how[option]
    return value if isinstance(value, int) else default


def _check_module_name(name: str, module: IRModule) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise CompileError(f"build: expected a word as mod_name, got {name!r}")
    if name in module:
        raise CompileError(f"build: mod_name {name!r} is the name of a function of the module")
    return name


def to_executable(
    ir_mod: IRModule | BaseFunc,
    target: Targets,
    params: Params | None,
    executor: str = "vm",
    *,
    in_place: bool = True,
    mod_name: str = "",
) -> Compiled:
    """Compile a module or function to an executable.

    `in_place` is as in `pipeline`, `mod_name` as in `CompileOptions`.
    """
    module = _to_module(ir_mod, params)
    options = CompileOptions(target, executor=executor, in_place=in_place, mod_name=mod_name)
    with options.context():
        compiled = compile_model(identify_model(module), options)
    return load_executable(compiled.to_bytes())


def optimize(
    mod: IRModule | BaseFunc, target: Targets = None, params: Params | None = None
) -> tuple[IRModule, dict[str, object]]:
    """Return the module as lowered to kernels, and an empty parameter dictionary (TVM's
    relay.optimize).
    """
    config = compilation_config(target)
    assert config.target is not None
    return optimize_module(InferType()(_to_module(mod, params)), config.target, config), {}


def _export_to_runtime_module(program: IRModule | BaseFunc, target: str | None = None) -> Module:
    """Return a runtime module with a program's functions, for other languages."""
    return Executable(to_executable(program, target, None)).module


register_func("ekiden.compile", _export_to_runtime_module, override=True)

__all__ = ["build", "optimize"]
