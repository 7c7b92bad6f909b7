"""`view(dtype)`: the bits of a tensor as elements of another dtype, whose size may be another."""

from __future__ import annotations

from functools import reduce

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex import own
from ekiden.frontend.torch.dtype import PARTS, from_torch_dtype
from ekiden.frontend.torch.node import Found, Node, Row
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, as_attr, as_dim, tidy


def _unsigned(dtype: str) -> str:
    return f"uint{8 * itemsize(dtype)}"


def _as_dtype(data: Expr, dtype: str, target: str) -> Expr:
    """Return elements of one size as another dtype; truth values are bytes."""
    if dtype == target:
        return data
    if dtype == "bool":
        return _as_dtype(op.cast(data, "uint8"), "uint8", target)
    if target == "bool":
        return op.cast(_as_dtype(data, dtype, "uint8"), "bool")
    return op.reinterpret(data, target)


def _cut(node: Node, data: Expr, large: str, small: str) -> Expr:
    """Return (..., n) unsigned integers as (..., n * r) of the r-th part of their size, the lowest
    bits first, as memory has them."""
    shape, count = node.typed(data).shape, itemsize(large) // itemsize(small)
    bits = 8 * itemsize(small)
    mask = const((1 << bits) - 1, large)
    pieces = [
        op.cast(op.bitwise_and(op.right_shift(data, const(at * bits, large)), mask), small)
        for at in range(count)
    ]
    out_shape = (*shape[:-1], tidy(as_dim(shape[-1]) * count))
    return op.reshape(op.stack(pieces, axis=-1), as_attr(out_shape), allowzero=True)


def _joined(node: Node, data: Expr, small: str, large: str) -> Expr:
    """Return (..., n * r) unsigned integers as (..., n) of r times their size."""
    shape: Shape = node.typed(data).shape
    count = itemsize(large) // itemsize(small)
    apart: tuple[Dim, ...] = (*shape[:-1], tidy(as_dim(shape[-1]) // count), count)
    rows = op.reshape(data, as_attr(apart), allowzero=True)
    bits = 8 * itemsize(small)
    shifted = [
        op.left_shift(
            op.cast(op.take(rows, const(at, "int64"), axis=len(shape)), large),
            const(at * bits, large),
        )
        for at in range(count)
    ]
    return reduce(op.bitwise_or, shifted)


def _viewed(node: Node, data: Expr, dtype: str, target: str) -> Expr:
    """Return the bits of (..., n) elements as those of another dtype."""
    small, large = _unsigned(dtype), _unsigned(target)
    if small == large:
        return _as_dtype(data, dtype, target)
    bits = _as_dtype(data, dtype, small)
    change = _cut if itemsize(dtype) > itemsize(target) else _joined
    return _as_dtype(change(node, bits, small, large), large, target)


def _view_dtype(node: Node, x: Value, dtype: object) -> Result:
    """Convert aten::view.dtype; the last axis grows or shrinks with the ratio of element sizes."""
    del dtype  # which PyTorch says of the result
    return _viewed(node, node.of(x), x.type.dtype, node.out_dtype)


def _view_complex(node: Node, x: Value | Complex, dtype: object) -> Found:
    """Convert view.dtype from or to complex numbers, stored as pairs along the last axis."""
    del dtype
    if isinstance(x, Complex):
        if node.is_complex:
            return _same_complex(node, x)
        pairs = op.stack([node.of(x.real), node.of(x.imaginary)], axis=-1)
        shape = node.typed(pairs).shape
        out_shape = (*shape[:-2], tidy(as_dim(shape[-2]) * 2))
        flat = op.reshape(pairs, as_attr(out_shape), allowzero=True)
        return _viewed(node, flat, x.real.type.dtype, node.out_dtype)
    floats = _viewed(node, node.of(x), x.type.dtype, node.part_dtype)
    shape = node.typed(floats).shape
    apart: tuple[Dim, ...] = (*shape[:-1], tidy(as_dim(shape[-1]) // 2), 2)
    pairs = op.reshape(floats, as_attr(apart), allowzero=True)
    real, imaginary = (op.take(pairs, const(at, "int64"), axis=len(shape)) for at in range(2))
    return real, imaginary


def _same_complex(node: Node, x: Complex) -> Found:
    """Return complex numbers as they are. Raises Unsupported for those of another size."""
    source = node.fx.all_input_nodes[0].meta["val"].dtype
    if from_torch_dtype(PARTS[source]) != node.part_dtype:
        node.unsupported("complex numbers as those of another size")
    return x.real, x.imaginary


ROWS: tuple[Row, ...] = (
    ("view.dtype", _view_dtype, own(_view_complex)),
    ("view_copy.dtype", _view_dtype, own(_view_complex)),
)
