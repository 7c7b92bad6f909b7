"""Converters of tensor creation, and of operators that only assert."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import custom_complex_rule
from ekiden.frontend.torch.converters import complex as of_complex
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode, Operand
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, simplify_dim


def _full(node: FxNode, size: Sequence[object], value: Operand, **_: object) -> Expr:
    dtype = node.out_dtype
    return op.full(node.to_expr(value, dtype), node.out_shape, dtype=dtype)


def _full_like(node: FxNode, x: Value, value: Operand, **_: object) -> Expr:
    dtype = node.out_dtype
    return op.full(node.to_expr(value, dtype), x.type.shape, dtype=dtype)


def _fill(node: FxNode, x: Value, value: Operand) -> Expr:
    return _full_like(node, x, value)


def _fill_converter(value: int) -> Converter:
    """Return the converter of tensors of one number; uninitialized ones hold 0."""

    def convert(node: FxNode, *_: object, **__: object) -> Expr:
        dtype = node.out_dtype
        return op.full(const(value, dtype), node.out_shape, dtype=dtype)

    return convert


def _arange(node: FxNode, start: Operand, end: Operand, step: Operand = 1, **_: object) -> Expr:
    dtype = node.out_dtype
    # start + i * step with the extent that PyTorch inferred: summing steps would round differently.
    if any(isinstance(v, float) for v in (start, end, step)) or is_float(dtype):
        (count,) = node.out_shape
        positions = op.cast(op.arange(0, count, 1, dtype="int64"), dtype)
        return op.add(node.to_expr(start, dtype), op.multiply(positions, node.to_expr(step, dtype)))
    if isinstance(step, PrimExpr) or isinstance(start, PrimExpr):
        (count,) = node.out_shape
        positions = op.arange(0, count, 1, dtype="int64")
        by = op.multiply(positions, node.to_expr(step, "int64"))
        return op.cast(op.add(by, node.to_expr(start, "int64")), dtype)
    return op.arange(node.to_dim(start), node.to_dim(end), node.to_dim(step), dtype=dtype)


def _arange_to(node: FxNode, end: Operand, **named: object) -> Expr:
    return _arange(node, 0, end, 1, **named)


def _iota(node: FxNode, length: Operand, *, start: Operand, step: Operand, **_: object) -> Expr:
    # prims.iota states a length, aten.arange an end.
    stop = simplify_dim(
        as_dim(node.to_dim(start)) + as_dim(node.to_dim(length)) * as_dim(node.to_dim(step))
    )
    return _arange(node, start, stop, step)


def _linspace(node: FxNode, start: Operand, end: Operand, steps: int, **_: object) -> Expr:
    """Convert linspace; each half is counted from its own end, so that both ends are exact."""
    dtype = node.out_dtype
    wide = dtype if is_float(dtype) else "float64"
    first, last = node.to_expr(start, wide), node.to_expr(end, wide)
    positions = op.cast(op.arange(0, steps, 1, dtype="int64"), wide)
    if steps < 2:
        return op.full(node.to_expr(start, dtype), (steps,), dtype=dtype)
    step = op.divide(op.subtract(last, first), const(steps - 1, wide))
    up = op.add(first, op.multiply(positions, step))
    # ATen counts the second half down from the end (RangeFactories): the results match bit for bit
    # only this way.
    down = op.subtract(last, op.multiply(op.subtract(const(steps - 1, wide), positions), step))
    values = op.where(op.less(positions, const(steps / 2, wide)), up, down)
    return values if wide == dtype else op.cast(values, dtype)


def _eye(node: FxNode, rows: int, columns: int | None = None, **_: object) -> Expr:
    m, n = node.out_shape
    row = op.expand_dims(op.arange(0, m, 1, dtype="int64"), axis=1)
    return op.cast(op.equal(row, op.arange(0, n, 1, dtype="int64")), node.out_dtype)


def _scalar_tensor(node: FxNode, value: Operand, **_: object) -> Expr:
    return node.to_expr(value, node.out_dtype)


def _ignore_assertion(node: FxNode, *_: object, **__: object) -> None:
    """Ignore an assertion on sizes, which torch.export also lists among its constraints."""
    return


def _size(node: FxNode, x: Value, dim: int | None = None) -> Scalar | list[PrimExpr]:
    if dim is None:
        return list(x.type.shape)
    return x.type.shape[node.axis(dim, len(x.type.shape))]


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("full", _full, custom_complex_rule(of_complex.complex_full)),
    ("full_like", _full_like, custom_complex_rule(of_complex.complex_full)),
    ("fill", _fill),
    ("new_full", lambda node, x, size, value, **_: _full(node, size, value)),
    *((name, _fill_converter(0), custom_complex_rule(of_complex.complex_zeros)) for name in (
        "zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided",
        "new_empty_strided", "empty_permuted")),
    *((name, _fill_converter(1), custom_complex_rule(of_complex.complex_ones)) for name in (
        "ones", "ones_like", "new_ones")),
    ("arange.start_step", _arange),
    ("arange.start", _arange),
    ("arange.default", _arange_to),
    ("prims::iota", _iota),
    ("linspace", _linspace),
    ("eye", _eye),
    ("scalar_tensor", _scalar_tensor),
    *((name, _ignore_assertion) for name in (
        "_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range",
        "sym_constrain_range_for_size")),
    ("sym_size", _size),
)
# fmt: on
