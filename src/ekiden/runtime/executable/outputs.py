"""Where the results of a run go: memory that the caller has, and runs with all of it fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ekiden import runtime
from ekiden.runtime.artifact.metadata import ANY_OBJECT, ANY_RANK, MAPS, SEQUENCE, TEXT, TensorInfo
from ekiden.runtime.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ekiden.runtime.executable.placing import Place

__all__ = ["BoundRun", "places_of", "write_results"]


class BoundRun:
    """A call whose arguments and places of results are fixed: `run = exe.bind(x, out=y)`, then
    `run()` reads what stands in `x` now and writes `y`. For one thread at a time.
    """

    def __init__(self, call: Callable[[], object], inputs: Mapping[str, object]) -> None:
        self._call = call
        self.inputs = dict(inputs)
        """The arguments by name, as tensors that share the memory of what was given."""

    def __call__(self) -> object:
        """Run; what `exe(..., out=...)` gives."""
        return self._call()


def places_of(infos: Sequence[TensorInfo], out: object) -> list[Place | None]:
    """Where each output is written to, None where nowhere; from what a caller gives as `out`.

    One array or tensor where there is one output; else a sequence with one for each, or a mapping
    by their names. Raises InputError for what cannot be written, has another dtype or rank, or
    other dimensions than those that are numbers.
    """
    given = _by_output(infos, out)
    return [None if g is None else _place(i, g) for i, g in zip(infos, given, strict=True)]


def _by_output(infos: Sequence[TensorInfo], out: object) -> list[object]:
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


def _place(info: TensorInfo, given: object) -> Place:
    what = f"out '{info.name}'"
    if info.dtype in (ANY_OBJECT, TEXT) or info.dtype.startswith((SEQUENCE, MAPS, ANY_RANK)):
        raise InputError(
            f"{what}: the output is a {info.dtype}, not a tensor that could be written"
        )
    if isinstance(given, (runtime.Tensor, np.ndarray)):
        place: Place = given
    elif hasattr(given, "__dlpack__"):
        place = runtime.from_dlpack(given).numpy()  # type: ignore[arg-type]  # it has the method
    else:
        wanted = f"an array of {info.dtype} to write to"
        raise InputError(f"{what}: expected {wanted}, got {type(given).__name__}")
    dtype = str(place.dtype)
    if dtype != info.dtype:
        raise InputError(f"{what}: expected dtype {info.dtype}, got {dtype}")
    readonly = place.readonly if isinstance(place, runtime.Tensor) else not place.flags.writeable
    if readonly:
        raise InputError(f"{what}: expected an array that may be written, got a read-only one")
    fits = len(place.shape) == len(info.shape) and all(
        isinstance(d, str) or d == got for d, got in zip(info.shape, place.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{what}: expected shape {_show(info.shape)}, got {_show(place.shape)}")
    return place


def write_results(
    infos: Sequence[TensorInfo], result: object, places: Sequence[Place | None], out: object
) -> object:
    """Copy results to their places where they are not there yet; gives `out`. Raises InputError
    for another shape.
    """
    results = result if isinstance(result, tuple) and len(infos) > 1 else (result,)
    for info, made, place in zip(infos, results, places, strict=True):
        if place is None:
            continue
        source = cast(runtime.Tensor, made)
        if tuple(place.shape) != tuple(source.shape):
            wanted = f"expected shape {_show(source.shape)}, as it is of this run"
            raise InputError(f"out '{info.name}': {wanted}, got {_show(place.shape)}")
        written, given = place_array(place), source.numpy()
        if written.ctypes.data != given.ctypes.data or not written.flags.c_contiguous:
            np.copyto(written, given)
    return out


def place_array(place: Place) -> npt.NDArray[Any]:
    """A place as an array over its memory."""
    return place.numpy() if isinstance(place, runtime.Tensor) else place


def _show(shape: Sequence[object]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
