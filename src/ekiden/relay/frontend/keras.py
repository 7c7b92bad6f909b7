"""`from_keras`, under TVM's module name (see ekiden.relay.frontend)."""

from ekiden._lazy import attach

__getattr__, __dir__ = attach(__name__, {"ekiden.frontend.relay": "from_keras"})
