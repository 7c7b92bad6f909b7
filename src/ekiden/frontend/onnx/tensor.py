"""Tensors of a model as arrays."""

from __future__ import annotations

import sys

import numpy as np

from ekiden.frontend.onnx.dtype import PLAIN
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.weights import outside
from ekiden.ir.op import Array

_KIND = onnx.TensorProto


def to_array(proto: onnx.TensorProto) -> Array:
    """A tensor as `onnx.numpy_helper.to_array` gives it, which is asked for those that are rare:
    its package takes longer to load than most models to import.

    Raises ValueError or TypeError for one that is broken.
    """
    kind, listed = PLAIN.get(proto.data_type, (None, ""))
    if kind is not None and (elements := outside(proto, kind)) is not None:
        return elements.reshape(proto.dims)
    is_here = proto.data_location != _KIND.EXTERNAL and not proto.HasField("segment")
    if kind is not None and is_here and sys.byteorder == "little":
        if proto.HasField("raw_data"):
            return np.frombuffer(proto.raw_data, kind).reshape(proto.dims)
        if listed:
            return np.array(getattr(proto, listed), kind).reshape(proto.dims)
    found: Array = onnx.numpy_helper.to_array(proto)
    return found
