"""Persistent states and time steps, shared by float and integer recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.recurrent_cells import StepFunction, scan_steps
from ekiden.frontend.common.recurrent_layer import RecurrentLayer, exchange_steps_and_batch
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import known_int


def assign_state(node: TfliteNode, index: int, value: Value) -> None:
    """Assign a new value to a state tensor."""
    tensor = node.ins[index]
    assert tensor is not None, "a state is there"
    node.graph.shared.variables.assign(tensor.name, value)


def read_state(node: TfliteNode, index: int) -> Value:
    """Return the current value of a state tensor. Raises UnsupportedError where the input is no
    variable.
    """
    tensor = node.ins[index] if index < len(node.ins) else None
    if tensor is None or not tensor.is_variable:
        node.reject(f"input {index}, a state, is no variable")
    return node.value(index)


def run_steps(
    node: TfliteNode,
    data: Sequence[Expr],
    states: Sequence[int],
    step: StepFunction,
    backwards: bool = False,
) -> Expr:
    """Run all steps over data [steps, ...]; return the outputs [steps, ...] and assign the
    states.
    """
    every, after = scan_steps(node, data, [read_state(node, i) for i in states], step, backwards)
    for index, value in zip(states, after, strict=True):
        assign_state(node, index, value)
    return every


def run_layer(node: TfliteNode, layer: RecurrentLayer, data: Expr, states: Sequence[int]) -> Expr:
    """Emit a layer that begins with state tensors; return the outputs [steps, ...] and assign the
    states.
    """
    every, *ends = layer.emit(node, data)
    for index, end in zip(states, ends, strict=True):
        assign_state(node, index, node.bind_shared(end))
    return every


def to_time_major(node: TfliteNode, index: int) -> Expr:
    """Return an input [time, batch, features]."""
    return to_operator_order(node, node.expr(index))


def to_operator_order(node: TfliteNode, outputs: Expr) -> Expr:
    """Transpose time-major outputs to the operator's order, or back."""
    return outputs if node.read_option("TimeMajor") else exchange_steps_and_batch(outputs)


def read_optional_input(node: TfliteNode, index: int) -> Expr | None:
    """Return an optional input, or None."""
    return None if node.optional_value(index) is None else node.expr(index)


def update_svdf_memory(node: TfliteNode, activations: Expr, times: Expr) -> Expr:
    """Emit SVDF's sums per unit and update its memory of the last activations, weighted by `times`
    [filters, memory].

    The state, input 4, is [batch, filters * memory].
    """
    rank = int(node.read_option("Rank", 1))
    filters, memory = (known_int(d) for d in node.shape(2))
    if filters is None or memory is None or filters % rank:
        node.reject(f"{node.ins[2]} must have known extents, the first a multiple of {rank}")
    before = op.reshape(node.scope.expr(read_state(node, 4)), (-1, filters, memory))
    # The memory is a queue: the oldest activation leaves, the new one enters at its end.
    recent = op.strided_slice(before, (1,), (memory,), axes=(2,))
    after = node.bind_shared(op.concatenate([recent, op.expand_dims(activations, 2)], axis=2))
    wide = op.cast(node.scope.expr(after), node.tensor_type_of(times).dtype)
    sums = op.sum(op.multiply(wide, times), axis=[2])
    sums = op.sum(op.reshape(sums, (-1, filters // rank, rank)), axis=[2])
    flat = op.reshape(node.scope.expr(after), (-1, filters * memory))
    assign_state(node, 4, node.bind_shared(op.reshape(flat, node.shape(4), allowzero=True)))
    return sums
