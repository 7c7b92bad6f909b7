"""Where TVM has `relay.vm`, which stands on a higher floor and is loaded when it is first used."""

from ekiden._lazy import load_module


def __getattr__(name: str) -> object:
    """A name of `ekiden.compiler.faces.relay_vm`."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load_module("ekiden.compiler.faces.relay_vm"), name)
