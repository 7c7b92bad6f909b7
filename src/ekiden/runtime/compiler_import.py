"""Access from the runtime to the compiler, which a deployment may lack.

The package `ekiden` has both; `ekiden-runtime` has the files that the table `ekiden-runtime` of
pyproject.toml names, and no other.
"""

from __future__ import annotations

from types import ModuleType

from ekiden._lazy import load_module
from ekiden.runtime.errors import MissingCompilerError

__all__ = ["compiler_module"]


def compiler_module(name: str, doing: str) -> ModuleType:
    """Import a compiler module. Raises MissingCompilerError, which begins with `doing`, if only the
    deployment package is installed. A missing module of another package is a
    ModuleNotFoundError.
    """
    try:
        return load_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise
    raise MissingCompilerError(
        f"{doing}: the compiler is needed, and only ekiden-runtime is installed, which runs"
        " compiled models; pip uninstall ekiden-runtime, then pip install ekiden"
    )
