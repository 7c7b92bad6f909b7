"""Where TVM has the global functions `relay._transform.NAME` as names of a module."""

from __future__ import annotations

from ekiden.runtime import get_global_func


def __getattr__(name: str) -> object:
    """A global function. Raises AttributeError where there is none."""
    found = get_global_func(f"relay._transform.{name}", True)
    if found is None:
        raise AttributeError(f"no global function is named 'relay._transform.{name}'")
    return found
