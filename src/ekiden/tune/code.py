"""Serialized candidate code: the image of the host's part, then kernels of a device."""

from __future__ import annotations

import struct

from ekiden.runtime import Module, load_device_code, load_image

_LENGTH_HEADER = struct.Struct("<Q")


def pack_code(image: bytes, kernels: bytes) -> bytes:
    """Pack an image and its device kernels, which may be empty, into one byte string."""
    return _LENGTH_HEADER.pack(len(image)) + image + kernels


def load(code: bytes) -> Module:
    """Load a module from the output of `pack_code`. Raises LoadError, DeviceError."""
    (length,) = _LENGTH_HEADER.unpack_from(code)
    end = _LENGTH_HEADER.size + length
    module = load_image(code[_LENGTH_HEADER.size : end])
    if kernels := code[end:]:
        module.import_module(load_device_code(kernels))
    return module
