"""Graph executor with TVM's interface, for straight-line programs.

lib = relay.build(module, "llvm", params=params) m =
graph_executor.GraphModule(lib["default"](ekiden.cpu())) m.set_input("data", x) m.run() y =
m.get_output(0).numpy()

It is a face over the virtual machine: `lib["default"]` gives a runtime.Module, in which C and C++
find the same functions by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ekiden import runtime
from ekiden.backend.graph.executor_graph import ExecutorGraph
from ekiden.backend.graph.read_bytecode import read_graph
from ekiden.backend.graph.write_bytecode import create_graph_module
from ekiden.runtime import Module, Tensor
from ekiden.runtime.errors import InputError
from ekiden.runtime.executor.aot_executor import AotModule, Devices, ExecutorModule


def create(graph_json_str: str, libmod: object, device: Devices) -> GraphModule:
    """Create an executor of a graph with the kernels of a library: a module, or the result of
    `relay.build`.

    All nodes that are set from outside are inputs, constants too: they begin as those of the
    library, and `set_input(**params)` replaces them. Raises LoadError for text that is no graph or
    names kernels that the library does not have, InputError for a device that they are not for.
    """
    library = executor_library(libmod, device)
    return GraphModule(create_graph_module(ExecutorGraph.from_json(graph_json_str), library))


def executor_library(libmod: object, device: Devices) -> ExecutorModule:
    """Return the module with a library's kernels, local or in an `ekiden.rpc` session, after
    checking its devices. Raises TypeError if it is no module, InputError if it does not run on
    the devices.
    """
    library: Any = libmod.get_lib() if hasattr(libmod, "get_lib") else libmod
    if isinstance(library, Module):
        runtime.check_devices("graph executor", device, _compiled_devices(library))
        return library
    if not hasattr(library, "is_on_same_host"):
        raise TypeError(f"graph executor: expected a module, got {type(libmod).__name__}")
    devices: object = device
    is_many = isinstance(devices, (list, tuple)) and not isinstance(devices, runtime.Device)
    for one_device in devices if is_many else [devices]:  # type: ignore[attr-defined]
        if one_device is not None and not library.is_on_same_host(one_device):
            raise InputError(
                f"graph executor: expected a device of the library's session, got {one_device}"
            )
    return cast("ExecutorModule", library)


def _compiled_devices(library: Module) -> Sequence[runtime.Device]:
    """Return the devices that a library was compiled for; empty if unknown."""
    if "get_executable" not in library:
        return ()
    executable = library["get_executable"]()
    assert isinstance(executable, runtime.Executable)
    return executable.devices


@runtime.register_func("ek.program.get_graph_json")
def _get_graph_json(executable: runtime.Executable) -> str:
    """Return a loaded library's program as TVM's graph JSON, for `library["get_graph_json"]()`."""
    return read_graph(executable)[0].to_json()


class GraphModule(AotModule):
    """Executor of a graph (`create`) or of any straight-line program. As in TVM, names in `params`
    that are no inputs are ignored: the program's constants already have their values.
    """

    def set_input(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """Copy values into inputs; arrays are converted to the declared dtype. Raises RuntimeError
        for a `key` that is none, InputError for a wrong shape.
        """
        super().set_input(key, value, **self._select_inputs(params))

    def set_input_zero_copy(
        self, key: str | int | None = None, value: object = None, **params: object
    ) -> None:
        """Set inputs as `set_input`, but without copying: the values are read at each run."""
        super().set_input_zero_copy(key, value, **self._select_inputs(params))

    def get_input_index(self, name: str) -> int:
        """Return the index of an input; -1 for an unknown name."""
        index = self._find_input(name)
        return -1 if index is None else index

    def debug_get_output(self, node: str | int, out: Tensor) -> None:
        """Raise an error: only the debug executor keeps node outputs."""
        raise NotImplementedError("debug_get_output: use ekiden.contrib.debugger.debug_executor")

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set inputs to tensors saved by `runtime.save_param_dict`, by name."""
        for name, value in runtime.load_param_dict(bytes(params_bytes)).items():
            if name in self._names:
                self.set_input_zero_copy(name, value)

    def share_params(self, other: GraphModule, params_bytes: bytes | bytearray) -> None:
        """Refer to another executor's inputs for the names in `params_bytes`."""
        for name in runtime.load_param_dict(bytes(params_bytes)):
            if name in self._names:
                self.set_input_zero_copy(name, other.get_input(name))

    def _select_inputs(self, params: Mapping[str, object]) -> dict[str, Any]:
        """Return the parameters that are inputs of the program."""
        return {name: value for name, value in params.items() if self._find_input(name) is not None}

    def _input_index(self, key: str | int) -> int:
        if isinstance(key, str) and self._find_input(key) is None:
            raise RuntimeError(f"Could not find '{key}' in graph's inputs")
        return super()._input_index(key)


__all__ = ["GraphModule", "create"]
