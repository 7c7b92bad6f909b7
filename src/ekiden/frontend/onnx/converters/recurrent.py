"""RNN, GRU and LSTM, and com.microsoft's LSTM with int8 weights.

ONNX orders gates i, o, f, c and z, r, h; Relay's layers take them as i, f, g, o and r, z, n. Each
direction is a layer; the results of two are stacked along an axis of their own.

    LSTM   i, f, o = f(W x + R h + P c + b),  c' = f c + i g(W x + R h + b),  h' = o h(c')
    GRU    z, r = f(W x + R h + b),  n = g(W x + r (R h + b)) or g(W x + R (r h) + b),
           h' = (1 - z) n + z h          the first n with linear_before_reset, as PyTorch's

Weights are [directions, gates * hidden, inputs], both biases in one row. `clip` bounds the inputs
of activations. With sequence_lens, steps behind a sequence's end are 0, and the last state is that
of its last step; the backward direction begins at its own end. The last states of a sequence
without steps are 0, as in ONNX Runtime, whatever the initial states are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ekiden.frontend.common.cells import recurrent_layer
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, TupleGetItem, const
from ekiden.relay.qnn import products as qnn
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Shape, known


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of recurrent cell: the positions of our gates, and of our peepholes, in
    ONNX's order.
    """

    gates: tuple[int, ...]
    activations: tuple[str, ...]
    peepholes: tuple[int, ...] = ()


# fmt: off
KINDS = {
    "RNN":  Kind((0,), ("Tanh",)),
    "GRU":  Kind((1, 0, 2), ("Sigmoid", "Tanh")),
    "LSTM": Kind((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), (0, 2, 1)),
}
ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {   # ours, default alpha and beta
    "sigmoid":     ("sigmoid",      None, None),
    "tanh":        ("tanh",         None, None),
    "relu":        ("relu",         None, None),
    "softsign":    ("softsign",     None, None),
    "softplus":    ("softplus",     None, None),
    "affine":      ("affine",       1.0,  0.0),
    "leakyrelu":   ("leaky_relu",   0.01, None),
    "scaledtanh":  ("scaled_tanh",  1.0,  1.0),
    "hardsigmoid": ("hard_sigmoid", 0.2,  0.5),
    "elu":         ("elu",          1.0,  None),
}
# fmt: on
Options: TypeAlias = dict[str, Any]
"""Arguments of a layer by name."""
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _rows(node: Node, value: Value, direction: int, order: Sequence[int]) -> Expr:
    """Return the part of a direction [blocks * n, ...] with its gate blocks reordered; n is the
    hidden size, which the weight's shape may not have as a constant.
    """
    if value.array is not None:
        blocks_of_array = np.split(value.array[direction], len(order))
        return const(np.ascontiguousarray(np.concatenate([blocks_of_array[i] for i in order])))
    direction_weight = _direction(node.scope.expr(value), direction)
    hidden, other_dims = node.get_int("hidden_size", 0), value.type.shape[2:]
    if hidden and known(value.type.shape[1]) is None:
        direction_weight = op.reshape(
            direction_weight, (len(order) * hidden, *other_dims), allowzero=True
        )
    if len(order) == 1:
        return direction_weight
    blocks = op.split(direction_weight, len(order), axis=0)
    return op.concatenate([TupleGetItem(blocks, i) for i in order], axis=0)


def _direction(expr: Expr, direction: int) -> Expr:
    """Return one direction of a tensor [directions, ...]."""
    return op.take(expr, const(np.int64(direction)), axis=0)


def _biases(node: Node, kind: Kind, direction: int) -> tuple[Expr | None, Expr | None]:
    """Return the biases of the inputs and of the states; None where they are absent."""
    value, count = node.optional(3), len(kind.gates)
    if value is None:
        return None, None
    # One row holds the input bias Wb and then the state bias Rb, each in ONNX's gate order.
    if value.array is None:
        both = _rows(node, value, direction, [*kind.gates, *(count + g for g in kind.gates)])
        halves_of_bias = op.split(both, 2, axis=0)
        return TupleGetItem(halves_of_bias, 0), TupleGetItem(halves_of_bias, 1)
    halves = (constant(half) for half in np.split(value.array, 2, axis=1))
    first, second = (_rows(node, half, direction, kind.gates) for half in halves)
    return first, second


def _activations(node: Node, kind: Kind, directions: int) -> list[Options]:
    """Return the activation options of each direction. `activation_alpha` and `activation_beta`
    list values only for activations that need one.
    """
    names = [n.lower() for n in node.get_strings("activations")]
    names = names or [n.lower() for n in kind.activations] * directions
    if unknown := [n for n in names if n not in ACTIVATIONS]:
        node.unsupported(f"activation {unknown[0]!r}; there are {', '.join(ACTIVATIONS)}")
    if len(names) != len(kind.activations) * directions:
        node.unsupported(f"expected {len(kind.activations)} activations per direction: {names}")
    parameter_lists = {
        key: list(node.get_floats(key)) if node.has(key) else []
        for key in ("activation_alpha", "activation_beta")
    }
    rows = []
    for name in names:
        ours, *defaults = ACTIVATIONS[name]
        numbers = []
        for default, remaining in zip(defaults, parameter_lists.values(), strict=True):
            needed = default is not None
            numbers.append(remaining.pop(0) if needed and remaining else default or 0.0)
        rows.append((ours, *numbers))
    step = len(kind.activations)
    chosen = [rows[i * step : (i + 1) * step] for i in range(directions)]
    return [
        dict(
            zip(("activations", "alphas", "betas"), zip(*direction_rows, strict=True), strict=True)
        )
        for direction_rows in chosen
    ]


def _lengths(node: Node) -> Expr | None:
    return None if node.optional(4) is None else op.cast(node.expr(4), "int32")


def _initial(node: Node, index: int, direction: int, batch_first: bool) -> Expr | None:
    if node.optional(index) is None:
        return None
    # With layout 1 the initial states are [batch, directions, hidden].
    expr = node.expr(index)
    return _direction(op.transpose(expr, (1, 0, 2)) if batch_first else expr, direction)


def _layers(node: Node, kind: Kind) -> tuple[bool, list[tuple[bool, Options]]]:
    """Return whether the batch comes first, and for each direction (reversed, options common to all
    cells).
    """
    batch_first = node.get_int("layout", 0) == 1
    directions = DIRECTIONS.get(node.get_string("direction", "forward"))
    if directions is None:
        node.unsupported(f"direction must be one of {', '.join(DIRECTIONS)}")
    options = _activations(node, kind, len(directions))
    layers: list[tuple[bool, Options]] = []
    for number, (reverse, functions) in enumerate(zip(directions, options, strict=True)):
        common: Options = {
            "initial_h": _initial(node, 5, number, batch_first),
            "lengths": _lengths(node),
            "reverse": reverse,
            "clip": node.get_float("clip", 0.0),
            **functions,
        }
        layers.append((reverse, common))
    return batch_first, layers


def _results(layers: Sequence[Sequence[Expr]], batch_first: bool) -> list[Expr]:
    """Return Y [steps, directions, batch, hidden] and the last states [directions, batch,
    hidden].
    """
    every, *states = zip(*layers, strict=True)
    stacked = op.stack(every, axis=1)
    last = [op.stack(state, axis=0) for state in states]
    # layout 1 moves the batch to the front: Y [batch, steps, directions, hidden].
    if not batch_first:
        return [stacked, *last]
    return [op.transpose(stacked, (2, 0, 1, 3)), *(op.transpose(e, (1, 0, 2)) for e in last)]


def _data(node: Node, batch_first: bool) -> Expr:
    return op.transpose(node.expr(0), (1, 0, 2)) if batch_first else node.expr(0)


def _learn_batch(node: Node, axis: int) -> None:
    """Constrain the initial states to the batch of the layer's input."""
    for state in (5, 6):
        if node.optional(state) is not None and node.rank(state) == node.rank(0) == 3:
            node.scope.same(node.shape(0)[axis : axis + 1], node.shape(state)[axis : axis + 1])


def _learn_hidden(node: Node, kind: Kind) -> None:
    """Constrain the weights to `hidden_size` rows for each gate."""
    hidden, gates = node.get_int("hidden_size", 0), len(kind.gates)
    if hidden < 1:
        node.unsupported("attribute 'hidden_size' must be given, and at least 1")
    columns = known(node.shape(2)[2])
    if columns not in (None, hidden):
        node.unsupported(
            f"attribute 'hidden_size' is {hidden}, and the recurrence weight has {columns} columns"
        )
    rows = ((1, 1, gates), (2, 1, gates), (2, 2, 1), (3, 1, 2 * gates), (5, 2, 1), (6, 2, 1))
    for index, axis, blocks in (*rows, (7, 1, 3)):
        node.learn(index, axis, blocks * hidden)
    if node.rank(0) == 3:
        node.learn(1, 2, node.shape(0)[2])


def _recurrent(node: Node) -> list[Expr]:
    kind = KINDS[node.op_type]
    _learn_hidden(node, kind)
    batch_first, layers = _layers(node, kind)
    data = _data(node, batch_first)
    _learn_batch(node, 0 if batch_first else 1)
    # Kernels and scans assume at least one step and one row.
    if any(known(extent) == 0 for extent in node.typed(data).shape[:2]):
        return _nothing(node, node.typed(data).shape, len(layers), batch_first)
    layer_outputs = []
    for direction, (_, options) in enumerate(layers):
        inputs, states = (_rows(node, node.value(i), direction, kind.gates) for i in (1, 2))
        biases = _biases(node, kind, direction)
        if node.op_type == "LSTM":
            options |= _lstm_options(node, kind, direction, batch_first)
        elif node.op_type == "GRU":
            options["reset_first"] = node.get_int("linear_before_reset", 0) == 0
        layer_outputs.append(
            recurrent_layer(node.op_type.lower(), data, (inputs, states, *biases), **options)
        )
    return _results([_with_no_steps(node, data, outputs) for outputs in layer_outputs], batch_first)


def _nothing(node: Node, shape: Shape, directions: int, batch_first: bool) -> list[Expr]:
    """Return the zero results of a layer without steps or without a batch, which needs no kernels.
    All inputs must have been checked before.
    """
    assert all(v is None or len(v.type.shape) for v in node.inputs), "checked before"
    steps, batch, _ = shape
    hidden = node.get_int("hidden_size")
    extents = [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]
    if batch_first:
        extents = [(batch, steps, directions, hidden), *[(batch, directions, hidden)] * 2]
    count = 3 if node.op_type == "LSTM" else 2
    zero = const(0, node.dtype(0))
    return [op.full(zero, extent, dtype=node.dtype(0)) for extent in extents[:count]]


def _with_no_steps(node: Node, data: Expr, outputs: Sequence[Expr]) -> list[Expr]:
    """Replace the last states by 0 where a sequence has no steps, if the layer has initial
    states.
    """
    if node.optional(5) is None and node.optional(6) is None:
        return list(outputs)
    every, *states = outputs
    steps = node.typed(data).shape[0]
    is_empty: Expr | None = None
    if node.optional(4) is not None:
        lengths = op.expand_dims(node.expr(4), axis=1)
        is_empty = op.less(lengths, const(1, node.dtype(4)))
    elif known(steps) is None:
        is_empty = op.less(node.scope.scalar(steps), const(np.int64(1)))
    if is_empty is None:
        return list(outputs)
    zero = const(0, node.dtype(0))
    return [every, *(op.where(is_empty, zero, state) for state in states)]


def _lstm_options(node: Node, kind: Kind, direction: int, batch_first: bool) -> Options:
    peephole = node.optional(7)
    rows = None if peephole is None else _rows(node, peephole, direction, kind.peepholes)
    return {
        "initial_c": _initial(node, 6, direction, batch_first),
        "peephole": rows,
        "input_forget": node.get_int("input_forget", 0) == 1,
    }


def _bytes(node: Node, index: int, direction: int, order: Sequence[int]) -> Constant:
    """Return a weight [directions, n, 4 * hidden] as [4 * hidden, n] in our gate order."""
    weight = node.numbers(index, "a weight")[direction].T
    gate_blocks = np.split(weight, len(order))
    return Constant(np.ascontiguousarray(np.concatenate([gate_blocks[i] for i in order])))


def _scale(node: Node, index: int, direction: int, rows: int, order: Sequence[int]) -> Expr:
    """Return scales [directions], or one for each row, as one for each row. Raises Unsupported for
    nonzero zero points.
    """
    scale: Array = node.numbers(index, "a scale")[direction]
    # Symmetric weights: the kernel has no correction term for a zero point.
    points = node.optional(index + 1)
    if points is not None and (points.array is None or np.any(points.array)):
        node.unsupported("weights must have the zero point 0")
    gate_blocks = np.split(np.broadcast_to(scale, (rows,)), len(order))
    return const(np.concatenate([gate_blocks[i] for i in order]).astype(np.float32))


def _dynamic_quantize_lstm(node: Node) -> list[Expr]:
    kind = KINDS["LSTM"]
    batch_first, layers = _layers(node, kind)
    data = _data(node, batch_first)
    _learn_batch(node, 0 if batch_first else 1)
    if node.dtype(1) != "int8" or node.dtype(2) != "int8":
        node.unsupported(f"weights must be int8, got {node.dtype(1)} and {node.dtype(2)}")
    layer_outputs = []
    for direction, (_, options) in enumerate(layers):
        options |= _lstm_options(node, kind, direction, batch_first)
        weights = [_bytes(node, i, direction, kind.gates) for i in (1, 2)]
        rows = weights[0].data.shape[0]
        scales = [_scale(node, i, direction, rows, kind.gates) for i in (8, 10)]
        first, second = _biases(node, kind, direction)
        options["bias"] = first if first is None or second is None else op.add(first, second)
        layer_outputs.append(qnn.dynamic_lstm(data, weights[0], weights[1], *scales, **options))
    return _results(layer_outputs, batch_first)


_COMMON = "activation_alpha activation_beta activations clip direction hidden_size"

# fmt: off
ROWS = (
    Row("RNN",  _recurrent, 7, f"{_COMMON} layout"),
    Row("GRU",  _recurrent, 7, f"{_COMMON} layout linear_before_reset"),
    Row("LSTM", _recurrent, 7, f"{_COMMON} layout input_forget"),
    Row("DynamicQuantizeLSTM", _dynamic_quantize_lstm, 1, f"{_COMMON} input_forget",
        domain="com.microsoft"),
)
# fmt: on
