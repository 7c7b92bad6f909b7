"""Conversion of TensorProto and SparseTensorProto to NumPy arrays."""

from __future__ import annotations

import math
import sys

import numpy as np

from ekiden.frontend.onnx.dtype import BYTEWISE_TYPES
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.weight_registry import registered_elements
from ekiden.ir.op import Array

_PROTO = onnx.TensorProto


MAX_DENSE_ELEMENTS = 1 << 28
"""Elements of a sparse tensor that becomes a dense one, at most."""


def densify(proto: onnx.SparseTensorProto) -> Array:
    """Convert a sparse tensor to a dense array; unlisted elements are 0.

    Raises ValueError or TypeError for one that is broken.
    """
    shape = tuple(proto.dims)
    if any(extent < 0 for extent in shape) or math.prod(shape) > MAX_DENSE_ELEMENTS:
        raise ValueError(
            f"a sparse tensor must have up to {MAX_DENSE_ELEMENTS} elements, got {shape}"
        )
    values = to_array(proto.values).ravel()
    flat_indices = to_array(proto.indices) if proto.HasField("indices") else np.zeros(0, np.int64)
    if flat_indices.ndim == 2 and flat_indices.shape[1] == len(shape):
        inside = (flat_indices >= 0) & (flat_indices < np.array(shape, np.int64))
        if not inside.all():
            raise ValueError(f"its indices must be within {shape}")
        flat_indices = (
            np.ravel_multi_index(tuple(flat_indices.T), shape) if shape else flat_indices[:, 0]
        )
    if flat_indices.shape != values.shape:
        raise ValueError(f"{len(values)} values need as many indices, got {flat_indices.shape}")
    if flat_indices.size and not 0 <= flat_indices.min() <= flat_indices.max() < math.prod(shape):
        raise ValueError(f"its indices must be below {math.prod(shape)}")
    elements = np.zeros(math.prod(shape), values.dtype)
    elements[flat_indices] = values
    return elements.reshape(shape)


def to_array(proto: onnx.TensorProto) -> Array:
    """Convert a TensorProto to an array; rare element types go through `onnx.numpy_helper`.

    Raises ValueError or TypeError for one that is broken.
    """
    if any(extent < 0 for extent in proto.dims):
        raise ValueError(f"its dimensions must be at least 0, got {list(proto.dims)}")
    kind, listed = BYTEWISE_TYPES.get(proto.data_type, (None, ""))
    if kind is not None and (elements := registered_elements(proto, kind)) is not None:
        return elements.reshape(proto.dims)
    # Segments are large tensors in pieces, a rare form that is left to the package onnx.
    is_here = proto.data_location != _PROTO.EXTERNAL and not proto.HasField("segment")
    if kind is not None and is_here and sys.byteorder == "little":
        if proto.HasField("raw_data"):
            return np.frombuffer(proto.raw_data, kind).reshape(proto.dims)
        if listed:
            return np.array(getattr(proto, listed), kind).reshape(proto.dims)
    array: Array = onnx.numpy_helper.to_array(proto)
    return array
