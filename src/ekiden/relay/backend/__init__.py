"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from ekiden.relay.backend import interpreter

__all__ = ["interpreter"]
