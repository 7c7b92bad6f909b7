"""ONNX element types (TensorProto.DataType) and their Relay dtypes."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.onnx.messages import onnx

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
    _KIND.INT4: "int4",
    _KIND.UINT4: "uint4",
    _KIND.INT2: "int2",
    _KIND.UINT2: "uint2",
    _KIND.FLOAT8E4M3FN: "float8_e4m3fn",
    _KIND.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    _KIND.FLOAT8E5M2: "float8_e5m2",
    _KIND.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    _KIND.FLOAT8E8M0: "float8_e8m0fnu",
    _KIND.FLOAT4E2M1: "float4_e2m1fn",
}
PLAIN: dict[int, tuple[type[np.generic], str]] = {
    _KIND.FLOAT: (np.float32, "float_data"),
    _KIND.DOUBLE: (np.float64, "double_data"),
    _KIND.INT64: (np.int64, "int64_data"),
    _KIND.INT32: (np.int32, "int32_data"),
    _KIND.INT8: (np.int8, ""),
    _KIND.UINT8: (np.uint8, ""),
    _KIND.INT16: (np.int16, ""),
    _KIND.UINT16: (np.uint16, ""),
    _KIND.UINT32: (np.uint32, ""),
    _KIND.UINT64: (np.uint64, ""),
    _KIND.FLOAT16: (np.float16, ""),
    _KIND.BOOL: (np.bool_, ""),
}
"""Element type -> that of arrays, and the field that lists elements of just that type, if one does;
their bytes are those of the array."""


def from_onnx_dtype(element_type: int) -> str:
    """Return the Relay dtype of an ONNX element type; raise Unsupported for others.

    Raises Unsupported for strings and complex numbers.
    """
    if element_type not in DTYPES:
        names = {v: k.lower() for k, v in _KIND.DataType.items()}
        raise Unsupported(f"element type {names.get(element_type, element_type)} is not supported")
    return DTYPES[element_type]
