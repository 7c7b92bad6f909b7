"""Parameters by name as bytes, in the form that TVM saves them in.

u64 magic   u64 0   u64 number of names   (u64 length, characters) per name
u64 number of arrays   one array per name (`ekiden.ir.nd_format`)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from ekiden.ir.nd_format import array_from_bytes, array_to_bytes
from ekiden.ir.op import Array
from ekiden.relay.expr import const
from ekiden.runtime.errors import LoadError

MAGIC = 0xF7E58D4F05049CB7


def save_param_dict(params: Mapping[str, object]) -> bytearray:
    """Arrays or tensors by name as bytes."""
    made = bytearray(struct.pack("<QQQ", MAGIC, 0, len(params)))
    for name in params:
        text = name.encode()
        made += struct.pack("<Q", len(text)) + text
    made += struct.pack("<Q", len(params))
    for value in params.values():
        made += array_to_bytes(const(value).data.numpy())  # type: ignore[attr-defined]
    return made


def load_param_dict(param_bytes: bytes | bytearray) -> dict[str, Array]:
    """The arrays by name that bytes hold. Raises LoadError for bytes of any other form."""
    data = bytes(param_bytes)
    try:
        magic, _, count = struct.unpack_from("<QQQ", data)
        if magic != MAGIC:
            raise LoadError(f"parameters: expected {MAGIC:#x} at the start, got {magic:#x}")
        names, at = _read_names(data, count)
        (arrays,) = struct.unpack_from("<Q", data, at)
        if arrays != count:
            raise LoadError(f"parameters: {count} names, {arrays} arrays")
        found: dict[str, Array] = {}
        at += 8
        for name in names:
            found[name], at = array_from_bytes(data, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise LoadError(f"parameters: {error}") from error
    return {name: np.asarray(array) for name, array in found.items()}


def _read_names(data: bytes, count: int) -> tuple[list[str], int]:
    names: list[str] = []
    at = 24
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 8 + length > len(data):
            raise LoadError(f"parameters: a name of {length} characters is longer than the bytes")
        names.append(data[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return names, at


__all__ = ["load_param_dict", "save_param_dict"]
