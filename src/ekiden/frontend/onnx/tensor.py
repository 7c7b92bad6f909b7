"""Tensors of a model as arrays."""

from __future__ import annotations

import sys

import numpy as np

from ekiden.frontend.onnx.messages import onnx
from ekiden.ir.op import Array

_KIND = onnx.TensorProto
_PLAIN = {
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


def to_array(proto: onnx.TensorProto) -> Array:
    """A tensor as `onnx.numpy_helper.to_array` gives it, which is asked for those that are rare:
    its package takes longer to load than most models to import.

    Raises ValueError or TypeError for one that is broken.
    """
    kind, listed = _PLAIN.get(proto.data_type, (None, ""))
    is_here = proto.data_location != _KIND.EXTERNAL and not proto.HasField("segment")
    if kind is not None and is_here and sys.byteorder == "little":
        if proto.HasField("raw_data"):
            return np.frombuffer(proto.raw_data, kind).reshape(proto.dims)
        if listed:
            return np.array(getattr(proto, listed), kind).reshape(proto.dims)
    found: Array = onnx.numpy_helper.to_array(proto)
    return found
