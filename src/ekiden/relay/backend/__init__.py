"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from ekiden.relay.backend import interpreter, vm
from ekiden.relay.backend.choices import Executor, Runtime

__all__ = ["Executor", "Runtime", "interpreter", "vm"]
