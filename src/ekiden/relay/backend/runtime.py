"""`Runtime`, under TVM's module name."""

from ekiden.relay.backend.executor_options import Runtime

__all__ = ["Runtime"]
