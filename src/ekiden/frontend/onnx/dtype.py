"""ONNX element types as our dtypes."""

from __future__ import annotations

import onnx

from ekiden.frontend.onnx.unsupported import Unsupported

_KIND = onnx.TensorProto
DTYPES: dict[int, str] = {
    _KIND.FLOAT: "float32",
    _KIND.DOUBLE: "float64",
    _KIND.FLOAT16: "float16",
    _KIND.BFLOAT16: "bfloat16",
    _KIND.INT8: "int8",
    _KIND.INT16: "int16",
    _KIND.INT32: "int32",
    _KIND.INT64: "int64",
    _KIND.UINT8: "uint8",
    _KIND.UINT16: "uint16",
    _KIND.UINT32: "uint32",
    _KIND.UINT64: "uint64",
    _KIND.BOOL: "bool",
}


def from_onnx_dtype(element_type: int) -> str:
    """Our name of an ONNX element type.

    Raises Unsupported for strings, complex numbers, float8, int4 and the like.
    """
    if element_type not in DTYPES:
        names = {v: k.lower() for k, v in _KIND.DataType.items()}
        raise Unsupported(f"element type {names.get(element_type, element_type)} is not supported")
    return DTYPES[element_type]
