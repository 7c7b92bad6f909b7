"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from ekiden.relay.backend import interpreter, vm

__all__ = ["interpreter", "vm"]
