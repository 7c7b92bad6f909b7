"""`relay.frontend`: importers with TVM's signatures, which return a module and its parameters.

Each is imported on first use.
"""

from typing import TYPE_CHECKING

from ekiden.frontend.table import FRONTENDS

if TYPE_CHECKING:
    from ekiden.frontend.jax.relay import from_jax
    from ekiden.frontend.onnx.relay import from_onnx
    from ekiden.frontend.tensorflow.relay import from_keras, from_tensorflow
    from ekiden.frontend.tflite.relay import from_tflite
    from ekiden.frontend.torch.relay import from_pytorch

_FRONTEND_BY_FUNCTION = {name: row for row in FRONTENDS for name in row.relay}

__all__ = [
    "from_jax", "from_keras", "from_onnx", "from_pytorch", "from_tensorflow", "from_tflite",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a frontend's importer on first use; raise ImportModelError for a missing package."""
    if name not in _FRONTEND_BY_FUNCTION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importer: object = getattr(_FRONTEND_BY_FUNCTION[name].module("relay"), name)
    globals()[name] = importer
    return importer
