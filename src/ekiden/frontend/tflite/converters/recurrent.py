"""Float recurrent layers: RNN, LSTM and SVDF, also with int8 weights (hybrid_quantization.py).

A layer of float weights is described as other frontends describe theirs
(common/recurrent_layer.py); one with quantised products, auxiliary data or layer normalization has
steps of its own.

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
from ekiden.frontend.common.recurrent_layer import RecurrentLayer
from ekiden.frontend.tflite.converters import integer_recurrent as integers
from ekiden.frontend.tflite.converters.recurrent_state import (
    read_optional_input,
    read_state,
    run_layer,
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


def _are_float(node: TfliteNode, inputs: Sequence[int]) -> bool:
    """Return whether all present ones of these inputs are float32."""
    tensors = [node.ins[i] for i in inputs if node.optional_value(i) is not None]
    return all(tensor is not None and tensor.dtype == "float32" for tensor in tensors)


# RNN.


def _run_rnn(
    node: TfliteNode, data: Sequence[Expr], weights: Sequence[int], state: int,
    backwards: bool = False,
) -> Expr:  # fmt: skip
    """Return the outputs [steps, batch, units] of an RNN over data [steps, batch, ...].

    `weights` are the inputs that hold each operand's weights; those of the state and the bias lie
    before the state.
    """
    state_weight, bias = state - 2, node.expr(state - 1)
    if len(data) > 1 or not _are_float(node, [*weights, state_weight]):
        step = _make_rnn_step(node, [*weights, state_weight], bias)
        return run_steps(node, data, [state], step, backwards)
    layer = RecurrentLayer(
        "rnn",
        node.expr(weights[0]),
        node.expr(state_weight),
        bias,
        initial_h=node.scope.expr(read_state(node, state)),
        activations=(node.activation_name,),
        reverse=backwards,
    )
    return run_layer(node, layer, data[0], [state])


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
    outputs = _run_rnn(node, [op.expand_dims(node.expr(0), 0)], [1], 4)
    return op.squeeze(outputs, axis=[0])


def _sequence_rnn(node: TfliteNode) -> Expr:
    return to_operator_order(node, _run_rnn(node, [to_time_major(node, 0)], [1], 4))


def _bidirectional_rnn(node: TfliteNode) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN (data; weights, recurrent weights, bias, state per
    direction; auxiliary data, weights).
    """
    outputs = []
    for backwards, at, beside in ((False, 1, 10), (True, 5, 11)):
        data, weights = _direction_inputs(node, backwards, at, 9, beside)
        outputs.append(to_operator_order(node, _run_rnn(node, data, weights, at + 3, backwards)))
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

    def run(self, node: TfliteNode, data: Sequence[Expr], backwards: bool = False) -> Expr:
        """Return the outputs [steps, batch, units] of the cell over data [steps, batch, ...]."""
        states = [self.output, self.output + 1]
        norms = range(self.layer_norm_weights, self.layer_norm_weights + 4)
        is_normalised = self.layer_norm_weights >= 0 and any(
            node.optional_value(i) is not None for i in norms
        )
        weights = [*range(self.inputs, self.biases), self.projection]
        if len(data) > 1 or is_normalised or not _are_float(node, weights):
            return run_steps(node, data, states, self._make_step(node, len(data)), backwards)
        return run_layer(node, self._read_layer(node, backwards), data[0], states)

    def _read_layer(self, node: TfliteNode, backwards: bool) -> RecurrentLayer:
        """Return the description of a cell with float weights."""
        is_coupled = node.optional_value(self.inputs) is None
        gates = range(int(is_coupled), 4)
        weight_i, weight_h, bias = (
            op.concatenate([node.expr(first + g) for g in gates], axis=0)
            for first in (self.inputs, self.states, self.biases)
        )
        activation = node.activation_name
        return RecurrentLayer(
            "lstm",
            weight_i,
            weight_h,
            bias,
            initial_h=node.scope.expr(read_state(node, self.output)),
            initial_c=node.scope.expr(read_state(node, self.output + 1)),
            reverse=backwards,
            activations=("sigmoid", activation, activation),
            peephole=self._join_peepholes(node),
            has_input_gate=not is_coupled,
            cell_clip=float(node.read_option("CellClip")),
            projection=read_optional_input(node, self.projection),
            projection_bias=read_optional_input(node, self.projection + 1),
            projection_clip=float(node.read_option("ProjClip")),
        )

    def _join_peepholes(self, node: TfliteNode) -> Expr | None:
        """Return the peephole weights of i, f and o as [3 * units], zeros for an absent gate."""
        weights = [read_optional_input(node, self.peepholes + gate) for gate in range(3)]
        present = [weight for weight in weights if weight is not None]
        if not present:
            return None
        zeros = op.zeros_like(present[0])
        return op.concatenate([zeros if w is None else w for w in weights], axis=0)

    def _make_step(self, node: TfliteNode, count: int) -> StepFunction:
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
    return to_operator_order(node, _UNIDIRECTIONAL.run(node, [to_time_major(node, 0)]))


def _bidirectional_lstm(node: TfliteNode) -> list[Expr]:
    outputs = []
    for cell in (_FORWARD_LAYOUT, _BACKWARD_LAYOUT):
        backwards = cell is _BACKWARD_LAYOUT
        data, _ = _direction_inputs(node, backwards, cell.inputs + 1, 39, cell.auxiliary_input + 1)
        outputs.append(to_operator_order(node, cell.run(node, data, backwards)))
    return _merge_outputs(node, outputs)


def _lstm(node: TfliteNode) -> list[Expr] | Expr:
    if node.read_option("KernelType"):
        return _basic_lstm(node)
    outputs = _UNIDIRECTIONAL.run(node, [op.expand_dims(node.expr(0), 0)])
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
