"""Validation of numbers in an untrusted `config.json`: by their keys, within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ekiden.runtime.errors import ImportModelError

__all__ = ["read_float", "read_integer", "read_size"]

MAX_CONFIG_NUMBER = 1 << 24
"""Of any size: ten million positions are the most that a model was said to have."""


def read_size(config: Mapping[str, Any], key: str) -> int:
    """Return a required positive size. Raises ImportModelError."""
    value = config.get(key)
    if type(value) is not int or value <= 0:
        raise ImportModelError(f"config: '{key}': a positive number expected, got {value!r}")
    return read_integer(config, key, value)


def read_integer(config: Mapping[str, Any], key: str, default: int, minimum: int = 0) -> int:
    """Return an integer, or `default` if it is missing or 0. Raises ImportModelError."""
    value = config.get(key) or default
    if type(value) is not int or not minimum <= value <= MAX_CONFIG_NUMBER:
        raise ImportModelError(
            f"config: '{key}': a whole number from {minimum} to {MAX_CONFIG_NUMBER} expected, got "
            f"{value!r}"
        )
    return value


def read_float(config: Mapping[str, Any], key: str, default: float, minimum: float = 0.0) -> float:
    """Return a finite number, or `default` if it is missing. Raises ImportModelError."""
    value = config.get(key)
    value = default if value is None else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (math.isfinite(value) and value >= minimum):
        raise ImportModelError(
            f"config: '{key}': a number of at least {minimum:g} expected, got {value!r}"
        )
    return float(value)
