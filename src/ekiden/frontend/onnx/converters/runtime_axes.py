"""Axes given as run-time inputs of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ekiden.frontend.common.conditional import emit_switch
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def is_runtime_input(node: OnnxNode, index: int) -> bool:
    """Return whether an input is present and known at run time only."""
    value = node.optional_value(index)
    return value is not None and value.array is None


def normalize_runtime_axes(node: OnnxNode, index: int) -> Expr:
    """Emit run-time axes as non-negative int64; one out of range is a run-time error."""
    axes = op.cast(node.expr(index), "int64")
    # take with mode "raise" maps negative axes to positive ones and rejects those out of range.
    return op.take(const(np.arange(node.rank(0))), axes, axis=0, mode="raise")


def switch_on_axis(node: OnnxNode, index: int, count: int, along: Callable[[int], Expr]) -> Value:
    """Emit a switch over the axis that input `index` holds at run time, one branch per axis below
    `count`.

    The results for all axes must have one rank, and should have one type.

    Args:
        node: the node.
        index: the input that holds the axis.
        count: how many axes there are to choose from.
        along: converts the node for a known axis.
    """

    def convert_along(axis: int) -> list[Value]:
        """Convert the node along one axis."""
        return [node.as_value(along(axis))]

    # Relay's operators take constant axes, so each possible axis has a branch of its own.
    runs = [partial(convert_along, position) for position in range(count)]
    axis = node.bind_shared(op.reshape(normalize_runtime_axes(node, index), ()))
    return emit_switch(node, axis, runs, "axis")[0]
