"""The kernels of a module: a pass that compiles them, and what it finds out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.backend.external import build_external, is_external
from ekiden.backend.kernels.build import Kernels, build_kernels
from ekiden.backend.kernels.tiers import Tiers
from ekiden.codegen.parallel import Progress
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, needed
from ekiden.relay.expr import Call, Constant, ConstantData, Function, var
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import evaluation_order
from ekiden.relay.transform.memory_plan import KernelFacts
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target


@dataclass(eq=False, slots=True)
class ModuleKernels:
    """What CompileKernels makes of a module for a target."""

    target: Target
    progress: Progress | None = None
    calls: list[tuple[Function, int]] = field(default_factory=list)
    """The fused functions that the module calls, each once on each device, in order."""
    devices: Mapping[int, Target] = field(default_factory=dict)
    """Targets of kinds of devices that are no processors, by DLPack's numbers."""
    functions: list[tuple[Function, Target]] = field(default_factory=list)
    """Those that are compiled here, each once for each target."""
    symbols: dict[Function, str] = field(default_factory=dict)
    """Those of external compilers, with the names of their code."""
    kept: dict[str, list[str]] = field(default_factory=dict)
    """By these names: the compiler, and what the executable keeps for it."""
    loads: dict[int, Function] = field(default_factory=dict)
    """Identity of the array of a constant that is made at loading -> the function that makes it."""
    facts: dict[RelayExpr, KernelFacts] = field(default_factory=dict)
    """What is known of the kernel of each function."""
    made: Kernels | None = None
    tiers: Tiers | None = None
    """Where kernels may be general at first."""
    module: IRModule | None = None
    """Then, the module whose kernels they are."""

    def target_of(self, module: IRModule, device: int) -> Target:
        """The target of kernels on a device, by its place in the table of a module."""
        return self.devices.get(device_table(module)[device].device_type_int, self.target)

    @property
    def kernels(self) -> Kernels:
        """The compiled kernels, in the order of `functions`."""
        assert self.made is not None, "CompileKernels has run"
        return self.made


def CompileKernels(into: ModuleKernels) -> Pass:  # noqa: N802
    """Compile the fused functions of a module; it stays as it is.

    MemoryPlan, which follows, asks how much working memory each takes. Raises CompileError with the
    model node of the function that failed.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Fills `into`: of functions that are equal, and for one target, one kernel is made. Those
        of external compilers are built first, and take no part in the processes that compile.
        """
        into.module = module if into.tiers is not None else None
        into.calls = primitive_functions(module)
        into.loads = load_functions(module)
        called = [(f, into.target_of(module, at)) for f, at in into.calls]
        called += [(f, into.target) for f in into.loads.values()]
        fused = list(dict.fromkeys(called))
        for f in dict.fromkeys(f for f, _ in fused):
            if is_external(f):
                into.symbols[f], kept = build_external(f)
                into.kept[into.symbols[f]] = kept
        into.functions = [(f, target) for f, target in fused if f not in into.symbols]
        functions, targets = [f for f, _ in into.functions], [t for _, t in into.functions]
        into.made = build_kernels(functions, targets, into.progress, tiers=into.tiers)
        for (f, target), facts in zip(into.functions, into.made.facts, strict=True):
            if target.kind.has_threads or f not in into.facts:  # what holds wherever it runs
                into.facts[f] = facts
        return module

    return needed(Pass("CompileKernels", transform), "to have something to run")


def primitive_functions(module: IRModule) -> list[tuple[Function, int]]:
    """The fused functions that a module with explicit memory calls, each once on each device, in
    order.
    """
    found: dict[tuple[Function, int], None] = {}
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
                found[kernel, expr.attrs.device] = None
    return list(found)


def load_functions(module: IRModule) -> dict[int, Function]:
    """The functions that make constants of others when an executable is loaded, by the identity of
    the array that each gives.
    """
    found: dict[int, Function] = {}
    for function in module.functions.values():
        assert isinstance(function, Function)
        waiting = [e for e in evaluation_order(function.body) if isinstance(e, Constant)]
        while waiting:
            data = waiting.pop().data
            source = data.source if isinstance(data, ConstantData) else None
            if isinstance(source, Call) and id(data) not in found:
                found[id(data)] = _load_function(source)
                waiting.extend(a for a in source.args if isinstance(a, Constant))
    return found


def _load_function(source: Call) -> Function:
    """A call of constants as a fused function of them."""
    kinds = [(a.data.shape, str(a.data.dtype)) for a in source.args if isinstance(a, Constant)]
    params = tuple(var(f"p{i}", shape=s, dtype=t) for i, (s, t) in enumerate(kinds))
    body = Call(source.op, params, source.attrs, span=source.span)
    made = InferType()(IRModule.from_expr(Function(params, body)))["main"]
    assert isinstance(made, Function)
    return made.with_attr("Primitive", 1)


__all__ = ["CompileKernels", "ModuleKernels", "load_functions", "primitive_functions"]
