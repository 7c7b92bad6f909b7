"""Where TVM has its compiler of single functions, which stands on a higher floor and is loaded when
it is first used.
"""

from importlib import import_module


def __getattr__(name: str) -> object:
    """A name of `ekiden.driver.te_compiler`."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ekiden.driver.te_compiler"), name)
