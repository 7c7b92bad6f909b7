"""`Executor`, under TVM's module name."""

from ekiden.relay.backend.executor_options import Executor

__all__ = ["Executor"]
