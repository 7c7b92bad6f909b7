"""The graph executor with TVM's face, for straight-line programs.

lib = relay.build(module, "llvm", params=params)
m = graph_executor.GraphModule(lib["default"](ekiden.cpu()))
m.set_input("data", x)
m.run()
y = m.get_output(0).numpy()

It is a face over the virtual machine: `lib["default"]` gives a runtime.Module, in which C and C++
find the same functions by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ekiden import runtime
from ekiden.backend.graph.graph import Graph
from ekiden.backend.graph.write import new_module
from ekiden.rpc.far import RemoteModule
from ekiden.runtime import BenchmarkResult, Device, Module, Shape, Tensor
from ekiden.runtime.errors import InputError
from ekiden.runtime.metadata import ANY_OBJECT, read_metadata, tensor_infos

Devices = Device | Sequence[Device]


def create(graph_json_str: str, libmod: object, device: Devices) -> GraphModule:
    """Run a graph with the kernels of a library: a module, or what `relay.build` gives.

    All nodes that are set from outside are inputs, constants too: they begin as those of the
    library, and `set_input(**params)` replaces them. Raises LoadError for text that is no graph or
    names kernels that the library does not have.
    """
    runtime.check_devices("graph executor", device)
    return GraphModule(new_module(Graph.from_json(graph_json_str), library_of(libmod)))


def library_of(libmod: object) -> Module:
    """The module with the kernels of a library. Raises TypeError."""
    found = libmod.get_lib() if hasattr(libmod, "get_lib") else libmod
    if not isinstance(found, Module):
        raise TypeError(f"graph executor: expected a module, got {type(libmod).__name__}")
    return found


class GraphModule:
    """Inputs that are set once, outputs that are asked for. For one thread at a time.

    An input that is not set is zeros. A module of another machine has its inputs and outputs there:
    what is set is sent, what is asked for crosses when its elements are.
    """

    def __init__(self, module: Module | RemoteModule) -> None:
        self.module = module
        metadata = read_metadata(str(module["get_metadata"]()), "graph executor", None)
        self._inputs, self._outputs = tensor_infos(metadata, "graph executor")
        self._names = [each.name for each in self._inputs]
        self._results: dict[int, Tensor] = {}
        self._unset = set(range(len(self._names)))
        """Inputs not known to be set: the module's own functions may have set them."""
        self._run, self._get_output = module["run"], module["get_output"]
        self._set_input, self._share_input = module["set_input"], module["set_input_zero_copy"]

    def set_input(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """Copy values into inputs; arrays are converted to the declared dtype.

        As in TVM, names in `params` that are no inputs are passed over: constants of the program
        have their values already. Raises RuntimeError for a `key` that is none, InputError for a
        wrong shape.
        """
        if key is not None:
            self._set_input(index := self._index(key), self._sent(self._checked(index, value)))
            self._unset.discard(index)
        for name, each in params.items():
            if name in self._names:
                self.set_input(name, each)

    def set_input_zero_copy(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """As `set_input`, but what is given is read at each run, not copied now."""
        if key is not None:
            index = self._index(key)
            given = self._checked(index, value, may_convert=False)
            self._share_input(index, self._sent(given))
            self._unset.discard(index)
        for name, each in params.items():
            if name in self._names:
                self.set_input_zero_copy(name, each)

    def set_output_zero_copy(self, key: int, value: object) -> None:
        """A tensor that each run writes an output to. Raises InputError."""
        given = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
        self._results[self._output_index(key)] = given

    def run(self, **input_dict: object) -> None:
        """Run, after setting inputs by name."""
        self.set_input(**input_dict)  # type: ignore[arg-type]  # 'key' is no input's name
        for index in tuple(self._unset):
            self._fill_unset(index)
        self._run()
        for index, tensor in self._results.items():
            self._get_output(index, tensor)

    def get_num_outputs(self) -> int:
        """How many outputs there are; tuples in tuples count by their fields, after a run."""
        if any(each.dtype == ANY_OBJECT for each in self._outputs):
            found = self.module["get_num_outputs"]()
            assert isinstance(found, int)
            return found
        return len(self._outputs)

    def get_num_inputs(self) -> int:
        """How many inputs there are."""
        return len(self._inputs)

    def get_input(self, index: str | int, out: Tensor | None = None) -> Tensor:
        """What an input holds; copied to `out` if that is given."""
        number = self._index(index)
        self._fill_unset(number)
        found = self.module["get_input"](number)
        return _copied(cast(Tensor, found), out)

    def get_input_index(self, name: str) -> int:
        """The number of an input, -1 for a name that there is not."""
        return self._names.index(name) if name in self._names else -1

    def get_input_info(self) -> tuple[dict[str, Shape], dict[str, str]]:
        """Shapes and dtypes by name; -1 stands for a dimension that is not fixed."""
        shapes = {n: Shape(self._shape(i)) for i, n in enumerate(self._names)}
        return shapes, {n: self._inputs[i].dtype for i, n in enumerate(self._names)}

    def get_output(self, index: int, out: Tensor | None = None) -> Tensor:
        """What the last run gave; copied to `out` if that is given. Raises RunError before one."""
        if index in self._results:
            return _copied(self._results[index], out)
        found = self._get_output(index)
        return _copied(cast(Tensor, found), out)

    def debug_get_output(self, node: str | int, out: Tensor) -> None:
        """Only the debugger keeps what nodes give."""
        raise NotImplementedError("debug_get_output: use ekiden.contrib.debugger.debug_executor")

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set inputs to the tensors that `runtime.save_param_dict` has saved, by name."""
        for name, value in runtime.load_param_dict(bytes(params_bytes)).items():
            if name in self._names:
                self.set_input_zero_copy(name, value)

    def share_params(self, other: GraphModule, params_bytes: bytes | bytearray) -> None:
        """Refer to the inputs of another executor that have the names in `params_bytes`."""
        for name in runtime.load_param_dict(bytes(params_bytes)):
            if name in self._names:
                self.set_input_zero_copy(name, other.get_input(name))

    def __getitem__(self, key: str) -> object:
        """A function of the module."""
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
        """The seconds of `func_name`, by default a run; `kwargs` are inputs. `end_to_end` changes
        nothing: inputs are on the host already.
        """
        self.run(**kwargs)
        dev = device if isinstance(device, Device) else device[0]
        found = self.module.time_evaluator(
            func_name,
            dev,
            number,
            repeat,
            min_repeat_ms or 0,
            limit_zero_time_iterations,
            cooldown_interval_ms,
            repeats_to_cooldown,
        )()
        assert isinstance(found, BenchmarkResult)
        return found

    def _index(self, key: str | int) -> int:
        if isinstance(key, str):
            if key not in self._names:
                raise RuntimeError(f"Could not find '{key}' in graph's inputs")
            return self._names.index(key)
        if not 0 <= key < len(self._names):
            raise InputError(f"input: a number below {len(self._names)} expected, got {key}")
        return key

    def _output_index(self, key: int) -> int:
        if not 0 <= key < self.get_num_outputs():
            raise InputError(f"output: a number below {self.get_num_outputs()} expected, got {key}")
        return key

    def _shape(self, index: int) -> list[int]:
        return [d if isinstance(d, int) else -1 for d in self._inputs[index].shape]

    def _fill_unset(self, index: int) -> None:
        """Zeros for an input that nobody has set, by this face or by the module's functions."""
        if index not in self._unset:
            return
        if self.module["get_input"](index) is None:
            self._zero(index)
        self._unset.discard(index)

    def _zero(self, index: int) -> None:
        shape = self._shape(index)
        if -1 in shape:
            raise InputError(f"run: input '{self._names[index]}' is not set")
        dtype = self._inputs[index].dtype
        made = runtime.empty(tuple(shape), dtype)
        made.numpy().fill(0)
        self._share_input(index, self._sent(made))

    def _sent(self, given: Tensor) -> object:
        """A tensor where the module is."""
        return self.module.sent(given) if isinstance(self.module, RemoteModule) else given

    def _checked(self, index: int, value: object, *, may_convert: bool = True) -> Tensor:
        """The value as a tensor of the declared dtype and shape."""
        dtype, wanted = self._inputs[index].dtype, self._shape(index)
        is_foreign = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
        if may_convert and not is_foreign:
            array = np.asarray(value, dtype)
            value = np.ascontiguousarray(array).reshape(array.shape)
        tensor = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
        fits = len(tensor.shape) == len(wanted)
        fits = fits and all(w in (-1, d) for d, w in zip(tensor.shape, wanted, strict=True))
        if tensor.dtype != dtype or not fits:
            raise InputError(
                f"set_input '{self._names[index]}': {dtype}{wanted} expected,"
                f" got {tensor.dtype}{list(tensor.shape)}"
            )
        return tensor


def _copied(found: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return found
    found.copyto(out)
    return out


__all__ = ["GraphModule", "create"]
