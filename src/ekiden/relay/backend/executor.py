"""`Executor`, at TVM's place."""

from ekiden.relay.backend.choices import Executor

__all__ = ["Executor"]
