"""Models, packages and run results of tvmc."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.relay.param_dict import load_param_dict, save_param_dict
from ekiden.relay.parser import parse
from ekiden.runtime import BenchmarkResult
from ekiden.runtime.artifact.archive import read_archive_files
from ekiden.runtime.errors import EkidenError, InputError, LoadError
from ekiden.runtime.files import PathName, rewrite_os_errors

__all__ = ["TVMCException", "TVMCImportError", "TVMCModel", "TVMCPackage", "TVMCResult"]

Arrays = Mapping[str, Any]
TVMCException = EkidenError
"""TVM's name of the errors that tvmc reports: all of Ekiden's."""


class TVMCImportError(InputError):
    """Error of a missing package that reads a model."""


class TVMCModel:
    """Relay module with its parameters.

    Args:
        mod: The module.
        params: The parameters by name.
        model_path: A file of `save` to read instead.

    Raises:
        InputError: Neither a module nor a file was given.
    """

    def __init__(
        self,
        mod: IRModule | None = None,
        params: Arrays | None = None,
        model_path: PathName | None = None,
    ) -> None:
        if (mod is None) == (model_path is None):
            raise InputError("TVMCModel: a module or model_path expected")
        self._folder = Path(tempfile.mkdtemp(prefix="tvmc-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        if mod is not None:
            self.mod, self.params = mod, dict(params or {})
        else:
            assert model_path is not None
            self.mod, self.params = _read_model(model_path)

    def save(self, model_path: PathName) -> None:
        """Write the model to an archive of Relay text and parameters."""
        folder = self._folder
        (folder / "model.relay").write_text(self.mod.astext())
        (folder / "model.params").write_bytes(save_param_dict(self.params))
        with rewrite_os_errors("write", model_path), tarfile.open(model_path, "w") as archive:
            for name in ("model.relay", "model.params"):
                archive.add(folder / name, name)

    def default_tuning_records_path(self) -> str:
        """Return a temporary path for tuning records, valid as long as this object."""
        return str(self._folder / "tuning_records")

    def default_package_path(self) -> str:
        """Return a temporary path for a package, valid as long as this object."""
        return str(self._folder / "model_package.tar")

    def summary(self, file: TextIO | None = None) -> None:
        """Print the module."""
        print(self.mod, file=file)


def _read_model(path: PathName) -> tuple[IRModule, dict[str, Any]]:
    members = read_archive_files(path)
    if not {"model.relay", "model.params"} <= set(members):
        raise LoadError(f"read '{path}': an archive of TVMCModel.save expected")
    try:
        text = members["model.relay"].decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"read '{path}': 'model.relay': {error}") from error
    module = parse(text)
    return module, dict(load_param_dict(members["model.params"]))


def _parse_package(members: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return an object of a package that is JSON. Raises ValueError."""
    value = json.loads(members[name])
    if not isinstance(value, dict):
        raise ValueError(f"'{name}': an object expected")
    return value


class TVMCPackage:
    """Compiled model in an archive with `mod.so` or `mod.tar`, the graph, its parameters and the
    metadata `tvmc.json`; or a Model Library Format archive.

    Args:
        package_path: The archive.
        project_dir: The project's folder; the package is the library that it was made of.
        use_vm: Unused: a library says itself how it runs.

    Raises:
        LoadError: The archive is another.
    """

    def __init__(
        self, package_path: PathName, project_dir: PathName | None = None, use_vm: bool = False
    ) -> None:
        self.package_path = Path(package_path)
        self.project_dir = Path(project_dir) if project_dir is not None else None
        self.members = read_archive_files(package_path)
        self.lib_name = next((n for n in ("mod.so", "mod.tar") if n in self.members), None)
        try:
            self._read_members()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise LoadError(
                f"read '{package_path}': no package of tvmc compile: {type(error).__name__}:"
                f" {error}"
            ) from error

    def _read_members(self) -> None:
        """Read what the members say. Raises LoadError, and Python's errors for damaged ones."""
        self.targets: object
        if self.lib_name is not None and "tvmc.json" in self.members:
            about = _parse_package(self.members, "tvmc.json")
            self.type, self.executor_type = "classic", str(about["executor"])
            self.targets = about["target"]
        elif "metadata.json" in self.members:
            self.type, self.executor_type = "mlf", "aot"
            (module, *_) = _parse_package(self.members, "metadata.json")["modules"].values()
            self.targets = module["target"]
        else:
            raise LoadError(f"read '{self.package_path}': a package of tvmc compile expected")
        graph = self.members.get("mod.json")
        self.graph = graph.decode() if graph is not None else None
        self.params = self.members.get("mod.params")

    def library_path(self, folder: PathName) -> str:
        """Extract the library into a folder and return its path."""
        if self.lib_name is None:
            raise InputError(f"'{self.package_path}' is for a microcontroller: it has no library")
        path = Path(folder) / self.lib_name
        path.write_bytes(self.members[self.lib_name])
        return str(path)


class TVMCResult:
    """Outputs and run times of a tvmc run: its outputs by name, `output_0` the first, and its
    times.
    """

    def __init__(
        self, outputs: Mapping[str, np.ndarray[Any, Any]] | None, times: BenchmarkResult
    ) -> None:
        self.outputs = dict(outputs or {})
        self.times = times

    def format_times(self) -> str:
        """Return the times as a table."""
        return str(self.times)

    def get_output(self, name: str) -> np.ndarray[Any, Any]:
        """Return an output by name. Raises InputError for an unknown one."""
        if name not in self.outputs:
            raise InputError(f"get_output: no output '{name}'; there are {', '.join(self.outputs)}")
        return self.outputs[name]

    def __str__(self) -> str:
        shapes = ", ".join(f"'{n}': {v.shape}" for n, v in self.outputs.items())
        return f"{self.format_times()}\nOutput Names:\n {shapes}"
