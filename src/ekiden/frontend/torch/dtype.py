"""Conversion of PyTorch dtypes and tensors, sharing memory."""

from __future__ import annotations

import numpy as np
import torch

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array

TORCH_DTYPES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
}
COMPLEX_PART_DTYPES: dict[torch.dtype, torch.dtype] = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
"""Complex dtypes: the dtype of a part."""
_BIT_DTYPES = {1: torch.uint8, 2: torch.int16}


def from_torch_dtype(dtype: torch.dtype) -> str:
    """Return our name of a PyTorch dtype; raise Unsupported without one.

    Raises:
        Unsupported: The dtype is complex or quantised.
    """
    if dtype not in TORCH_DTYPES:
        raise Unsupported(f"dtype {str(dtype).removeprefix('torch.')} is not supported")
    return TORCH_DTYPES[dtype]


def tensor_to_array(tensor: torch.Tensor) -> Array:
    """Return a host tensor as an array that shares its memory.

    Raises Unsupported for a tensor of another device, a sparse one, or a dtype that we have not.
    """
    name = from_torch_dtype(tensor.dtype)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        where = f"a {tensor.layout} tensor on {tensor.device}".replace("torch.", "")
        raise Unsupported(f"expected a dense tensor on the CPU, got {where}")
    plain = tensor.detach().resolve_neg()
    try:
        array: Array = plain.numpy()
    except TypeError:  # NumPy has no such dtype of its own
        bits = _BIT_DTYPES[tensor.element_size()]
        array = plain.view(bits).numpy().view(to_numpy(name))
    return np.asarray(array)
