"""What a program takes and gives, in the protocol's words, and whether its requests can be run
together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from ekiden import runtime
from ekiden.runtime.artifact.metadata import ANY_SHAPE, TensorInfo
from ekiden.runtime.errors import EkidenError, LoadError, RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import BY_DTYPE, Array, Datatype

__all__ = ["Port", "Program", "Signature", "output_arrays", "read_signature", "runs_rows_apart"]


class Program(Protocol):
    """What is asked of a compiled model: `ekiden.Executable` has it."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def __call__(self, *args: object, timeout: object = None) -> object:
        """Run it."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output."""

    name: str
    datatype: Datatype
    dims: tuple[int | str, ...]
    """Sizes and names of symbols, as the executable has them."""

    @property
    def shape(self) -> list[int]:
        """The same in the protocol's words: -1 for what is not fixed."""
        return [d if isinstance(d, int) else -1 for d in self.dims]

    def check(self, array: Array) -> None:
        """Raises RequestError for another rank, or another size where that is fixed."""
        fits = len(array.shape) == len(self.dims) and all(
            isinstance(want, str) or want == got
            for want, got in zip(self.dims, array.shape, strict=True)
        )
        if not fits:
            raise RequestError(
                f"input '{self.name}': expected the shape {self.shape}, got {list(array.shape)}"
            )


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs, outputs, and the symbol of the dimension that they share."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batch: str = ""
    """The first dimension of all inputs and outputs, and of nothing else; empty: no such."""

    def arrange(self, given: Mapping[str, Array]) -> list[Array]:
        """The arrays in the program's order. Raises RequestError for what does not fit."""
        names = [port.name for port in self.inputs]
        if unknown := [name for name in given if name not in names]:
            raise RequestError(f"no input is named '{unknown[0]}'; there are {', '.join(names)}")
        if missing := [name for name in names if name not in given]:
            raise RequestError(f"the input '{missing[0]}' is missing; there are {', '.join(names)}")
        arrays = [given[name] for name in names]
        sizes: dict[str, int] = {}
        for port, array in zip(self.inputs, arrays, strict=True):
            port.check(array)
            _check_symbols(port, array, sizes)
        return arrays

    def least_output_bytes(self, arrays: Sequence[Array], names: Collection[str] = ()) -> int:
        """Return the bytes of the outputs of such arrays as far as the shapes say: sizes that are
        known only by a run count 0. `names` are the outputs that count; none: all.
        """
        sizes = {
            dim: size
            for port, array in zip(self.inputs, arrays, strict=True)
            for dim, size in zip(port.dims, array.shape, strict=True)
            if isinstance(dim, str)
        }
        total = 0
        for port in self.outputs:
            if not names or port.name in names:
                dims = (d if isinstance(d, int) else sizes.get(d, 0) for d in port.dims)
                total += math.prod(dims) * port.datatype.numpy.itemsize
        return total

    def key(self, arrays: Sequence[Array]) -> tuple[tuple[int, ...], ...] | None:
        """Requests with the same key can be run together; None for one that cannot."""
        if not self.batch or arrays[0].shape[0] == 0:
            return None
        return tuple(array.shape[1:] for array in arrays)


def _check_symbols(port: Port, array: Array, sizes: dict[str, int]) -> None:
    """Hold a shape against the symbols that are known already. Raises RequestError."""
    for dim, size in zip(port.dims, array.shape, strict=True):
        if isinstance(dim, str) and dim.isidentifier() and sizes.setdefault(dim, size) != size:
            raise RequestError(
                f"input '{port.name}': '{dim}' is {sizes[dim]} in another input, here {size}"
            )


def read_signature(program: Program, source: str) -> Signature:
    """The signature of a program. Raises LoadError for one that the protocol cannot say: inputs or
    outputs that are no tensors."""
    inputs = tuple(_port(info, source) for info in program.inputs)
    outputs = tuple(_port(info, source) for info in program.outputs)
    return Signature(inputs, outputs, _batch_symbol(inputs, outputs))


def _port(info: TensorInfo, source: str) -> Port:
    datatype = BY_DTYPE.get(info.dtype)
    if datatype is None:
        raise LoadError(f"serve '{source}': '{info.name}' is of {info.dtype}: tensors expected")
    if info.shape == ANY_SHAPE:
        raise LoadError(
            f"serve '{source}': the rank of '{info.name}' is not known: serve what "
            f"compile(model, shape={{{info.name!r}: (...)}}).save(...) writes"
        )
    return Port(info.name, datatype, info.shape)


def _batch_symbol(inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """The symbol that all shapes begin with and that nothing else is made of."""
    ports = [*inputs, *outputs]
    if not inputs or not outputs or not all(port.dims for port in ports):
        return ""
    first = ports[0].dims[0]
    if not isinstance(first, str) or not first.isidentifier():
        return ""
    rest = " ".join(str(dim) for port in ports for dim in port.dims[1:])
    words = "".join(c if c.isalnum() or c == "_" else " " for c in rest).split()
    shared = all(port.dims[0] == first for port in ports) and first not in words
    return first if shared else ""


ROWS = 3
"""Of the inputs that a program is tried on."""


def runs_rows_apart(program: Program, signature: Signature, feeds: Sequence[Array]) -> bool:
    """Whether a run of several rows gives what runs of each give.

    A signature cannot say that rows are apart: subtracting the mean over a batch keeps all shapes.
    So the program is tried on `feeds` of ROWS rows. Results agree within rounding, which differs
    between kernels of one row and of many.
    """
    try:
        whole = output_arrays(program(*feeds))
        for row in range(ROWS):
            alone = output_arrays(program(*(np.ascontiguousarray(f[row : row + 1]) for f in feeds)))
            pairs = zip(signature.outputs, whole, alone, strict=True)
            if not all(_agree(port, a[row : row + 1], b) for port, a, b in pairs):
                return False
    except EkidenError:
        return False
    return True


def _agree(port: Port, whole: Array, alone: Array) -> bool:
    if whole.shape != alone.shape:
        return False
    if port.datatype.numpy.kind not in "fV":  # V: bfloat16
        return bool((whole == alone).all())
    error = 2.0 ** (-6 if port.datatype.numpy.itemsize == 2 else -12)
    a, b = whole.astype(np.float64), alone.astype(np.float64)
    largest = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1e-30)
    return bool(np.allclose(a, b, rtol=error, atol=error * largest, equal_nan=True))


def output_arrays(result: object) -> list[Array]:
    """The outputs of a run as arrays."""
    values = result if isinstance(result, tuple) else (result,)
    return [v.numpy() if isinstance(v, runtime.Tensor) else np.asarray(v) for v in values]
