"""Axes that come at run time, as an input of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ekiden.frontend.common.choice import choose
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
    wanted = op.reshape(axes_by_data(node, index), ())

    def made(axis: int) -> list[Value]:
        return [node.value_of(along(axis))]

    def among(axis: int) -> list[Value]:
        """Along this axis or one behind it."""
        if axis == count - 1:
            return made(axis)
        here = node.value_of(op.equal(wanted, const(axis, "int64")))
        runs = [partial(made, axis), partial(among, axis + 1)]
        return choose(node, here, runs, (f"axis {axis}", "another axis"))

    return among(0)[0]
