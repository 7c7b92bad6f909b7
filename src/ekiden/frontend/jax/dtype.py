"""Types and constants of MLIR as ours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array

DTYPES: Mapping[str, str] = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8E4M3FN": "float8_e4m3fn", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2", "f8E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


def dtype_of(kind: ir.Type) -> str:
    """The dtype of a tensor type, in our spelling. Raises Unsupported for complex numbers, integers
    of 2 and 4 bits, and what is no tensor.
    """
    if not isinstance(kind, ir.RankedTensorType):
        raise Unsupported(f"values of the type {kind} are not supported")
    name = str(kind.element_type)
    if name not in DTYPES:
        raise Unsupported(f"dtype {name} is not supported")
    return DTYPES[name]


def extents_of(kind: ir.Type) -> list[int | None]:
    """The extents of a tensor type, None for symbolic ones."""
    assert isinstance(kind, ir.RankedTensorType)
    return [None if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i in range(kind.rank)]


def array_of(attribute: ir.Attribute) -> Array:
    """The elements of a constant; of one that repeats a number they share its memory."""
    kind = attribute.type
    wanted = to_numpy(dtype_of(kind))
    shape = tuple(kind.get_dim_size(i) for i in range(kind.rank))
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        value = np.asarray(attribute.get_splat_value().value, wanted)
        return np.broadcast_to(value, shape)
    try:
        return np.array(attribute, wanted)
    except TypeError:  # the buffer protocol has no such dtype
        return _bits_of(attribute).view(wanted).reshape(shape)


def _bits_of(attribute: ir.Attribute) -> Array:
    """The elements of a constant as unsigned integers, as a program of StableHLO gives them."""
    width = np.dtype(to_numpy(dtype_of(attribute.type))).itemsize * 8
    kind = attribute.type
    with attribute.context, ir.Location.unknown():
        bits = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_unsigned(width))
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ir.FunctionType.get([], [bits]))
            with ir.InsertionPoint(main.add_entry_block()):
                value = stablehlo.constant(attribute)
                func.return_([stablehlo.bitcast_convert(bits, value)])
        (found,) = stablehlo.eval_module(module, [])
        return np.array(found)
