"""The face of Ekiden: compile a model, load an artifact, run it."""

from importlib import import_module
from typing import TYPE_CHECKING

from ekiden.driver.executable import Executable, load
from ekiden.runtime.metadata import TensorInfo

if TYPE_CHECKING:
    from ekiden.driver.compiler import compile

__all__ = ["Executable", "TensorInfo", "compile", "load"]


def __getattr__(name: str) -> object:
    """`compile` brings the whole compiler, so it is imported when first asked for."""
    if name != "compile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = import_module("ekiden.driver.compiler").compile
    globals()[name] = found
    return found
