"""Lower einsum with two operands to matmul, dense or batch_matmul.

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
from ekiden.relay.transform.graph.call_rewrites import call_pass
from ekiden.topi.dimensions import product_of_dims

if TYPE_CHECKING:
    from ekiden.relay.op import tensor_math
    from ekiden.topi import contractions
else:
    tensor_math = LazyModule("ekiden.relay.op.tensor_math")
    contractions = LazyModule("ekiden.topi.contractions")

PRODUCT_DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes with matrix-product kernels."""
EinsumLabels = Sequence[str]


def _tensor_shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def _label_extents(
    labels_a: EinsumLabels, labels_b: EinsumLabels, sides: Sequence[RelayExpr]
) -> dict[str, PrimExpr] | None:
    """Return the extent of each label; None if a label repeats within an operand or its extents
    differ.
    """
    extents: dict[str, PrimExpr] = {}
    for labels, side in zip((labels_a, labels_b), sides, strict=True):
        # A label twice is a diagonal, which products do not take.
        if len(set(labels)) < len(labels):
            return None
        for label, extent in zip(labels, _tensor_shape(side), strict=True):
            if not prove_equal(extents.setdefault(label, extent), extent):
                return None
    return extents


def _transpose_and_merge(
    side: RelayExpr,
    labels: EinsumLabels,
    groups: Sequence[EinsumLabels],
    extents: dict[str, PrimExpr],
) -> RelayExpr:
    """Transpose an operand to the order of the label groups, and merge each group into one axis."""
    order = [label for group in groups for label in group]
    moved = _permute_axes(side, labels, order)
    if all(len(group) == 1 for group in groups):
        return moved
    shape = tuple(product_of_dims([extents[label] for label in group]) for group in groups)
    return op.reshape(moved, shape, allowzero=True)


def _permute_axes(expr: RelayExpr, labels: EinsumLabels, order: EinsumLabels) -> RelayExpr:
    if list(labels) == list(order):
        return expr
    return op.transpose(expr, [list(labels).index(label) for label in order])


def _rewrite_einsum(call: Call) -> RelayExpr | None:
    operands, attrs = call.args[0], call.attrs
    assert isinstance(attrs, tensor_math.EinsumAttrs)
    kind = call.checked_type
    assert isinstance(kind, TensorType)
    if (
        not isinstance(operands, Tuple)
        or len(operands.fields) != 2
        or kind.dtype not in PRODUCT_DTYPES
    ):
        return None
    ranks = [len(_tensor_shape(f)) for f in operands.fields]
    (labels_a, labels_b), out = contractions.einsum_labels(attrs.equation, ranks)
    extents = _label_extents(labels_a, labels_b, operands.fields)
    batch = [n for n in out if n in labels_a and n in labels_b]
    summed = [n for n in labels_a if n in labels_b and n not in out]
    rows, columns = (
        [n for n in out if n in a and n not in b]
        for a, b in ((labels_a, labels_b), (labels_b, labels_a))
    )
    # Labels of one operand that are summed there are in none of the groups.
    is_whole = len(batch + summed + rows) == len(labels_a) and len(batch + summed + columns) == len(
        labels_b
    )
    # Labels summed within one operand, or none summed at all, are no matrix product.
    if extents is None or not is_whole or not summed:
        return None
    result = _emit_matmul(
        operands.fields, (labels_a, labels_b), (batch, rows, columns, summed), extents
    )
    order = [*batch, *rows, *columns]
    if not len(batch) <= 1 or len(rows) != 1 or len(columns) != 1:
        result = op.reshape(result, tuple(extents[n] for n in order), allowzero=True)
    return _permute_axes(result, order, out)


def _emit_matmul(
    sides: Sequence[RelayExpr],
    labels: tuple[EinsumLabels, EinsumLabels],
    groups: tuple[EinsumLabels, EinsumLabels, EinsumLabels, EinsumLabels],
    extents: dict[str, PrimExpr],
) -> RelayExpr:
    """Emit the product of shape [rows, columns] or [batch, rows, columns]."""
    (a, b), (labels_a, labels_b), (batch, rows, columns, summed) = sides, labels, groups
    # A constant is transposed at compile time, and dense layers pack rows of weights.
    is_turned = list(labels_b) != [*batch, *summed, *columns] or isinstance(b, Constant)
    last = (columns, summed) if is_turned else (summed, columns)
    outer = [batch] if batch else []
    x = _transpose_and_merge(a, labels_a, [*outer, rows, summed], extents)
    y = _transpose_and_merge(b, labels_b, [*outer, *last], extents)
    if batch:
        return op.nn.batch_matmul(x, y, transpose_b=is_turned)
    return op.nn.dense(x, y) if is_turned else op.nn.matmul(x, y)


def MultiplyEinsums() -> Pass:  # noqa: N802
    """Return a pass that rewrites two-operand einsums as matrix products."""
    return call_pass("MultiplyEinsums", 2, lambda: {"einsum": _rewrite_einsum}, "multiply einsums")
