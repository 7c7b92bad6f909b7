"""Recurrent layers of floats: RNN, LSTM and SVDF. Their weights may be of int8: products are those
of hybrid.py then. Those of integers are in integer_recurrent.py.

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


def _sum(parts: Sequence[Expr | None]) -> Expr:
    found = [p for p in parts if p is not None]
    total = found[0]
    for each in found[1:]:
        total = op.add(total, each)
    return total


# RNN.


def _rnn_step(node: Node, weights: Sequence[int], bias: Expr) -> Step:
    """The weights of each input, then those of the state, by index."""

    def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """The next state."""
        sides = zip((*rows, *states), weights, strict=True)
        return [node.activated(_sum([*(Operand(node, x).times(w) for x, w in sides), bias]))]

    return step


def _rnn(node: Node) -> Expr:
    """(data [batch, inputs], weights, weights of the state, bias, state)"""
    step = _rnn_step(node, [1, 2], node.expr(3))
    made = stepped(node, [op.expand_dims(node.expr(0), 0)], [4], step)
    return op.squeeze(made, axis=[0])


def _sequence_rnn(node: Node) -> Expr:
    step = _rnn_step(node, [1, 2], node.expr(3))
    return turned(node, stepped(node, [timed(node, 0)], [4], step))


def _both_rnn(node: Node) -> list[Expr]:
    """(data, then weights, weights of the state, bias, state of both directions, data beside, its
    weights of both)
    """
    made = []
    for backwards, at, beside in ((False, 1, 10), (True, 5, 11)):
        data, weights = _sides(node, backwards, at, 9, beside)
        step = _rnn_step(node, [*weights, at + 1], node.expr(at + 2))
        made.append(turned(node, stepped(node, data, [at + 3], step, backwards)))
    return _merged(node, made)


def _sides(
    node: Node, backwards: bool, weight: int, beside: int, beside_weight: int
) -> tuple[list[Expr], list[int]]:
    """The data of a direction, and which inputs their weights are. Data beside without weights of
    their own are what the way back sees.
    """
    if node.optional(beside) is None:
        return [timed(node, 0)], [weight]
    if node.optional(beside_weight) is not None:
        both = [timed(node, 0), timed(node, beside)]
        return both, [weight, beside_weight]
    return [timed(node, beside if backwards else 0)], [weight]


def _merged(node: Node, made: Sequence[Expr]) -> list[Expr]:
    return [op.concatenate(made, axis=2)] if node.option("MergeOutputs") else list(made)


# LSTM.


@dataclass(frozen=True, slots=True)
class _Cell:
    """Where the inputs of a cell stand: the first of four (i, f, g, o) or three (i, f, o)."""

    inputs: int
    states: int
    peepholes: int
    biases: int
    projection: int
    output: int
    beside: int = -1
    norms: int = -1

    def step(self, node: Node, count: int) -> Step:
        """One step of `count` inputs."""
        makers = [self._gate(node, i, count) for i in range(4)]
        cell_clip, clip = (float(node.option(n)) for n in ("CellClip", "ProjClip"))
        bias = given(node, self.projection + 1)
        is_projected = node.optional(self.projection) is not None

        def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
            """(output, cell) from (output, cell)."""
            output, cell = states
            sides = [Operand(node, each) for each in (*rows, output)]
            gates = [None if make is None else make(sides) for make in makers]
            made = lstm(gates, cell, node.activation, cell_clip)
            if not is_projected:
                return [made.hidden, made.cell]
            seen = _sum([Operand(node, made.hidden).times(self.projection), bias])
            return [bounded(seen, clip), made.cell]

        return step

    def _gate(self, node: Node, at: int, count: int) -> Callable[[Sequence[Operand]], Gate] | None:
        """(inputs of a step and the output before) -> what goes into the gate's activation."""
        if at == 0 and node.optional(self.inputs) is None:
            return None
        weights = [self.inputs + at, *([self.beside + at] if count > 1 else []), self.states + at]
        place = {0: 0, 1: 1, 3: 2}.get(at)
        is_seen = place is not None and node.optional(self.peepholes + place) is not None
        hole = real(node, self.peepholes + (place or 0)) if is_seen else None
        bias = node.expr(self.biases + at)
        norm = None if self.norms < 0 else given(node, self.norms + at)

        def made(sides: Sequence[Operand]) -> Gate:
            """Layer normalisation, where there is one, comes before the bias."""
            total = _sum([side.times(w) for side, w in zip(sides, weights, strict=True)])
            if norm is None:
                return gate(op.add(total, bias), hole)
            seen = gate(total, hole)
            return lambda cell: op.add(op.multiply(normalised(seen(cell)), norm), bias)

        return made


_ONE = _Cell(1, 5, 9, 12, 16, 18, norms=20)
_FORWARD = _Cell(1, 5, 9, 12, 16, 35, beside=40)
_BACK = _Cell(18, 22, 26, 29, 33, 37, beside=44)


def _sequence_lstm(node: Node) -> Expr:
    states = [_ONE.output, _ONE.output + 1]
    return turned(node, stepped(node, [timed(node, 0)], states, _ONE.step(node, 1)))


def _both_lstm(node: Node) -> list[Expr]:
    made = []
    for cell in (_FORWARD, _BACK):
        backwards = cell is _BACK
        data, weights = _sides(node, backwards, cell.inputs + 1, 39, cell.beside + 1)
        step = cell.step(node, len(weights))
        states = [cell.output, cell.output + 1]
        made.append(turned(node, stepped(node, data, states, step, backwards)))
    return _merged(node, made)


def _lstm(node: Node) -> list[Expr] | Expr:
    if node.option("KernelType"):
        return _basic_lstm(node)
    made = stepped(node, [op.expand_dims(node.expr(0), 0)], [18, 19], _ONE.step(node, 1))
    return op.squeeze(made, axis=[0])


def _basic_lstm(node: Node) -> list[Expr]:
    """(data, output, weights of both, bias, cell): (output, cell, what the weights saw, gates in
    the order i, g, f, o).
    """
    seen = op.concatenate([node.expr(0), node.expr(1)], axis=-1)
    gates = op.add(op.nn.dense(seen, node.expr(2)), node.expr(3))
    take, new, keep, show = (gate(part) for part in op.split(gates, 4, axis=-1))
    made = lstm([take, keep, new, show], node.expr(4))
    return [made.hidden, made.cell, seen, gates]


# SVDF.


def _svdf(node: Node) -> Expr:
    """(data [batch, inputs], features [filters, inputs], times [filters, memory], bias, state)"""
    made = remembered(node, Operand(node, node.expr(0)).times(1), real(node, 2))
    return node.activated(_sum([made, given(node, 3)]))


def _row(code: str, convert: Converter, integer: Converter | None = None) -> Row:
    def of_dtype(node: Node) -> Result:
        """Of floats; of integers where there are kernels, whose states have scales of their own."""
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
