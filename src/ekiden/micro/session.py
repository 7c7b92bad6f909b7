"""A session with the program of a project, and its model as an executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from ekiden.rpc.channel import Channel, Stream
from ekiden.rpc.client import RPCSession, open_session
from ekiden.rpc.far import RemoteModule, RemoteTensor
from ekiden.runtime import BenchmarkResult, Tensor
from ekiden.runtime.errors import InputError

__all__ = ["MicroExecutor", "Session"]


class Session(RPCSession):
    """A session over a stream, such as `GeneratedProject.open_transport` gives; closing it closes
    the stream. Raises RPCError where nobody answers.
    """

    def __init__(self, transport: Stream) -> None:
        super().__init__(open_session(Channel(transport), "", 0))

    def get_system_lib(self) -> RemoteModule:
        """The model that is linked into the program."""
        found = self.get_function("runtime.SystemLib")()
        assert isinstance(found, RemoteModule)
        return found

    def create_aot_executor(self) -> MicroExecutor:
        """The model with the face of TVM's executors."""
        return MicroExecutor(self)

    def run(self, *inputs: ArrayLike) -> tuple[Tensor, ...]:
        """The outputs for arrays of this machine, of the dtypes and shapes of the inputs."""
        device = self.cpu()
        return _local(self.get_system_lib()["main"](*(device.array(np.asarray(x)) for x in inputs)))


class MicroExecutor:
    """The model of a session: inputs are set by number, outputs come back as tensors here."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.module = session.get_system_lib()
        self._main = self.module["main"]
        self._inputs: dict[int, RemoteTensor] = {}
        self._outputs: tuple[Tensor, ...] = ()

    def set_input(self, key: int, value: ArrayLike) -> None:
        """Set the input of a number."""
        self._inputs[key] = self.session.cpu().array(np.asarray(value))

    def _given(self) -> list[RemoteTensor]:
        count = len(self._inputs)
        if sorted(self._inputs) != list(range(count)):
            raise InputError(f"run: inputs 0 to {count} expected, got {sorted(self._inputs)}")
        return [self._inputs[n] for n in range(count)]

    def run(self, inputs: Mapping[int, ArrayLike] | None = None) -> None:
        """Run the model on the inputs that were set, and these."""
        for key, value in (inputs or {}).items():
            self.set_input(key, value)
        self._outputs = _local(self._main(*self._given()))

    def get_output(self, index: int = 0) -> Tensor:
        """The output of a number, of the last run."""
        return self._outputs[index]

    def measure_stack(self) -> int:
        """The bytes that a run takes of the board's stack, on the inputs that were set: below it
        memory is painted first. Interrupts come on top. Raises AttributeError where the program's
        machine does not know, as the host.
        """
        return cast(int, self.session.get_function("ek.micro.stack")(*self._given()))

    def benchmark(self, number: int = 1, repeat: int = 5) -> BenchmarkResult:
        """Times of the model on the inputs that were set, by the clock there."""
        evaluator = self.module.time_evaluator("main", number=number, repeat=repeat)
        return evaluator(*self._given())


def _local(found: object) -> tuple[Tensor, ...]:
    fields = found if isinstance(found, tuple) else (found,)
    return tuple(cast(RemoteTensor, each).tensor() for each in fields)
