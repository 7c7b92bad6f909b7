"""TVM's place for importers: `relay.frontend.from_onnx`, and the modules that its programs import
them from (`relay.frontend.onnx`). They stand on a higher floor, in ekiden.frontend.relay, and are
loaded when one is used.
"""

from ekiden.runtime.late import names_from

__all__ = [
    "from_jax", "from_keras", "from_onnx", "from_pytorch", "from_tensorflow", "from_tflite",
]  # fmt: skip

__getattr__ = names_from(
    __name__,
    dict.fromkeys(__all__, "ekiden.frontend.relay"),
    {
        name: name
        for name in ("common", "keras", "onnx", "pytorch", "tensorflow", "tensorflow2", "tflite")
    },
)
