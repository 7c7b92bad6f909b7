"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.jax.converters.complex import bilinear
from ekiden.frontend.jax.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import as_attr, product


def _dot_general(node: Node) -> Expr:
    numbers = stablehlo.DotDimensionNumbers(node.attribute("dot_dimension_numbers"))
    both, others = (_places(numbers, side) for side in ("lhs", "rhs"))
    return contracted(node, node.value(0), node.value(1), both, others)


def _places(numbers: object, side: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batching and contracting axes of a side."""
    batch = getattr(numbers, f"{side}_batching_dimensions")
    return tuple(batch), tuple(getattr(numbers, f"{side}_contracting_dimensions"))


def contracted(
    node: Node,
    left: Value,
    right: Value,
    on_left: tuple[Sequence[int], Sequence[int]],
    on_right: tuple[Sequence[int], Sequence[int]],
) -> Expr:
    """The product of tensors over batching and contracting axes: the batch, what is left of the
    first, what is left of the second.
    """
    (batch_x, sum_x), (batch_y, sum_y) = on_left, on_right
    shape_x, shape_y = left.type.shape, right.type.shape
    for a, b in ((batch_x, batch_y), (sum_x, sum_y)):
        node.scope.same([shape_x[i] for i in a], [shape_y[i] for i in b])
    free_x = [i for i in range(len(shape_x)) if i not in batch_x and i not in sum_x]
    free_y = [i for i in range(len(shape_y)) if i not in batch_y and i not in sum_y]
    batch, rows = [shape_x[i] for i in batch_x], [shape_x[i] for i in free_x]
    columns = [shape_y[i] for i in free_y]
    depth = product(shape_x[i] for i in sum_x)
    out = as_attr((*batch, *rows, *columns))
    dtype = node.out_dtype()
    if batch:
        x = _shaped(node, left, [*batch_x, *free_x, *sum_x], (product(batch), product(rows), depth))
        y = _shaped(
            node, right, [*batch_y, *free_y, *sum_y], (product(batch), product(columns), depth)
        )
        found = op.nn.batch_matmul(_cast(x, left, dtype), _cast(y, right, dtype))
        return op.reshape(found, out, allowzero=True)
    lead = rows if len(sum_x) == 1 and rows else [product(rows)]  # nn.dense takes any rank
    x = _shaped(node, left, [*free_x, *sum_x], (*lead, depth))
    y = _shaped(node, right, [*free_y, *sum_y], (product(columns), depth))
    found = op.nn.dense(_cast(x, left, dtype), _cast(y, right, dtype))
    if len(lead) == len(rows) and len(columns) == 1:
        return found
    return op.reshape(found, out, allowzero=True)


def _shaped(node: Node, value: Value, order: Sequence[int], shape: Sequence[object]) -> Expr:
    """A value with its axes in that order, some of them joined."""
    if value.array is not None:
        value = constant(value.array.transpose(order))
    data = node.scope.expr(value)
    if value.array is None and list(order) != list(range(len(order))):
        data = op.transpose(data, order)
    if len(shape) == len(order):
        return data
    return op.reshape(data, as_attr(shape), allowzero=True)  # type: ignore[arg-type]


def _cast(data: Expr, value: Value, dtype: str) -> Expr:
    return data if value.type.dtype == dtype else op.cast(data, dtype)


ROWS: tuple[Row, ...] = (Row("stablehlo.dot_general", _dot_general, on_complex=bilinear),)
