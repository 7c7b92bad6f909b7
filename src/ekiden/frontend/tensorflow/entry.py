"""TensorFlow's entry in the table of frontends (see ekiden.frontend.table.Entry)."""

from __future__ import annotations

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.tensorflow.importer import import_tensorflow


def import_model(model: object, options: ImportOptions) -> ImportedModule:
    """Import a path, bytes or a TensorFlow object; it reads the options `shape` and `signature`."""
    return import_tensorflow(model, options.shape, options.signature)
