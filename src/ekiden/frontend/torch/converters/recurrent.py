"""Recurrent layers: aten::lstm, gru, rnn_tanh and rnn_relu over padded sequences.

PyTorch's decompositions unroll every step: a program as long as the sequence. Here a layer and
direction is one operator (nn.lstm, nn.gru, nn.rnn), with PyTorch's order of gates. Layers over
packed sequences (`lstm_step.data`) in a program exported elsewhere keep PyTorch's decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ekiden.frontend.common.recurrent_cells import (
    emit_recurrent_layer,
    gru_step,
    lstm_gate,
    lstm_step,
    project_hidden,
    scan_steps,
)
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


@dataclass(frozen=True, slots=True)
class _RecurrentLayer:
    """Recurrent layer in one direction."""

    name: str
    weights: Sequence[Expr]
    """[gates * hidden, inputs], [gates * hidden, hidden], perhaps two biases, perhaps a projection
    of hidden states [projected, hidden] (lstm)."""
    has_biases: bool
    is_reverse: bool

    @property
    def projection_weight(self) -> Expr | None:
        return self.weights[-1] if len(self.weights) % 2 else None

    def emit_operator(self, data: Expr, states: Sequence[Expr], lengths: Expr | None) -> list[Expr]:
        """Emit the layer's operator for data [steps, batch, inputs] and states [batch, hidden].

        Returns all hidden states, then each final state.
        """
        kind, activations = RECURRENT_OPERATORS[self.name]
        initial = dict(zip(("initial_h", "initial_c"), states, strict=False))
        return emit_recurrent_layer(
            kind, data, self.weights, lengths=lengths, reverse=self.is_reverse,
            activations=activations, **initial,
        )  # fmt: skip

    def emit_steps(self, node: FxNode, data: Expr, states: Sequence[Expr]) -> list[Expr]:
        """Emit the layer step by step, for projections and float64, which the operator does not
        support.
        """
        into, again, *biases = self.weights
        sides = [biases[0], biases[1]] if self.has_biases else [None, None]
        # The input projection of all steps is one matrix product, outside of the loop.
        inputs = project_hidden(data, into, sides[0])

        def step(rows: Sequence[Expr], states_now: Sequence[Expr]) -> list[Expr]:
            """Return the states after one time step."""
            return self._next_states(
                rows[0], project_hidden(states_now[0], again, sides[1]), states_now
            )

        every, ends = scan_steps(
            node, [inputs], [node.bind_shared(s) for s in states], step, self.is_reverse
        )
        return [every, *(node.scope.expr(end) for end in ends)]

    def _next_states(self, x: Expr, y: Expr, states: Sequence[Expr]) -> list[Expr]:
        """Emit the next states from the input and hidden projections."""
        kind, activations = RECURRENT_OPERATORS[self.name]
        if kind == "rnn":
            total = op.add(x, y)
            return [op.tanh(total) if activations == ("tanh",) else op.nn.relu(total)]
        if kind == "gru":
            data, state = (list(op.split(gates, 3, axis=1)) for gates in (x, y))
            return [gru_step(data, state, states[0])]
        updated = lstm_step(
            [lstm_gate(gates) for gates in op.split(op.add(x, y), 4, axis=1)], states[1]
        )
        if self.projection_weight is None:
            return [updated.hidden, updated.cell_state]
        return [project_hidden(updated.hidden, self.projection_weight), updated.cell_state]


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
    dtype = "float64" if x.type.dtype == "float64" else "float32"
    data = node.to_expr(x, dtype)
    if stack.batch_first:
        data = op.transpose(data, (1, 0, 2))
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
            one = _RecurrentLayer(name, weights, stack.has_biases, direction == 1)
            begin = [
                op.take(node.to_expr(s, dtype), const(number, "int64"), axis=0) for s in states
            ]
            if one.projection_weight is None and dtype == "float32":
                every, *last = one.emit_operator(data, begin, ends_at)
            elif lengths is not None:
                node.reject("packed sequences with a projection, or of float64")
            else:
                every, *last = one.emit_steps(node, data, begin)
            both.append(every)
            ends.append(last)
        data = both[0] if len(both) == 1 else op.concatenate(both, axis=-1)
    if stack.batch_first:
        data = op.transpose(data, (1, 0, 2))
    return [data, *(op.stack(states_of_kind, axis=0) for states_of_kind in zip(*ends, strict=True))]


def _recurrent(
    name: str, node: FxNode, x: Value, hx: Value | Sequence[Value], params: Sequence[Value],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, lengths: Value | None = None,
) -> list[Expr | Value | None]:  # fmt: skip
    """Convert a recurrent module; only our own operators have `lengths`, the steps per sequence."""
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
