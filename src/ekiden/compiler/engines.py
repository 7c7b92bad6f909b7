"""Regions of a model for engines of others, as the current context says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import runtime
from ekiden.byoc import choose, partition
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import ENGINE, PassContext, with_options
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError
from ekiden.target import CompilationConfig, Target
from ekiden.target.virtual_device import Targets

__all__ = ["with_engine"]

AUTO = "auto"


def with_engine(
    module: IRModule, asked: Targets, config: CompilationConfig
) -> tuple[IRModule, list[str]]:
    """The module with the regions of the engine that is asked for, and what was measured of them.
    `asked` are the targets of the compilation, `config` what they mean.

    Raises CompileError for an engine that is not known or not here, and where "auto" is asked for
    that cannot measure: with several targets, one that is not of this machine, or a device that is
    not here.
    """
    engine = str(PassContext.current().config.get(ENGINE, ""))
    if not engine:
        return module, []
    if engine != AUTO:
        return partition(module, engine), []
    targets = config.primitive_targets
    if len(targets) != 1 or not targets[0].code_host.serves(Target.host()):
        got = ", ".join(map(str, targets))
        raise CompileError(f"compile: byoc 'auto' measures on this machine, the target is {got}")
    for place in config.devices:
        if not place.device.exist:
            raise CompileError(f"compile: byoc 'auto' measures, and {place.device} is not here")
    default = config.default_primitive_virtual_device.device
    made, found = choose(module, _compiler(asked, default))
    return made, list(map(str, found))


def _compiler(
    asked: Targets, default: Device
) -> Callable[[IRModule], Callable[[Sequence[Array]], object]]:
    """What makes of a region something that runs, for the targets, with inputs on the default
    device and results on the host: on another device what an engine does costs copies there and
    back."""

    def compile(module: IRModule) -> Callable[[Sequence[Array]], object]:
        """The region compiled for the targets, none of it handed to the engine again."""
        with with_options({ENGINE: ""}):
            code = compile_to_bytes(module, asked)
        machine = runtime.VirtualMachine(runtime.Executable.from_bytes(code))
        inputs: dict[int, runtime.Tensor] = {}

        def run(feed: Sequence[Array]) -> object:
            for array in feed:
                if id(array) not in inputs:
                    inputs[id(array)] = runtime.tensor(array).copyto(default)
            results = machine.invoke("main", *(inputs[id(array)] for array in feed))
            for result in results if isinstance(results, tuple) else (results,):
                if isinstance(result, runtime.Tensor):
                    result.numpy()
            return results

        return run

    return compile
