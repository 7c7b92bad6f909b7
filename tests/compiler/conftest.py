"""The compiled model that tests of the compiler share."""

from onnx_files import artifact

__all__ = ["artifact"]
