"""The code of a candidate as it travels: the image of the host's part, then kernels of a device."""

from __future__ import annotations

import struct

from ekiden.runtime import Module, load_device_code, load_image

_LENGTH = struct.Struct("<Q")


def joined(image: bytes, kernels: bytes) -> bytes:
    """One string of both; kernels may be empty."""
    return _LENGTH.pack(len(image)) + image + kernels


def load(code: bytes) -> Module:
    """The module of what `joined` gave. Raises LoadError, DeviceError."""
    (length,) = _LENGTH.unpack_from(code)
    end = _LENGTH.size + length
    module = load_image(code[_LENGTH.size : end])
    if kernels := code[end:]:
        module.import_module(load_device_code(kernels))
    return module
