"""Einstein sums over two operands as matrix products, which have kernels.

    einsum((%a, %b), "bhid,bhjd->bhij")  ->  reshape(nn.batch_matmul(a', b'), ...)
                                             a' = reshape(%a, (b * h, i, d)), b' as well
    einsum((%x, W), "bi,io->bo")         ->  nn.dense(%x, transpose(W))

Labels of both operands and of the result are the batch, those of both alone are summed, the others
are rows or columns. Sums with other labels, and without one that is summed, stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import PrimExpr
from ekiden.ir.transform import Pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.transform.graph.calls import call_pass
from ekiden.topi.dimensions import product

if TYPE_CHECKING:
    from ekiden.relay.op import algebra
    from ekiden.topi import products
else:
    algebra = LazyModule("ekiden.relay.op.algebra")
    products = LazyModule("ekiden.topi.products")

PRODUCT_DTYPES = ("float32", "float16", "bfloat16")
"""Types whose products have kernels."""
Labels = Sequence[str]


def _shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def _extents(
    labels_a: Labels, labels_b: Labels, sides: Sequence[RelayExpr]
) -> dict[str, PrimExpr] | None:
    """Return the extent of each label; None if one is twice in an operand, or differs in
    the two.
    """
    extents: dict[str, PrimExpr] = {}
    for labels, side in zip((labels_a, labels_b), sides, strict=True):
        if len(set(labels)) < len(labels):
            return None
        for label, extent in zip(labels, _shape(side), strict=True):
            if not prove_equal(extents.setdefault(label, extent), extent):
                return None
    return extents


def _grouped(
    side: RelayExpr, labels: Labels, groups: Sequence[Labels], extents: dict[str, PrimExpr]
) -> RelayExpr:
    """Transpose an operand to the order of the groups, and reshape each to one axis."""
    order = [label for group in groups for label in group]
    moved = _permuted(side, labels, order)
    if all(len(group) == 1 for group in groups):
        return moved
    shape = tuple(product([extents[label] for label in group]) for group in groups)
    return op.reshape(moved, shape, allowzero=True)


def _permuted(expr: RelayExpr, labels: Labels, order: Labels) -> RelayExpr:
    if list(labels) == list(order):
        return expr
    return op.transpose(expr, [list(labels).index(label) for label in order])


def _rewrite_einsum(call: Call) -> RelayExpr | None:
    operands, attrs = call.args[0], call.attrs
    assert isinstance(attrs, algebra.EinsumAttrs)
    kind = call.checked_type
    assert isinstance(kind, TensorType)
    if (
        not isinstance(operands, Tuple)
        or len(operands.fields) != 2
        or kind.dtype not in PRODUCT_DTYPES
    ):
        return None
    ranks = [len(_shape(f)) for f in operands.fields]
    (labels_a, labels_b), out = products.einsum_labels(attrs.equation, ranks)
    extents = _extents(labels_a, labels_b, operands.fields)
    batch = [n for n in out if n in labels_a and n in labels_b]
    summed = [n for n in labels_a if n in labels_b and n not in out]
    rows, columns = (
        [n for n in out if n in a and n not in b]
        for a, b in ((labels_a, labels_b), (labels_b, labels_a))
    )
    is_whole = len(batch + summed + rows) == len(labels_a) and len(batch + summed + columns) == len(
        labels_b
    )
    if extents is None or not is_whole or not summed:
        return None
    result = _matrix_product(
        operands.fields, (labels_a, labels_b), (batch, rows, columns, summed), extents
    )
    order = [*batch, *rows, *columns]
    if not len(batch) <= 1 or len(rows) != 1 or len(columns) != 1:
        result = op.reshape(result, tuple(extents[n] for n in order), allowzero=True)
    return _permuted(result, order, out)


def _matrix_product(
    sides: Sequence[RelayExpr],
    labels: tuple[Labels, Labels],
    groups: tuple[Labels, Labels, Labels, Labels],
    extents: dict[str, PrimExpr],
) -> RelayExpr:
    """Return the product: [rows, columns] or [batch, rows, columns]."""
    (a, b), (labels_a, labels_b), (batch, rows, columns, summed) = sides, labels, groups
    # A constant is transposed at compile time, and dense layers pack rows of weights.
    is_turned = list(labels_b) != [*batch, *summed, *columns] or isinstance(b, Constant)
    last = (columns, summed) if is_turned else (summed, columns)
    outer = [batch] if batch else []
    x = _grouped(a, labels_a, [*outer, rows, summed], extents)
    y = _grouped(b, labels_b, [*outer, *last], extents)
    if batch:
        return op.nn.batch_matmul(x, y, transpose_b=is_turned)
    return op.nn.dense(x, y) if is_turned else op.nn.matmul(x, y)


def MultiplyEinsums() -> Pass:  # noqa: N802
    """Return the pass described at the top of this file."""
    return call_pass("MultiplyEinsums", 2, lambda: {"einsum": _rewrite_einsum}, "multiply einsums")
