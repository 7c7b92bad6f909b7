"""Serialized machine code of a candidate: the image of the host's part, then kernels of a
device.
"""

from __future__ import annotations

import struct

from ekiden.runtime import Module, load_device_code, load_image

_IMAGE_LENGTH_STRUCT = struct.Struct("<Q")


def pack_code(image: bytes, kernels: bytes) -> bytes:
    """Pack an image and its device kernels, which may be empty, into one byte string."""
    return _IMAGE_LENGTH_STRUCT.pack(len(image)) + image + kernels


def load_candidate_code(code: bytes) -> Module:
    """Load a module from the output of `pack_code`. Raises LoadError, DeviceError."""
    (length,) = _IMAGE_LENGTH_STRUCT.unpack_from(code)
    end = _IMAGE_LENGTH_STRUCT.size + length
    module = load_image(code[_IMAGE_LENGTH_STRUCT.size : end])
    if kernels := code[end:]:
        module.import_module(load_device_code(kernels))
    return module
