"""Partitioning of models for third-party engines (BYOC), as the current PassContext requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import runtime
from ekiden.byoc import choose, partition
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import BYOC_ENGINE_OPTION, PassContext, with_options
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError
from ekiden.target import CompilationConfig, Target
from ekiden.target.virtual_device import Targets

__all__ = ["partition_for_engine"]

AUTO_ENGINE_NAME = "auto"


def partition_for_engine(
    module: IRModule, requested: Targets, config: CompilationConfig
) -> tuple[IRModule, list[str]]:
    """Partition a module for the requested engine; return it with the measurements of an automatic
    selection.

    Args:
        module: the module.
        requested: the targets of the compilation.
        config: their resolved configuration.

    Raises:
        CompileError: for an unknown or missing engine, and for "auto" where it cannot measure:
            several targets, a target of another machine, or a missing device.
    """
    engine = str(PassContext.current().config.get(BYOC_ENGINE_OPTION, ""))
    if not engine:
        return module, []
    if engine != AUTO_ENGINE_NAME:
        return partition(module, engine), []
    targets = config.primitive_targets
    if len(targets) != 1 or not targets[0].code_host.serves(Target.host()):
        actual = ", ".join(map(str, targets))
        raise CompileError(f"compile: byoc 'auto' measures on this machine, the target is {actual}")
    for virtual_device in config.devices:
        if not virtual_device.device.exist:
            raise CompileError(
                "compile: byoc 'auto' measures on devices of this machine, and "
                f"{virtual_device.device} is not here"
            )
    default = config.default_primitive_virtual_device.device
    partitioned, measurements = choose(module, _region_compiler(requested, default))
    return partitioned, list(map(str, measurements))


def _region_compiler(
    requested: Targets, default: Device
) -> Callable[[IRModule], Callable[[Sequence[Array]], object]]:
    """Return a compiler of regions to benchmark functions, whose inputs are on the default device
    and results on the host so that an engine's copies count.
    """

    def compile_region(module: IRModule) -> Callable[[Sequence[Array]], object]:
        """Compile the region for the targets, without partitioning it again."""
        with with_options({BYOC_ENGINE_OPTION: ""}):
            code = compile_to_bytes(module, requested)
        machine = runtime.VirtualMachine(runtime.Executable.from_bytes(code))
        inputs: dict[int, runtime.Tensor] = {}

        def run_region(feed: Sequence[Array]) -> object:
            """Run the region on copies of the arrays on its device, and wait for the results."""
            for array in feed:
                if id(array) not in inputs:
                    inputs[id(array)] = runtime.tensor(array).copyto(default)
            results = machine.invoke("main", *(inputs[id(array)] for array in feed))
            for result in results if isinstance(results, tuple) else (results,):
                if isinstance(result, runtime.Tensor):
                    result.numpy()
            return results

        return run_region

    return compile_region
