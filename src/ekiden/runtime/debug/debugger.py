"""Debugger: run a virtual machine instruction by instruction, inspect, save and resume it;

vm.start("main", x)
vm.set_breakpoint(source="Conv 'layer1'")
while not vm.resume():            # to the next breakpoint
    print(vm.where(), vm.registers())
y = vm.result
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, cast

from ekiden.runtime.binding._core import Executable, Module, get_global_func
from ekiden.runtime.binding._core import VirtualMachine as Machine
from ekiden.runtime.errors import InputError, LoadError, RunError
from ekiden.runtime.files import rewrite_os_errors, write_atomic
from ekiden.runtime.profile.report import instruction_sources, iter_instructions


class CodeLocation(NamedTuple):
    """Code location: a function, and the index of an instruction in it."""

    function: str
    instruction: int

    def __str__(self) -> str:
        return f"{self.function}:{self.instruction}"


class Stepper:
    """Debugger of a call that is paused between two instructions. It has a machine of its own, so
    that others may call the program meanwhile. Objects in registers belong to the program: do
    not write to them.
    """

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        module = get_global_func("ek.vm.module")(Machine(executable))
        assert isinstance(module, Module)
        self._module = module
        self._result: tuple[object, ...] | None = None
        self.breakpoints: set[CodeLocation] = set()

    def start(self, func_name: str, *args: object) -> None:
        """Pause before the first instruction of a function; a call in progress is discarded."""
        self.stop()
        self._module["start"](self.executable.index(func_name), *args)

    def step(self, count: int = 1) -> bool:
        """Run this many instructions, fewer if a breakpoint is met or the call ends."""
        if count < 0:
            raise ValueError(f"step: a count >= 0 expected, got {count}")
        return self._run_until(count)

    def resume(self) -> bool:
        """Run to the next breakpoint, or to the end. As `step`."""
        return self._run_until(-1)

    def _run_until(self, limit: int) -> bool:
        ended = self._module["step"](limit)
        if isinstance(ended, int):
            return False
        (result,) = cast("tuple[object]", ended)
        self._result = (result,)
        return True

    @property
    def result(self) -> object:
        """Return the result of the finished call. Raises RunError if it has not ended."""
        if self._result is None:
            raise RunError("step: the call has not ended")
        return self._result[0]

    def stop(self) -> None:
        """Discard the call."""
        self._result = None
        self._module["stop"]()

    def frames(self) -> list[CodeLocation]:
        """Return the next instruction of each active function, innermost first."""
        numbers = cast("tuple[int, ...]", self._module["frames"]())
        names = self.executable.globals
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [CodeLocation(names[function], number) for function, number in pairs]

    def where(self) -> CodeLocation:
        """Return the next instruction."""
        return self.frames()[0]

    def registers(self, frame: int = 0) -> list[object]:
        """Return the values in the registers of a frame; 0 is the innermost."""
        return list(cast("tuple[object, ...]", self._module["registers"](frame)))

    def set_breakpoint(
        self, function: str = "main", instruction: int | None = None, *, source: str | None = None
    ) -> list[CodeLocation]:
        """Set a breakpoint at an instruction, or at each one of a model node, and return the
        locations. Raises InputError if there is none.

        Args:
            function: the function's name.
            instruction: the instruction's index; 0 by default.
            source: part of a model node's name, instead of the two.
        """
        locations = self._breakpoint_locations(function, instruction, source)
        for location in locations:
            self._set_breakpoint(location, 1)
        self.breakpoints.update(locations)
        return locations

    def clear_breakpoints(self) -> None:
        """Remove all breakpoints."""
        for location in self.breakpoints:
            self._set_breakpoint(location, 0)
        self.breakpoints.clear()

    def _set_breakpoint(self, location: CodeLocation, on: int) -> None:
        self._module["break"](self.executable.index(location.function), location.instruction, on)

    def _breakpoint_locations(
        self, function: str, instruction: int | None, source: str | None
    ) -> list[CodeLocation]:
        if source is None:
            count = len(list(iter_instructions(self.executable.code(function)[1])))
            number = 0 if instruction is None else instruction
            if not 0 <= number < count:
                raise InputError(f"break: '{function}' has {count} instructions, got {number}")
            return [CodeLocation(function, number)]
        node_of = instruction_sources(self.executable)
        matches = [CodeLocation(*location) for location, text in node_of.items() if source in text]
        if matches:
            return matches
        names = ", ".join(dict.fromkeys(node_of.values())) or "none that are known"
        raise InputError(f"break: no instruction was made from '{source}'; there are {names}")

    def source(self, location: CodeLocation) -> str:
        """Return the model node of an instruction, "" if unknown."""
        return instruction_sources(self.executable).get(
            (location.function, location.instruction), ""
        )

    def state(self) -> bytes:
        """Serialise the call: frames, registers and all they refer to, with sharing preserved.
        Raises RunError for values that only this process knows, such as functions.
        """
        return cast(bytes, self._module["save"]())

    def set_state(self, state: bytes) -> None:
        """Restore a call that `state` saved, in this process or another one."""
        self.stop()
        self._module["resume"](state)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write `state` to a file atomically."""
        state = self.state()
        write_atomic(path, lambda file: file.write(state))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Restore a state from a file. Raises OSError and LoadError that name it."""
        with rewrite_os_errors("load state", path):
            state = Path(path).read_bytes()
        try:
            self.set_state(state)
        except LoadError as error:
            raise LoadError(f"load state '{os.fspath(path)}': {error}") from error


__all__ = ["CodeLocation", "Stepper"]
