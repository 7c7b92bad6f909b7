"""ONNX element types (TensorProto.DataType) and their Relay dtypes."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.onnx.lazy_onnx import onnx

_PROTO = onnx.TensorProto
ELEMENT_DTYPES: dict[int, str] = {
    _PROTO.FLOAT: "float32",
    _PROTO.DOUBLE: "float64",
    _PROTO.FLOAT16: "float16",
    _PROTO.BFLOAT16: "bfloat16",
    _PROTO.INT8: "int8",
    _PROTO.INT16: "int16",
    _PROTO.INT32: "int32",
    _PROTO.INT64: "int64",
    _PROTO.UINT8: "uint8",
    _PROTO.UINT16: "uint16",
    _PROTO.UINT32: "uint32",
    _PROTO.UINT64: "uint64",
    _PROTO.BOOL: "bool",
    _PROTO.INT4: "int4",
    _PROTO.UINT4: "uint4",
    _PROTO.INT2: "int2",
    _PROTO.UINT2: "uint2",
    _PROTO.FLOAT8E4M3FN: "float8_e4m3fn",
    _PROTO.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    _PROTO.FLOAT8E5M2: "float8_e5m2",
    _PROTO.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    _PROTO.FLOAT8E8M0: "float8_e8m0fnu",
    _PROTO.FLOAT4E2M1: "float4_e2m1fn",
}
BYTEWISE_TYPES: dict[int, tuple[type[np.generic], str]] = {
    _PROTO.FLOAT: (np.float32, "float_data"),
    _PROTO.DOUBLE: (np.float64, "double_data"),
    _PROTO.INT64: (np.int64, "int64_data"),
    _PROTO.INT32: (np.int32, "int32_data"),
    _PROTO.INT8: (np.int8, ""),
    _PROTO.UINT8: (np.uint8, ""),
    _PROTO.INT16: (np.int16, ""),
    _PROTO.UINT16: (np.uint16, ""),
    _PROTO.UINT32: (np.uint32, ""),
    _PROTO.UINT64: (np.uint64, ""),
    _PROTO.FLOAT16: (np.float16, ""),
    _PROTO.BOOL: (np.bool_, ""),
}
"""Element type -> that of arrays, and the field that lists elements of just that type, if one does;
their bytes are those of the array."""


def from_onnx_dtype(element_type: int) -> str:
    """Return the Relay dtype of an ONNX element type; raise Unsupported for others.

    Raises Unsupported for strings and complex numbers.
    """
    if element_type not in ELEMENT_DTYPES:
        names = {v: k.lower() for k, v in _PROTO.DataType.items()}
        raise Unsupported(f"element type {names.get(element_type, element_type)} is not supported")
    return ELEMENT_DTYPES[element_type]
