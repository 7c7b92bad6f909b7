"""TVM's entry points for compiling and running Relay, on top of the compiler. The modules that need
the compiler are loaded when first used.
"""

from ekiden._lazy import attach
from ekiden.relay.backend import interpreter, name_transforms, utils
from ekiden.relay.backend.executor_options import Executor, Runtime

__all__ = [
    "Executor",
    "Runtime",
    "interpreter",
    "name_transforms",
    "te_compiler",
    "utils",
    "vm",
]

__getattr__, __dir__ = attach(
    __name__, {"": "te_compiler:ekiden.relay.backend.te_compiler vm:ekiden.relay.backend.vm"}
)
