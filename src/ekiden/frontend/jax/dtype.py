"""MLIR types and constants as Ekiden dtypes and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.jax.narrow_dtypes import NARROW_DTYPES, NarrowDtype
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array

MLIR_DTYPES: Mapping[str, str] = {
    "i1": "bool", "index": "int64",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    **{name: narrow.carrier_dtype for name, narrow in NARROW_DTYPES.items()},
}  # fmt: skip
"""MLIR's name of an element type -> the dtype that its values have in Relay."""


_COMPLEX_PART_DTYPES: Mapping[str, str] = {"complex<f32>": "float32", "complex<f64>": "float64"}


def check_supported_dtype(name: str) -> str:
    """Check that a JAX dtype is supported, and return its name, which is ours too."""
    stored = [narrow.storage_dtype for narrow in NARROW_DTYPES.values() if narrow.storage_dtype]
    if name not in MLIR_DTYPES.values() and name not in stored:
        raise Unsupported(f"dtype {name} is not supported")
    return name


def is_complex(kind: ir.Type) -> bool:
    """Return whether a type is a tensor of complex numbers."""
    return isinstance(kind, ir.RankedTensorType) and str(kind.element_type) in _COMPLEX_PART_DTYPES


def is_token(kind: ir.Type) -> bool:
    """Return whether a type is stablehlo's token, which orders side effects and carries no data."""
    return str(kind) == "!stablehlo.token"


def part_dtype_of(kind: ir.Type) -> str:
    """Return the dtype of a tensor type; for complex numbers that of their parts."""
    return _COMPLEX_PART_DTYPES[str(kind.element_type)] if is_complex(kind) else relay_dtype(kind)


def relay_dtype(kind: ir.Type) -> str:
    """Return the Relay dtype of a tensor type's values; for narrow dtypes their carrier.

    Raises Unsupported for complex numbers and non-tensors.
    """
    if not isinstance(kind, ir.RankedTensorType):
        raise Unsupported(f"values of the type {kind} are not supported")
    name = str(kind.element_type)
    if name not in MLIR_DTYPES:
        raise Unsupported(f"dtype {name} is not supported")
    return MLIR_DTYPES[name]


def find_narrow_dtype(kind: ir.Type) -> NarrowDtype | None:
    """Return the narrow dtype of a tensor type; None for any other."""
    return (
        NARROW_DTYPES.get(str(kind.element_type)) if isinstance(kind, ir.RankedTensorType) else None
    )


def storage_dtype(kind: ir.Type) -> str:
    """Return the dtype of a tensor type at the program's boundary, in inputs and outputs. Raises
    Unsupported as `dtype_of`, and for narrow dtypes that tensors of ours do not have.
    """
    narrow = find_narrow_dtype(kind)
    if narrow is None:
        return relay_dtype(kind)
    if not narrow.storage_dtype:
        raise Unsupported(f"dtype {narrow.name} is not supported")
    return narrow.storage_dtype


def element_bits(kind: ir.Type) -> int:
    """Return the width of an element in bits; for complex numbers of a part, for bools 1."""
    narrow = find_narrow_dtype(kind)
    dtype = part_dtype_of(kind)
    if narrow is not None:
        return narrow.bits
    return 1 if dtype == "bool" else 8 * np.dtype(to_numpy(dtype)).itemsize


def static_extents(kind: ir.Type) -> list[int | None]:
    """Return the extents of a tensor type, None for symbolic ones."""
    assert isinstance(kind, ir.RankedTensorType)
    return [None if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i in range(kind.rank)]


def decode_constant(attribute: ir.Attribute) -> Array:
    """Decode a constant; narrow elements are held in their carrier, and a splat is a
    stride-0 view.
    """
    kind = attribute.type
    dtype = to_numpy(relay_dtype(kind))
    shape = tuple(kind.get_dim_size(i) for i in range(kind.rank))
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        # A splat of any size stays one number: a program can declare terabytes of zeros.
        value = np.asarray(attribute.get_splat_value().value, dtype)
        return np.broadcast_to(value, shape)
    if find_narrow_dtype(kind) is not None:
        return _eval_in_storage_dtype(attribute).astype(dtype).reshape(shape)
    if (
        relay_dtype(kind) == "bfloat16"
    ):  # for which MLIR has no buffer, and JAX 0.6 ends the process
        return _eval_bits(attribute).view(dtype).reshape(shape)
    return np.array(attribute, dtype)


def decode_complex_constant(constant: ir.Operation) -> tuple[Array, Array]:
    """Decode a complex constant into real and imaginary part."""
    kind = constant.results[0].type
    width = {"float32": ir.F32Type, "float64": ir.F64Type}[part_dtype_of(kind)]

    def build() -> list[ir.Value]:
        """Build the operations that extract the real and the imaginary part of the constant."""
        value = constant.clone().results[0]
        return [function(value) for function in (stablehlo.real, stablehlo.imag)]

    with constant.context, ir.Location.unknown():
        part_type = ir.RankedTensorType.get(kind.shape, width.get())
        real, imaginary = _eval_stablehlo([part_type, part_type], build)
        return real, imaginary


def _eval_in_storage_dtype(attribute: ir.Attribute) -> Array:
    """Decode a constant of a narrow dtype by a StableHLO program that converts it to the
    carrier.
    """
    with attribute.context, ir.Location.unknown():
        narrow = find_narrow_dtype(attribute.type)
        assert narrow is not None, "the constant has a narrow dtype"
        element = {
            "int8": lambda: ir.IntegerType.get_signless(8),
            "uint8": lambda: ir.IntegerType.get_unsigned(8),
            "float32": ir.F32Type.get,
        }[narrow.carrier_dtype]()
        kind = ir.RankedTensorType.get(attribute.type.shape, element)
        value = lambda: [stablehlo.convert(kind, stablehlo.constant(attribute))]  # noqa: E731
        (elements,) = _eval_stablehlo([kind], value)
        return elements


def _eval_bits(attribute: ir.Attribute) -> Array:
    """Decode a constant as unsigned integers by a StableHLO program that bitcasts it."""
    width = np.dtype(to_numpy(relay_dtype(attribute.type))).itemsize * 8
    with attribute.context, ir.Location.unknown():
        shape = attribute.type.shape
        bits = ir.RankedTensorType.get(shape, ir.IntegerType.get_unsigned(width))
        build = lambda: [stablehlo.bitcast_convert(bits, stablehlo.constant(attribute))]  # noqa: E731
        (bit_array,) = _eval_stablehlo([bits], build)
        return bit_array


def _eval_stablehlo(kinds: Sequence[ir.Type], build: Callable[[], list[ir.Value]]) -> list[Array]:
    """Evaluate a StableHLO program without inputs; return its results as arrays."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        main = func.FuncOp("main", ir.FunctionType.get([], list(kinds)))
        with ir.InsertionPoint(main.add_entry_block()):
            func.return_(build())
    return [np.array(result) for result in stablehlo.eval_module(module, [])]
