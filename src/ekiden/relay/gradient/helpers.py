"""What gradients are made of: sums over broadcast axes, reshapes, constants of the right dtype."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import AnyDim, PrimExpr, is_const
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Constant
from ekiden.relay.expr import const as literal
from ekiden.topi.dimensions import as_dim


def tensor(expr: RelayExpr) -> TensorType:
    """Return the type of a tensor-valued expression."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType), f"expected a tensor, got {kind}"
    return kind


def scalar(value: float, like: RelayExpr) -> Constant:
    """Return a constant of the dtype of another expression."""
    return literal(value, tensor(like).dtype)


def sum_to(grad: RelayExpr, shape: Sequence[PrimExpr], target: RelayExpr) -> RelayExpr:
    """Return `grad`, of `shape`, summed to the shape of `target`, which was broadcast to `shape`.

    Raises:
        ValueError: A dimension is not known to be broadcast or not.
    """
    target_shape = tensor(target).shape
    lead = len(shape) - len(target_shape)
    axes = list(range(lead))
    for at, (small, large) in enumerate(zip(target_shape, shape[lead:], strict=True)):
        if is_const(small, 1) and not is_const(large, 1):
            axes.append(at + lead)
        elif not prove_equal(small, large):
            raise ValueError(f"whether dimension {at} was broadcast from {small} to {large}")
    if axes:
        grad = op.sum(grad, axis=axes, keepdims=True)
    return op.squeeze(grad, axis=list(range(lead))) if lead else grad


def shape_like(grad: RelayExpr, target: RelayExpr) -> RelayExpr:
    """Return `grad` with its elements in the shape of `target`."""
    if any(isinstance(dim, AnyDim) for dim in tensor(target).shape):
        return op.reshape_like(grad, target)
    return op.reshape(grad, tensor(target).shape, allowzero=True)


def shaped(x: RelayExpr, shape: Sequence[PrimExpr | int]) -> RelayExpr:
    """Return the elements of `x` in a shape, whose sizes may be 0."""
    return op.reshape(x, shape, allowzero=True)


def rows_of(x: RelayExpr, shape: Sequence[PrimExpr]) -> RelayExpr:
    """Return the elements of `x` as a matrix, with its leading dimensions merged."""
    lead: PrimExpr = as_dim(1)
    for dim in shape[:-1]:
        # The number of rows is left to the reshape, which computes it at run time.
        if isinstance(dim, AnyDim):
            return op.reshape(x, (-1, shape[-1]))
        lead = dim * lead
    return shaped(x, (lead, shape[-1]))


def broadcast_like(grad: RelayExpr, target: RelayExpr) -> RelayExpr:
    """Return `grad` broadcast to the shape of `target`."""
    return op.broadcast_to(grad, tensor(target).shape)
