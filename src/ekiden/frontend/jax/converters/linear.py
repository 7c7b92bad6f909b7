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
    """Return the product of tensors over batching and contracting axes: the batch, what is left of
    the first, what is left of the second. Axes are grouped by what they are, never by how many
    there are: there may be as many free and contracting ones as a product of matrices has.
    """
    (batch_x, sum_x), (batch_y, sum_y) = on_left, on_right
    shape_x, shape_y = left.type.shape, right.type.shape
    for a, b in ((batch_x, batch_y), (sum_x, sum_y)):
        node.scope.same([shape_x[i] for i in a], [shape_y[i] for i in b])
    free_x = [i for i in range(len(shape_x)) if i not in batch_x and i not in sum_x]
    free_y = [i for i in range(len(shape_y)) if i not in batch_y and i not in sum_y]
    columns = [shape_y[i] for i in free_y]
    out = as_attr((*(shape_x[i] for i in (*batch_x, *free_x)), *columns))
    dtype = node.out_dtype()
    if batch_x:
        x = _grouped(node, left, (batch_x, free_x, sum_x))
        y = _grouped(node, right, (batch_y, free_y, sum_y))
        found = op.nn.batch_matmul(_cast(x, left, dtype), _cast(y, right, dtype))
        return op.reshape(found, out, allowzero=True)
    # nn.dense takes any number of axes before the one that is summed
    lead = [[i] for i in free_x] if len(sum_x) == 1 and free_x else [free_x]
    x = _grouped(node, left, (*lead, sum_x))
    y = _grouped(node, right, (free_y, sum_y))
    found = op.nn.dense(_cast(x, left, dtype), _cast(y, right, dtype))
    if all(len(group) == 1 for group in (*lead, free_y)):
        return found
    return op.reshape(found, out, allowzero=True)


def _grouped(node: Node, value: Value, groups: Sequence[Sequence[int]]) -> Expr:
    """Return a value with one axis for each group of its axes: their product, 1 for none."""
    order = [axis for group in groups for axis in group]
    if value.array is not None:
        value = constant(value.array.transpose(order))
    data = node.scope.expr(value)
    if value.array is None and order != list(range(len(order))):
        data = op.transpose(data, order)
    if all(len(group) == 1 for group in groups):
        return data
    shape = dict(zip(order, node.scope.typed(data).shape, strict=True))
    extents = [product(shape[axis] for axis in group) for group in groups]
    return op.reshape(data, as_attr(extents), allowzero=True)


def _cast(data: Expr, value: Value, dtype: str) -> Expr:
    return data if value.type.dtype == dtype else op.cast(data, dtype)


ROWS: tuple[Row, ...] = (Row("stablehlo.dot_general", _dot_general, on_complex=bilinear),)
