"""TVM's `driver` package: compile a model, load an artifact, run it. Ekiden's own code is in
`ekiden.compiler` and `ekiden.runtime.executable`.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.runtime.artifact.metadata import TensorInfo
from ekiden.runtime.compiler_import import compiler_module
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.executable.loading import load

if TYPE_CHECKING:
    from ekiden.compiler.compile import compile, export
    from ekiden.compiler.quantize import quantize
    from ekiden.compiler.verify import verify

__all__ = ["Executable", "TensorInfo", "compile", "export", "load", "quantize", "verify"]

_DEFINING_MODULES = {
    "compile": "ekiden.compiler.compile",
    "export": "ekiden.compiler.compile",
    "quantize": "ekiden.compiler.quantize",
    "verify": "ekiden.compiler.verify",
}


def __getattr__(name: str) -> object:
    """Load a name that needs the compiler, or TVM's `build_module` and `tvmc`, on first use."""
    if name in ("build_module", "tvmc"):
        return compiler_module(f"ekiden.driver.{name}", f"ekiden.driver.{name}")
    if name not in _DEFINING_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(compiler_module(_DEFINING_MODULES[name], f"ekiden.{name}"), name)
    globals()[name] = value
    return value
