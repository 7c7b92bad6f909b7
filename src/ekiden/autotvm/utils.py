"""Formatting of numbers with SI prefixes for progress output."""

from __future__ import annotations

from ekiden.runtime.errors import InputError

__all__ = ["SI_PREFIXES", "format_si_prefix"]

SI_PREFIXES = "yzafpn\xb5m kMGTPEZY"


def format_si_prefix(x: float, si_prefix: str) -> float:
    """Scale a number to an SI prefix. Raises InputError for an unknown prefix."""
    position = SI_PREFIXES.find(si_prefix) if len(si_prefix) == 1 else -1
    if position < 0 and si_prefix:
        raise InputError(f"format_si_prefix: one of {SI_PREFIXES} expected, got {si_prefix!r}")
    exponent = 3 * (position - SI_PREFIXES.index(" ")) if si_prefix else 0
    return float(x / 10.0**exponent)
