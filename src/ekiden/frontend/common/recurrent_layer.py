"""One direction of a recurrent layer, described once: each frontend reads its attributes and
weights into a `RecurrentLayer`, which emits Relay.

A layer that nn.lstm, nn.gru or nn.rnn has is one operator; one with a projection, a bounded cell,
coupled gates as TensorFlow Lite has them, or of float64, is a loop over cells
(`recurrent_cells`). The products with the inputs are computed before the loop in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.frontend.common.float_functions import FUSED_ACTIVATIONS
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.recurrent_cells import (
    clip_symmetric,
    gru_step,
    lstm_gate,
    lstm_step,
    scan_steps,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.recurrent_cells import CELL_ACTIVATIONS, DEFAULT_ACTIVATIONS, GATE_COUNTS

_LAYER_OPERATORS: Mapping[str, Callable[..., Expr]] = {
    "lstm": op.nn.lstm, "gru": op.nn.gru, "rnn": op.nn.rnn,
}  # fmt: skip
_LOOP_ACTIVATIONS: Mapping[str, tuple[str | None, ...]] = {
    "lstm": ("sigmoid", None, None), "gru": ("sigmoid", "tanh"), "rnn": (None,),
}  # fmt: skip
"""Activations of the cells in a loop; None for the same one of FUSED_ACTIVATIONS."""


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Recurrent layer in one direction.

    Gates are in Relay's order: i, f, g, o (lstm), r, z, n (gru). Activations are those of the
    gates, of the candidate and, in an lstm, of the cell; ones of the default kinds where there are
    none.
    """

    kind: str
    """"lstm", "gru" or "rnn"."""
    weight_i: Expr
    """Of the inputs, [gates * hidden, inputs]."""
    weight_h: Expr
    """Of the hidden state, [gates * hidden, hidden, or the units of the projection]."""
    bias_i: Expr | None = None
    bias_h: Expr | None = None
    """[gates * hidden]; a gru's is inside of the product with the reset gate."""
    initial_h: Expr | None = None
    initial_c: Expr | None = None
    """[batch, hidden]; zeros where absent."""
    reverse: bool = False
    """Whether the last step is the first."""
    lengths: Expr | None = None
    """int32 [batch]: the number of steps of each sequence."""
    activations: Sequence[str] = ()
    alphas: Sequence[float] = ()
    betas: Sequence[float] = ()
    """Parameters of the activations that have some."""
    clip: float = 0.0
    """Bound of what goes into an activation of a gate; 0 for none."""
    reset_first: bool = False
    """Whether a gru's reset multiplies the state, not its product with the weight."""
    input_forget: bool = False
    """Whether the forget gate is 1 - i (ONNX's input_forget)."""
    peephole: Expr | None = None
    """[3 * hidden]: the weights by which i, f and o see the cell."""
    has_input_gate: bool = True
    """False where i is 1 - f (CIFG): weights and biases have the gates f, g, o alone."""
    cell_clip: float = 0.0
    """Bound of the cell state; 0 for none."""
    projection: Expr | None = None
    projection_bias: Expr | None = None
    projection_clip: float = 0.0
    """[units, hidden], [units]: the product that makes the hidden state, and its bound."""

    def emit(self, node: Node, data: Expr) -> list[Expr]:
        """Emit the layer over data [steps, batch, inputs].

        Returns:
            The hidden states of all steps [steps, batch, hidden], then each final state.

        Raises:
            UnsupportedError: The layer is no operator, and has what only operators have.
        """
        dtype = node.tensor_type_of(data).dtype
        if self._is_operator(dtype):
            return self._emit_operator(node, data)
        return self._emit_loop(node, data, dtype)

    @property
    def _activation_names(self) -> tuple[str, ...]:
        return tuple(self.activations) or DEFAULT_ACTIVATIONS[self.kind]

    def _is_operator(self, dtype: str) -> bool:
        """Return whether nn.lstm, nn.gru or nn.rnn computes the layer."""
        is_plain = self.has_input_gate and self.projection is None and not self.cell_clip
        has_activations = set(self._activation_names) <= set(CELL_ACTIVATIONS)
        return is_plain and dtype == "float32" and has_activations

    def _emit_operator(self, node: Node, data: Expr) -> list[Expr]:
        options: dict[str, object] = {
            "initial_h": self.initial_h, "lengths": self.lengths, "reverse": self.reverse,
            "activations": self.activations, "alphas": self.alphas, "betas": self.betas,
            "clip": self.clip,
        }  # fmt: skip
        if self.kind == "gru":
            options["reset_first"] = self.reset_first
        if self.kind == "lstm":
            options |= {
                "initial_c": self.initial_c, "peephole": self.peephole,
                "input_forget": self.input_forget,
            }  # fmt: skip
        weights = (self.weight_i, self.weight_h, self.bias_i, self.bias_h)
        outputs = node.scope.attach_span(_LAYER_OPERATORS[self.kind](data, *weights, **options))
        return [TupleGetItem(outputs, at) for at in range(3 if self.kind == "lstm" else 2)]

    def _emit_loop(self, node: Node, data: Expr, dtype: str) -> list[Expr]:
        self._check_loop(node, dtype)
        # A gru's reset multiplies the biased product of the state: its bias stays in the loop.
        loop_bias = self.bias_h if self.kind == "gru" else None
        inputs = op.nn.dense(data, self.weight_i)
        for bias in (self.bias_i, None if self.kind == "gru" else self.bias_h):
            inputs = inputs if bias is None else op.add(inputs, bias)

        def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
            """Return the states after one time step."""
            product = op.nn.dense(states[0], self.weight_h)
            product = product if loop_bias is None else op.add(product, loop_bias)
            return self._next_states(rows[0], product, states)

        starts = [node.bind_shared(s) for s in self._initial_states(node, data, dtype)]
        every, ends = scan_steps(node, [inputs], starts, step, self.reverse)
        return [every, *(node.scope.expr(end) for end in ends)]

    def _check_loop(self, node: Node, dtype: str) -> None:
        """Reject what only an operator has: the cells of a loop are plain."""
        names = self._activation_names
        expected = tuple(name or names[-1] for name in _LOOP_ACTIVATIONS[self.kind])
        properties = {
            "sequence lengths": self.lengths is not None,
            "'clip'": bool(self.clip),
            "a reset before the product": self.reset_first,
            "'input_forget'": self.input_forget,
            f"the activations {', '.join(names)}": names != expected
            or names[-1] not in FUSED_ACTIVATIONS,
        }
        if unsupported := [name for name, is_present in properties.items() if is_present]:
            projected = "" if self.projection is None else " with a projection"
            node.reject(f"{', '.join(unsupported)} in a layer of {dtype}{projected}")

    def _initial_states(self, node: Node, data: Expr, dtype: str) -> list[Expr]:
        """Return the initial states h and, of an lstm, c; zeros where there are none."""
        num_gates = GATE_COUNTS[self.kind] - (not self.has_input_gate)
        batch = node.tensor_type_of(data).shape[1]
        rows, units = node.tensor_type_of(self.weight_h).shape
        states = [(self.initial_h, units), (self.initial_c, rows // num_gates)]
        return [
            op.full(const(0.0, dtype), (batch, size), dtype=dtype) if state is None else state
            for state, size in states[: 2 if self.kind == "lstm" else 1]
        ]

    def _next_states(self, x: Expr, y: Expr, states: Sequence[Expr]) -> list[Expr]:
        """Emit the next states from the products of a step's input and of the hidden state."""
        activation = FUSED_ACTIVATIONS[self._activation_names[-1]]
        if self.kind == "rnn":
            return [activation(op.add(x, y))]
        if self.kind == "gru":
            data, state = (list(op.split(gates, 3, axis=1)) for gates in (x, y))
            return [gru_step(data, state, states[0])]
        return self._next_lstm_states(op.add(x, y), states[1], activation)

    def _next_lstm_states(
        self, total: Expr, cell: Expr, activation: Callable[[Expr], Expr]
    ) -> list[Expr]:
        take, keep, show = (None, None, None)
        if self.peephole is not None:
            take, keep, show = op.split(self.peephole, 3, axis=0)
        sums = list(op.split(total, 3 + self.has_input_gate, axis=1))
        i = lstm_gate(sums.pop(0), take) if self.has_input_gate else None
        f, g, o = lstm_gate(sums[0], keep), lstm_gate(sums[1]), lstm_gate(sums[2], show)
        updated = lstm_step([i, f, g, o], cell, activation, self.cell_clip)
        hidden = updated.hidden
        if self.projection is not None:
            hidden = op.nn.dense(hidden, self.projection)
            if self.projection_bias is not None:
                hidden = op.add(hidden, self.projection_bias)
            hidden = clip_symmetric(hidden, self.projection_clip)
        return [hidden, updated.cell_state]


def exchange_steps_and_batch(data: Expr) -> Expr:
    """Emit the transpose between [steps, batch, ...] and [batch, steps, ...]."""
    return op.transpose(data, (1, 0, 2))


__all__ = ["RecurrentLayer", "exchange_steps_and_batch"]
