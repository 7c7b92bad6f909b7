"""Re-export of `export_model_library_format` at TVM's path."""

from ekiden.compiler.export.model_library import build_metadata, export_model_library_format

__all__ = ["build_metadata", "export_model_library_format"]
