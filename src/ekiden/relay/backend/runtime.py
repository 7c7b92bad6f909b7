"""`Runtime`, under TVM's module name."""

from ekiden.relay.backend.choices import Runtime

__all__ = ["Runtime"]
