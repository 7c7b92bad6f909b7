"""What recurrent layers of floats and of integers have in common: states that are tensors which are
kept between runs, and steps over time.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.cells import Step, scanned
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known


def keep(node: Node, index: int, value: Value) -> None:
    """Give the tensor of a state its new value."""
    tensor = node.ins[index]
    assert tensor is not None, "a state is there"
    node.graph.shared.variables.assign(tensor.name, value)


def state(node: Node, index: int) -> Value:
    """A state as it is now. Raises Unsupported where the input is no variable."""
    tensor = node.ins[index] if index < len(node.ins) else None
    if tensor is None or not tensor.is_variable:
        node.unsupported(f"input {index}, a state, is no variable")
    return node.value(index)


def stepped(
    node: Node, data: Sequence[Expr], states: Sequence[int], step: Step, backwards: bool = False
) -> Expr:
    """The outputs [steps, ..] of all steps of data [steps, ..]; the states are kept."""
    every, after = scanned(node, data, [state(node, i) for i in states], step, backwards)
    for index, value in zip(states, after, strict=True):
        keep(node, index, value)
    return every


def timed(node: Node, index: int) -> Expr:
    """An input with the steps first."""
    is_first = bool(node.option("TimeMajor"))
    return node.expr(index) if is_first else op.transpose(node.expr(index), (1, 0, 2))


def turned(node: Node, made: Expr) -> Expr:
    """Outputs of steps, as the operator orders them."""
    return made if node.option("TimeMajor") else op.transpose(made, (1, 0, 2))


def given(node: Node, index: int) -> Expr | None:
    """An input that may be absent."""
    return None if node.optional(index) is None else node.expr(index)


def remembered(node: Node, seen: Expr, times: Expr) -> Expr:
    """The sums of SVDF, by units: each filter keeps what it saw at the last times, which it weighs
    by `times` [filters, memory]. The state, input 4, is [batch, filters * memory].
    """
    rank = int(node.option("Rank", 1))
    filters, memory = (known(d) for d in node.shape(2))
    if filters is None or memory is None or filters % rank:
        node.unsupported(f"{node.ins[2]} must have known extents, the first a multiple of {rank}")
    before = op.reshape(node.scope.expr(state(node, 4)), (-1, filters, memory))
    rest = op.strided_slice(before, (1,), (memory,), axes=(2,))
    after = node.given(op.concatenate([rest, op.expand_dims(seen, 2)], axis=2))
    wide = op.cast(node.scope.expr(after), node.typed(times).dtype)
    made = op.sum(op.multiply(wide, times), axis=[2])
    made = op.sum(op.reshape(made, (-1, filters // rank, rank)), axis=[2])
    flat = op.reshape(node.scope.expr(after), (-1, filters * memory))
    keep(node, 4, node.given(op.reshape(flat, node.shape(4), allowzero=True)))
    return made
