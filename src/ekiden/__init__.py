"""Ekiden compiles deep-learning models to native code and runs them.

    exe = ekiden.compile("model.onnx")
    y = exe(x)

Names are loaded when they are first used, so that `import ekiden` takes no time and a program that
only runs compiled models never loads the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekiden.codegen.build import build
    from ekiden.driver import Executable, compile, load
    from ekiden.ir.module import IRModule
    from ekiden.runtime import Tensor, VirtualMachine, from_dlpack, tensor
    from ekiden.runtime.errors import (
        CompileError,
        EkidenError,
        ImportModelError,
        InputError,
        InternalError,
        LoadError,
        ParseError,
        RunError,
        ScheduleError,
        TypeInferenceError,
        UnsupportedError,
    )

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "EkidenError",
    "Executable",
    "IRModule",
    "ImportModelError",
    "InputError",
    "InternalError",
    "LoadError",
    "ParseError",
    "RunError",
    "ScheduleError",
    "Tensor",
    "TypeInferenceError",
    "UnsupportedError",
    "VirtualMachine",
    "__version__",
    "build",
    "compile",
    "from_dlpack",
    "load",
    "tensor",
]

_ERRORS = "ekiden.runtime.errors"
_HOMES = {
    "build": "ekiden.codegen.build",
    "compile": "ekiden.driver",
    "load": "ekiden.driver",
    "Executable": "ekiden.driver",
    "IRModule": "ekiden.ir.module",
    "Tensor": "ekiden.runtime",
    "VirtualMachine": "ekiden.runtime",
    "from_dlpack": "ekiden.runtime",
    "tensor": "ekiden.runtime",
}
_FOLDERS = frozenset(
    "arith backend codegen driver error frontend ir parser relay runtime script target te testing tir"
    " topi transform".split()
)


def __getattr__(name: str) -> object:
    """Load a public name or a folder of the package when it is first used."""
    if name in _FOLDERS:
        return import_module(f"ekiden.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'ekiden' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, _ERRORS)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names and the folders."""
    return sorted(_FOLDERS.union(__all__))
