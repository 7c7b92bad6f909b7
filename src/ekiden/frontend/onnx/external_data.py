"""External data of ONNX models: weight files, their declared byte ranges, and their safe opening.

    external_data {location: "weights.bin", offset: "4096", length: "1048576"}
      ->  external_location(tensor) == ("weights.bin", 4096, 1048576)

A model may come from an untrusted source, and must not make a reader open files elsewhere: the
package onnx refuses symbolic links, hard links and paths that leave the model's folder, and so does
`open_beneath`. What neither function accepts is left to that package, whose errors name the fault.
"""

from __future__ import annotations

import math
import os
import stat
import sys

from ekiden.frontend.onnx.dtype import BYTEWISE_TYPES
from ekiden.frontend.onnx.lazy_onnx import onnx

_LOCATION_KEYS = {"location", "offset", "length", "checksum", "basepath"}
"""Those of the format; the last two say nothing about where bytes are."""
_FOLDER_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe is opened without somebody at its other end, and refused."""


def external_location(tensor: onnx.TensorProto) -> tuple[str, int, int] | None:
    """Return (location, offset, length in bytes) of a tensor's external data; None if it cannot be
    mapped in place. The length follows from the shape and the element type where the model states
    none. None also for element types that are not stored as plain bytes, for unknown keys and for
    malformed numbers.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    is_known = entries.keys() <= _LOCATION_KEYS and len(entries) == len(tensor.external_data)
    # ONNX stores raw data in little-endian order; the bytes can be used in place on such hosts
    # only.
    if sys.byteorder != "little" or tensor.data_type not in BYTEWISE_TYPES or not is_known:
        return None
    begin, length = entries.get("offset", "0"), entries.get("length")
    if not _is_size(begin) or (length is not None and not _is_size(length)):
        return None
    count = tensor_nbytes(tensor) if length is None else int(length)
    return (entries.get("location", ""), int(begin), count) if count >= 0 else None


_PROTO = onnx.TensorProto
_ELEMENT_BITS = {
    _PROTO.INT4: 4, _PROTO.UINT4: 4, _PROTO.FLOAT4E2M1: 4, _PROTO.INT2: 2, _PROTO.UINT2: 2,
    _PROTO.BFLOAT16: 16, _PROTO.COMPLEX64: 64, _PROTO.COMPLEX128: 128,
}  # fmt: skip
"""Bits of elements that are not in PLAIN, unless they are bytes."""


def tensor_nbytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's elements in bytes; elements of 2 and 4 bits are packed."""
    plain = BYTEWISE_TYPES.get(tensor.data_type)
    bits = _ELEMENT_BITS.get(tensor.data_type, 8) if plain is None else 8 * plain[0]().itemsize
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _is_size(text: str) -> bool:
    # isdigit alone also accepts the digits of other scripts.
    """Return whether a text is a non-negative decimal number below 10**19."""
    return text.isascii() and text.isdigit() and len(text) < 20


def open_beneath(folder: str, location: str) -> int | None:
    """Open a regular file below a folder, component by component, and return its descriptor, which
    the caller owns. None if a component is a link, for what is not a regular file with a single
    hard link, and for what cannot be opened.
    """
    *folders, name = location.split("/")
    if location.startswith("/") or ".." in folders or name in ("", ".", ".."):
        return None
    try:
        # openat with O_NOFOLLOW per component: a check of the whole path beforehand would race with
        # renames.
        descriptor = os.open(folder, _FOLDER_OPEN_FLAGS)
        for subfolder in folders:
            descriptor = _open_at(
                descriptor, subfolder or os.curdir, _FOLDER_OPEN_FLAGS | os.O_NOFOLLOW
            )
        handle = _open_at(descriptor, name, _FILE_OPEN_FLAGS)
    except (OSError, ValueError):  # ValueError: a zero byte in a name
        return None
    status = os.fstat(handle)
    # A second hard link could let a model read a file that lies outside of its folder.
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return handle
    os.close(handle)
    return None


def _open_at(folder: int, name: str, flags: int) -> int:
    """Open a name relative to a folder's descriptor, which is closed."""
    try:
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)


__all__ = ["external_location", "open_beneath"]
