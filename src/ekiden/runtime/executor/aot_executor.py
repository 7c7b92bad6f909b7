"""Executors with TVM's interface: set inputs, run, get outputs.

    lib = ekiden.runtime.load_module("net.so")
    m = executor.AotModule(lib["default"](ekiden.cpu()))
    m.set_input("data", x)
    m.run()
    y = m.get_output(0).numpy()

It is a face over the virtual machine: `lib["default"]` gives a Module, in which C and C++ find the
same functions by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime.artifact.metadata import OBJECT_DTYPE, read_metadata, tensor_infos
from ekiden.runtime.binding._core import (
    Device,
    Executable,
    Module,
    Shape,
    Tensor,
    cpu,
    empty,
    get_global_func,
)
from ekiden.runtime.binding._core import tensor as tensor_of
from ekiden.runtime.errors import InputError
from ekiden.runtime.name_transforms import sanitize_name
from ekiden.runtime.profile.timing import BenchmarkResult

if TYPE_CHECKING:
    from ekiden.runtime.executable import output_buffers
else:
    output_buffers = LazyModule("ekiden.runtime.executable.output_buffers")

Devices = Device | Sequence[Device]


class RemoteModule(Protocol):
    """Interface of a module on another machine (ekiden.rpc)."""

    def __getitem__(self, name: str) -> Any: ...  # noqa: ANN401 - a function of the other side

    def sent(self, tensor_here: Tensor) -> object:
        """Copy a tensor to the module's machine."""

    def get_global_func(self, name: str) -> Any:  # noqa: ANN401
        """Return a global function of that machine."""

    def is_on_same_host(self, device: object) -> bool:
        """Return whether a device belongs to the module's machine."""

    def implements_function(self, name: str) -> bool:
        """Return whether the module has a function of that name."""

    def time_evaluator(self, *args: Any) -> Any:  # noqa: ANN401
        """Return a function that measures another one, as a local module's
        `time_evaluator` does.
        """


ExecutorModule = Module | RemoteModule


class AotModule:
    """Executor with TVM's interface: inputs are set once, and outputs are returned on request. For
    one thread at a time.

    An input that is not set is zeros; it may be named as in the program, or with `_` for what no C
    identifier has. A module of another machine has its inputs and outputs there: what is set is
    sent, what is asked for crosses when its elements are.
    """

    def __init__(self, module: ExecutorModule) -> None:
        self.module = module
        metadata = read_metadata(str(module["get_metadata"]()), "executor", None)
        self._inputs, self._outputs = tensor_infos(metadata, "executor")
        self._names = [info.name for info in self._inputs]
        self._results: dict[int, Tensor] = {}
        self._sites: Sequence[int | None] = ()
        self._unset = set(range(len(self._names)))
        """Inputs not known to be set: the module's own functions may have set them."""
        self._run, self._get_output = module["run"], module["get_output"]
        self._set_input, self._share_input = module["set_input"], module["set_input_zero_copy"]

    def set_input(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """Copy values into inputs; arrays are converted to the declared dtype.

        Raises InputError for a name that is no input's and for a wrong shape.
        """
        if key is not None:
            self._set_input(
                index := self._input_index(key), self._to_module(self._check_value(index, value))
            )
            self._unset.discard(index)
        for name, param in params.items():
            self.set_input(name, param)

    def set_input_zero_copy(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """Set inputs as `set_input`, but read the arrays at each run instead of copying
        them now.
        """
        if key is not None:
            index = self._input_index(key)
            source = self._check_value(index, value, may_convert=False)
            self._share_input(index, self._to_module(source))
            self._unset.discard(index)
        for name, param in params.items():
            self.set_input_zero_copy(name, param)

    def set_output_zero_copy(self, key: int, value: object) -> None:
        """Set the tensor that each run writes an output to. Kernels write it directly in a local
        program without branches, if the tensor is contiguous, on the host and disjoint from all
        that the run reads; else the output is copied. Raises InputError.
        """
        destination = tensor_of(value)  # type: ignore[arg-type]  # whatever a user gives
        self._results[self._output_index(key)] = destination
        self._sites = self._result_sites()

    def run(self, **input_dict: object) -> None:
        """Run, after setting inputs by name."""
        self.set_input(**input_dict)  # type: ignore[arg-type]  # 'key' is no input's name
        for index in tuple(self._unset):
            self._default_to_zeros(index)
        if not self._results:
            self._run()
            return
        self._run_into(self._direct_buffers())
        for index, tensor in self._results.items():
            result = self._get_output(index)
            if not (isinstance(result, Tensor) and output_buffers.is_same_memory(result, tensor)):
                self._get_output(index, tensor)

    def get_num_outputs(self) -> int:
        """Return the number of outputs; nested tuples count by their fields, after a run."""
        if any(info.dtype == OBJECT_DTYPE for info in self._outputs):
            count = self.module["get_num_outputs"]()
            assert isinstance(count, int)
            return count
        return len(self._outputs)

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return len(self._inputs)

    def get_input(self, index: str | int, out: Tensor | None = None) -> Tensor:
        """Return an input's value; copied to `out` if it is given."""
        number = self._input_index(index)
        self._default_to_zeros(number)
        current = self.module["get_input"](number)
        return _copy_to(cast(Tensor, current), out)

    def get_input_index(self, name: str) -> int:
        """Return the index of an input. Raises InputError for an unknown name."""
        return self._input_index(name)

    def get_input_name(self, index: int) -> str:
        """Return the name of an input. Raises InputError for an invalid index."""
        return self._names[self._input_index(index)]

    def get_input_info(self) -> tuple[dict[str, Shape], dict[str, str]]:
        """Return shapes and dtypes by input name; -1 stands for a dynamic dimension."""
        shapes = {n: Shape(self._input_shape(i)) for i, n in enumerate(self._names)}
        return shapes, {n: self._inputs[i].dtype for i, n in enumerate(self._names)}

    def get_output(self, index: int, out: Tensor | None = None) -> Tensor:
        """Return an output of the last run; copied to `out` if it is given. Raises RunError before
        a run.
        """
        if index in self._results:
            return _copy_to(self._results[index], out)
        result = self._get_output(index)
        return _copy_to(cast(Tensor, result), out)

    def _run_into(self, direct: Sequence[object]) -> None:
        """Run with pairs of `direct_buffers`, for this run only."""
        if not direct:
            self._run()
            return
        machine, set_places = self.module["get_machine"](), get_global_func("ek.vm.places")
        set_places(machine, *direct)
        try:
            self._run()
        finally:
            set_places(machine)

    # Found anew for each run, as inputs may have moved: a result must not lie where a kernel still
    # reads (see `placing`).
    def _direct_buffers(self) -> Sequence[object]:
        """Return the output buffers that kernels can write directly, with the current inputs."""
        if not any(site is not None for site in self._sites):
            return ()
        destinations = [self._results.get(i) for i in range(len(self._sites))]
        host_destinations = [
            t if t is not None and t.device == cpu() else None for t in destinations
        ]
        values = [self.module["get_input"](i) for i in range(len(self._names))]
        return output_buffers.direct_buffers(self._sites, host_destinations, values)

    def _result_sites(self) -> Sequence[int | None]:
        """Return the instructions that allocate the outputs; none on another machine."""
        if not isinstance(self.module, Module) or "get_machine" not in self.module:
            return ()
        exe = self.module["get_executable"]()
        assert isinstance(exe, Executable)
        return output_buffers.result_sites(exe, self.get_num_outputs())

    def __getitem__(self, key: str) -> object:
        """Return a function of the module."""
        return self.module[key]

    def benchmark(
        self,
        device: Devices,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        limit_zero_time_iterations: int = 100,
        end_to_end: bool = False,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        **kwargs: object,
    ) -> BenchmarkResult:
        """Measure `func_name`, by default a run, in seconds; `kwargs` are inputs. `end_to_end` has
        no effect: inputs are on the host.
        """
        self.run(**kwargs)
        dev = device if isinstance(device, Device) else device[0]
        times = self.module.time_evaluator(
            func_name,
            dev,
            number,
            repeat,
            min_repeat_ms or 0,
            limit_zero_time_iterations,
            cooldown_interval_ms,
            repeats_to_cooldown,
        )()
        assert isinstance(times, BenchmarkResult)
        return times

    def _input_index(self, key: str | int) -> int:
        if isinstance(key, str):
            if (number := self._find_input(key)) is None:
                input_names = ", ".join(self._names)
                raise InputError(
                    f"Invalid input name: no input is named {key!r}; there are {input_names}"
                )
            return number
        if not 0 <= key < len(self._names):
            raise InputError(f"input: a number below {len(self._names)} expected, got {key}")
        return key

    def _find_input(self, name: str) -> int | None:
        """Return the index of the input of a name, or None."""
        if name in self._names:
            return self._names.index(name)
        matches = [
            i for i, input_name in enumerate(self._names) if sanitize_name(input_name) == name
        ]
        return matches[0] if len(matches) == 1 else None

    def _output_index(self, key: int) -> int:
        if not 0 <= key < self.get_num_outputs():
            raise InputError(f"output: a number below {self.get_num_outputs()} expected, got {key}")
        return key

    def _input_shape(self, index: int) -> list[int]:
        return [d if isinstance(d, int) else -1 for d in self._inputs[index].shape]

    # Not at once when the module is made: a model of many inputs would take memory for zeros that
    # are replaced before the first run.
    def _default_to_zeros(self, index: int) -> None:
        """Set an input to zeros that neither this class nor the module's functions have set."""
        if index not in self._unset:
            return
        if self.module["get_input"](index) is None:
            self._set_zeros(index)
        self._unset.discard(index)

    def _set_zeros(self, index: int) -> None:
        shape = self._input_shape(index)
        if -1 in shape:
            raise InputError(f"run: input '{self._names[index]}' is not set")
        dtype = self._inputs[index].dtype
        zeros = empty(tuple(shape), dtype)
        zeros.numpy().fill(0)
        self._share_input(index, self._to_module(zeros))

    def _to_module(self, tensor_here: Tensor) -> object:
        """Copy a tensor to the machine of the module, if it is another one."""
        return tensor_here if isinstance(self.module, Module) else self.module.sent(tensor_here)

    def _check_value(self, index: int, value: object, *, may_convert: bool = True) -> Tensor:
        """Return the value as a tensor of the declared dtype and shape."""
        dtype, expected = self._inputs[index].dtype, self._input_shape(index)
        is_foreign = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
        if may_convert and not is_foreign:
            array = np.asarray(value, dtype)
            value = np.ascontiguousarray(array).reshape(array.shape)
        tensor = tensor_of(value)  # type: ignore[arg-type]  # whatever a user gives
        fits = len(tensor.shape) == len(expected)
        fits = fits and all(w in (-1, d) for d, w in zip(tensor.shape, expected, strict=True))
        if tensor.dtype != dtype or not fits:
            raise InputError(
                f"set_input '{self._names[index]}': {dtype}{expected} expected,"
                f" got {tensor.dtype}{list(tensor.shape)}"
            )
        return tensor


def _copy_to(source: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return source
    source.copyto(out)
    return out


__all__ = ["AotModule"]
