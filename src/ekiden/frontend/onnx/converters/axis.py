"""Axes that come at run time, as an input of a node."""

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
    """Whether an input is there, and its numbers come at run time."""
    found = node.optional(index)
    return found is not None and found.array is None


def axes_by_data(node: Node, index: int) -> Expr:
    """Axes that come at run time, from the front; one that there is not ends the run."""
    given = op.cast(node.expr(index), "int64")
    return op.take(const(np.arange(node.rank(0))), given, axis=0, mode="raise")


def along_any(node: Node, index: int, count: int, along: Callable[[int], Expr]) -> Value:
    """What `along` makes of one of the first `count` axes, whichever comes at run time as input
    `index`. The results must have one rank, and should have one type.
    """

    def made(axis: int) -> list[Value]:
        return [node.value_of(along(axis))]

    runs = [partial(made, at) for at in range(count)]
    axis = node.given(op.reshape(axes_by_data(node, index), ()))
    return choose_at(node, axis, runs, "axis")[0]
