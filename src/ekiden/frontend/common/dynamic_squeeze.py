"""Squeeze without axes: every axis of extent 1 is removed, so that run-time extents decide the
rank.

The result is a value of several ranks where the model does not know them (see
ekiden.frontend.common.sum_value).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ekiden.arith import Analyzer
from ekiden.frontend.common.conditional import emit_if
from ekiden.frontend.common.node import Node, Result
from ekiden.frontend.common.sum_value import MAX_ALTERNATIVES
from ekiden.frontend.common.value import Value, known_value
from ekiden.ir.prim import EQ, NE, AnyDim, PrimExpr, fold_binary, is_const
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import are_equal_dims


def emit_drop_axes(data: Expr, is_gone: Expr, count: int) -> Expr:
    """Emit a reshape of data to the `count` extents that are not masked by `is_gone`, a run-time
    bool [rank], in their order.
    """
    extents = op.shape_of(data, dtype="int64")
    # Axes that stay come first: false is before true, and equal ones keep their order.
    order = op.argsort(op.cast(is_gone, "int32"), axis=0, dtype="int64")
    sizes = op.take(extents, op.take(order, const(np.arange(count)), axis=0), axis=0)
    return op.reshape(data, sizes, allowzero=True)


def emit_squeeze_all(node: Node, rank: int | None = None) -> Result:
    """Emit input 0 without the axes of extent 1, among the first `rank` axes if that is given.
    Raises Unsupported where the run could decide between too many ranks.
    """
    shape = node.shape(0)
    rank = len(shape) if rank is None else rank
    gone = [i for i, d in enumerate(shape[:rank]) if is_const(d, 1)]
    undecided = [i for i, d in enumerate(shape[:rank]) if _may_have_extent_one(d)]
    if not undecided:
        return _squeeze(node, gone)
    # k undecided axes give k + 1 possible ranks, one alternative of the sum each.
    if len(undecided) >= MAX_ALTERNATIVES:
        node.reject(
            f"it has no axes, and {len(undecided)} axes may have the extent 1: shape= says which do"
        )
    dims = [shape[i] for i in undecided]
    if all(are_equal_dims(d, dims[0]) for d in dims[1:]):
        is_one = known_value(np.array(fold_binary(EQ, dims[0], 1), object), "bool")
        all_or_none = [
            partial(_squeezed_value, node, [*gone, *undecided]),
            partial(_squeezed_value, node, gone),
        ]
        return emit_if(
            node, is_one, all_or_none, ("the branch of extents of 1", "the other branch")
        )
    is_gone = op.equal(op.shape_of(node.expr(0), dtype="int64"), const(np.int64(1)))
    if rank < len(shape):
        is_gone = op.logical_and(is_gone, const(np.arange(len(shape)) < rank))
    return _branch_on_count(node, node.bind_shared(is_gone), gone, undecided, 0)


def _may_have_extent_one(dim: PrimExpr) -> bool:
    """Return whether a dynamic dimension can be 1."""
    return not is_const(dim) and not Analyzer().can_prove(fold_binary(NE, dim, 1))


def _squeeze(node: Node, axes: list[int]) -> Expr:
    """Squeeze these axes of input 0."""
    return op.squeeze(node.expr(0), axis=sorted(axes)) if axes else node.expr(0)


def _squeezed_value(node: Node, axes: list[int]) -> list[Value]:
    """Bind the squeezed input as the one result of a branch."""
    return [node.scope.bind_named(_squeeze(node, axes), "squeezed")]


def _branch_on_count(
    node: Node, is_gone: Value, gone: list[int], undecided: list[int], count: int
) -> list[Value]:
    """Emit the branch for exactly `count` undecided axes of extent 1, else for more."""
    if count == len(undecided):
        return _squeezed_value(node, [*gone, *undecided])
    total = op.sum(op.cast(node.scope.expr(is_gone), "int64"), axis=[0])
    test = node.bind_shared(op.equal(total, const(np.int64(len(gone) + count))))
    runs = [
        partial(_squeeze_count, node, is_gone, gone, undecided, count),
        partial(_branch_on_count, node, is_gone, gone, undecided, count + 1),
    ]
    return emit_if(node, test, runs, (f"the branch of {count} extents of 1", "that of more"))


def _squeeze_count(
    node: Node, is_gone: Value, gone: list[int], undecided: list[int], count: int
) -> list[Value]:
    """Emit the result for exactly `count` undecided axes of extent 1."""
    if count == 0:
        return _squeezed_value(node, gone)
    shape = node.shape(0)
    first, last = undecided[0], undecided[-1]
    before = [d for i, d in enumerate(shape[:first]) if i not in gone]
    behind = [d for i, d in enumerate(shape) if i > last and i not in gone]
    rank = len(shape) - len(gone) - count
    between: list[PrimExpr] = [AnyDim()] * (rank - len(before) - len(behind))
    data = emit_drop_axes(node.expr(0), node.scope.expr(is_gone), rank)
    return [node.scope.bind_named(data, "squeezed", [*before, *between, *behind])]
