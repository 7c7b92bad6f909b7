"""Third-party engines that run regions of a program: an artifact's requirements, and loading.

An artifact names the engine of each such region and has the region's code, bytes that the engine's
side made. When the region is linked, the global function ek.external.<engine> makes a kernel of
these bytes; without one the runtime opens the library libekiden_<engine>.so, as it does in programs
without Python (section 9 of runtime.h).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime.artifact import external_region
from ekiden.runtime.binding._core import get_global_func, register_func
from ekiden.runtime.errors import EkidenError, LoadError, RunError

if TYPE_CHECKING:
    import base64
    import pathlib

    from numpy.typing import NDArray

    from ekiden.runtime.binding._core import Tensor
else:
    base64 = LazyModule("base64")
    pathlib = LazyModule("pathlib")

__all__ = [
    "ENGINE_FOLDERS",
    "encode_code",
    "engine_folder",
    "load_region",
    "missing_engine_message",
    "read_region",
    "register_loader",
    "wrap_region",
]  # fmt: skip

RegionLoader = Callable[[str, bytes], Callable[..., None]]
"""Function (region name, code) -> function that runs the region on its inputs followed by its
output tensors."""


def _package_folder(package: str, folder: str) -> str:
    """Return a folder of an installed package without importing it; "" if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    return str(pathlib.Path(spec.origin).parent / folder)


def _environment_folder(library: str) -> str:
    """Return the library folder of this Python's environment, or of another one on its path, that
    has a C library; "" if none has it.
    """
    sites = [pathlib.Path(path) for path in sys.path if path.endswith("site-packages")]
    for folder in (pathlib.Path(sys.prefix) / "lib", *(site.parent.parent for site in sites)):
        if (folder / library).exists():
            return str(folder)
    return ""


ENGINE_FOLDERS: dict[str, Callable[[], str]] = {
    "onednn": partial(_environment_folder, "libdnnl.so.3"),
    "onnxruntime": partial(_package_folder, "onnxruntime", "capi"),
    "openvino": partial(_package_folder, "openvino", "libs"),
}
"""Library folder of each supported engine's Python package, "" if it is not installed, by the
engine's name in artifacts. The runtime also searches EKIDEN_ENGINES and the system's library
path."""


def engine_folder(engine: str) -> str:
    """Return the folder of an engine's library, which EKIDEN_ENGINES sets for C programs; "" if no
    installed package has it.
    """
    return ENGINE_FOLDERS[engine]() if engine in ENGINE_FOLDERS else ""


def encode_code(code: bytes) -> str:
    """Encode code as text for an artifact's metadata."""
    return base64.b64encode(code).decode()


class StoredRegion(NamedTuple):
    """Region of another engine as an artifact's metadata has it."""

    code: str
    num_outputs: int
    """Tensors that it writes; 0 for the engines that Ekiden has libraries for, which are not
    checked.
    """


def read_region(symbol: str, metadata: str) -> StoredRegion:
    """Return a region from an artifact's metadata."""
    _, code, *num_outputs = json.loads(metadata)["external"][symbol]
    return StoredRegion(code, *num_outputs or (0,))


def wrap_region(
    engine: str, symbol: str, kernel: object, num_outputs: int = 0
) -> Callable[..., None]:
    """Wrap a region's function: errors of other classes become RunErrors that name engine and
    region, and an output of which it leaves elements unwritten is one. The first call at each set
    of shapes checks all elements, since what an engine writes depends on them; later ones sample.

    Args:
        engine: Name of the engine.
        symbol: Name of the region.
        kernel: What the engine runs the region with, called with inputs, then outputs.
        num_outputs: How many of its last arguments it writes.

    Raises LoadError where `kernel` cannot be called.
    """
    if not callable(kernel):
        what = f"it gave a {type(kernel).__name__} of what runs a region"
        raise LoadError(f"load '{symbol}': engine '{engine}': {what}")

    checked_shapes: set[tuple[tuple[int, ...], ...]] = set()

    def run_region(*tensors: object) -> None:
        """Run the region; raise RunError with the engine's name for what is not ours."""
        outputs = cast("Sequence[Tensor]", tensors[len(tensors) - num_outputs :])
        shapes = tuple(tuple(t.shape) for t in cast("Sequence[Tensor]", tensors))
        is_sampled = shapes in checked_shapes
        elements = [_element_bytes(output, is_sampled=is_sampled) for output in outputs]
        try:
            unwritten = _unwritten_elements(kernel, tensors, elements)
        except EkidenError:
            raise
        except Exception as error:  # of code that is not ours
            what = f"{type(error).__name__}: {error}"
            raise RunError(f"run '{symbol}': engine '{engine}': {what}") from error
        for index, (output, left) in enumerate(zip(outputs, unwritten, strict=True)):
            if left.any():
                what = _unwritten_message(index, output, left)
                raise RunError(f"run '{symbol}': engine '{engine}': {what}")
        if len(checked_shapes) < MAX_CHECKED_SHAPES:
            checked_shapes.add(shapes)

    return run_region


OUTPUT_PATTERNS = (0xA5, 0x5A, 0x3C, 0xC3)
"""Bytes that outputs of foreign engines begin with: memory that nothing has written is told by
them. A result may be one of them, so that a run over the next one decides; engines whose results
change from run to run need more than two."""
SAMPLED_ELEMENTS = 16
"""Elements of an output that later calls check, evenly spaced: a call costs microseconds, of
outputs of any size."""
MAX_CHECKED_SHAPES = 4096
"""Sets of shapes that are remembered as checked; beyond it each call of new shapes checks all."""


def _unwritten_elements(
    kernel: Callable[..., object],
    tensors: Sequence[object],
    elements: Sequence[NDArray[np.uint8]],
) -> list[NDArray[np.bool_]]:
    """Run a region over outputs that begin with a pattern, until each of their elements has been
    written; return which have not, given views of their bytes.
    """
    unwritten = [np.ones(len(of_output), np.bool_) for of_output in elements]
    for byte in OUTPUT_PATTERNS:
        for of_output in elements:
            of_output[...] = byte
        kernel(*tensors)
        for left, of_output in zip(unwritten, elements, strict=True):
            left &= (of_output == byte).all(axis=1)
        if not any(left.any() for left in unwritten):
            break
    return unwritten


def _element_bytes(tensor: Tensor, *, is_sampled: bool) -> NDArray[np.uint8]:
    """Return a view of the bytes of each element of a contiguous tensor on the host, or of some."""
    flat = tensor.numpy().reshape(-1)
    step = max(1, flat.size // SAMPLED_ELEMENTS) if is_sampled else 1
    width = flat.itemsize
    elements: NDArray[np.uint8] = flat.view(np.uint8).reshape(flat.size, width)
    return elements[::step]


def _unwritten_message(position: int, output: Tensor, unwritten: NDArray[np.bool_]) -> str:
    """Return what an engine has not written of an output."""
    shape = tuple(output.shape)
    name = f"its output {position}, a tensor {shape} of {output.dtype}"
    if unwritten.all():
        return f"it wrote nothing to {name}"
    if len(unwritten) < math.prod(shape):  # samples: how many elements there are is not known
        return f"it wrote only a part of {name}"
    first = tuple(map(int, np.unravel_index(int(unwritten.argmax()), shape)))
    return f"it left {int(unwritten.sum())} elements of {name}, unwritten, the first at {first}"


def register_loader(engine: str, load: RegionLoader, *, is_foreign: bool = False) -> None:
    """Register the loader of an engine's regions; what it loads is checked at each call where the
    engine `is_foreign`, the user's own.
    """

    def load_from_metadata(symbol: str, metadata: str) -> Callable[..., None]:
        """Load the region; raise LoadError with the engine's name for what is not ours."""
        try:
            region = read_region(symbol, metadata)
            kernel = load(symbol, base64.b64decode(region.code))
        except EkidenError:
            raise
        except Exception as error:  # of code that is not ours
            what = f"{type(error).__name__}: {error}"
            raise LoadError(f"load '{symbol}': engine '{engine}': {what}") from error
        return wrap_region(engine, symbol, kernel, region.num_outputs) if is_foreign else kernel

    register_func(f"ek.external.{engine}", load_from_metadata, override=True)


def missing_engine_message(engine: str) -> str:
    """Return why an engine is unavailable, with what installs it; empty where it is here, or is
    none of the table.
    """
    if engine not in ENGINE_FOLDERS:
        return ""
    try:
        get_global_func("ek.engine.open")(engine, engine_folder(engine))
    except LoadError as error:
        return str(error)
    return ""


def load_region(engine: str, symbol: str, code: bytes) -> Callable[..., None]:
    """Load a region by an engine's native library. Raises LoadError if the engine is missing, with
    what installs it, or rejects the code.
    """
    kernel = get_global_func("ek.engine.load")(engine, engine_folder(engine), symbol, code)
    return cast("Callable[..., None]", kernel)


for _name in ENGINE_FOLDERS:
    register_loader(_name, partial(load_region, _name))
register_loader("ccompiler", external_region.load_region)
