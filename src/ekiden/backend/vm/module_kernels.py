"""Compilation of a module's kernels, and their properties once compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ekiden.backend.external import build_external, is_external_function
from ekiden.backend.kernels.build import CompiledKernels, build_kernels
from ekiden.backend.kernels.tiered_compilation import FullTierRequest
from ekiden.codegen.parallel import ProgressCallback
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Constant, ConstantData, Function, var
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory_plan import KernelMemoryInfo
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

_NO_DEVICE_TARGETS: Mapping[int, Target] = {}


@dataclass(frozen=True, eq=False, slots=True)
class ModuleKernels:
    """Compiled kernels of a module for a target."""

    target: Target
    devices: Mapping[int, Target]
    """Targets of non-CPU devices, by DLPack type."""
    calls: Sequence[tuple[Function, int]]
    """Fused functions called, each once per device, in order."""
    functions: Sequence[tuple[Function, Target]]
    """Functions compiled here, each once per target."""
    symbols: Mapping[Function, str]
    """Symbols of externally compiled functions."""
    external_artifacts: Mapping[str, list[str | int]]
    """Compiler and stored artifact of each external symbol, and how many results it has where that
    is stored."""
    load_time_functions: Mapping[int, Function]
    """Function that computes each load-time constant, by array identity."""
    facts: Mapping[RelayExpr, KernelMemoryInfo]
    """Facts of each function's kernel."""
    kernels: CompiledKernels
    """Compiled kernels, in the order of `functions`."""

    def target_of(self, module: IRModule, device: int) -> Target:
        """Return the target of the kernels on a device, by its index in the module's device
        table.
        """
        return _target_of(module, device, self.target, self.devices)


def _target_of(
    module: IRModule, device: int, target: Target, devices: Mapping[int, Target]
) -> Target:
    return devices.get(device_table(module)[device].device_type_int, target)


def compile_kernels(
    module: IRModule,
    target: Target,
    devices: Mapping[int, Target] = _NO_DEVICE_TARGETS,
    progress: ProgressCallback | None = None,
    *,
    tier: str = "full",
    finishing: FullTierRequest | None = None,
) -> ModuleKernels:
    """Compile the fused functions of a module with explicit memory; equal functions for one target
    share a kernel. External compilers run first, in this process.

    Args:
        module: the module.
        target: the default target.
        devices: target of each further device, by its number.
        progress: called after each kernel.
        tier: as in `build_kernels`.
        finishing: as in `build_kernels`.

    Returns:
        The kernels.

    Raises:
        CompileError: with the model node of the function that failed.
    """
    calls, loads = primitive_functions(module), load_time_functions(module)
    called = [(f, _target_of(module, position, target, devices)) for f, position in calls]
    called += [(f, target) for f in loads.values()]
    fused = list(dict.fromkeys(called))
    symbols: dict[Function, str] = {}
    external: dict[str, list[str | int]] = {}
    for f in dict.fromkeys(f for f, _ in fused):
        if is_external_function(f):
            symbols[f], held = build_external(f)
            external[symbols[f]] = held
    functions = [(f, to) for f, to in fused if f not in symbols]
    kernels = build_kernels(
        [f for f, _ in functions], [to for _, to in functions], progress,
        tier=tier, finishing=finishing,
    )  # fmt: skip
    facts: dict[RelayExpr, KernelMemoryInfo] = {}
    for (f, to), kernel_facts in zip(functions, kernels.facts, strict=True):
        if to.kind.has_threads or f not in facts:  # what holds wherever it runs
            facts[f] = kernel_facts
    return ModuleKernels(
        target, devices, calls, functions, symbols, external, loads, facts, kernels
    )


def primitive_functions(module: IRModule) -> list[tuple[Function, int]]:
    """Return the fused functions that a module with explicit memory calls, each once per device, in
    order.
    """
    return list(dict.fromkeys(primitive_calls(module)))


def primitive_calls(module: IRModule) -> Iterator[tuple[Function, int]]:
    """Yield the fused function and the device of each call of a module with explicit memory."""
    for function in module.functions.values():
        assert isinstance(function, Function)
        for expr in evaluation_order(function.body):
            if (
                isinstance(expr, Call)
                and isinstance(expr.op, Op)
                and expr.op.name == "vm.invoke_tvm_op"
            ):
                kernel = expr.args[0]
                assert isinstance(kernel, Function) and isinstance(expr.attrs, InvokeAttrs)
                yield kernel, expr.attrs.device


def load_time_functions(module: IRModule) -> dict[int, Function]:
    """Return the functions that compute constants from others at load time, by the identity of the
    result's array.
    """
    functions: dict[int, Function] = {}
    for function in module.functions.values():
        assert isinstance(function, Function)
        waiting = [e for e in evaluation_order(function.body) if isinstance(e, Constant)]
        while waiting:
            data = waiting.pop().data
            source = data.source if isinstance(data, ConstantData) else None
            if isinstance(source, Call) and id(data) not in functions:
                functions[id(data)] = _load_time_function(source)
                waiting.extend(a for a in source.args if isinstance(a, Constant))
    return functions


def _load_time_function(source: Call) -> Function:
    """Build the fused function that computes a constant from others when an executable is
    loaded.
    """
    kinds = [(a.data.shape, str(a.data.dtype)) for a in source.args if isinstance(a, Constant)]
    params = tuple(var(f"p{i}", shape=s, dtype=t) for i, (s, t) in enumerate(kinds))
    body = Call(source.op, params, source.attrs, span=source.span)
    typed = InferType()(IRModule.from_expr(Function(params, body)))["main"]
    assert isinstance(typed, Function)
    return typed.with_attr("Primitive", 1)


__all__ = [
    "ModuleKernels",
    "compile_kernels",
    "load_time_functions",
    "primitive_calls",
    "primitive_functions",
]
