"""TVM's module of `from_onnx` (see ekiden.relay.frontend)."""

from ekiden.runtime.late import names_from

__getattr__ = names_from(__name__, {"from_onnx": "ekiden.frontend.relay"}, {})
