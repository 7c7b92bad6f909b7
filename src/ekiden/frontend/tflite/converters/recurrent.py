"""Float recurrent layers: RNN, LSTM and SVDF.

    RNN    h' = a(W x + A aux + R h + b)
    LSTM   i, f, o = sigmoid(W x + R h + p c + b),  g = a(W x + R h + b)
           c' = f c + i g, bounded,  h' = bounded(P (o a(c')) + q)
           o sees c', i is 1 - f where it has no weights; with coefficients, what comes before b is
           normalised over the units and multiplied by them

Weights are [units, inputs], a tensor for each gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.cells import Gate, Step, bounded, gate, lstm, normalised
from ekiden.frontend.common.node import Result
from ekiden.frontend.tflite.converters import integer_recurrent as integers
from ekiden.frontend.tflite.converters.states import given, remembered, stepped, timed, turned
from ekiden.frontend.tflite.hybrid import Operand, real
from ekiden.frontend.tflite.node import Converter, Node, Quantized, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass

VARIABLE = ("variable",)


def _sum(terms: Sequence[Expr | None]) -> Expr:
    present = [p for p in terms if p is not None]
    total = present[0]
    for term in present[1:]:
        total = op.add(total, term)
    return total


# RNN.


def _rnn_step(node: Node, weights: Sequence[int], bias: Expr) -> Step:
    """Return the step function of an RNN; `weights` are the inputs that hold each operand's
    weights, then the state's.
    """

    def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """Compute the next state."""
        sides = zip((*rows, *states), weights, strict=True)
        return [node.activated(_sum([*(Operand(node, x).times(w) for x, w in sides), bias]))]

    return step


def _rnn(node: Node) -> Expr:
    """Convert RNN (data [batch, inputs], weights, recurrent weights, bias, state)."""
    step = _rnn_step(node, [1, 2], node.expr(3))
    outputs = stepped(node, [op.expand_dims(node.expr(0), 0)], [4], step)
    return op.squeeze(outputs, axis=[0])


def _sequence_rnn(node: Node) -> Expr:
    step = _rnn_step(node, [1, 2], node.expr(3))
    return turned(node, stepped(node, [timed(node, 0)], [4], step))


def _both_rnn(node: Node) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN (data; weights, recurrent weights, bias, state per
    direction; auxiliary data, weights).
    """
    outputs = []
    for backwards, at, beside in ((False, 1, 10), (True, 5, 11)):
        data, weights = _sides(node, backwards, at, 9, beside)
        step = _rnn_step(node, [*weights, at + 1], node.expr(at + 2))
        outputs.append(turned(node, stepped(node, data, [at + 3], step, backwards)))
    return _merged(node, outputs)


def _sides(
    node: Node, backwards: bool, weight: int, auxiliary: int, auxiliary_weight: int
) -> tuple[list[Expr], list[int]]:
    """Return the data of a direction, and the inputs that hold their weights.

    Auxiliary data without weights of their own are the backward direction's input.
    """
    if node.optional(auxiliary) is None:
        return [timed(node, 0)], [weight]
    if node.optional(auxiliary_weight) is not None:
        both = [timed(node, 0), timed(node, auxiliary)]
        return both, [weight, auxiliary_weight]
    return [timed(node, auxiliary if backwards else 0)], [weight]


def _merged(node: Node, outputs: Sequence[Expr]) -> list[Expr]:
    return [op.concatenate(outputs, axis=2)] if node.option("MergeOutputs") else list(outputs)


# LSTM.


@dataclass(frozen=True, slots=True)
class _Cell:
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

    def step(self, node: Node, count: int) -> Step:
        """Return the step function of a cell with `count` data inputs."""
        makers = [self._gate(node, i, count) for i in range(4)]
        cell_clip, clip = (float(node.option(n)) for n in ("CellClip", "ProjClip"))
        bias = given(node, self.projection + 1)
        is_projected = node.optional(self.projection) is not None

        def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
            """Compute (output, cell) from the previous (output, cell)."""
            output, cell = states
            sides = [Operand(node, operand) for operand in (*rows, output)]
            gates = [None if make is None else make(sides) for make in makers]
            result = lstm(gates, cell, node.activation, cell_clip)
            if not is_projected:
                return [result.hidden, result.cell]
            projection = _sum([Operand(node, result.hidden).times(self.projection), bias])
            return [bounded(projection, clip), result.cell]

        return step

    def _gate(self, node: Node, at: int, count: int) -> Callable[[Sequence[Operand]], Gate] | None:
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
        peephole = real(node, self.peepholes + (peephole_index or 0)) if is_seen else None
        bias = node.expr(self.biases + at)
        norm = None if self.norms < 0 else given(node, self.norms + at)

        def pre_activation(sides: Sequence[Operand]) -> Gate:
            """Emit the pre-activation; layer normalization precedes the bias."""
            total = _sum([side.times(w) for side, w in zip(sides, weights, strict=True)])
            if norm is None:
                return gate(op.add(total, bias), peephole)
            unnormalised = gate(total, peephole)
            return lambda cell: op.add(op.multiply(normalised(unnormalised(cell)), norm), bias)

        return pre_activation


_ONE = _Cell(1, 5, 9, 12, 16, 18, norms=20)
_FORWARD = _Cell(1, 5, 9, 12, 16, 35, beside=40)
_BACK = _Cell(18, 22, 26, 29, 33, 37, beside=44)


def _sequence_lstm(node: Node) -> Expr:
    states = [_ONE.output, _ONE.output + 1]
    return turned(node, stepped(node, [timed(node, 0)], states, _ONE.step(node, 1)))


def _both_lstm(node: Node) -> list[Expr]:
    outputs = []
    for cell in (_FORWARD, _BACK):
        backwards = cell is _BACK
        data, weights = _sides(node, backwards, cell.inputs + 1, 39, cell.beside + 1)
        step = cell.step(node, len(weights))
        states = [cell.output, cell.output + 1]
        outputs.append(turned(node, stepped(node, data, states, step, backwards)))
    return _merged(node, outputs)


def _lstm(node: Node) -> list[Expr] | Expr:
    if node.option("KernelType"):
        return _basic_lstm(node)
    outputs = stepped(node, [op.expand_dims(node.expr(0), 0)], [18, 19], _ONE.step(node, 1))
    return op.squeeze(outputs, axis=[0])


def _basic_lstm(node: Node) -> list[Expr]:
    """Convert the basic LSTM (data, output, weights, bias, cell) to output, cell, concatenated
    inputs and gates (i, g, f, o).
    """
    concatenated = op.concatenate([node.expr(0), node.expr(1)], axis=-1)
    gates = op.add(op.nn.dense(concatenated, node.expr(2)), node.expr(3))
    # The basic kernel orders its gates i, g, f, o.
    take, new, keep, show = (gate(gate_sum) for gate_sum in op.split(gates, 4, axis=-1))
    result = lstm([take, keep, new, show], node.expr(4))
    return [result.hidden, result.cell, concatenated, gates]


# SVDF.


def _svdf(node: Node) -> Expr:
    """Convert SVDF (data [batch, inputs], features [filters, inputs], time weights [filters,
    memory], bias, state).
    """
    sums = remembered(node, Operand(node, node.expr(0)).times(1), real(node, 2))
    return node.activated(_sum([sums, given(node, 3)]))


def _row(code: str, convert: Converter, integer: Converter | None = None) -> Row:
    def of_dtype(node: Node) -> Result:
        """Convert a float layer, or an integer one where there is a kernel for it."""
        if node.dtype(0) == "float32":
            return convert(node)
        if integer is None:
            node.unsupported(f"{node.ins[0]} is {node.dtype(0)}: layers of float32 are here")
        return integer(node)

    return Row(code, of_dtype, Quantized.OWN, dtypes=VARIABLE)


# fmt: off
ROWS = (
    _row("RNN",                          _rnn),
    _row("UNIDIRECTIONAL_SEQUENCE_RNN",  _sequence_rnn),
    _row("BIDIRECTIONAL_SEQUENCE_RNN",   _both_rnn),
    _row("LSTM",                         _lstm,          integers.lstm),
    _row("UNIDIRECTIONAL_SEQUENCE_LSTM", _sequence_lstm, integers.sequence_lstm),
    _row("BIDIRECTIONAL_SEQUENCE_LSTM",  _both_lstm),
    _row("SVDF",                         _svdf,          integers.svdf),
)
# fmt: on
