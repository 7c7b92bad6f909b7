"""A virtual machine run instruction by instruction, looked into, saved and resumed.

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
from ekiden.runtime.files import named, write_whole
from ekiden.runtime.profile.report import instructions, sources


class Place(NamedTuple):
    """An instruction: its function and its number there."""

    function: str
    instruction: int

    def __str__(self) -> str:
        return f"{self.function}:{self.instruction}"


class Stepper:
    """A call that stands between two instructions.

    It has a machine of its own, so that others may call the program meanwhile. Objects in registers
    are the program's own: do not write to them.
    """

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        module = get_global_func("ek.vm.module")(Machine(executable))
        assert isinstance(module, Module)
        self._module = module
        self._result: tuple[object, ...] | None = None
        self.breakpoints: set[Place] = set()

    def start(self, func_name: str, *args: object) -> None:
        """Stand before the first instruction of a function; a call that was under way is
        forgotten.
        """
        self.stop()
        self._module["start"](self.executable.index(func_name), *args)

    def step(self, count: int = 1) -> bool:
        """Run so many instructions, fewer if there is a breakpoint or the call ends.

        Whether the call has ended; then `result` has what it gave. Raises what the program raises,
        and RuntimeError when no call was started.
        """
        if count < 0:
            raise ValueError(f"step: a count >= 0 expected, got {count}")
        return self._run(count)

    def resume(self) -> bool:
        """Run to the next breakpoint, or to the end. As `step`."""
        return self._run(-1)

    def _run(self, limit: int) -> bool:
        ended = self._module["step"](limit)
        if isinstance(ended, int):
            return False
        (result,) = cast("tuple[object]", ended)
        self._result = (result,)
        return True

    @property
    def result(self) -> object:
        """What the call gave that has ended. Raises RunError when none has."""
        if self._result is None:
            raise RunError("step: the call has not ended")
        return self._result[0]

    def stop(self) -> None:
        """Forget the call."""
        self._result = None
        self._module["stop"]()

    def frames(self) -> list[Place]:
        """The next instruction of each function that is under way, the innermost first."""
        numbers = cast("tuple[int, ...]", self._module["frames"]())
        names = self.executable.globals
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [Place(names[function], number) for function, number in pairs]

    def where(self) -> Place:
        """The next instruction."""
        return self.frames()[0]

    def registers(self, frame: int = 0) -> list[object]:
        """What the registers of a frame hold, 0 the innermost."""
        return list(cast("tuple[object, ...]", self._module["registers"](frame)))

    def set_breakpoint(
        self, function: str = "main", instruction: int | None = None, *, source: str | None = None
    ) -> list[Place]:
        """Stop before an instruction, or before each that was made from a node of the model; where
        that is.

        `source` is a part of what the node is called. Raises InputError where there is none such.
        """
        places = self._places(function, instruction, source)
        for place in places:
            self._set(place, 1)
        self.breakpoints.update(places)
        return places

    def clear_breakpoints(self) -> None:
        """Stop nowhere."""
        for place in self.breakpoints:
            self._set(place, 0)
        self.breakpoints.clear()

    def _set(self, place: Place, on: int) -> None:
        self._module["break"](self.executable.index(place.function), place.instruction, on)

    def _places(self, function: str, instruction: int | None, source: str | None) -> list[Place]:
        if source is None:
            count = len(list(instructions(self.executable.code(function)[1])))
            number = 0 if instruction is None else instruction
            if not 0 <= number < count:
                raise InputError(f"break: '{function}' has {count} instructions, got {number}")
            return [Place(function, number)]
        known = sources(self.executable)
        found = [Place(*place) for place, text in known.items() if source in text]
        if found:
            return found
        names = ", ".join(dict.fromkeys(known.values())) or "none that are known"
        raise InputError(f"break: no instruction was made from '{source}'; there are {names}")

    def source(self, place: Place) -> str:
        """The node of the model that an instruction was made from; empty where that is unknown."""
        return sources(self.executable).get((place.function, place.instruction), "")

    def state(self) -> bytes:
        """The call as bytes: frames, registers, and all they refer to, with sharing kept.

        RunError for values that only this process knows, such as functions.
        """
        return cast(bytes, self._module["save"]())

    def set_state(self, state: bytes) -> None:
        """Stand where `state` said, of this process or another one.

        The executable must be the same file. LoadError for other bytes; none does harm.
        """
        self.stop()
        self._module["resume"](state)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """`state` in a file, which appears whole or not at all."""
        state = self.state()
        write_whole(path, lambda file: file.write(state))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """`set_state` from a file. Raises OSError and LoadError that name it."""
        with named("load state", path):
            state = Path(path).read_bytes()
        try:
            self.set_state(state)
        except LoadError as error:
            raise LoadError(f"load state '{os.fspath(path)}': {error}") from error


__all__ = ["Place", "Stepper"]
