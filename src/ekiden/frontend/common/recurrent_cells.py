"""Cells of recurrent layers and their scan over time, for variants that nn.lstm, nn.gru and nn.rnn
lack: projections, layer normalization, products with quantised states.

    lstm   i, f, o = sigmoid(its gate),  g = a(its gate)
           c' = f c + i g, bounded,  h' = o a(c');  i is 1 - f where it has no gate
    gru    r, z = sigmoid(x + y),  n = tanh(x + r y),  h' = n + z (h - n)

x is a product of the data, y one of the hidden state. What goes into a gate is the frontend's:
`gate` adds what it sees of the cell, `normalised` is for those with coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.loop import Iteration, Loop, stack_slices
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known_int

LstmGateFunction = Callable[[Expr], Expr]
"""The cell that it may look at -> what goes into its activation."""
StepFunction = Callable[[Sequence[Expr], Sequence[Expr]], list[Expr]]
"""(inputs of a step, states) -> the states behind it, of which the first is the output."""


@dataclass(frozen=True, slots=True)
class LstmStep:
    """Result of one LSTM step: gate activations, the new cell state, and its activation."""

    input_gate: Expr
    forget_gate: Expr
    cell_candidate: Expr
    output_gate: Expr
    cell_state: Expr
    activated_cell: Expr

    @property
    def hidden(self) -> Expr:
        """Return the hidden state: the activated cell times the output gate."""
        return op.multiply(self.activated_cell, self.output_gate)


def lstm_gate(total: Expr, peephole: Expr | None = None) -> LstmGateFunction:
    """Return an LSTM gate of the pre-activation `total`, with a peephole weight on the cell state
    if there is one.
    """
    if peephole is None:
        return lambda cell: total
    return lambda cell: op.add(total, op.multiply(cell, peephole))


def lstm_step(
    gates: Sequence[LstmGateFunction | None],
    cell: Expr,
    activation: Callable[[Expr], Expr] = op.tanh,
    bound: float = 0.0,
) -> LstmStep:
    """Compute one LSTM step from the gates and the previous cell state.

    Args:
        gates: pre-activations of i, f, g, o; i may be None (then i = 1 - f). The output gate o
            reads
            the new cell.
        cell: the previous cell state.
        activation: of the candidate and of the cell.
        bound: clips the new cell to [-bound, bound]; 0 for no clipping.
    """
    input_gate, forget_gate, candidate_gate, output_gate = gates
    assert forget_gate is not None and candidate_gate is not None and output_gate is not None
    keep = op.sigmoid(forget_gate(cell))
    # CIFG (coupled input and forget gate): i = 1 - f.
    take = op.subtract(const(1.0), keep) if input_gate is None else op.sigmoid(input_gate(cell))
    new = activation(candidate_gate(cell))
    new_cell = clip_symmetric(op.add(op.multiply(keep, cell), op.multiply(take, new)), bound)
    return LstmStep(
        take, keep, new, op.sigmoid(output_gate(new_cell)), new_cell, activation(new_cell)
    )


def gru_step(data: Sequence[Expr], state: Sequence[Expr], hidden: Expr) -> Expr:
    """Compute the next hidden state of a GRU from the products of data and state for the gates r, z
    and n.
    """
    reset, keep = (op.sigmoid(op.add(data[i], state[i])) for i in (0, 1))
    new = op.tanh(op.add(data[2], op.multiply(reset, state[2])))
    # n + z (h - n) is (1 - z) n + z h with one multiplication less.
    return op.add(new, op.multiply(keep, op.subtract(hidden, new)))


def normalize_last_axis(x: Expr) -> Expr:
    """Normalize the last axis to mean 0 and variance 1 (epsilon 1e-8)."""
    mean = op.mean(x, axis=[-1], keepdims=True)
    centred = op.subtract(x, mean)
    variance = op.mean(op.multiply(centred, centred), axis=[-1], keepdims=True)
    return op.divide(centred, op.sqrt(op.add(variance, const(1e-8))))


def clip_symmetric(x: Expr, limit: float) -> Expr:
    """Clip to [-limit, limit]; a limit of 0 means none."""
    return op.clip(x, -limit, limit) if limit > 0 else x


def scan_steps(
    node: Node,
    data: Sequence[Expr],
    start: Sequence[Value],
    step: StepFunction,
    backwards: bool = False,
) -> tuple[Expr, list[Value]]:
    """Run a step function over data [steps, ...]; return the outputs [steps, ...] and the final
    states.
    """
    scope = node.scope
    extent = node.tensor_type_of(data[0]).shape[0]
    # One step, as in token-by-token inference, needs no loop.
    if known_int(extent) == 1:
        rows = [op.squeeze(d, axis=[0]) for d in data]
        next_states = [node.bind_shared(e) for e in step(rows, [scope.expr(s) for s in start])]
        return op.expand_dims(scope.expr(next_states[0]), 0), next_states
    limit = scope.attach_span(scope.emit_dim(extent))
    sequences = [node.bind_shared(d) for d in data]
    last = scope.attach_span(op.subtract(limit, const(np.int64(1))))

    def scan_body(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """Run one time step."""
        at = scope.expr(index)
        at = op.subtract(last, at) if backwards else at
        rows = [scope.expr(node.bind_shared(op.take(scope.expr(d), at, axis=0))) for d in sequences]
        after = [node.bind_shared(e) for e in step(rows, [scope.expr(c) for c in carried])]
        return Iteration(go, after, after[:1])

    names = [f"state{at}" for at in range(len(start))]
    final, (collected,), _ = Loop(node, names, start, limit, None, scan_body).build()
    return scope.expr(stack_slices(scope, collected, "steps", extent, 0, backwards)), final
