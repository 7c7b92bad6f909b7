"""Entry point of the TensorFlow frontend (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.tensorflow.importer import import_tensorflow


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a path, bytes or a TensorFlow object; the options `shape` and `signature` are
    honoured.
    """
    return import_tensorflow(model, options.shape, options.signature)
