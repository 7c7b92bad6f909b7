"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from importlib import import_module

from ekiden.relay.backend import interpreter


def __getattr__(name: str) -> object:
    """`vm` stands on a higher floor and is loaded when it is first used."""
    if name == "vm":
        return import_module("ekiden.driver.relay_vm")
    raise AttributeError(f"module 'ekiden.relay.backend' has no attribute {name!r}")


__all__ = ["interpreter"]
