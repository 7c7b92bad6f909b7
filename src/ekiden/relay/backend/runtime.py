"""`Runtime`, at TVM's place."""

from ekiden.relay.backend.choices import Runtime

__all__ = ["Runtime"]
