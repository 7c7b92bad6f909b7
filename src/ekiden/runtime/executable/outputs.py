"""Destinations of a run's results: the caller's memory, and runs with all of it fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ekiden import runtime
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    TensorInfo,
)
from ekiden.runtime.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ekiden.runtime.executable.output_buffers import OutputBuffer

__all__ = ["BoundRun", "output_destinations", "write_results"]


class BoundRun:
    """Call with fixed arguments and outputs: `run = exe.bind(x, out=y)`, then `run()` reads the
    current contents of `x` and writes `y`. Not thread-safe.
    """

    def __init__(self, call: Callable[[], object], inputs: Mapping[str, object]) -> None:
        self._call = call
        self.inputs = dict(inputs)
        """The arguments by name, as tensors that share the memory of what was given."""

    def __call__(self) -> object:
        """Run; return what `exe(..., out=...)` returns."""
        return self._call()


def output_destinations(infos: Sequence[TensorInfo], out: object) -> list[OutputBuffer | None]:
    """Return the destination of each output (None: none) from the caller's `out`: one array for one
    output, else a sequence or a mapping by output names. Raises InputError for what cannot be
    written, or has another dtype, rank or known dimension.
    """
    by_output = _match_outputs(infos, out)
    return [
        None if g is None else _check_destination(i, g)
        for i, g in zip(infos, by_output, strict=True)
    ]


def _match_outputs(infos: Sequence[TensorInfo], out: object) -> list[object]:
    names = ", ".join(f"'{i.name}'" for i in infos)
    if isinstance(out, Mapping):
        unknown = [name for name in out if name not in {i.name for i in infos}]
        if unknown:
            raise InputError(f"out: no output is named '{unknown[0]}'; there are {names}")
        return [out.get(i.name) for i in infos]
    if not isinstance(out, (list, tuple)):
        out = (out,)
    if len(out) != len(infos):
        raise InputError(f"out: expected {len(infos)} arrays ({names}), got {len(out)}")
    return list(out)


def _check_destination(info: TensorInfo, candidate: object) -> OutputBuffer:
    what = f"out '{info.name}'"
    if info.dtype in (OBJECT_DTYPE, STRING_DTYPE) or info.dtype.startswith(
        (SEQUENCE_PREFIX, SEQUENCE_OF_MAPS_PREFIX, ANY_RANK_PREFIX)
    ):
        raise InputError(f"{what}: the output is a {info.dtype}, not a tensor that can be written")
    if isinstance(candidate, (runtime.Tensor, np.ndarray)):
        destination: OutputBuffer = candidate
    elif hasattr(candidate, "__dlpack__"):
        # DLPack shares the memory, so that the caller sees what is written.
        destination = runtime.from_dlpack(candidate).numpy()  # type: ignore[arg-type]  # it has the method
    else:
        expected = f"an array of {info.dtype} to write to"
        raise InputError(f"{what}: expected {expected}, got {type(candidate).__name__}")
    dtype = str(destination.dtype)
    if dtype != info.dtype:
        raise InputError(f"{what}: expected dtype {info.dtype}, got {dtype}")
    readonly = (
        destination.readonly
        if isinstance(destination, runtime.Tensor)
        else not destination.flags.writeable
    )
    if readonly:
        raise InputError(f"{what}: expected a writable array, got a read-only one")
    fits = len(destination.shape) == len(info.shape) and all(
        isinstance(d, str) or d == dim for d, dim in zip(info.shape, destination.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"{what}: expected shape {_format_shape(info.shape)}, "
            f"got {_format_shape(destination.shape)}"
        )
    return destination


def write_results(
    infos: Sequence[TensorInfo],
    result: object,
    destinations: Sequence[OutputBuffer | None],
    out: object,
) -> object:
    """Copy results to destinations where kernels have not written them; return `out`. Raises
    InputError for another shape.
    """
    results = result if isinstance(result, tuple) and len(infos) > 1 else (result,)
    for info, result_value, destination in zip(infos, results, destinations, strict=True):
        if destination is None:
            continue
        source = cast(runtime.Tensor, result_value)
        if tuple(destination.shape) != tuple(source.shape):
            expected = f"expected shape {_format_shape(source.shape)}, as it is of this run"
            raise InputError(
                f"out '{info.name}': {expected}, got {_format_shape(destination.shape)}"
            )
        # Equal addresses show that a kernel wrote the output, which requires a contiguous one.
        written, source_array = destination_array(destination), source.numpy()
        if written.ctypes.data != source_array.ctypes.data or not written.flags.c_contiguous:
            np.copyto(written, source_array)
    return out


def destination_array(destination: OutputBuffer) -> npt.NDArray[Any]:
    """Return a destination as an array over its memory."""
    return destination.numpy() if isinstance(destination, runtime.Tensor) else destination


def _format_shape(shape: Sequence[object]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
