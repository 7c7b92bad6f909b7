"""Importers with TVM's signatures, which return a module and its parameters (`relay.frontend`).

Each is imported on first use.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ekiden.frontend.registry import FRONTENDS
from ekiden.runtime.errors import UnsupportedError

if TYPE_CHECKING:
    from ekiden.frontend.jax.relay import from_jax
    from ekiden.frontend.onnx.relay import from_onnx
    from ekiden.frontend.tensorflow.relay import from_keras, from_tensorflow
    from ekiden.frontend.tflite.relay import from_tflite
    from ekiden.frontend.torch.relay import from_pytorch

_EXPORTERS = {
    "from_caffe": ("Caffe", "convert it by the package caffe2onnx"),
    "from_caffe2": ("Caffe2", "export it by caffe2.python.onnx.frontend"),
    "from_coreml": (
        "Core ML",
        "export the original model, or convert it by coremltools and onnxmltools",
    ),
    "from_darknet": ("Darknet", "convert it by a tool such as darknet2onnx"),
    "from_mxnet": ("MXNet", "export it by mxnet.onnx.export_model"),
    "from_oneflow": ("OneFlow", "export it by oneflow_onnx"),
    "from_paddle": ("PaddlePaddle", "export it by paddle.onnx.export"),
}
"""TVM's importers of frameworks that are not read here: framework, and how a model becomes ONNX."""

_FRONTEND_BY_FUNCTION = {name: row for row in FRONTENDS for name in row.relay_functions}

__all__ = ["from_jax", "from_keras", "from_onnx", "from_pytorch", "from_tensorflow", "from_tflite"]
__all__ += sorted(_EXPORTERS)


def __getattr__(name: str) -> object:
    """Import a frontend's importer on first use; raise ImportModelError for a missing package."""
    if name in _EXPORTERS:
        globals()[name] = refuse = _make_refusing_importer(name, *_EXPORTERS[name])
        return refuse
    if name not in _FRONTEND_BY_FUNCTION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importer: object = getattr(_FRONTEND_BY_FUNCTION[name].import_submodule("relay"), name)
    globals()[name] = importer
    return importer


def _make_refusing_importer(name: str, framework: str, way: str) -> Callable[..., NoReturn]:
    """Return a function that takes any arguments and raises UnsupportedError with the way to
    ONNX.
    """

    def refuse(*_: object, **__: object) -> NoReturn:
        text = f"{framework} models are read through ONNX: {way}, then relay.frontend.from_onnx"
        raise UnsupportedError(f"{name}: {text}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise UnsupportedError: {framework} models are read through ONNX."
    return refuse
