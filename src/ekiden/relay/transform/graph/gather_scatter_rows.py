"""Rewrite gather and scatter by broadcast row indices as take and scatter_nd.

    gather(%x, broadcast_to(%i, shape=[e, f]), axis=0)   ->   take(%x, %i)      rows, not elements
    scatter_elements(%x, broadcast_to(%i, shape=[e, f]), %u, axis=0, reduction="add")
    ->   scatter_nd(%x, %i, %u, mode="add")

Exporters write the gathers and scatters of graph networks so, with %i of [e, 1]. The slices must be
complete: the other dimensions are those of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import PrimExpr, const, is_const
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of

if TYPE_CHECKING:
    import ekiden.relay.op.index as index
    import ekiden.relay.op.scatter_ops as placing
else:
    placing = LazyModule("ekiden.relay.op.scatter_ops")
    index = LazyModule("ekiden.relay.op.index")

TensorShape = Sequence[PrimExpr]


def _tensor_shape(expr: RelayExpr) -> TensorShape:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind.shape


def _is_equal_except_axis(a: TensorShape, b: TensorShape, but: int = -1) -> bool:
    """Return whether two shapes are provably equal except for one axis."""
    pairs = enumerate(zip(a, b, strict=True))
    return len(a) == len(b) and all(n == but or prove_equal(x, y) for n, (x, y) in pairs)


def match_broadcast_vector(indices: RelayExpr, axis: int, rank: int = 1) -> RelayExpr | None:
    """Return the vector that a tensor broadcasts along all other axes, with leading unit axes up to
    `rank`, or None.

    Returns:
        None where indices are not known to be such.
    """
    shape = _tensor_shape(indices)
    vector_shape = (*(const(1),) * (rank - 1), shape[axis])
    if isinstance(indices, Constant):
        data = indices.data
        start = tuple(slice(None) if n == axis else slice(0, 1) for n in range(data.ndim))
        first = data[start]
        # An empty tensor has no first element to compare the others with.
        is_repeated = data.size > 0 and bool(np.all(data == first))
        line = np.ascontiguousarray(first.reshape((1,) * (rank - 1) + (-1,)))
        return Constant(line) if is_repeated else None
    if op_name_of(indices) != "broadcast_to":
        return None
    assert isinstance(indices, Call)
    inner = indices.args[0]
    inner_shape = _tensor_shape(inner)
    # Broadcasting aligns axes from the right.
    axis_index = axis - (len(shape) - len(inner_shape))
    if axis_index < 0 or not prove_equal(inner_shape[axis_index], shape[axis]):
        return None
    # The indices would differ along any other axis whose extent is not 1.
    if any(n != axis_index and not is_const(dim, 1) for n, dim in enumerate(inner_shape)):
        return None
    return (
        inner if len(inner_shape) == rank == 1 else op.reshape(inner, vector_shape, allowzero=True)
    )


def rewrite_gather_as_take(call: Call) -> RelayExpr | None:
    """Rewrite a gather of whole rows as a take, or return None."""
    data, indices = call.args
    assert isinstance(call.attrs, index.GatherAttrs)
    shape = _tensor_shape(data)
    axis = call.attrs.axis % len(shape)
    # With one axis a gather is a take already.
    if len(shape) < 2 or not _is_equal_except_axis(shape, _tensor_shape(indices), axis):
        return None
    rows = match_broadcast_vector(indices, axis)
    if rows is None:
        return None
    # A gather rejects indices out of bounds, and so must the take.
    return op.take(data, rows, axis=axis, mode="raise").with_fields(span=call.span)


def rewrite_scatter_as_scatter_nd(call: Call) -> RelayExpr | None:
    """Rewrite a scatter_elements of whole rows as a scatter_nd, or return None."""
    data, indices, updates = call.args
    assert isinstance(call.attrs, placing.ScatterElementsAttrs)
    shape = _tensor_shape(data)
    # scatter_nd indexes leading axes only.
    if len(shape) < 2 or call.attrs.axis % len(shape) != 0:
        return None
    if not _is_equal_except_axis(shape, _tensor_shape(indices), 0) or not _is_equal_except_axis(
        _tensor_shape(updates), _tensor_shape(indices)
    ):
        return None
    rows = match_broadcast_vector(indices, 0, rank=2)
    if rows is None:
        return None
    scatter = op.scatter_nd(data, rows, updates, call.attrs.reduction)
    return scatter.with_fields(span=call.span)


__all__ = ["match_broadcast_vector", "rewrite_gather_as_take", "rewrite_scatter_as_scatter_nd"]
