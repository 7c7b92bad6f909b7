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
    LstmGateFunction,
    StepFunction,
    clip_symmetric,
    lstm_gate,
    lstm_step,
    normalize_last_axis,
)
from ekiden.frontend.tflite.converters import integer_recurrent as integers
from ekiden.frontend.tflite.converters.recurrent_state import (
    read_optional_input,
    run_steps,
    to_operator_order,
    to_time_major,
    update_svdf_memory,
)
from ekiden.frontend.tflite.hybrid_quantization import HybridOperand, float_input
from ekiden.frontend.tflite.node import Converter, QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass

VARIABLE_DTYPES = ("variable",)


def _sum_present_terms(terms: Sequence[Expr | None]) -> Expr:
    present = [p for p in terms if p is not None]
    total = present[0]
    for term in present[1:]:
        total = op.add(total, term)
    return total


# RNN.


def _make_rnn_step(node: TfliteNode, weights: Sequence[int], bias: Expr) -> StepFunction:
    """Return the step function of an RNN; `weights` are the inputs that hold each operand's
    weights, then the state's.
    """

    def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """Compute the next state."""
        sides = zip((*rows, *states), weights, strict=True)
        return [
            node.apply_activation(
                _sum_present_terms(
                    [*(HybridOperand(node, x).multiply_by_weight(w) for x, w in sides), bias]
                )
            )
        ]

    return step


def _rnn(node: TfliteNode) -> Expr:
    """Convert RNN (data [batch, inputs], weights, recurrent weights, bias, state)."""
    step = _make_rnn_step(node, [1, 2], node.expr(3))
    outputs = run_steps(node, [op.expand_dims(node.expr(0), 0)], [4], step)
    return op.squeeze(outputs, axis=[0])


def _sequence_rnn(node: TfliteNode) -> Expr:
    step = _make_rnn_step(node, [1, 2], node.expr(3))
    return to_operator_order(node, run_steps(node, [to_time_major(node, 0)], [4], step))


def _bidirectional_rnn(node: TfliteNode) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN (data; weights, recurrent weights, bias, state per
    direction; auxiliary data, weights).
    """
    outputs = []
    for backwards, at, beside in ((False, 1, 10), (True, 5, 11)):
        data, weights = _direction_inputs(node, backwards, at, 9, beside)
        step = _make_rnn_step(node, [*weights, at + 1], node.expr(at + 2))
        outputs.append(to_operator_order(node, run_steps(node, data, [at + 3], step, backwards)))
    return _merge_outputs(node, outputs)


def _direction_inputs(
    node: TfliteNode, backwards: bool, weight: int, auxiliary: int, auxiliary_weight: int
) -> tuple[list[Expr], list[int]]:
    """Return the data of a direction, and the inputs that hold their weights.

    Auxiliary data without weights of their own are the backward direction's input.
    """
    if node.optional_value(auxiliary) is None:
        return [to_time_major(node, 0)], [weight]
    if node.optional_value(auxiliary_weight) is not None:
        both = [to_time_major(node, 0), to_time_major(node, auxiliary)]
        return both, [weight, auxiliary_weight]
    return [to_time_major(node, auxiliary if backwards else 0)], [weight]


def _merge_outputs(node: TfliteNode, outputs: Sequence[Expr]) -> list[Expr]:
    return [op.concatenate(outputs, axis=2)] if node.read_option("MergeOutputs") else list(outputs)


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
    auxiliary_input: int = -1
    layer_norm_weights: int = -1

    def make_step(self, node: TfliteNode, count: int) -> StepFunction:
        """Return the step function of a cell with `count` data inputs."""
        makers = [self._gate_builder(node, i, count) for i in range(4)]
        cell_clip, clip = (float(node.read_option(n)) for n in ("CellClip", "ProjClip"))
        bias = read_optional_input(node, self.projection + 1)
        is_projected = node.optional_value(self.projection) is not None

        def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
            """Compute (output, cell) from the previous (output, cell)."""
            output, cell = states
            sides = [HybridOperand(node, operand) for operand in (*rows, output)]
            gates = [None if make is None else make(sides) for make in makers]
            result = lstm_step(gates, cell, node.activation_function, cell_clip)
            if not is_projected:
                return [result.hidden, result.cell_state]
            projection = _sum_present_terms(
                [HybridOperand(node, result.hidden).multiply_by_weight(self.projection), bias]
            )
            return [clip_symmetric(projection, clip), result.cell_state]

        return step

    def _gate_builder(
        self, node: TfliteNode, at: int, count: int
    ) -> Callable[[Sequence[HybridOperand]], LstmGateFunction] | None:
        """Return a function from a step's operands to a gate's pre-activation; None for an absent
        gate.
        """
        if at == 0 and node.optional_value(self.inputs) is None:
            return None
        weights = [
            self.inputs + at,
            *([self.auxiliary_input + at] if count > 1 else []),
            self.states + at,
        ]
        peephole_index = {0: 0, 1: 1, 3: 2}.get(at)
        is_seen = (
            peephole_index is not None
            and node.optional_value(self.peepholes + peephole_index) is not None
        )
        peephole = float_input(node, self.peepholes + (peephole_index or 0)) if is_seen else None
        bias = node.expr(self.biases + at)
        norm = (
            None
            if self.layer_norm_weights < 0
            else read_optional_input(node, self.layer_norm_weights + at)
        )

        def pre_activation(sides: Sequence[HybridOperand]) -> LstmGateFunction:
            """Emit the pre-activation; layer normalization precedes the bias."""
            total = _sum_present_terms(
                [side.multiply_by_weight(w) for side, w in zip(sides, weights, strict=True)]
            )
            if norm is None:
                return lstm_gate(op.add(total, bias), peephole)
            unnormalised = lstm_gate(total, peephole)
            return lambda cell: op.add(
                op.multiply(normalize_last_axis(unnormalised(cell)), norm), bias
            )

        return pre_activation


_UNIDIRECTIONAL = _LstmLayout(1, 5, 9, 12, 16, 18, layer_norm_weights=20)
_FORWARD_LAYOUT = _LstmLayout(1, 5, 9, 12, 16, 35, auxiliary_input=40)
_BACKWARD_LAYOUT = _LstmLayout(18, 22, 26, 29, 33, 37, auxiliary_input=44)


def _sequence_lstm(node: TfliteNode) -> Expr:
    states = [_UNIDIRECTIONAL.output, _UNIDIRECTIONAL.output + 1]
    return to_operator_order(
        node, run_steps(node, [to_time_major(node, 0)], states, _UNIDIRECTIONAL.make_step(node, 1))
    )


def _bidirectional_lstm(node: TfliteNode) -> list[Expr]:
    outputs = []
    for cell in (_FORWARD_LAYOUT, _BACKWARD_LAYOUT):
        backwards = cell is _BACKWARD_LAYOUT
        data, weights = _direction_inputs(
            node, backwards, cell.inputs + 1, 39, cell.auxiliary_input + 1
        )
        step = cell.make_step(node, len(weights))
        states = [cell.output, cell.output + 1]
        outputs.append(to_operator_order(node, run_steps(node, data, states, step, backwards)))
    return _merge_outputs(node, outputs)


def _lstm(node: TfliteNode) -> list[Expr] | Expr:
    if node.read_option("KernelType"):
        return _basic_lstm(node)
    outputs = run_steps(
        node, [op.expand_dims(node.expr(0), 0)], [18, 19], _UNIDIRECTIONAL.make_step(node, 1)
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
    result = lstm_step([take, keep, new, show], node.expr(4))
    return [result.hidden, result.cell_state, concatenated, gates]


# SVDF.


def _svdf(node: TfliteNode) -> Expr:
    """Convert SVDF (data [batch, inputs], features [filters, inputs], time weights [filters,
    memory], bias, state).
    """
    sums = update_svdf_memory(
        node, HybridOperand(node, node.expr(0)).multiply_by_weight(1), float_input(node, 2)
    )
    return node.apply_activation(_sum_present_terms([sums, read_optional_input(node, 3)]))


def _float_or_integer_row(
    code: str, convert: Converter, integer: Converter | None = None
) -> TfliteRow:
    def convert_by_dtype(node: TfliteNode) -> Result:
        """Convert a float layer, or an integer one where there is a kernel for it."""
        if node.dtype(0) == "float32":
            return convert(node)
        if integer is None:
            node.reject(f"{node.ins[0]} is {node.dtype(0)}: layers of float32 are here")
        return integer(node)

    return TfliteRow(
        code,
        convert_by_dtype,
        QuantizedPolicy.CONVERTER_HANDLED,
        extra_tensor_kinds=VARIABLE_DTYPES,
    )


# fmt: off
ROWS = (
    _float_or_integer_row("RNN",                          _rnn),
    _float_or_integer_row("UNIDIRECTIONAL_SEQUENCE_RNN",  _sequence_rnn),
    _float_or_integer_row("BIDIRECTIONAL_SEQUENCE_RNN",   _bidirectional_rnn),
    _float_or_integer_row("LSTM",                         _lstm,
        integers.convert_integer_lstm),
    _float_or_integer_row("UNIDIRECTIONAL_SEQUENCE_LSTM", _sequence_lstm,
        integers.convert_integer_sequence_lstm),
    _float_or_integer_row("BIDIRECTIONAL_SEQUENCE_LSTM",  _bidirectional_lstm),
    _float_or_integer_row("SVDF",                         _svdf,
        integers.convert_integer_svdf),
)
# fmt: on
