"""Regions of a model for engines of others, as the current context says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import runtime
from ekiden.byoc import choose, partition
from ekiden.driver.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import ENGINE, PassContext, with_options
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

__all__ = ["with_engine"]

AUTO = "auto"


def with_engine(module: IRModule, targets: Sequence[Target]) -> tuple[IRModule, list[str]]:
    """The module with the regions of the engine that is asked for, and what was measured of them.

    Raises CompileError for an engine that is not known or not here, and where "auto" is asked for
    that cannot measure: with several targets, or one that is not of this machine.
    """
    engine = str(PassContext.current().config.get(ENGINE, ""))
    if not engine:
        return module, []
    if engine != AUTO:
        return partition(module, engine), []
    if len(targets) != 1 or not targets[0].code_host.serves(Target.host()):
        got = ", ".join(map(str, targets))
        raise CompileError(f"compile: byoc 'auto' measures on this machine, the target is {got}")
    made, found = choose(module, _compiler(targets[0]))
    return made, list(map(str, found))


def _compiler(target: Target) -> Callable[[IRModule], Callable[[Sequence[Array]], object]]:
    """What makes of a region something that runs, for the target."""

    def compile(module: IRModule) -> Callable[[Sequence[Array]], object]:
        """The region compiled for the target, none of it handed to the engine again."""
        with with_options({ENGINE: ""}):
            code = compile_to_bytes(module, target)
        machine = runtime.VirtualMachine(runtime.Executable.from_bytes(code))

        def run(feed: Sequence[Array]) -> object:
            return machine.invoke("main", *feed)

        return run

    return compile
