"""`from_tflite` and `OperatorConverter`, at TVM's place (see ekiden.relay.frontend)."""

from ekiden._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    {"ekiden.frontend.relay": "from_tflite", "ekiden.frontend.tflite.relay": "OperatorConverter"},
)
