"""The places where TVM keeps what runs Relay; the interpreter is `ekiden.relay.interpreter`."""

from ekiden.relay.backend import interpreter, name_transforms, te_compiler, utils, vm
from ekiden.relay.backend.choices import Executor, Runtime

__all__ = [
    "Executor",
    "Runtime",
    "interpreter",
    "name_transforms",
    "te_compiler",
    "utils",
    "vm",
]
