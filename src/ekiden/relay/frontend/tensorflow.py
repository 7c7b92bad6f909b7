"""TVM's module of `from_tensorflow` (see ekiden.relay.frontend)."""

from ekiden._lazy import attach

__getattr__, __dir__ = attach(__name__, {"ekiden.frontend.relay": "from_tensorflow"})
