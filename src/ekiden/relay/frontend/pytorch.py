"""TVM's module of `from_pytorch` (see ekiden.relay.frontend)."""

from ekiden.runtime.late import names_from

__getattr__ = names_from(__name__, {"from_pytorch": "ekiden.frontend.relay"}, {})
