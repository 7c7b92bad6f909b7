"""ONNX models: `from_onnx` makes an IRModule of a file, its bytes or a parsed model."""

from ekiden.frontend.onnx.importer import from_onnx

__all__ = ["from_onnx"]
