"""Bit views of tensors: `view(dtype)` between element types of any sizes."""

from __future__ import annotations

from functools import reduce

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import custom_complex_rule
from ekiden.frontend.torch.dtype import COMPLEX_PART_DTYPES, from_torch_dtype
from ekiden.frontend.torch.node import ComplexResult, ConverterRow, FxNode
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, as_dim, simplify_dim, to_attr_dims


def _unsigned_dtype(dtype: str) -> str:
    return f"uint{8 * itemsize(dtype)}"


def _bitcast(data: Expr, dtype: str, target: str) -> Expr:
    """Bitcast elements to a dtype of the same size; bools are bytes."""
    if dtype == target:
        return data
    if dtype == "bool":
        return _bitcast(op.cast(data, "uint8"), "uint8", target)
    if target == "bool":
        return op.cast(_bitcast(data, dtype, "uint8"), "bool")
    return op.reinterpret(data, target)


def _split_words(node: FxNode, data: Expr, large: str, small: str) -> Expr:
    """Split unsigned integers [..., n] into [..., n * r] of an r-th of their size, lowest bits
    first, as in memory.
    """
    shape, count = node.tensor_type_of(data).shape, itemsize(large) // itemsize(small)
    bits = 8 * itemsize(small)
    # Little-endian: the first small element holds the lowest bits.
    mask = const((1 << bits) - 1, large)
    pieces = [
        op.cast(op.bitwise_and(op.right_shift(data, const(position * bits, large)), mask), small)
        for position in range(count)
    ]
    out_shape = (*shape[:-1], simplify_dim(as_dim(shape[-1]) * count))
    return op.reshape(op.stack(pieces, axis=-1), to_attr_dims(out_shape), allowzero=True)


def _join_words(node: FxNode, data: Expr, small: str, large: str) -> Expr:
    """Join unsigned integers [..., n * r] into [..., n] of r times their size."""
    shape: Shape = node.tensor_type_of(data).shape
    count = itemsize(large) // itemsize(small)
    apart: tuple[Dim, ...] = (*shape[:-1], simplify_dim(as_dim(shape[-1]) // count), count)
    rows = op.reshape(data, to_attr_dims(apart), allowzero=True)
    bits = 8 * itemsize(small)
    shifted = [
        op.left_shift(
            op.cast(op.take(rows, const(position, "int64"), axis=len(shape)), large),
            const(position * bits, large),
        )
        for position in range(count)
    ]
    return reduce(op.bitwise_or, shifted)


def _view_bits(node: FxNode, data: Expr, dtype: str, target: str) -> Expr:
    """Reinterpret the bits of [..., n] elements as another dtype."""
    small, large = _unsigned_dtype(dtype), _unsigned_dtype(target)
    if small == large:
        return _bitcast(data, dtype, target)
    bits = _bitcast(data, dtype, small)
    change = _split_words if itemsize(dtype) > itemsize(target) else _join_words
    return _bitcast(change(node, bits, small, large), large, target)


def _view_dtype(node: FxNode, x: Value, dtype: object) -> Result:
    """Convert aten::view.dtype; the last axis scales with the ratio of element sizes."""
    del dtype  # which PyTorch says of the result
    return _view_bits(node, node.to_expr(x), x.type.dtype, node.out_dtype)


def _view_complex(node: FxNode, x: Value | ComplexValue, dtype: object) -> ComplexResult:
    """Convert view.dtype from or to complex numbers, which memory holds as pairs."""
    del dtype
    if isinstance(x, ComplexValue):
        if node.is_complex:
            return _identity_complex(node, x)
        pairs = op.stack([node.to_expr(x.real), node.to_expr(x.imaginary)], axis=-1)
        shape = node.tensor_type_of(pairs).shape
        out_shape = (*shape[:-2], simplify_dim(as_dim(shape[-2]) * 2))
        flat = op.reshape(pairs, to_attr_dims(out_shape), allowzero=True)
        return _view_bits(node, flat, x.real.type.dtype, node.out_dtype)
    floats = _view_bits(node, node.to_expr(x), x.type.dtype, node.part_dtype)
    shape = node.tensor_type_of(floats).shape
    apart: tuple[Dim, ...] = (*shape[:-1], simplify_dim(as_dim(shape[-1]) // 2), 2)
    pairs = op.reshape(floats, to_attr_dims(apart), allowzero=True)
    real, imaginary = (
        op.take(pairs, const(position, "int64"), axis=len(shape)) for position in range(2)
    )
    return real, imaginary


def _identity_complex(node: FxNode, x: ComplexValue) -> ComplexResult:
    """Return complex numbers unchanged. Raises UnsupportedError for parts of another size."""
    source = node.fx.all_input_nodes[0].meta["val"].dtype
    if from_torch_dtype(COMPLEX_PART_DTYPES[source]) != node.part_dtype:
        node.reject("complex numbers as those of another size")
    return x.real, x.imaginary


ROWS: tuple[ConverterRow, ...] = (
    ("view.dtype", _view_dtype, custom_complex_rule(_view_complex)),
    ("view_copy.dtype", _view_dtype, custom_complex_rule(_view_complex)),
)
