"""Numbers of a configuration, which may hold anything: by their keys, within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ekiden.runtime.errors import ImportModelError

__all__ = ["real", "size", "whole"]

MOST = 1 << 24
"""Of any size: ten million positions are the most that a model was said to have."""


def size(config: Mapping[str, Any], key: str) -> int:
    """A size, which must be there. Raises ImportModelError."""
    value = config.get(key)
    if type(value) is not int or value <= 0:
        raise ImportModelError(f"config: '{key}': a positive number expected, got {value!r}")
    return whole(config, key, value)


def whole(config: Mapping[str, Any], key: str, default: int, least: int = 0) -> int:
    """A whole number; `default` where there is none, or 0. Raises ImportModelError."""
    value = config.get(key) or default
    if type(value) is not int or not least <= value <= MOST:
        raise ImportModelError(
            f"config: '{key}': a whole number from {least} to {MOST} expected, got {value!r}"
        )
    return value


def real(config: Mapping[str, Any], key: str, default: float, least: float = 0.0) -> float:
    """A finite number; `default` where there is none. Raises ImportModelError."""
    value = config.get(key)
    value = default if value is None else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (math.isfinite(value) and value >= least):
        raise ImportModelError(
            f"config: '{key}': a number of at least {least:g} expected, got {value!r}"
        )
    return float(value)
