"""Helpers of gradient rules: sums over broadcast axes, reshapes, typed constants."""

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


def tensor_type_of(expr: RelayExpr) -> TensorType:
    """Return the tensor type of an expression."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType), f"expected a tensor, got {kind}"
    return kind


def scalar_like(value: float, like: RelayExpr) -> Constant:
    """Return a scalar constant of another expression's dtype."""
    return literal(value, tensor_type_of(like).dtype)


def sum_to_shape(grad: RelayExpr, shape: Sequence[PrimExpr], target: RelayExpr) -> RelayExpr:
    """Sum a gradient of `shape` over broadcast axes to the shape of `target`.

    Raises:
        ValueError: A dimension is not known to be broadcast or not.
    """
    target_shape = tensor_type_of(target).shape
    lead = len(shape) - len(target_shape)
    axes = list(range(lead))
    for index, (small, large) in enumerate(zip(target_shape, shape[lead:], strict=True)):
        if is_const(small, 1) and not is_const(large, 1):
            axes.append(index + lead)
        elif not prove_equal(small, large):
            raise ValueError(f"whether dimension {index} was broadcast from {small} to {large}")
    if axes:
        grad = op.sum(grad, axis=axes, keepdims=True)
    return op.squeeze(grad, axis=list(range(lead))) if lead else grad


def reshape_to(grad: RelayExpr, target: RelayExpr) -> RelayExpr:
    """Reshape a gradient to the shape of `target`."""
    if any(isinstance(dim, AnyDim) for dim in tensor_type_of(target).shape):
        return op.reshape_like(grad, target)
    return op.reshape(grad, tensor_type_of(target).shape, allowzero=True)


def reshape_static(x: RelayExpr, shape: Sequence[PrimExpr | int]) -> RelayExpr:
    """Reshape `x` to a shape that may have empty axes."""
    return op.reshape(x, shape, allowzero=True)


def flatten_to_matrix(x: RelayExpr, shape: Sequence[PrimExpr]) -> RelayExpr:
    """Flatten the leading dimensions of `x` to a matrix."""
    lead: PrimExpr = as_dim(1)
    for dim in shape[:-1]:
        # The number of rows is left to the reshape, which computes it at run time.
        if isinstance(dim, AnyDim):
            return op.reshape(x, (-1, shape[-1]))
        lead = dim * lead
    return reshape_static(x, (lead, shape[-1]))


def broadcast_to_target(grad: RelayExpr, target: RelayExpr) -> RelayExpr:
    """Broadcast a gradient to the shape of `target`."""
    return op.broadcast_to(grad, tensor_type_of(target).shape)
