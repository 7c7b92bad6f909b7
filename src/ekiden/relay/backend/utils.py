"""Module name mangling, as in TVM."""

from __future__ import annotations

from ekiden.runtime.errors import InputError
from ekiden.runtime.name_transforms import sanitize_name


def mangle_module_name(name: str | None) -> str:
    """Return the mangled prefix of a module's functions, such as `tvmgen_default` (`tvmgen` without
    a name).

    Raises:
        InputError: The name has characters that are not ASCII.
    """
    if not name:
        return "tvmgen"
    if not name.isascii():
        raise InputError(f"module name: expected ASCII, got {name!r}")
    return f"tvmgen_{sanitize_name(name)}"


__all__ = ["mangle_module_name"]
