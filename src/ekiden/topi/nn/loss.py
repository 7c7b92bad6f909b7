"""Losses."""

from __future__ import annotations

from ekiden import te
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, binary, cast, const
from ekiden.te import Tensor
from ekiden.topi.broadcast import divide
from ekiden.topi.index import from_either_end
from ekiden.topi.reduce import sum

REDUCTIONS = ("none", "sum", "mean")


def nll_loss(
    predictions: Tensor, targets: Tensor, weights: Tensor, reduction: str, ignore_index: int
) -> Tensor:
    """-predictions[n, targets[n, ...], ...] * weights[targets[n, ...]], 0 where a target is
    ignored.

    predictions: [N, C, ...] log-probabilities. reduction: "none", "sum" or "mean" (over the weights
    that count). PyTorch's nll_loss.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"nll_loss: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
        )
    classes, dtype = predictions.shape[1], predictions.dtype

    def weight(i: tuple[Var, ...]) -> PrimExpr:
        target = targets[i]
        ignored = binary(EQ, cast(target, "int64"), ignore_index)
        return Select(ignored, const(0, dtype), weights[from_either_end(target, classes)], dtype)

    def loss(*i: Var) -> PrimExpr:
        row = (i[0], from_either_end(targets[i], classes), *i[1:])
        return const(0, dtype) - predictions[row] * weight(i)

    found = te.compute(targets.shape, loss, name="nll_loss", tag="injective")
    if reduction == "none":
        return found
    total = sum(found)
    if reduction == "sum":
        return total
    counted = te.compute(targets.shape, lambda *i: weight(i), name="weights", tag="injective")
    return divide(total, sum(counted))


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """-sum(y * log(x)) / batch, for probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, True)


def cross_entropy_with_logits(x: Tensor, y: Tensor) -> Tensor:
    """-sum(y * x) / batch, for log-probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, False)


def _mean_entropy(x: Tensor, y: Tensor, logarithm: bool) -> Tensor:
    batch = cast(x.shape[0], x.dtype)

    def body(*i: Var) -> PrimExpr:
        value = te.log(x[i]) if logarithm else x[i]
        return const(0, x.dtype) - value * y[i] / batch

    return sum(te.compute(x.shape, body, name="entropy", tag="broadcast"))


__all__ = ["cross_entropy", "cross_entropy_with_logits", "nll_loss"]
