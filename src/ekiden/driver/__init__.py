"""The face of Ekiden: compile a model, load an artifact, run it."""

from importlib import import_module
from typing import TYPE_CHECKING

from ekiden.driver.executable import Executable
from ekiden.driver.loading import load
from ekiden.runtime.metadata import TensorInfo

if TYPE_CHECKING:
    from ekiden.driver.compiler import compile, export

__all__ = ["Executable", "TensorInfo", "compile", "export", "load"]


def __getattr__(name: str) -> object:
    """What brings the compiler is imported when first asked for."""
    if name not in ("compile", "export"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module("ekiden.driver.compiler"), name)
    globals()[name] = found
    return found
