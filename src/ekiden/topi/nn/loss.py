"""Losses."""

from __future__ import annotations

from ekiden import te
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, cast, const, fold_binary
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    extent_checks,
    index_check,
    normalize_negative_index,
)
from ekiden.topi.broadcast import divide
from ekiden.topi.dimensions import require_shape
from ekiden.topi.reduce import sum

LOSS_REDUCTIONS = ("none", "sum", "mean")


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
    if reduction not in LOSS_REDUCTIONS:
        raise ValueError(
            f"nll_loss: reduction must be one of {', '.join(LOSS_REDUCTIONS)}, got {reduction!r}"
        )
    classes, dtype = predictions.shape[1], predictions.dtype

    def is_ignored(i: tuple[Var, ...]) -> PrimExpr:
        """Return whether the target is the class to ignore."""
        return fold_binary(EQ, cast(targets[i], "int64"), ignore_index)

    safe_targets = te.compute(  # an ignored target may be out of range
        targets.shape,
        lambda *i: Select(is_ignored(i), const(0), cast(targets[i], "int64"), "int64"),
        name="known",
        tag="injective",
    )

    def target_weight(i: tuple[Var, ...]) -> PrimExpr:
        """Return the weight of the target's class, 0 if it is ignored."""
        class_weight = weights[normalize_negative_index(safe_targets[i], classes)]
        return Select(is_ignored(i), const(0, dtype), class_weight, dtype)

    def element_loss(*i: Var) -> PrimExpr:
        """Return the weighted negative prediction of the target's class."""
        row = (i[0], normalize_negative_index(safe_targets[i], classes), *i[1:])
        return const(0, dtype) - predictions[row] * target_weight(i)

    extents = extent_checks(
        "nll_loss",
        (targets.shape[0], classes, *targets.shape[1:], classes),
        (predictions.shape[0], classes, *predictions.shape[2:], weights.shape[0]),
        what=("targets", "predictions"),
    )
    attrs = {
        RANGE_CHECKS_ATTR_KEY: (
            *extents,
            index_check("nll_loss", safe_targets, classes, 1, "target"),
        )
    }
    losses = te.compute(targets.shape, element_loss, name="nll_loss", tag="injective", attrs=attrs)
    if reduction == "none":
        return losses
    total = sum(losses)
    if reduction == "sum":
        return total
    counted = te.compute(
        targets.shape, lambda *i: target_weight(i), name="weights", tag="injective"
    )
    return divide(total, sum(counted))


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """Return -sum(y * log(x)) / batch, for probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, True)


def cross_entropy_with_logits(x: Tensor, y: Tensor) -> Tensor:
    """Return -sum(y * x) / batch, for log-probabilities [N, C] and targets of that shape."""
    return _mean_entropy(x, y, False)


def _mean_entropy(x: Tensor, y: Tensor, logarithm: bool) -> Tensor:
    batch = cast(x.shape[0], x.dtype)

    def cross_entropy_term(*i: Var) -> PrimExpr:
        value = te.log(x[i]) if logarithm else x[i]
        return const(0, x.dtype) - value * y[i]

    require_shape("cross_entropy", "targets", y.shape, x.shape)
    total = sum(te.compute(x.shape, cross_entropy_term, name="entropy", tag="broadcast"))
    return te.compute((), lambda: total[()] / batch, name="cross_entropy", tag="elemwise")


__all__ = ["cross_entropy", "cross_entropy_with_logits", "nll_loss"]
