"""TVM's binary NDArray format, used by parameter files and the metadata of Relay text.

u64 magic   u64 0   i32 device type   i32 device   i32 rank   u8 code   u8 bits   u16 lanes
i64 extent per dimension   i64 number of bytes   the elements, little-endian, row by row
"""

from __future__ import annotations

import struct

import numpy as np

from ekiden.ir.dtype import SCALAR_BITS, to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.errors import LoadError

NDARRAY_MAGIC = 0xDD5E40F096B4A13F
_HEADER_STRUCT = struct.Struct("<QQiiiBBH")
_CPU_DEVICE_TYPE = 1
# fmt: off
_DTYPE_BY_CODE: dict[tuple[int, int], str] = {
    **{(0, SCALAR_BITS[d]): d for d in ("int8", "int16", "int32", "int64")},
    **{(1, SCALAR_BITS[d]): d for d in ("uint8", "uint16", "uint32", "uint64")},
    **{(2, SCALAR_BITS[d]): d for d in ("float16", "float32", "float64")},
    (1, 1): "bool", (6, 8): "bool", (4, 16): "bfloat16",
}
"""Dtype by DLPack type code and bits."""
# fmt: on
# Reversed, so that of the two codes of bool the first one listed, (1, 1), is written.
_CODE_BY_DTYPE = {dtype: key for key, dtype in reversed(_DTYPE_BY_CODE.items())}


def array_to_bytes(array: Array) -> bytes:
    """Serialize an array in TVM's NDArray format."""
    code, bits = _CODE_BY_DTYPE[str(array.dtype)]
    head = _HEADER_STRUCT.pack(NDARRAY_MAGIC, 0, _CPU_DEVICE_TYPE, 0, array.ndim, code, bits, 1)
    # The format is dense and row-major.
    content = np.ascontiguousarray(array).tobytes()
    return head + struct.pack(f"<{array.ndim}qq", *array.shape, len(content)) + content


def array_from_bytes(data: bytes | memoryview, offset: int = 0) -> tuple[Array, int]:
    """Parse the array at `offset`; return it with the offset behind it. Raises LoadError."""
    try:
        magic, _, _, _, rank, code, bits, lanes = _HEADER_STRUCT.unpack_from(data, offset)
        if magic != NDARRAY_MAGIC:
            raise LoadError(
                f"array: expected the number {NDARRAY_MAGIC:#x} at its start, got {magic:#x}"
            )
        # The rank is bounded before it decides how much is read: the bytes may come from anywhere.
        if (code, bits) not in _DTYPE_BY_CODE or lanes != 1 or not 0 <= rank <= 64:
            raise LoadError(f"array: no dtype of code {code}, {bits} bits and {lanes} lanes")
        *shape, size = struct.unpack_from(f"<{rank}qq", data, offset + _HEADER_STRUCT.size)
        begin = offset + _HEADER_STRUCT.size + 8 * (rank + 1)
        if size < 0 or begin + size > len(data):
            raise LoadError(f"array: {size} bytes are announced, {len(data) - begin} are there")
        content = np.frombuffer(data[begin : begin + size], to_numpy(_DTYPE_BY_CODE[code, bits]))
        return content.reshape(shape), begin + size
    except (struct.error, ValueError) as error:
        raise LoadError(f"array: {error}") from error
