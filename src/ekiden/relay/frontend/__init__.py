"""TVM's importer entry points, `relay.frontend.from_onnx` and others. They are implemented in the
higher layer ekiden.frontend.relay, and loaded on first use.
"""

from ekiden._lazy import attach

__all__ = [
    "from_caffe", "from_caffe2", "from_coreml", "from_darknet", "from_jax", "from_keras",
    "from_mxnet", "from_oneflow", "from_onnx", "from_paddle", "from_pytorch", "from_tensorflow",
    "from_tflite",
]  # fmt: skip

__getattr__, __dir__ = attach(__name__, {"ekiden.frontend.relay": " ".join(__all__)})
