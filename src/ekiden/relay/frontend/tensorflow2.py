"""TVM's module of `from_tensorflow` (see ekiden.relay.frontend)."""

from ekiden.runtime.late import names_from

__getattr__ = names_from(__name__, {"from_tensorflow": "ekiden.frontend.relay"}, {})
