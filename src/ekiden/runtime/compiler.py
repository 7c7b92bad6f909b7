"""The way from what runs programs to the compiler, which a deployment may be without.

The package `ekiden` has both; `ekiden-runtime` has the files that the table `ekiden-runtime` of
pyproject.toml names, and no other.
"""

from __future__ import annotations

from types import ModuleType

from ekiden._lazy import load_module
from ekiden.runtime.errors import MissingCompilerError

__all__ = ["compiler_module"]


def compiler_module(name: str, doing: str) -> ModuleType:
    """A module of Ekiden that is not in the deployment package.

    Raises MissingCompilerError, which begins with `doing`, where only that package is installed. A
    module of another package that is missing is a ModuleNotFoundError as ever.
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
