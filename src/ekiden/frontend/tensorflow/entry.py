"""What the table of frontends asks of TensorFlow (see ekiden.frontend.table.Entry)."""

from __future__ import annotations

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.tensorflow.importer import import_tensorflow


def import_model(model: object, options: ImportOptions) -> ImportedModule:
    """A path, bytes or an object of TensorFlow as a module. Options: `shape`, `signature`."""
    return import_tensorflow(model, options.shape, options.signature)
