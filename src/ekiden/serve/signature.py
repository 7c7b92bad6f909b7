"""Model signature in the protocol's terms, and whether requests can be batched."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from ekiden import runtime
from ekiden.runtime.artifact.metadata import ANY_RANK_SHAPE, TensorInfo
from ekiden.runtime.errors import EkidenError, LoadError, RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import DATATYPE_BY_DTYPE, Array, Datatype

__all__ = [
    "ModelSignature",
    "SignatureProgram",
    "TensorPort",
    "has_independent_rows",
    "output_arrays",
    "read_signature",
]


class SignatureProgram(Protocol):
    """Interface of a compiled model as used here, implemented by `ekiden.Executable`."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def __call__(self, *args: object, timeout: object = None) -> object:
        """Run the model."""


@dataclass(frozen=True, slots=True)
class TensorPort:
    """Input or output of a model in the protocol's terms."""

    name: str
    datatype: Datatype
    dims: tuple[int | str, ...]
    """Sizes and names of symbols, as the executable has them."""

    @property
    def shape(self) -> list[int]:
        """Return the dims in the protocol's terms: -1 for symbolic ones."""
        return [d if isinstance(d, int) else -1 for d in self.dims]

    def check(self, array: Array) -> None:
        """Raise RequestError for another rank, or another size where it is fixed."""
        fits = len(array.shape) == len(self.dims) and all(
            isinstance(want, str) or want == actual
            for want, actual in zip(self.dims, array.shape, strict=True)
        )
        if not fits:
            raise RequestError(
                f"input '{self.name}': expected the shape {self.shape}, got {list(array.shape)}"
            )


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Signature of a model: inputs, outputs, and the symbol of the batch dimension they share."""

    inputs: tuple[TensorPort, ...]
    outputs: tuple[TensorPort, ...]
    batch_symbol: str = ""
    """The first dimension of all inputs and outputs, and of nothing else; empty: no such."""

    def order_inputs(self, inputs_by_name: Mapping[str, Array]) -> list[Array]:
        """Return the arrays in the program's order. Raises RequestError if they do not match."""
        names = [port.name for port in self.inputs]
        if unknown := [name for name in inputs_by_name if name not in names]:
            raise RequestError(f"no input is named '{unknown[0]}'; there are {', '.join(names)}")
        if missing := [name for name in names if name not in inputs_by_name]:
            raise RequestError(f"the input '{missing[0]}' is missing; there are {', '.join(names)}")
        arrays = [inputs_by_name[name] for name in names]
        sizes: dict[str, int] = {}
        for port, array in zip(self.inputs, arrays, strict=True):
            port.check(array)
            _check_symbols(port, array, sizes)
        return arrays

    def min_output_bytes(self, arrays: Sequence[Array], names: Collection[str] = ()) -> int:
        """Return a lower bound of the outputs' size in bytes, as far as the shapes determine it:
        dimensions known only after a run count 0. `names` are the outputs that count; none: all.
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

    def batch_key(self, arrays: Sequence[Array]) -> tuple[tuple[int, ...], ...] | None:
        """Return a key that is equal for requests that can be batched together; None for one that
        cannot.
        """
        if not self.batch_symbol or arrays[0].shape[0] == 0:
            return None
        return tuple(array.shape[1:] for array in arrays)


def _check_symbols(port: TensorPort, array: Array, sizes: dict[str, int]) -> None:
    """Check a shape against the symbol values known so far."""
    for dim, size in zip(port.dims, array.shape, strict=True):
        # Compound dimensions such as `n + 1` are no identifiers; the run itself checks them.
        if isinstance(dim, str) and dim.isidentifier() and sizes.setdefault(dim, size) != size:
            raise RequestError(
                f"input '{port.name}': '{dim}' is {sizes[dim]} in another input, here {size}"
            )


def read_signature(program: SignatureProgram, source: str) -> ModelSignature:
    """Return the signature of a program. Raises LoadError for inputs or outputs that are no
    tensors.
    """
    inputs = tuple(_make_port(info, source) for info in program.inputs)
    outputs = tuple(_make_port(info, source) for info in program.outputs)
    return ModelSignature(inputs, outputs, _batch_symbol(inputs, outputs))


def _make_port(info: TensorInfo, source: str) -> TensorPort:
    datatype = DATATYPE_BY_DTYPE.get(info.dtype)
    if datatype is None:
        raise LoadError(f"serve '{source}': '{info.name}' is of {info.dtype}: tensors expected")
    if info.shape == ANY_RANK_SHAPE:
        raise LoadError(
            f"serve '{source}': the rank of '{info.name}' is not known: serve what "
            f"compile(model, shape={{{info.name!r}: (...)}}).save(...) writes"
        )
    return TensorPort(info.name, datatype, info.shape)


def _batch_symbol(inputs: Sequence[TensorPort], outputs: Sequence[TensorPort]) -> str:
    """Return the symbolic dimension that leads every shape and occurs nowhere else; else ""."""
    ports = [*inputs, *outputs]
    if not inputs or not outputs or not all(port.dims for port in ports):
        return ""
    first = ports[0].dims[0]
    if not isinstance(first, str) or not first.isidentifier():
        return ""
    other_dims = " ".join(str(dim) for port in ports for dim in port.dims[1:])
    # A compound dimension such as `2 * n` counts as an occurrence of `n`.
    words = "".join(c if c.isalnum() or c == "_" else " " for c in other_dims).split()
    shared = all(port.dims[0] == first for port in ports) and first not in words
    return first if shared else ""


BATCH_TRIAL_ROWS = 3
"""Of the inputs that a program is tried on."""


def has_independent_rows(
    program: SignatureProgram, signature: ModelSignature, feeds: Sequence[Array]
) -> bool:
    """Return whether a batched run equals runs of single rows. The signature cannot tell:
    subtracting a batch mean, for example, keeps all shapes. So the program is run on `feeds` of
    BATCH_TRIAL_ROWS rows. Results must agree up to rounding, which differs between kernels for one
    row and for many.
    """
    try:
        batched = output_arrays(program(*feeds))
        for row in range(BATCH_TRIAL_ROWS):
            alone = output_arrays(program(*(np.ascontiguousarray(f[row : row + 1]) for f in feeds)))
            pairs = zip(signature.outputs, batched, alone, strict=True)
            if not all(_results_agree(port, a[row : row + 1], b) for port, a, b in pairs):
                return False
    except EkidenError:
        return False
    return True


def _results_agree(port: TensorPort, batched: Array, alone: Array) -> bool:
    """Return whether two results agree up to rounding."""
    if batched.shape != alone.shape:
        return False
    if port.datatype.numpy.kind not in "fV":  # V: bfloat16
        return bool((batched == alone).all())
    # 2**-6 is two units in the last place of bfloat16, the narrowest format.
    error = 2.0 ** (-6 if port.datatype.numpy.itemsize == 2 else -12)
    # float64 holds every value exactly, so the comparison adds no rounding.
    a, b = batched.astype(np.float64), alone.astype(np.float64)
    # The tolerance follows the largest element: cancellation leaves small ones inaccurate.
    largest = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1e-30)
    return bool(np.allclose(a, b, rtol=error, atol=error * largest, equal_nan=True))


def output_arrays(result: object) -> list[Array]:
    """Return the outputs of a run as arrays."""
    values = result if isinstance(result, tuple) else (result,)
    return [v.numpy() if isinstance(v, runtime.Tensor) else np.asarray(v) for v in values]
