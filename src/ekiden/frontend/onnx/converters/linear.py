"""Matrix products: MatMul, Gemm, Einsum, Det, Trilu, EyeLike.

A constant right operand becomes the weight of nn.dense, transposed as a view, which packing
transposes back without an intermediate copy. Leading axes of the left operand stay; where both
operands have some, they broadcast and are joined into the one batch axis of nn.batch_matmul.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.matmul import batched_matmul
from ekiden.frontend.common.value import constant_value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import known_int


def _dense_weight(matrix: Array) -> Expr:
    """Return a constant right operand [k, n] as nn.dense's weight [n, k]: a view, as packing
    transposes it back.
    """
    return const(matrix.T)


def convert_matmul(node: OnnxNode) -> Expr:
    """Convert MatMul with NumPy's rules for vectors and batches."""
    b = node.value(1)
    if not node.rank(0) or not node.rank(1):
        node.reject("inputs must have at least 1 dimension")
    _check_contraction(node)
    node.scope.require_equal_dims(node.shape(0)[-1:], node.shape(1)[-2:][:1])
    if b.array is not None and b.array.ndim == 2:
        return op.nn.dense(node.expr(0), _dense_weight(b.array), units=b.array.shape[1])
    # A vector operand is promoted to a matrix and its axis removed again, as numpy.matmul does.
    if node.rank(1) == 1:
        return _matrix_vector_product(node)
    if node.rank(1) == 2:
        return op.nn.matmul(node.expr(0), node.expr(1))
    if node.rank(0) == 1:
        row = op.expand_dims(node.expr(0), axis=0)
        return op.squeeze(batched_matmul(node, row, node.expr(1)), axis=-2)
    return batched_matmul(node, node.expr(0), node.expr(1))


def _check_contraction(node: OnnxNode) -> None:
    """Raise ImportModelError if the contracted dimensions differ."""
    left_extent, right_extent = node.shape(0)[-1], node.shape(1)[-2:][0]
    if (
        known_int(left_extent) is not None
        and known_int(right_extent) is not None
        and known_int(left_extent) != known_int(right_extent)
    ):
        position = max(node.rank(1) - 2, 0)
        raise ImportModelError(
            f"dimension {node.rank(0) - 1} of the left input and dimension {position} of the right "
            f"one must agree, got {left_extent!r} and {right_extent!r}"
        )


def _matrix_vector_product(node: OnnxNode) -> Expr:
    """Emit the product with a vector as nn.dense of one row."""
    return op.squeeze(
        op.nn.dense(node.expr(0), op.expand_dims(node.expr(1), axis=0), units=1), axis=-1
    )


def _gemm(node: OnnxNode) -> Expr:
    """Convert Gemm: alpha * op(A) @ op(B) + beta * C."""
    data = op.transpose(node.expr(0), axes=[1, 0]) if node.get_int("transA", 0) else node.expr(0)
    transposed = bool(node.get_int("transB", 0))
    rows, columns = node.shape(0), node.shape(1)
    node.scope.require_equal_dims(
        rows[:1] if node.get_int("transA", 0) else rows[1:],
        columns[1:] if transposed else columns[:1],
    )
    weight = node.value(1).array
    if weight is not None:
        product: Expr = op.nn.dense(data, node.expr(1) if transposed else _dense_weight(weight))
    else:
        product = op.nn.matmul(data, node.expr(1), transpose_b=transposed)
    product = _emit_scaled(node, product, node.get_float("alpha", 1.0))
    bias = node.optional_value(2)
    beta = node.get_float("beta", 1.0)
    if bias is None or beta == 0:
        return product
    # A constant bias absorbs beta at import.
    if bias.array is not None and beta != 1:
        bias, beta = (
            constant_value(np.asarray(bias.array * np.asarray(beta, bias.array.dtype))),
            1.0,
        )
    return op.add(product, _emit_scaled(node, node.scope.expr(bias), beta))


def _emit_scaled(node: OnnxNode, expr: Expr, factor: float) -> Expr:
    """Emit a product with a factor; the expression itself for 1."""
    return expr if factor == 1 else op.multiply(expr, const(factor, node.dtype(0)))


def _einsum(node: OnnxNode) -> Expr:
    equation = node.get_string("equation", "")
    operands, arrow, result_axes = equation.partition("->")
    # NumPy rejects this form; ONNX does not say that the axes are summed.
    if arrow and "..." in operands and "..." not in result_axes:
        node.reject(f"the result of {equation!r} must name the axes of '...'")
    return op.einsum(node.exprs(), equation)


def _trilu(node: OnnxNode) -> Expr:
    k = const(0, "int64") if node.optional_value(1) is None else op.reshape(node.expr(1), ())
    return op.trilu(node.expr(0), k, upper=bool(node.get_int("upper", 1)))


def _eye_like(node: OnnxNode) -> Expr:
    """Convert EyeLike: ones on diagonal `k`, zeros elsewhere."""
    rows, columns = node.shape(0)
    dtype = from_onnx_dtype(node.get_int("dtype")) if node.has("dtype") else node.dtype(0)
    # Extents may be symbolic, so the diagonal is a comparison of positions.
    row = op.expand_dims(op.arange(0, rows, 1, dtype="int64"), axis=1)
    column = op.arange(0, columns, 1, dtype="int64")
    return op.cast(op.equal(op.add(row, const(node.get_int("k", 0), "int64")), column), dtype)


def _det(node: OnnxNode) -> Expr:
    rows, columns = node.shape(0)[-2:-1], node.shape(0)[-1:]
    node.scope.require_equal_dims(rows, columns)
    return op.det(node.expr(0))


# fmt: off
ROWS = (
    OnnxRow("Det",    _det, since_version=11),
    OnnxRow("MatMul", convert_matmul),
    OnnxRow("Gemm",   _gemm, attributes="alpha beta broadcast transA transB"),
    OnnxRow("Gemm",   _gemm, since_version=7, attributes="alpha beta transA transB"),
    OnnxRow("Einsum", _einsum, since_version=12, attributes="equation"),
    OnnxRow("Trilu",  _trilu, since_version=14, attributes="upper"),
    OnnxRow("EyeLike", _eye_like, since_version=9, attributes="dtype k"),
)
# fmt: on
