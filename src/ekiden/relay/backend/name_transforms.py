"""TVM's public helpers for C identifiers, for user scripts; Ekiden's own code does not call them.

    to_c_function_style(prefix_generated_name(["model", "run"]))   ->   TVMGenModelRun

All raise InputError for an empty name; those that convert a name, for one without the prefix `TVM`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.runtime.errors import InputError


def to_c_function_style(original_name: str) -> str:
    """Convert `TVM_woof_moo` to `TVMWoofMoo`."""
    first, *words = _split_words("Function", original_name)
    return first + "".join(word[:1].upper() + word[1:] for word in words)


def to_c_variable_style(original_name: str) -> str:
    """Convert `TVM_Woof` to `tvm_woof`."""
    return "_".join(_split_words("Variable", original_name)).lower()


def to_c_constant_style(original_name: str) -> str:
    """Convert `TVM_Woof` to `TVM_WOOF`."""
    return "_".join(_split_words("Constant", original_name)).upper()


def prefix_name(names: str | Sequence[str]) -> str:
    """Prefix names with TVM: `woof` or `["woof", "moo"]` becomes `TVM_woof` or `TVM_woof_moo`."""
    return _join_with_prefix("TVM", names)


def prefix_generated_name(names: str | Sequence[str]) -> str:
    """Prefix names with TVMGen, such as `TVMGen_woof`."""
    return _join_with_prefix("TVMGen", names)


def _split_words(what: str, name: str) -> list[str]:
    if not name:
        raise InputError(f"{what} name is empty")
    if not name.startswith("TVM"):
        raise InputError(f"{what} not TVM prefixed: {name}")
    return name.split("_")


def _join_with_prefix(prefix: str, names: str | Sequence[str]) -> str:
    if names == "":
        raise InputError("Name is empty")
    segments = [names] if isinstance(names, str) else list(names)
    if not segments:
        raise InputError("Name segments empty")
    if "" in segments:
        raise InputError("Name segment is empty")
    return "_".join([prefix, *segments])


__all__ = [
    "prefix_generated_name",
    "prefix_name",
    "to_c_constant_style",
    "to_c_function_style",
    "to_c_variable_style",
]
