"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekiden.relay.backend import interpreter, vm
from ekiden.runtime.errors import CompileError

EXECUTORS = ("graph", "aot")


@dataclass(frozen=True)
class Executor:
    """How a module is to run, for `relay.build(executor=)`: "graph" or "aot". TVM's class; it has
    no options here.
    """

    name: str
    options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.name not in EXECUTORS:
            kinds = " or ".join(map(repr, EXECUTORS))
            raise CompileError(f"Executor: {kinds} expected, got {self.name!r}")
        if self.options:
            raise CompileError(f"Executor: no option {next(iter(self.options))!r}; there are none")


@dataclass(frozen=True)
class Runtime:
    """What a module is to run with, for `relay.build(runtime=)`: "cpp", which is Ekiden's runtime.
    TVM's class.
    """

    name: str
    options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.name != "cpp":
            raise CompileError(f"Runtime: 'cpp' expected, got {self.name!r}")
        if self.options:
            raise CompileError(f"Runtime: no option {next(iter(self.options))!r}; there are none")


__all__ = ["Executor", "Runtime", "interpreter", "vm"]
