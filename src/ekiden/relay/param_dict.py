"""Parameter dictionaries in TVM's binary format.

u64 magic   u64 0   u64 number of names   (u64 length, characters) per name
u64 number of arrays   one array per name (`ekiden.ir.ndarray_format`)
"""

from __future__ import annotations

import struct

from ekiden import runtime
from ekiden.ir.ndarray_format import array_from_bytes
from ekiden.runtime import Tensor, save_param_dict
from ekiden.runtime.errors import LoadError

PARAM_DICT_MAGIC = 0xF7E58D4F05049CB7


def load_param_dict(param_bytes: bytes | bytearray) -> dict[str, Tensor]:
    """Load tensors by name from bytes.

    Raises:
        LoadError: The bytes have any other form.
    """
    data = bytes(param_bytes)
    # Files of Ekiden's own format begin otherwise.
    if data[:8] != PARAM_DICT_MAGIC.to_bytes(8, "little"):
        return runtime.load_param_dict(data)
    try:
        _, _, count = struct.unpack_from("<QQQ", data)
        names, position = _read_names(data, count)
        (arrays,) = struct.unpack_from("<Q", data, position)
        if arrays != count:
            raise LoadError(f"parameters: {count} names, {arrays} arrays")
        tensors: dict[str, Tensor] = {}
        position += 8
        for name in names:
            array, position = array_from_bytes(data, position)
            tensors[name] = runtime.tensor(array)
    except (struct.error, UnicodeDecodeError) as error:
        raise LoadError(f"parameters: {error}") from error
    return tensors


def _read_names(data: bytes, count: int) -> tuple[list[str], int]:
    names: list[str] = []
    position = 24
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, position)
        # The length comes from the file: a slice beyond the end would silently be shorter.
        if position + 8 + length > len(data):
            raise LoadError(f"parameters: a name of {length} characters is longer than the bytes")
        names.append(data[position + 8 : position + 8 + length].decode())
        position += 8 + length
    return names, position


__all__ = ["load_param_dict", "save_param_dict"]
