"""Entry point of the TensorFlow Lite frontend (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.tflite.importer import import_tflite


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a path or bytes as a module."""
    return import_tflite(model, options.shape, options.signature)
