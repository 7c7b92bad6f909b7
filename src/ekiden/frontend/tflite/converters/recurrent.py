"""Float recurrent layers: RNN, LSTM and SVDF, also with int8 weights (hybrid_quantization.py).

    RNN    h' = a(W x + A aux + R h + b)
    LSTM   i, f, o = sigmoid(W x + R h + p c + b),  g = a(W x + R h + b)
           c' = f c + i g, bounded,  h' = bounded(P (o a(c')) + q)
           o sees c', i is 1 - f where it has no weights; with coefficients, what comes before b is
           normalised over the units and multiplied by them

Weights are [units, inputs], a tensor for each gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.recurrent_cells import (
    Gate,
    Step,
    clip_symmetric,
    lstm,
    lstm_gate,
    normalize_last_axis,
)
from ekiden.frontend.tflite.converters import integer_recurrent as integers
from ekiden.frontend.tflite.converters.states import (
    optional_expr,
    run_steps,
    time_major,
    to_operator_order,
    update_svdf_memory,
)
from ekiden.frontend.tflite.hybrid_quantization import HybridOperand, float_input
from ekiden.frontend.tflite.node import Converter, QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass

VARIABLE_DTYPES = ("variable",)


def _add_present(terms: Sequence[Expr | None]) -> Expr:
    present = [p for p in terms if p is not None]
    total = present[0]
    for term in present[1:]:
        total = op.add(total, term)
    return total


# RNN.


def _rnn_step(node: TfliteNode, weights: Sequence[int], bias: Expr) -> Step:
    """Return the step function of an RNN; `weights` are the inputs that hold each operand's
    weights, then the state's.
    """

    def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """Compute the next state."""
        sides = zip((*rows, *states), weights, strict=True)
        return [
            node.activated(
                _add_present([*(HybridOperand(node, x).times(w) for x, w in sides), bias])
            )
        ]

    return step


def _rnn(node: TfliteNode) -> Expr:
    """Convert RNN (data [batch, inputs], weights, recurrent weights, bias, state)."""
    step = _rnn_step(node, [1, 2], node.expr(3))
    outputs = run_steps(node, [op.expand_dims(node.expr(0), 0)], [4], step)
    return op.squeeze(outputs, axis=[0])


def _sequence_rnn(node: TfliteNode) -> Expr:
    step = _rnn_step(node, [1, 2], node.expr(3))
    return to_operator_order(node, run_steps(node, [time_major(node, 0)], [4], step))


def _bidirectional_rnn(node: TfliteNode) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN (data; weights, recurrent weights, bias, state per
    direction; auxiliary data, weights).
    """
    outputs = []
    for backwards, at, beside in ((False, 1, 10), (True, 5, 11)):
        data, weights = _direction_inputs(node, backwards, at, 9, beside)
        step = _rnn_step(node, [*weights, at + 1], node.expr(at + 2))
        outputs.append(to_operator_order(node, run_steps(node, data, [at + 3], step, backwards)))
    return _merge_outputs(node, outputs)


def _direction_inputs(
    node: TfliteNode, backwards: bool, weight: int, auxiliary: int, auxiliary_weight: int
) -> tuple[list[Expr], list[int]]:
    """Return the data of a direction, and the inputs that hold their weights.

    Auxiliary data without weights of their own are the backward direction's input.
    """
    if node.optional(auxiliary) is None:
        return [time_major(node, 0)], [weight]
    if node.optional(auxiliary_weight) is not None:
        both = [time_major(node, 0), time_major(node, auxiliary)]
        return both, [weight, auxiliary_weight]
    return [time_major(node, auxiliary if backwards else 0)], [weight]


def _merge_outputs(node: TfliteNode, outputs: Sequence[Expr]) -> list[Expr]:
    return [op.concatenate(outputs, axis=2)] if node.option("MergeOutputs") else list(outputs)


# LSTM.


@dataclass(frozen=True, slots=True)
class _LstmLayout:
    """Input indices of an LSTM cell; each is the first of four (i, f, g, o) or three (i, f, o)
    tensors.
    """

    inputs: int
    states: int
    peepholes: int
    biases: int
    projection: int
    output: int
    beside: int = -1
    norms: int = -1

    def step(self, node: TfliteNode, count: int) -> Step:
        """Return the step function of a cell with `count` data inputs."""
        makers = [self._gate_builder(node, i, count) for i in range(4)]
        cell_clip, clip = (float(node.option(n)) for n in ("CellClip", "ProjClip"))
        bias = optional_expr(node, self.projection + 1)
        is_projected = node.optional(self.projection) is not None

        def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
            """Compute (output, cell) from the previous (output, cell)."""
            output, cell = states
            sides = [HybridOperand(node, operand) for operand in (*rows, output)]
            gates = [None if make is None else make(sides) for make in makers]
            result = lstm(gates, cell, node.activation, cell_clip)
            if not is_projected:
                return [result.hidden, result.cell]
            projection = _add_present(
                [HybridOperand(node, result.hidden).times(self.projection), bias]
            )
            return [clip_symmetric(projection, clip), result.cell]

        return step

    def _gate_builder(
        self, node: TfliteNode, at: int, count: int
    ) -> Callable[[Sequence[HybridOperand]], Gate] | None:
        """Return a function from a step's operands to a gate's pre-activation; None for an absent
        gate.
        """
        if at == 0 and node.optional(self.inputs) is None:
            return None
        weights = [self.inputs + at, *([self.beside + at] if count > 1 else []), self.states + at]
        peephole_index = {0: 0, 1: 1, 3: 2}.get(at)
        is_seen = (
            peephole_index is not None
            and node.optional(self.peepholes + peephole_index) is not None
        )
        peephole = float_input(node, self.peepholes + (peephole_index or 0)) if is_seen else None
        bias = node.expr(self.biases + at)
        norm = None if self.norms < 0 else optional_expr(node, self.norms + at)

        def pre_activation(sides: Sequence[HybridOperand]) -> Gate:
            """Emit the pre-activation; layer normalization precedes the bias."""
            total = _add_present([side.times(w) for side, w in zip(sides, weights, strict=True)])
            if norm is None:
                return lstm_gate(op.add(total, bias), peephole)
            unnormalised = lstm_gate(total, peephole)
            return lambda cell: op.add(
                op.multiply(normalize_last_axis(unnormalised(cell)), norm), bias
            )

        return pre_activation


_UNIDIRECTIONAL = _LstmLayout(1, 5, 9, 12, 16, 18, norms=20)
_FORWARD_LAYOUT = _LstmLayout(1, 5, 9, 12, 16, 35, beside=40)
_BACKWARD_LAYOUT = _LstmLayout(18, 22, 26, 29, 33, 37, beside=44)


def _sequence_lstm(node: TfliteNode) -> Expr:
    states = [_UNIDIRECTIONAL.output, _UNIDIRECTIONAL.output + 1]
    return to_operator_order(
        node, run_steps(node, [time_major(node, 0)], states, _UNIDIRECTIONAL.step(node, 1))
    )


def _bidirectional_lstm(node: TfliteNode) -> list[Expr]:
    outputs = []
    for cell in (_FORWARD_LAYOUT, _BACKWARD_LAYOUT):
        backwards = cell is _BACKWARD_LAYOUT
        data, weights = _direction_inputs(node, backwards, cell.inputs + 1, 39, cell.beside + 1)
        step = cell.step(node, len(weights))
        states = [cell.output, cell.output + 1]
        outputs.append(to_operator_order(node, run_steps(node, data, states, step, backwards)))
    return _merge_outputs(node, outputs)


def _lstm(node: TfliteNode) -> list[Expr] | Expr:
    if node.option("KernelType"):
        return _basic_lstm(node)
    outputs = run_steps(
        node, [op.expand_dims(node.expr(0), 0)], [18, 19], _UNIDIRECTIONAL.step(node, 1)
    )
    return op.squeeze(outputs, axis=[0])


def _basic_lstm(node: TfliteNode) -> list[Expr]:
    """Convert the basic LSTM (data, output, weights, bias, cell) to output, cell, concatenated
    inputs and gates (i, g, f, o).
    """
    concatenated = op.concatenate([node.expr(0), node.expr(1)], axis=-1)
    gates = op.add(op.nn.dense(concatenated, node.expr(2)), node.expr(3))
    # The basic kernel orders its gates i, g, f, o.
    take, new, keep, show = (lstm_gate(gate_sum) for gate_sum in op.split(gates, 4, axis=-1))
    result = lstm([take, keep, new, show], node.expr(4))
    return [result.hidden, result.cell, concatenated, gates]


# SVDF.


def _svdf(node: TfliteNode) -> Expr:
    """Convert SVDF (data [batch, inputs], features [filters, inputs], time weights [filters,
    memory], bias, state).
    """
    sums = update_svdf_memory(
        node, HybridOperand(node, node.expr(0)).times(1), float_input(node, 2)
    )
    return node.activated(_add_present([sums, optional_expr(node, 3)]))


def _float_or_integer_row(
    code: str, convert: Converter, integer: Converter | None = None
) -> TfliteRow:
    def convert_by_dtype(node: TfliteNode) -> Result:
        """Convert a float layer, or an integer one where there is a kernel for it."""
        if node.dtype(0) == "float32":
            return convert(node)
        if integer is None:
            node.unsupported(f"{node.ins[0]} is {node.dtype(0)}: layers of float32 are here")
        return integer(node)

    return TfliteRow(code, convert_by_dtype, QuantizedPolicy.OWN, dtypes=VARIABLE_DTYPES)


# fmt: off
ROWS = (
    _float_or_integer_row("RNN",                          _rnn),
    _float_or_integer_row("UNIDIRECTIONAL_SEQUENCE_RNN",  _sequence_rnn),
    _float_or_integer_row("BIDIRECTIONAL_SEQUENCE_RNN",   _bidirectional_rnn),
    _float_or_integer_row("LSTM",                         _lstm,          integers.lstm),
    _float_or_integer_row("UNIDIRECTIONAL_SEQUENCE_LSTM", _sequence_lstm, integers.sequence_lstm),
    _float_or_integer_row("BIDIRECTIONAL_SEQUENCE_LSTM",  _bidirectional_lstm),
    _float_or_integer_row("SVDF",                         _svdf,          integers.svdf),
)
# fmt: on
