"""What `relay.build` gives: an executable that is also TVM's factory of graph executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ekiden.backend.graph.graph import Graph
from ekiden.backend.graph.read import read_graph
from ekiden.backend.graph.write import new_module
from ekiden.driver.executable import Executable
from ekiden.runtime import Executable as RawExecutable
from ekiden.runtime import Module, Tensor, check_devices


class ExecutorFactoryModule(Executable):
    """An executable; `lib["default"](device)` makes a graph executor of it.

    What asks for its graph raises CompileError with the reason where the program has none (control
    flow, shapes that are computed); calling it works for all.
    """

    def __init__(self, raw: RawExecutable) -> None:
        super().__init__(raw)
        self._read: tuple[Graph, dict[str, Tensor]] | None = None

    def _graph(self) -> tuple[Graph, dict[str, Tensor]]:
        if self._read is None:
            self._read = read_graph(self.raw)
        return self._read

    def get_graph_json(self) -> str:
        """The program as a graph in TVM's JSON."""
        return self._graph()[0].to_json()

    def get_params(self) -> dict[str, Tensor]:
        """The constants of the graph by their nodes' names, sharing the executable's memory."""
        return dict(self._graph()[1])

    def get_lib(self) -> Module:
        """The module with the kernels."""
        return self.module

    def get_executor_config(self) -> str:
        """The graph; TVM's name."""
        return self.get_graph_json()

    @property
    def libmod_name(self) -> str:
        """What `lib[name](device)` is called by, besides "default"."""
        return str(self.raw.metadata.get("mod_name", "default"))

    graph_json = property(get_graph_json)
    params = property(get_params)

    def __getitem__(self, name: str) -> Callable[..., object]:
        """A function by name: "default", or what `mod_name` said, makes a graph executor for a
        device, "debug_create" one that keeps what each node gives; others are those of the program.
        """
        if name == "debug_create":
            return self._debug_create
        return self.module[name]

    def _debug_create(self, name: str, *device: object) -> Module:
        """The module that `debug_executor.GraphModuleDebug` takes, with its constants set."""
        check_devices("debug_create", device, self.raw.devices)
        return new_module(self._graph()[0], self.module, every_entry=True)

    def __iter__(self) -> Iterator[object]:
        """graph, lib, params = relay.build(...), as in TVM."""
        return iter((self.get_graph_json(), self.get_lib(), self.get_params()))


__all__ = ["ExecutorFactoryModule"]
