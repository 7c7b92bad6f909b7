"""Where TVM has `Executor`."""

from ekiden.relay.backend.choices import Executor

__all__ = ["Executor"]
