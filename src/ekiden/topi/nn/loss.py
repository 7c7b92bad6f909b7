"""Losses."""

from __future__ import annotations

from ekiden import te
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, binary, cast, const
from ekiden.te import Tensor
from ekiden.te.range_checks import CHECKS_ATTR, extent_checks, from_either_end, index_check
from ekiden.topi.broadcast import divide
from ekiden.topi.dimensions import expect_shape
from ekiden.topi.reduce import sum

REDUCTIONS = ("none", "sum", "mean")


def nll_loss(
    predictions: Tensor, targets: Tensor, weights: Tensor, reduction: str, ignore_index: int
) -> Tensor:
    """Return the negative log-likelihood loss (PyTorch's nll_loss): -predictions[n, targets[n,
    ...], ...] * weights[targets[n, ...]], 0 for ignored targets.

    Args:
        predictions: log-probabilities [N, C, ...].
        targets: classes [N, ...].
        weights: weight of each class.
        reduction: "none", "sum" or "mean" (over the weights that count).
        ignore_index: the ignored target.

    Returns:
        The loss.

    Raises:
        ValueError: for another reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"nll_loss: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
        )
    classes, dtype = predictions.shape[1], predictions.dtype

    def ignored(i: tuple[Var, ...]) -> PrimExpr:
        return binary(EQ, cast(targets[i], "int64"), ignore_index)

    safe_targets = te.compute(  # an ignored target may be out of range
        targets.shape,
        lambda *i: Select(ignored(i), const(0), cast(targets[i], "int64"), "int64"),
        name="known",
        tag="injective",
    )

    def weight(i: tuple[Var, ...]) -> PrimExpr:
        class_weight = weights[from_either_end(safe_targets[i], classes)]
        return Select(ignored(i), const(0, dtype), class_weight, dtype)

    def loss(*i: Var) -> PrimExpr:
        row = (i[0], from_either_end(safe_targets[i], classes), *i[1:])
        return const(0, dtype) - predictions[row] * weight(i)

    extents = extent_checks(
        "nll_loss",
        (targets.shape[0], classes, *targets.shape[1:], classes),
        (predictions.shape[0], classes, *predictions.shape[2:], weights.shape[0]),
        what=("targets", "predictions"),
    )
    attrs = {CHECKS_ATTR: (*extents, index_check("nll_loss", safe_targets, classes, 1, "target"))}
    losses = te.compute(targets.shape, loss, name="nll_loss", tag="injective", attrs=attrs)
    if reduction == "none":
        return losses
    total = sum(losses)
    if reduction == "sum":
        return total
    counted = te.compute(targets.shape, lambda *i: weight(i), name="weights", tag="injective")
    return divide(total, sum(counted))


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """Return -sum(y * log(x)) / batch, for probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, True)


def cross_entropy_with_logits(x: Tensor, y: Tensor) -> Tensor:
    """Return -sum(y * x) / batch, for log-probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, False)


def _mean_entropy(x: Tensor, y: Tensor, logarithm: bool) -> Tensor:
    batch = cast(x.shape[0], x.dtype)

    def body(*i: Var) -> PrimExpr:
        value = te.log(x[i]) if logarithm else x[i]
        return const(0, x.dtype) - value * y[i]

    expect_shape("cross_entropy", "targets", y.shape, x.shape)
    total = sum(te.compute(x.shape, body, name="entropy", tag="broadcast"))
    return te.compute((), lambda: total[()] / batch, name="cross_entropy", tag="elemwise")


__all__ = ["cross_entropy", "cross_entropy_with_logits", "nll_loss"]
