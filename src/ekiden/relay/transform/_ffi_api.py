"""Global functions `relay._transform.NAME` as module attributes, as in TVM."""

from __future__ import annotations

from ekiden.runtime import get_global_func


def __getattr__(name: str) -> object:
    """Return the global function `relay._transform.NAME` as an attribute of this module. Raises
    AttributeError where there is none.
    """
    function = get_global_func(f"relay._transform.{name}", True)
    if function is None:
        raise AttributeError(f"no global function is named 'relay._transform.{name}'")
    return function
