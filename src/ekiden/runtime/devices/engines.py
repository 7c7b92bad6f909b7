"""Third-party engines that run regions of a program: an artifact's requirements, and loading.

An artifact names the engine of each such region and has the region's code, bytes that the engine's
side made. When the region is linked, the global function ek.external.<engine> makes a kernel of
these bytes; without one the runtime opens the library libekiden_<engine>.so, as it does in programs
without Python (section 9 of runtime.h).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from ekiden._lazy import LazyModule
from ekiden.runtime.artifact import external_region
from ekiden.runtime.binding._core import get_global_func, register_func
from ekiden.runtime.errors import EkidenError, LoadError, RunError

if TYPE_CHECKING:
    import base64
    import pathlib
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


def read_region(symbol: str, metadata: str) -> str:
    """Return the code of a region from an artifact's metadata."""
    code: str = json.loads(metadata)["external"][symbol][1]
    return code


def wrap_region(engine: str, symbol: str, kernel: object) -> Callable[..., None]:
    """Wrap a region's function: errors of other classes become RunErrors that name engine and
    region. Raises LoadError where `kernel` cannot be called.
    """
    if not callable(kernel):
        what = f"it gave a {type(kernel).__name__} of what runs a region"
        raise LoadError(f"load '{symbol}': engine '{engine}': {what}")

    def run_region(*tensors: object) -> None:
        """Run the region; raise RunError with the engine's name for what is not ours."""
        try:
            kernel(*tensors)
        except EkidenError:
            raise
        except Exception as error:  # of code that is not ours
            what = f"{type(error).__name__}: {error}"
            raise RunError(f"run '{symbol}': engine '{engine}': {what}") from error

    return run_region


def register_loader(engine: str, load: RegionLoader, *, is_foreign: bool = False) -> None:
    """Register the loader of an engine's regions; errors of what it loads name the engine where it
    `is_foreign`, the user's own.
    """

    def load_from_metadata(symbol: str, metadata: str) -> Callable[..., None]:
        """Load the region; raise LoadError with the engine's name for what is not ours."""
        try:
            kernel = load(symbol, base64.b64decode(read_region(symbol, metadata)))
        except EkidenError:
            raise
        except Exception as error:  # of code that is not ours
            what = f"{type(error).__name__}: {error}"
            raise LoadError(f"load '{symbol}': engine '{engine}': {what}") from error
        return wrap_region(engine, symbol, kernel) if is_foreign else kernel

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
