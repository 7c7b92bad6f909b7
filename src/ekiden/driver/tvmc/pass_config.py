"""Options of passes on the command line."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence

from ekiden.ir.pass_context import ADDED_PASSES_OPTION, PassContext
from ekiden.runtime.errors import InputError

__all__ = ["parse_configs"]

LOWER_PASSES_MODULE = "tir.transform."
"""Prefix of passes of Ekiden in `tir.add_lower_pass`; other names are paths of Python functions."""


def parse_configs(input_configs: Sequence[str] | Mapping[str, object] | None) -> dict[str, object]:
    """Parse options of passes of the form "name=value". `tir.add_lower_pass=PHASE,PASS,...` may
    come several times; its passes are `tir.transform.NAME` or paths of Python functions.

    Raises:
        InputError: Another form, an unknown option, or a value of another type.
        ModuleNotFoundError: The module of an added pass does not exist.
    """
    if input_configs is None or isinstance(input_configs, Mapping):
        return dict(input_configs or {})
    config_types = PassContext.list_configs()
    values: dict[str, object] = {}
    added: list[tuple[int, object]] = []
    for text in input_configs:
        name, _, value = text.partition("=")
        if not name or not value:
            raise InputError(f"tvmc: --pass-config: name=value expected, got '{text}'")
        if name not in config_types:
            raise InputError(f"tvmc: --pass-config: no option is called '{name}'")
        if name == ADDED_PASSES_OPTION:
            added += _parse_added_passes(value)
            values[name] = added
        else:
            values[name] = _parse_value(value, str(config_types[name]["type"]))
    return values


def _parse_value(text: str, kind: str) -> object:
    if kind == "bool":
        if text.lower() not in ("true", "false", "0", "1"):
            raise InputError(f"tvmc: --pass-config: true or false expected, got '{text}'")
        return text.lower() in ("true", "1")
    if kind == "str":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(
            f"tvmc: --pass-config: a value of type {kind} expected, got '{text}'"
        ) from None


def _parse_added_passes(text: str) -> list[tuple[int, object]]:
    """Parse "PHASE,PASS,PHASE,PASS"."""
    words = text.split(",")
    if len(words) % 2 or not all(phase.isdigit() for phase in words[::2]):
        raise InputError(
            f"tvmc: --pass-config: {ADDED_PASSES_OPTION}=PHASE,PASS,... expected, got '{text}'"
        )
    return [(int(words[n]), _find_pass(words[n + 1])) for n in range(0, len(words), 2)]


def _find_pass(path: str) -> object:
    """Return the pass of a path: a factory of Ekiden is called, a program's own pass is not."""
    is_own = path.startswith(LOWER_PASSES_MODULE)
    module, _, name = (f"ekiden.{path}" if is_own else path).rpartition(".")
    pass_object = getattr(importlib.import_module(module), name, None) if module else None
    if pass_object is None:
        raise InputError(f"tvmc: --pass-config: no pass is called '{path}'")
    return pass_object() if is_own else pass_object
