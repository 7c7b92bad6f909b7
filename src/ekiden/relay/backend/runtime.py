"""Where TVM has `Runtime`."""

from ekiden.relay.backend.choices import Runtime

__all__ = ["Runtime"]
