"""The face of Ekiden: compile a model, load an artifact, run it."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
from ekiden.driver.executable import Executable
from ekiden.driver.loading import load
from ekiden.runtime.compiler import compiler_module
from ekiden.runtime.metadata import TensorInfo

if TYPE_CHECKING:
    from ekiden.driver.comparison import verify
    from ekiden.driver.compiler import compile, export
    from ekiden.driver.quantizing import quantize

__all__ = ["Executable", "TensorInfo", "compile", "export", "load", "quantize", "verify"]

_HOMES = {
    "compile": "ekiden.driver.compiler",
    "export": "ekiden.driver.compiler",
    "quantize": "ekiden.driver.quantizing",
    "verify": "ekiden.driver.comparison",
}


def __getattr__(name: str) -> object:
    """What brings the compiler is imported when first asked for; so is TVM's `build_module`."""
    if name == "build_module":
        return compiler_module("ekiden.driver.build_module", "ekiden.driver.build_module")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(compiler_module(_HOMES[name], f"ekiden.{name}"), name)
    globals()[name] = found
    return found
