"""Axes that are run-time inputs of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ekiden.frontend.common.choice import choose_at
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def is_data(node: Node, index: int) -> bool:
    """Return whether an input is present and its elements are known at run time only."""
    value = node.optional(index)
    return value is not None and value.array is None


def axes_by_data(node: Node, index: int) -> Expr:
    """Return axes that are a run-time input as non-negative int64; one out of range is a run-time
    error.
    """
    axes = op.cast(node.expr(index), "int64")
    # take with mode "raise" maps negative axes to positive ones and rejects those out of range.
    return op.take(const(np.arange(node.rank(0))), axes, axis=0, mode="raise")


def along_any(node: Node, index: int, count: int, along: Callable[[int], Expr]) -> Value:
    """Return the result of `along` for the axis that input `index` holds at run time, one of the
    first `count`.

    The results for all axes must have one rank, and should have one type.

    Args:
        node: the node.
        index: the input that holds the axis.
        count: how many axes there are to choose from.
        along: converts the node for a known axis.
    """

    def branch(axis: int) -> list[Value]:
        return [node.value_of(along(axis))]

    runs = [partial(branch, at) for at in range(count)]
    axis = node.given(op.reshape(axes_by_data(node, index), ()))
    return choose_at(node, axis, runs, "axis")[0]
