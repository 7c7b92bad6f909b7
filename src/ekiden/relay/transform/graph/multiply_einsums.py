"""Make matrix products of Einstein's sums over two operands, which have kernels.

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
from ekiden.topi.shape import product

if TYPE_CHECKING:
    from ekiden.relay.op import algebra
    from ekiden.topi import products
else:
    algebra = LazyModule("ekiden.relay.op.algebra")
    products = LazyModule("ekiden.topi.products")

DTYPES = ("float32", "float16", "bfloat16")
"""Types whose products have kernels."""
Labels = Sequence[str]


def _shape(expr: RelayExpr) -> tuple[PrimExpr, ...]:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def _extents(left: Labels, right: Labels, sides: Sequence[RelayExpr]) -> dict[str, PrimExpr] | None:
    """The extent of each label; None if one is twice in an operand, or differs in the two."""
    found: dict[str, PrimExpr] = {}
    for labels, side in zip((left, right), sides, strict=True):
        if len(set(labels)) < len(labels):
            return None
        for label, extent in zip(labels, _shape(side), strict=True):
            if not prove_equal(found.setdefault(label, extent), extent):
                return None
    return found


def _grouped(
    side: RelayExpr, labels: Labels, groups: Sequence[Labels], extents: dict[str, PrimExpr]
) -> RelayExpr:
    """The axes of an operand in the order of the groups, each of which becomes one axis."""
    wanted = [label for group in groups for label in group]
    moved = _permuted(side, labels, wanted)
    if all(len(group) == 1 for group in groups):
        return moved
    shape = tuple(product([extents[label] for label in group]) for group in groups)
    return op.reshape(moved, shape, allowzero=True)


def _permuted(expr: RelayExpr, labels: Labels, wanted: Labels) -> RelayExpr:
    if list(labels) == list(wanted):
        return expr
    return op.transpose(expr, [list(labels).index(label) for label in wanted])


def _product(call: Call) -> RelayExpr | None:
    given, attrs = call.args[0], call.attrs
    assert isinstance(attrs, algebra.EinsumAttrs)
    kind = call.checked_type
    assert isinstance(kind, TensorType)
    if not isinstance(given, Tuple) or len(given.fields) != 2 or kind.dtype not in DTYPES:
        return None
    ranks = [len(_shape(f)) for f in given.fields]
    (left, right), out = products.einsum_labels(attrs.equation, ranks)
    extents = _extents(left, right, given.fields)
    batch = [n for n in out if n in left and n in right]
    summed = [n for n in left if n in right and n not in out]
    rows, columns = (
        [n for n in out if n in a and n not in b] for a, b in ((left, right), (right, left))
    )
    is_whole = len(batch + summed + rows) == len(left) and len(batch + summed + columns) == len(
        right
    )
    if extents is None or not is_whole or not summed:
        return None
    made = _multiplied(given.fields, (left, right), (batch, rows, columns, summed), extents)
    order = [*batch, *rows, *columns]
    if not len(batch) <= 1 or len(rows) != 1 or len(columns) != 1:
        made = op.reshape(made, tuple(extents[n] for n in order), allowzero=True)
    return _permuted(made, order, out)


def _multiplied(
    sides: Sequence[RelayExpr],
    labels: tuple[Labels, Labels],
    groups: tuple[Labels, Labels, Labels, Labels],
    extents: dict[str, PrimExpr],
) -> RelayExpr:
    """[rows, columns] or [batch, rows, columns]."""
    (a, b), (left, right), (batch, rows, columns, summed) = sides, labels, groups
    is_turned = list(right) != [*batch, *summed, *columns] or isinstance(b, Constant)
    last = (columns, summed) if is_turned else (summed, columns)
    outer = [batch] if batch else []
    x = _grouped(a, left, [*outer, rows, summed], extents)
    y = _grouped(b, right, [*outer, *last], extents)
    if batch:
        return op.nn.batch_matmul(x, y, transpose_b=is_turned)
    return op.nn.dense(x, y) if is_turned else op.nn.matmul(x, y)


def MultiplyEinsums() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return call_pass("MultiplyEinsums", 2, lambda: {"einsum": _product}, "multiply einsums")
