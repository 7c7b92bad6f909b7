"""Weights in files beside a model's: what the model says of them, and how such a file is opened.

    external_data {location: "weights.bin", offset: "4096", length: "1048576"}
      ->  place_of(tensor) == ("weights.bin", 4096, 1048576)

A model comes from anywhere, and must not make a reader open what lies elsewhere: the package onnx
refuses links, of both kinds, and paths that leave the model's folder, and so does `opened`. What
either of these does not take is left to that package, whose errors say what is wrong.
"""

from __future__ import annotations

import math
import os
import stat
import sys

from ekiden.frontend.onnx.dtype import PLAIN
from ekiden.frontend.onnx.messages import onnx

_KEYS = {"location", "offset", "length", "checksum", "basepath"}
"""Those of the format; the last two say nothing about where bytes are."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe is opened without somebody at its other end, and refused."""


def place_of(tensor: onnx.TensorProto) -> tuple[str, int, int] | None:
    """The location of a tensor's bytes, where they begin there, and how many there are: as many as
    its shape says where the model does not. None for a tensor whose elements are not its bytes, and
    for numbers that are none."""
    said = {each.key: each.value for each in tensor.external_data}
    is_known = said.keys() <= _KEYS and len(said) == len(tensor.external_data)
    if sys.byteorder != "little" or tensor.data_type not in PLAIN or not is_known:
        return None
    begin, length = said.get("offset", "0"), said.get("length")
    if not _is_size(begin) or (length is not None and not _is_size(length)):
        return None
    count = bytes_of(tensor) if length is None else int(length)
    return (said.get("location", ""), int(begin), count) if count >= 0 else None


_KIND = onnx.TensorProto
_BITS = {
    _KIND.INT4: 4, _KIND.UINT4: 4, _KIND.FLOAT4E2M1: 4, _KIND.INT2: 2, _KIND.UINT2: 2,
    _KIND.BFLOAT16: 16, _KIND.COMPLEX64: 64, _KIND.COMPLEX128: 128,
}  # fmt: skip
"""Bits of elements that are not in PLAIN, unless they are bytes."""


def bytes_of(tensor: onnx.TensorProto) -> int:
    """Return how many bytes the elements of a tensor take."""
    plain = PLAIN.get(tensor.data_type)
    bits = _BITS.get(tensor.data_type, 8) if plain is None else 8 * plain[0]().itemsize
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def opened(folder: str, location: str) -> int | None:
    """A file below a folder, opened step by step, so that no link leads elsewhere; None for what is
    no file with one name there, or cannot be opened."""
    *folders, name = location.split("/")
    if location.startswith("/") or ".." in folders or name in ("", ".", ".."):
        return None
    try:
        at = os.open(folder, _FOLDER)
        for each in folders:
            at = _inside(at, each or os.curdir, _FOLDER | os.O_NOFOLLOW)
        handle = _inside(at, name, _FILE)
    except (OSError, ValueError):  # ValueError: a zero byte in a name
        return None
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return handle
    os.close(handle)
    return None


def _inside(folder: int, name: str, flags: int) -> int:
    """What has a name in a folder, which is closed. Raises OSError."""
    try:
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)


__all__ = ["opened", "place_of"]
