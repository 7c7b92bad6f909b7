"""A session with a project's program, and its model as an executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from ekiden.rpc.channel import FrameChannel, Stream
from ekiden.rpc.client import RPCSession, open_session
from ekiden.rpc.remote import RemoteModule, RemoteTensor
from ekiden.runtime import BenchmarkResult, Tensor
from ekiden.runtime.errors import InputError

__all__ = ["MicroExecutor", "Session"]


class Session(RPCSession):
    """A session over a stream, such as that of `GeneratedProject.open_transport`; closing it closes
    the stream. Raises RPCError if nobody answers.
    """

    def __init__(self, transport: Stream) -> None:
        super().__init__(open_session(FrameChannel(transport), "", 0))

    def get_system_lib(self) -> RemoteModule:
        """Return the model linked into the program."""
        module = self.get_function("runtime.SystemLib")()
        assert isinstance(module, RemoteModule)
        return module

    def create_aot_executor(self) -> MicroExecutor:
        """Return the model with the interface of TVM's executors."""
        return MicroExecutor(self)

    def run(self, *inputs: ArrayLike) -> tuple[Tensor, ...]:
        """Run the model on local arrays of the inputs' dtypes and shapes, and return its
        outputs.
        """
        device = self.cpu()
        return _fetch_outputs(
            self.get_system_lib()["main"](*(device.array(np.asarray(x)) for x in inputs))
        )


class MicroExecutor:
    """The executor of a session's model: inputs are set by index, outputs are returned as local
    tensors.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.module = session.get_system_lib()
        self._main = self.module["main"]
        self._inputs: dict[int, RemoteTensor] = {}
        self._outputs: tuple[Tensor, ...] = ()

    def set_input(self, key: int, value: ArrayLike) -> None:
        """Set an input by index."""
        self._inputs[key] = self.session.cpu().array(np.asarray(value))

    def _collect_inputs(self) -> list[RemoteTensor]:
        """Return all inputs in index order. Raises InputError if one is missing."""
        count = len(self._inputs)
        if set(self._inputs) != set(range(count)):
            set_indices = sorted(self._inputs, key=str)
            raise InputError(f"run: inputs 0 to {count - 1} by number expected, got {set_indices}")
        return [self._inputs[n] for n in range(count)]

    def run(self, inputs: Mapping[int, ArrayLike] | None = None) -> None:
        """Run the model on the inputs set before and these."""
        for key, value in (inputs or {}).items():
            self.set_input(key, value)
        self._outputs = _fetch_outputs(self._main(*self._collect_inputs()))

    def get_output(self, index: int = 0) -> Tensor:
        """Return an output of the last run by index. Raises InputError."""
        if not self._outputs:
            raise InputError("get_output: the model has not run yet")
        if not 0 <= index < len(self._outputs):
            raise InputError(f"get_output: no output {index}; there are {len(self._outputs)}")
        return self._outputs[index]

    def measure_stack(self) -> int:
        """Return the stack bytes of a run on the inputs that were set, measured by painting the
        memory below the stack first. Interrupts come on top. Raises InputError if the machine
        cannot measure it, as the host.
        """
        try:
            measure = self.session.get_function("ek.micro.stack")
        except AttributeError as error:
            raise InputError(
                "measure_stack: this program's machine does not know its stack; those of the"
                " templates of boards do"
            ) from error
        return cast(int, measure(*self._collect_inputs()))

    def benchmark(self, number: int = 1, repeat: int = 5) -> BenchmarkResult:
        """Time the model on the inputs that were set, by the remote clock."""
        evaluator = self.module.time_evaluator("main", number=number, repeat=repeat)
        return evaluator(*self._collect_inputs())


def _fetch_outputs(result: object) -> tuple[Tensor, ...]:
    """Copy the output tensors of a call to this machine."""
    fields = result if isinstance(result, tuple) else (result,)
    return tuple(cast(RemoteTensor, remote_field).tensor() for remote_field in fields)
