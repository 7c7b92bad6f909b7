"""Layers of recurrent networks: `aten::lstm`, `gru`, `rnn_tanh` and `rnn_relu` over padded steps.

PyTorch's own definitions of them write every step out: a program as long as the sequence. Here a
layer and direction is one operator (nn.lstm, nn.gru, nn.rnn), with PyTorch's order of gates. Those
with packed sequences (`lstm.data`) keep PyTorch's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.runtime.late_methods import dataclass
from ekiden.topi.shape import as_dim, known

KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "lstm": ("lstm", ()),
    "gru": ("gru", ()),
    "rnn_tanh": ("rnn", ("tanh",)),
    "rnn_relu": ("rnn", ("relu",)),
}
"""PyTorch's operator -> (nn.recurrent's kind, its activations where they are not its defaults)."""


@dataclass(frozen=True, slots=True)
class _Stack:
    """What the layers of a module have in common: their arguments as PyTorch has them."""

    params: Sequence[Value]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer in one direction."""

    name: str
    weights: Sequence[Expr]
    """[gates * hidden, inputs], [gates * hidden, hidden], perhaps two biases, perhaps a projection
    of hidden states [projected, hidden] (lstm)."""
    biased: bool
    reverse: bool

    @property
    def projection(self) -> Expr | None:
        return self.weights[-1] if len(self.weights) % 2 else None

    def whole(self, data: Expr, states: Sequence[Expr]) -> list[Expr]:
        """By the operator: data [steps, batch, inputs] and states [batch, hidden] -> all hidden
        states, then each state at the end."""
        kind, activations = KINDS[self.name]
        first, second, *biases = self.weights
        layers: Mapping[str, Callable[..., Expr]] = {
            "lstm": op.nn.lstm, "gru": op.nn.gru, "rnn": op.nn.rnn,
        }  # fmt: skip
        made = layers[kind](
            data, first, second, *(biases or (None, None)), *states,
            reverse=self.reverse, activations=activations,
        )  # fmt: skip
        return [TupleGetItem(made, at) for at in range(1 + len(states))]

    def steps(self, data: Expr, states: Sequence[Expr], count: int) -> list[Expr]:
        """The same, step by step: for projections, and float64, which the operator has not."""
        order = range(count)[::-1] if self.reverse else range(count)
        found: list[Expr] = [data] * count
        now = list(states)
        for at in order:
            now = self._step(op.take(data, const(at, "int64"), axis=0), now)
            found[at] = now[0]
        return [op.stack(found, axis=0), *now]

    def _step(self, x: Expr, states: Sequence[Expr]) -> list[Expr]:
        """The next states after one step."""
        into, again = self.weights[:2]
        left, right = op.nn.dense(x, into), op.nn.dense(states[0], again)
        if self.biased:
            left, right = op.add(left, self.weights[2]), op.add(right, self.weights[3])
        kind, activations = KINDS[self.name]
        if kind == "rnn":
            total = op.add(left, right)
            return [op.tanh(total) if activations == ("tanh",) else op.nn.relu(total)]
        if kind == "gru":
            a, b = (list(op.split(part, 3, axis=1)) for part in (left, right))
            reset, keep = (op.sigmoid(op.add(a[i], b[i])) for i in (0, 1))
            new = op.tanh(op.add(a[2], op.multiply(reset, b[2])))
            return [op.add(new, op.multiply(keep, op.subtract(states[0], new)))]
        i, f, g, o = op.split(op.add(left, right), 4, axis=1)
        cell = op.add(op.multiply(op.sigmoid(f), states[1]), op.multiply(op.sigmoid(i), op.tanh(g)))
        hidden = op.multiply(op.sigmoid(o), op.tanh(cell))
        if self.projection is not None:
            hidden = op.nn.dense(hidden, self.projection)
        return [hidden, cell]


def _run(
    node: Node, name: str, x: Value, states: Sequence[Value], stack: _Stack
) -> list[Expr | Value | None]:
    """The last layer's hidden states, and each state [layers * directions, batch, hidden]."""
    if stack.train and stack.dropout > 0 and stack.num_layers > 1:
        node.unsupported("dropout between layers, which training has")
    dtype = "float64" if x.type.dtype == "float64" else "float32"
    data = node.of(x, dtype)
    if stack.batch_first:
        data = op.transpose(data, (1, 0, 2))
    size = len(stack.params) // (stack.num_layers * stack.directions)
    ends: list[list[Expr]] = []
    for at in range(stack.num_layers):
        both = []
        for direction in range(stack.directions):
            number = at * stack.directions + direction
            given = [node.of(p, dtype) for p in stack.params[number * size : (number + 1) * size]]
            layer = _Layer(name, given, stack.has_biases, direction == 1)
            begin = [op.take(node.of(s, dtype), const(number, "int64"), axis=0) for s in states]
            if layer.projection is None and dtype == "float32":
                every, *last = layer.whole(data, begin)
            else:
                count = known(as_dim(x.type.shape[1 if stack.batch_first else 0]))
                if count is None:
                    node.unsupported("a projection, or float64, over steps without a number")
                every, *last = layer.steps(data, begin, count)
            both.append(every)
            ends.append(last)
        data = both[0] if len(both) == 1 else op.concatenate(both, axis=-1)
    if stack.batch_first:
        data = op.transpose(data, (1, 0, 2))
    return [data, *(op.stack(each, axis=0) for each in zip(*ends, strict=True))]


def _recurrent(
    name: str, node: Node, x: Value, hx: Value | Sequence[Value], params: Sequence[Value],
    *rest: bool | float,
) -> list[Expr | Value | None]:  # fmt: skip
    """`rest`: has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    states = [hx] if isinstance(hx, Value) else hx
    return _run(node, name, x, states, _Stack(params, *rest))  # type: ignore[arg-type]


ROWS: tuple[Row, ...] = tuple((f"{name}.input", partial(_recurrent, name)) for name in KINDS)
