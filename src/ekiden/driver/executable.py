"""A compiled model, ready to run. Importing this needs no compiler."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ekiden import runtime
from ekiden.backend.vm.disassemble import disassemble
from ekiden.runtime.errors import InputError, LoadError

Dim = int | str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output: its name, shape (numbers, names of symbols, expressions on them) and
    dtype.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        """`x: float32[batch, 3, 224, 224]`"""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def _infos(entries: object) -> tuple[TensorInfo, ...]:
    if not isinstance(entries, list):
        raise LoadError(
            "reading the metadata of an executable: expected lists of inputs and outputs"
        )
    return tuple(TensorInfo(e["name"], tuple(e["shape"]), e["dtype"]) for e in entries)


class Executable:
    """A compiled model: call it with arrays, save it, look into it.

    Arguments are NumPy arrays, anything with DLPack, or ekiden.Tensor; the result is one Tensor, or
    a tuple of them. A call is safe from several threads only on executables of their own (`load`
    the file twice).
    """

    def __init__(self, raw: runtime.Executable) -> None:
        self.raw = raw
        metadata = raw.metadata.get("main")
        if not isinstance(metadata, dict):
            raise LoadError("reading the metadata of an executable: it has no entry point 'main'")
        self.inputs = _infos(metadata.get("inputs"))
        self.outputs = _infos(metadata.get("outputs"))
        self._positions = {info.name: i for i, info in enumerate(self.inputs)}
        self._vm = runtime.VirtualMachine(raw)

    def __call__(
        self, *args: object, **named: object
    ) -> runtime.Tensor | tuple[runtime.Tensor, ...]:
        """Run `main`. Raises InputError for a wrong name, number, dtype, rank or dimension;
        RunError if the run fails.
        """
        given = self._arrange(args, named) if named else args
        if len(given) != len(self.inputs):
            raise InputError(
                f"running a model: expected {len(self.inputs)} inputs ({self._names()}), got {len(given)}"
            )
        tensors = [
            self._tensor(info, value) for info, value in zip(self.inputs, given, strict=True)
        ]
        self._check_shapes(tensors)
        return self._vm.invoke("main", *tensors)

    def _names(self) -> str:
        return ", ".join(f"'{i.name}'" for i in self.inputs)

    def _arrange(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        values: dict[int, object] = dict(enumerate(args))
        for name, value in named.items():
            if name not in self._positions:
                raise InputError(
                    f"running a model: no input is named '{name}'; it has {self._names()}"
                )
            position = self._positions[name]
            if position in values:
                raise InputError(f"running a model: input '{name}' is given twice")
            values[position] = value
        missing = [i.name for position, i in enumerate(self.inputs) if position not in values]
        if missing:
            raise InputError(
                f"running a model: input '{missing[0]}' is missing; it has {self._names()}"
            )
        return [values[i] for i in range(len(values))]

    @staticmethod
    def _tensor(info: TensorInfo, value: object) -> runtime.Tensor:
        try:
            tensor = runtime.tensor(value)
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(
                f"input '{info.name}': expected an array of {info.dtype}, got {type(value).__name__}: {error}"
            ) from error
        if tensor.dtype != info.dtype:
            raise InputError(
                f"input '{info.name}': expected dtype {info.dtype}, got {tensor.dtype}"
            )
        return tensor

    def _check_shapes(self, tensors: Sequence[runtime.Tensor]) -> None:
        """Each dimension must be the number it is declared as; a symbol is the same everywhere."""
        bound: dict[str, tuple[int, str]] = {}
        for info, tensor in zip(self.inputs, tensors, strict=True):
            shape = tensor.shape
            if len(shape) != len(info.shape):
                raise InputError(
                    f"input '{info.name}': expected {len(info.shape)} dimensions {_show(info.shape)}, got {len(shape)}: {_show(shape)}"
                )
            for axis, (expected, got) in enumerate(zip(info.shape, shape, strict=True)):
                if isinstance(expected, str):
                    first = bound.setdefault(expected, (got, info.name))
                    if first[0] != got:
                        raise InputError(
                            f"input '{info.name}': dimension {axis} '{expected}' is {got}, but {first[0]} in input '{first[1]}'"
                        )
                elif expected != got:
                    raise InputError(
                        f"input '{info.name}': expected {expected} in dimension {axis}, got {got}: {_show(shape)} for {_show(info.shape)}"
                    )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file that `ekiden.load` reads. The file appears whole or not at all."""
        target = Path(path)
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.raw.to_bytes())
            os.chmod(partial, 0o644)
            os.replace(partial, target)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def disassemble(self) -> str:
        """The bytecode as text."""
        return disassemble(self.raw)

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"Executable(({inputs}) -> ({outputs}))"


def _show(shape: Sequence[Dim]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def load(path: str | os.PathLike[str]) -> Executable:
    """An executable from a file that `save` wrote. Raises LoadError for anything else,
    FileNotFoundError if there is none.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"loading an executable: no file {os.fspath(path)!r}")
    return Executable(runtime.Executable.load(os.fspath(path)))
