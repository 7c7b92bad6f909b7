"""Recurrent layers: aten::lstm, gru, rnn_tanh and rnn_relu over padded sequences.

PyTorch's decompositions unroll every step: a program as long as the sequence. Here a layer and
direction is one operator (nn.lstm, nn.gru, nn.rnn), with PyTorch's order of gates. Layers over
packed sequences (`lstm_step.data`) in a program exported elsewhere keep PyTorch's decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ekiden.frontend.common.recurrent_layer import RecurrentLayer, exchange_steps_and_batch
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass

RECURRENT_OPERATORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "lstm": ("lstm", ()),
    "gru": ("gru", ()),
    "rnn_tanh": ("rnn", ("tanh",)),
    "rnn_relu": ("rnn", ("relu",)),
}
"""PyTorch's operator -> (nn.recurrent's kind, its activations where they are not its defaults)."""


@dataclass(frozen=True, slots=True)
class _LayerStack:
    """Arguments that all layers of a recurrent module share."""

    params: Sequence[Value]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def num_directions(self) -> int:
        return 1 + self.bidirectional


def _read_layer(
    name: str,
    weights: Sequence[Expr],
    has_biases: bool,
    states: Sequence[Expr],
    lengths: Expr | None,
    is_reverse: bool,
) -> RecurrentLayer:
    """Return a layer in one direction from its parameters: [gates * hidden, inputs], [gates *
    hidden, hidden], perhaps two biases, perhaps a projection of hidden states [projected, hidden]
    (lstm).
    """
    kind, activations = RECURRENT_OPERATORS[name]
    into, again, *others = weights
    return RecurrentLayer(
        kind,
        into,
        again,
        others[0] if has_biases else None,
        others[1] if has_biases else None,
        initial_h=states[0],
        initial_c=states[1] if len(states) > 1 else None,
        # Weights and biases come in pairs, so an odd number includes a projection.
        projection=weights[-1] if len(weights) % 2 else None,
        activations=activations,
        lengths=lengths,
        reverse=is_reverse,
    )


def _run_layers(
    node: FxNode,
    name: str,
    x: Value,
    states: Sequence[Value],
    stack: _LayerStack,
    lengths: Value | None,
) -> list[Expr | Value | None]:
    """Emit all layers; return the last hidden states, and each final state [layers * directions,
    batch, hidden].
    """
    if stack.train and stack.dropout > 0 and stack.num_layers > 1:
        node.reject("dropout between layers, which training has")
    # The operator computes in float32 or float64, so narrower floats are widened.
    dtype = "float64" if x.type.dtype == "float64" else "float32"
    data = node.to_expr(x, dtype)
    if stack.batch_first:
        data = exchange_steps_and_batch(data)
    ends_at = None if lengths is None else op.cast(node.to_expr(lengths), "int32")
    # PyTorch lists the parameters by layer, then by direction.
    size = len(stack.params) // (stack.num_layers * stack.num_directions)
    ends: list[list[Expr]] = []
    for at in range(stack.num_layers):
        both = []
        for direction in range(stack.num_directions):
            number = at * stack.num_directions + direction
            weights = [
                node.to_expr(p, dtype) for p in stack.params[number * size : (number + 1) * size]
            ]
            begin = [
                op.take(node.to_expr(s, dtype), const(number, "int64"), axis=0) for s in states
            ]
            layer = _read_layer(name, weights, stack.has_biases, begin, ends_at, direction == 1)
            every, *last = layer.emit(node, data)
            both.append(every)
            ends.append(last)
        data = both[0] if len(both) == 1 else op.concatenate(both, axis=-1)
    if stack.batch_first:
        data = exchange_steps_and_batch(data)
    return [data, *(op.stack(states_of_kind, axis=0) for states_of_kind in zip(*ends, strict=True))]


def _recurrent(
    name: str, node: FxNode, x: Value, hx: Value | Sequence[Value], params: Sequence[Value],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, lengths: Value | None = None,
) -> list[Expr | Value | None]:  # fmt: skip
    """Convert a recurrent module; only our own operators have `lengths`, the steps per sequence."""
    # GRU and RNN have one state, LSTM has two.
    states = [hx] if isinstance(hx, Value) else hx
    stack = _LayerStack(params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return _run_layers(node, name, x, states, stack, lengths)


ROWS: tuple[ConverterRow, ...] = tuple(
    (operator, partial(_recurrent, name))
    for name in RECURRENT_OPERATORS
    for operator in (f"{name}.input", f"ekiden::{name}")
)
"""Those of PyTorch, and those that stay whole while it traces
(ekiden.frontend.torch.recurrent_layers).
"""
