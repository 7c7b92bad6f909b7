"""TVM's module of `from_keras` (see ekiden.relay.frontend)."""

from ekiden.runtime.late import names_from

__getattr__ = names_from(__name__, {"from_keras": "ekiden.frontend.relay"}, {})
