"""`Executor`, under TVM's module name."""

from ekiden.relay.backend.choices import Executor

__all__ = ["Executor"]
