"""ExecutorFactoryModule, the result of `relay.build`: an executable that creates graph
executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ekiden.backend.graph.executor_graph import ExecutorGraph
from ekiden.backend.graph.read_bytecode import read_graph
from ekiden.backend.graph.write_bytecode import create_graph_module
from ekiden.runtime import Executable as RawExecutable
from ekiden.runtime import Module, Tensor, check_devices
from ekiden.runtime.compiler_import import compiler_module
from ekiden.runtime.errors import ExportError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import File, PathName


class ExecutorFactoryModule(Executable):
    """Executable that is also a factory: `lib["default"](device)` creates a graph executor.

    A request for its graph raises CompileError with the reason if the program has none (control
    flow, computed shapes); calling it works for all.
    """

    def __init__(self, raw: RawExecutable) -> None:
        super().__init__(raw)
        self._graph_and_params: tuple[ExecutorGraph, dict[str, Tensor]] | None = None
        self._lib: Module | None = None

    def _graph(self) -> tuple[ExecutorGraph, dict[str, Tensor]]:
        if self._graph_and_params is None:
            self._graph_and_params = read_graph(self.raw)
        return self._graph_and_params

    def get_graph_json(self) -> str:
        """Return the program as TVM graph JSON."""
        return self._graph()[0].to_json()

    def get_params(self) -> dict[str, Tensor]:
        """Return the graph's constants by node name, sharing the executable's memory."""
        return dict(self._graph()[1])

    def get_lib(self) -> Module:
        """Return the module with the kernels, always the same object.

        Modules that it is made to import are part of the file that `export_library` writes.
        """
        if self._lib is None:
            self._lib = self.module
        return self._lib

    def export_library(
        self,
        path: PathName,
        *,
        cc: str | None = None,
        options: Sequence[str] = (),
        fcompile: object = None,
        name: str = "",
    ) -> None:
        """Export the model, imported modules and the runtime as one shared library; see
        `Executable.export_library`.
        """
        lib = self.get_lib()
        if not lib.imported_modules:
            super().export_library(path, cc=cc, options=options, fcompile=fcompile, name=name)
            return
        library = compiler_module("ekiden.compiler.export.library", "export_library")
        library.export_library(lib, path, cc=cc, options=options, fcompile=fcompile, name=name)

    def save(self, path: File | None = None) -> Any:  # noqa: ANN401
        """Save the artifact; see `Executable.save`.

        Raises:
            ExportError: `get_lib()` imports other modules, which an artifact cannot hold.
        """
        if path is not None and self.get_lib().imported_modules:
            raise ExportError(
                f"save {str(path)!r}: the module imports others, which an artifact does not hold;"
                " export_library writes all of them"
            )
        return super().save(path) if path is not None else super().save()

    def get_executor_config(self) -> str:
        """Return the graph JSON (TVM's name)."""
        return self.get_graph_json()

    @property
    def libmod_name(self) -> str:
        """Return the name accepted by `lib[name](device)` besides "default"."""
        return str(self.raw.metadata.get("mod_name", "default"))

    graph_json = property(get_graph_json)
    params = property(get_params)

    def __getitem__(self, name: str) -> Callable[..., object]:
        """Return a function by name.

        "default", or the `mod_name`, creates a graph executor for a device, "debug_create" one that
        keeps the result of each node; other names are those of the program.
        """
        if name == "debug_create":
            return self._debug_create
        return self.module[name]

    def _debug_create(self, name: str, *device: object) -> Module:
        """Return the module for `debug_executor.GraphModuleDebug`, with its constants set."""
        check_devices("debug_create", device, self.raw.devices)
        return create_graph_module(self._graph()[0], self.module, every_entry=True)

    def __iter__(self) -> Iterator[object]:
        """Yield graph, library and parameters: `graph, lib, params = relay.build(...)`, as
        in TVM.
        """
        return iter((self.get_graph_json(), self.get_lib(), self.get_params()))


__all__ = ["ExecutorFactoryModule"]
