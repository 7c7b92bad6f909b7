"""Re-exports at TVM's path of `export_model_library_format`."""

from ekiden.compiler.export.model_library import export_model_library_format, metadata

__all__ = ["export_model_library_format", "metadata"]
