"""RPC session with a project's program, and an executor of its model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from ekiden.rpc.channel import FrameChannel, Stream
from ekiden.rpc.client import RPCSession, open_session
from ekiden.rpc.remote import RemoteModule, RemoteTensor
from ekiden.runtime import BenchmarkResult, Tensor, tensor
from ekiden.runtime.errors import InputError

__all__ = ["MicroExecutor", "Session"]


class Session(RPCSession):
    """RPC session over a byte stream, such as that of `GeneratedProject.open_transport`; closing it
    closes the stream. Raises RPCError if nobody answers.
    """

    def __init__(
        self, transport: Stream | None = None, *, transport_context_manager: Stream | None = None
    ) -> None:
        """Open a session over a stream, passed as either parameter; the second is TVM's name.
        Raises InputError without one.
        """
        stream = transport if transport is not None else transport_context_manager
        if stream is None:
            raise InputError("Session: a transport expected, such as project.open_transport()")
        self.tensors: Mapping[str, Any] | None = getattr(stream, "tensors", None)
        """What the model's inputs and outputs are, where the transport knows it."""
        super().__init__(open_session(FrameChannel(stream), "", 0))

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
    """Executor of a session's model: inputs are set by index or name, outputs are returned as local
    tensors. `runtime.executor.AotModule` takes it, too.

    Inputs lie here, and are sent when the model runs.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.module = session.get_system_lib()
        self._main = self.module["main"]
        self._inputs: dict[int, Tensor] = {}
        self._outputs: tuple[Tensor, ...] = ()

    def set_input(
        self, key: int | str | None = None, value: ArrayLike | None = None, **params: ArrayLike
    ) -> None:
        """Set an input by index or name, and others by name."""
        if key is not None:
            assert value is not None
            self._inputs[self._input_index(key)] = tensor(np.array(value, copy=True))
        for name, param in params.items():
            self.set_input(name, param)

    def get_input(self, key: int | str) -> Tensor:
        """Return an input, initially zeros; writes to the returned tensor are sent with the next
        run.
        """
        index = self._input_index(key)
        if index not in self._inputs:
            row = self._input_rows()[index]
            self._inputs[index] = tensor(np.zeros(row["shape"], row["dtype"]))
        return self._inputs[index]

    def _input_rows(self) -> list[dict[str, Any]]:
        """Return the descriptions of the inputs. Raises InputError where the transport does not
        know.
        """
        if self.session.tensors is None:
            raise InputError(
                "input by name: this transport does not know the model's inputs; that of a project"
                " does, and numbers work on each"
            )
        rows: list[dict[str, Any]] = self.session.tensors["inputs"]
        return rows

    def _input_index(self, key: int | str) -> int:
        if isinstance(key, int):
            return key
        names = [row["name"] for row in self._input_rows()]
        if key not in names:
            raise InputError(f"input: no input is named {key!r}; there are {', '.join(names)}")
        return names.index(key)

    def __getitem__(self, name: str) -> Callable[..., object]:
        """Return a function of TVM's executors by name, as `AotModule` calls them.

        Raises:
            AttributeError: There is no such function.
        """
        functions: dict[str, Callable[..., object]] = {
            "get_metadata": self._metadata_text,
            "set_input": self.set_input,
            "set_input_zero_copy": self.set_input,
            "get_input": self._inputs.get,
            "get_output": self.get_output,
            "get_num_outputs": lambda: len(self._outputs),
            "run": self.run,
        }
        if name not in functions:
            raise AttributeError(f"micro executor: no function {name!r}")
        return functions[name]

    def sent(self, tensor_here: Tensor) -> Tensor:
        """Return a tensor unchanged, as `set_input` sends it."""
        return tensor_here

    def _metadata_text(self) -> str:
        """Return the inputs and outputs as an artifact's metadata describes them."""
        self._input_rows()
        assert self.session.tensors is not None
        main: dict[str, object] = {
            side: [{key: row[key] for key in ("name", "shape", "dtype")} for row in rows]
            for side, rows in self.session.tensors.items()
        }
        return json.dumps({"main": {**main, "limits": {}}})

    def _collect_inputs(self) -> list[RemoteTensor]:
        """Send all inputs in index order. Raises InputError if one is missing."""
        count = len(self._inputs)
        if set(self._inputs) != set(range(count)):
            set_indices = sorted(self._inputs)
            raise InputError(f"run: inputs 0 to {count - 1} by number expected, got {set_indices}")
        return [self.session.cpu().array(self._inputs[n].numpy()) for n in range(count)]

    def run(self, inputs: Mapping[int | str, ArrayLike] | None = None) -> None:
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
        """Return the stack bytes of a run on the current inputs, measured by stack painting.
        Interrupts come on top. Raises InputError if the machine cannot measure it, as the host.
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
        """Time the model on the current inputs, by the remote clock."""
        evaluator = self.module.time_evaluator("main", number=number, repeat=repeat)
        return evaluator(*self._collect_inputs())


def _fetch_outputs(result: object) -> tuple[Tensor, ...]:
    """Copy the output tensors of a call to this machine."""
    fields = result if isinstance(result, tuple) else (result,)
    return tuple(cast(RemoteTensor, remote_field).tensor() for remote_field in fields)
