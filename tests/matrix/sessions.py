"""Sessions: repeated calls of a program with states carried from one call to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from matrix_programs import STATE, Argument, Program, as_constructed
from program_scope import LIBRARY

import ekiden
from comparison import Array
from ekiden.contrib.graph_executor import GraphModule
from ekiden.runtime import Device

State = dict[str, Array]


class Session(Protocol):
    """What runs a program."""

    def run(self, args: Sequence[Argument]) -> object:
        """Return the results of a call, without states."""

    def state(self) -> State:
        """Return what the next call begins with."""

    def resume(self, state: State) -> None:
        """Let the next call begin with a state."""


def as_data(arg: object, tensor: Callable[[Any], object] = lambda array: array) -> object:
    """Return a list as the data that a compiled program takes, an array as `tensor` makes it."""
    if not isinstance(arg, list):
        return tensor(arg)
    cons, nil = LIBRARY.get_type("List")[1:]
    value = ekiden.runtime.ADT(nil.tag, ())
    for item in reversed(arg):
        value = ekiden.runtime.ADT(cons.tag, (tensor(item), value))
    return value


class ExecutableSession:
    """Calls an executable, which keeps its states itself."""

    def __init__(self, exe: ekiden.Executable) -> None:
        self._exe = exe

    def run(self, args: Sequence[Argument]) -> object:
        """Return the results of a call."""
        return self._exe(*(as_data(arg, ekiden.runtime.tensor) for arg in args))

    def state(self) -> State:
        """Return its states as arrays."""
        return {name: np.array(value.numpy()) for name, value in self._exe.state.items()}

    def resume(self, state: State) -> None:
        """Set its states."""
        self._exe.set_state(state)


class _Explicit:
    """Gives states as the last arguments, takes them from the last results."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._states: list[Any] = [STATE] * program.states

    def run(self, args: Sequence[Argument]) -> object:
        """Return the results of a call without the states."""
        result = self._call([*args, *self._states])
        if self._program.states:
            assert isinstance(result, (tuple, list))
            count = len(result) - self._program.states
            result, self._states = result[:count], list(result[count:])
        return result

    def _call(self, args: Sequence[Any]) -> object:
        raise NotImplementedError

    def state(self) -> State:
        """Return the states as arrays."""
        return {str(i): _array(s) for i, s in enumerate(self._states)}

    def resume(self, state: State) -> None:
        """Begin the next call with these."""
        self._states = list(state.values())


def _array(value: Any) -> Array:  # noqa: ANN401 - a tensor of any machine
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


class MainSession(_Explicit):
    """Calls a function of values; lists are values of the interpreter."""

    def __init__(self, main: Callable[..., object], program: Program) -> None:
        super().__init__(program)
        self._main = main

    def _call(self, args: Sequence[Any]) -> object:
        return self._main(*map(as_constructed, args))


class TensorSession(_Explicit):
    """Calls a function `main` of a module, here or on another machine, with tensors there."""

    def __init__(
        self,
        main: Callable[..., object],
        program: Program,
        tensor: Callable[[Any], object] = ekiden.runtime.tensor,
    ) -> None:
        super().__init__(program)
        self._main, self._tensor = main, tensor

    def _call(self, args: Sequence[Any]) -> object:
        return self._main(*(as_data(arg, self._tensor) for arg in args))


class GraphSession(_Explicit):
    """Sets the inputs of a graph executor and asks for its outputs, which tuples are flat in."""

    def __init__(self, module: Any, devices: Sequence[Device], program: Program) -> None:  # noqa: ANN401
        super().__init__(program)
        self._graph = GraphModule(module["default"](*devices))

    def _call(self, args: Sequence[Any]) -> object:
        for index, arg in enumerate(args):
            self._graph.set_input(index, _array(arg))
        self._graph.run()
        outputs = (self._graph.get_output(i) for i in range(self._graph.get_num_outputs()))
        return [_array(output) for output in outputs]
