"""The compiled model that tests of the command line share."""

from onnx_files import artifact

__all__ = ["artifact"]
