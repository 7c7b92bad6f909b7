"""Named tensors (weights, parameters) in a safetensors file.

The format is a header of JSON and then the elements of one tensor after the other, so reading maps
the file and copies nothing. The `safetensors` package is not used: its face for NumPy has none of
the floats of 16 bits and less that are not IEEE's, it copies every tensor, and the deployment
package would depend on it for these few lines. The tests read and write with it, both ways.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.binding._core import DataType, Tensor, empty, tensor
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import File, Writer, write_path_or_stream

SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float6_e2m3fn": "F6_E2M3",
    "float6_e3m2fn": "F6_E3M2",
    "float4_e2m1fn": "F4",
}
"""Dtype names of the safetensors format by Ekiden's; dtypes missing here cannot be saved."""
DTYPES_BY_SAFETENSORS_NAME = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""Maximum size of a header in bytes, the format's own limit."""
MAX_TENSOR_RANK = 64
"""Maximum number of dimensions of a tensor."""
DATA_ALIGNMENT_BYTES = 64
"""Alignment of the elements in written files, that of constants; the format requires 8."""

Params = Mapping[str, Tensor | ArrayLike]
_Bytes = NDArray[np.uint8]


def save_params(path: File, params: Params, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file atomically, or to an open binary file.

    Raises TypeError for a dtype the format does not have (complex128, and integers of less than a
    byte).
    """
    write_path_or_stream(path, lambda opened: _write_safetensors(opened, params, metadata))


def _write_safetensors(file: Writer, params: Params, metadata: Mapping[str, str] | None) -> None:
    tensors = {name: tensor(value) for name, value in params.items()}
    # Largest element type first, then by name: each tensor stays aligned without padding.
    order = sorted(tensors, key=lambda name: (-DataType(tensors[name].dtype).bits, name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _safetensors_dtype(name, tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % DATA_ALIGNMENT_BYTES)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(_tensor_bytes(tensors[name]).data)


def _safetensors_dtype(name: str, value: Tensor) -> str:
    format_dtype = SAFETENSORS_DTYPES.get(value.dtype)
    if format_dtype is None:
        raise TypeError(
            f"save_params: {name!r} has the dtype {value.dtype}, which safetensors does not have"
        )
    return format_dtype


def _tensor_bytes(value: Tensor) -> _Bytes:
    """Return the elements of a contiguous tensor as bytes that share its memory."""
    return cast(_Bytes, value.reinterpret("uint8", (value.nbytes,)).numpy())


def load_params(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file copy-on-write: writing them leaves the file unchanged.
    A damaged file is a LoadError that names the tensor. The file must not be rewritten in place
    while it is in use: reading a tensor beyond a truncated file's end is a SIGBUS.
    """
    with open(path, "rb") as file:
        if Path(path).stat().st_size == 0:
            raise LoadError(f"load parameters from {str(path)!r}: the file is empty")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return _read_tensors(np.frombuffer(data, np.uint8), str(path))


def map_params(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Map tensors read-only as constants of an executable: a file truncated while in use is an
    error of the run that reads it instead of a signal that kills the process.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # An empty file cannot be mapped.
        data = mapped_files.map_readonly_tensor(file.fileno(), size) if size else None
    return load_params(path) if data is None else _read_tensors(_tensor_bytes(data), str(path))


def _read_tensors(data: _Bytes, where: str) -> dict[str, Tensor]:
    """Return the tensors in a file's bytes, whose memory they share."""
    header, elements = _split_header(data, where)
    header.pop("__metadata__", None)
    end = 0
    result = {}
    # In the order of offsets, one pass shows gaps and overlaps.
    for name, row in sorted(header.items(), key=lambda item: _row_offset(item[1])):
        dtype, shape, begin, stop = _check_header_row(
            row, f"load parameters from {where!r}: {name!r}"
        )
        # The format demands that tensors cover the data without gaps or overlaps.
        if begin != end or stop > len(elements):
            raise LoadError(
                f"load parameters from {where!r}: {name!r} must begin at byte {end} and end by "
                f"{len(elements)}, got {begin} to {stop}"
            )
        end = stop
        if begin == stop:
            result[name] = empty(shape, dtype)
        else:
            result[name] = tensor(elements[begin:stop]).reinterpret(dtype, shape)
    if end != len(elements):
        raise LoadError(
            f"load parameters from {where!r}: expected {end} bytes of elements, got {len(elements)}"
        )
    return result


def _split_header(data: _Bytes, where: str) -> tuple[dict[str, object], _Bytes]:
    # Checked before anything is allocated: the length comes from an untrusted file.
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > min(len(data) - 8, MAX_SAFETENSORS_HEADER_BYTES):
        raise LoadError(
            f"load parameters from {where!r}: expected a header of at most {len(data) - 8} bytes, "
            f"got {size}"
        )
    try:
        header = json.loads(data[8 : 8 + size].tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise LoadError(f"load parameters from {where!r}: the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise LoadError(f"load parameters from {where!r}: the header is no JSON object")
    return header, data[8 + size :]


def _row_offset(row: object) -> int:
    """Return a tensor's offset; 0 for rows that are rejected later."""
    offsets = row.get("data_offsets") if isinstance(row, dict) else None
    return offsets[0] if isinstance(offsets, list) and _are_sizes(offsets[:1]) and offsets else 0


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**62 for v in values)


def _check_header_row(row: object, what: str) -> tuple[str, list[int], int, int]:
    """Return dtype, shape, begin and end of a tensor in the header. Raises LoadError."""
    if not isinstance(row, dict) or not {"dtype", "shape", "data_offsets"} <= row.keys():
        raise LoadError(f"{what} must have dtype, shape and data_offsets")
    shape, offsets = row["shape"], row["data_offsets"]
    dtype = DTYPES_BY_SAFETENSORS_NAME.get(row["dtype"]) if isinstance(row["dtype"], str) else None
    if dtype is None:
        raise LoadError(f"{what} must have a dtype of safetensors, such as F32, got {row['dtype']}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise LoadError(f"{what} must have a shape and two offsets of sizes, got {shape} {offsets}")
    if len(shape) > MAX_TENSOR_RANK:
        raise LoadError(f"{what} must have at most {MAX_TENSOR_RANK} dimensions, got {len(shape)}")
    size = (math.prod(shape) * DataType(dtype).bits + 7) // 8
    if offsets[1] - offsets[0] != size:
        raise LoadError(f"{what} must take {size} bytes, got {offsets[0]} to {offsets[1]}")
    return dtype, shape, offsets[0], offsets[1]


def save_param_dict(params: Params) -> bytearray:
    """Return tensors as the bytes of a safetensors file (TVM's name and type)."""
    buffer = io.BytesIO()
    _write_safetensors(buffer, params, None)
    return bytearray(buffer.getbuffer())


def save_param_dict_to_file(params: Params, path: File) -> None:
    """Write a safetensors file of some tensors. TVM's name."""
    save_params(path, params)


def load_param_dict_from_file(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, which is mapped. TVM's name."""
    return load_params(path)


def load_param_dict(data: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file, whose memory they share
    (TVM's name).
    """
    return _read_tensors(np.frombuffer(data, np.uint8), "bytes")
