"""ONNX RNN, GRU and LSTM, and com.microsoft's LSTM with int8 weights.

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

from ekiden.frontend.common.recurrent_layer import RecurrentLayer, exchange_steps_and_batch
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, TupleGetItem, const
from ekiden.relay.qnn import int8_lowering as qnn
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Shape, known_int


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """A kind of recurrent cell: where our gates and peepholes are in ONNX's order."""

    gates: tuple[int, ...]
    activations: tuple[str, ...]
    peepholes: tuple[int, ...] = ()


# fmt: off
RECURRENT_CELLS = {
    "RNN":  RecurrentCell((0,), ("Tanh",)),
    "GRU":  RecurrentCell((1, 0, 2), ("Sigmoid", "Tanh")),
    "LSTM": RecurrentCell((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), (0, 2, 1)),
}
# ours, default alpha and beta
RNN_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
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
DirectionOptions: TypeAlias = dict[str, Any]
"""Arguments of a layer by name."""
REVERSED_BY_DIRECTION = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _reorder_gates(node: OnnxNode, value: Value, direction: int, order: Sequence[int]) -> Expr:
    """Emit one direction of a weight [blocks * n, ...] with its gate blocks reordered."""
    if value.array is not None:
        blocks_of_array = np.split(value.array[direction], len(order))
        return const(np.ascontiguousarray(np.concatenate([blocks_of_array[i] for i in order])))
    direction_weight = _take_direction(node.scope.expr(value), direction)
    hidden, other_dims = node.get_int("hidden_size", 0), value.type.shape[2:]
    if hidden and known_int(value.type.shape[1]) is None:
        direction_weight = op.reshape(
            direction_weight, (len(order) * hidden, *other_dims), allowzero=True
        )
    if len(order) == 1:
        return direction_weight
    # ONNX orders gates i, o, f, c (LSTM) and z, r, h (GRU); the kernels have another order.
    blocks = op.split(direction_weight, len(order), axis=0)
    return op.concatenate([TupleGetItem(blocks, i) for i in order], axis=0)


def _take_direction(expr: Expr, direction: int) -> Expr:
    """Emit one direction of a tensor [directions, ...]."""
    return op.take(expr, const(np.int64(direction)), axis=0)


def _split_bias(
    node: OnnxNode, kind: RecurrentCell, direction: int
) -> tuple[Expr | None, Expr | None]:
    """Return the input bias and the state bias; None where they are absent."""
    value, count = node.optional_value(3), len(kind.gates)
    if value is None:
        return None, None
    # One row holds the input bias Wb and then the state bias Rb, each in ONNX's gate order.
    if value.array is None:
        both = _reorder_gates(
            node, value, direction, [*kind.gates, *(count + g for g in kind.gates)]
        )
        halves_of_bias = op.split(both, 2, axis=0)
        return TupleGetItem(halves_of_bias, 0), TupleGetItem(halves_of_bias, 1)
    halves = (constant_value(half) for half in np.split(value.array, 2, axis=1))
    first, second = (_reorder_gates(node, half, direction, kind.gates) for half in halves)
    return first, second


def _activation_options(
    node: OnnxNode, kind: RecurrentCell, directions: int
) -> list[DirectionOptions]:
    """Return the activation options of each direction. `activation_alpha` and `activation_beta`
    list values only for activations that need one.
    """
    names = [n.lower() for n in node.get_strings("activations")]
    names = names or [n.lower() for n in kind.activations] * directions
    if unknown := [n for n in names if n not in RNN_ACTIVATIONS]:
        node.reject(f"activation {unknown[0]!r}; there are {', '.join(RNN_ACTIVATIONS)}")
    if len(names) != len(kind.activations) * directions:
        node.reject(f"expected {len(kind.activations)} activations per direction: {names}")
    parameter_lists = {
        key: list(node.get_floats(key)) if node.has(key) else []
        for key in ("activation_alpha", "activation_beta")
    }
    rows = []
    for name in names:
        ours, *defaults = RNN_ACTIVATIONS[name]
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


def _sequence_lengths(node: OnnxNode) -> Expr | None:
    """Return the sequence lengths as int32; None where they are absent."""
    return None if node.optional_value(4) is None else op.cast(node.expr(4), "int32")


def _initial_state(node: OnnxNode, index: int, direction: int, batch_first: bool) -> Expr | None:
    """Emit one direction's initial state; None where it is absent."""
    if node.optional_value(index) is None:
        return None
    # With layout 1 the initial states are [batch, directions, hidden].
    expr = node.expr(index)
    return _take_direction(exchange_steps_and_batch(expr) if batch_first else expr, direction)


def _layer_options(
    node: OnnxNode, kind: RecurrentCell
) -> tuple[bool, list[tuple[bool, DirectionOptions]]]:
    """Return whether the batch comes first, and per direction (reversed, layer options)."""
    batch_first = node.get_int("layout", 0) == 1
    directions = REVERSED_BY_DIRECTION.get(node.get_string("direction", "forward"))
    if directions is None:
        node.reject(f"direction must be one of {', '.join(REVERSED_BY_DIRECTION)}")
    options = _activation_options(node, kind, len(directions))
    layers: list[tuple[bool, DirectionOptions]] = []
    for number, (reverse, functions) in enumerate(zip(directions, options, strict=True)):
        common: DirectionOptions = {
            "initial_h": _initial_state(node, 5, number, batch_first),
            "lengths": _sequence_lengths(node),
            "reverse": reverse,
            "clip": node.get_float("clip", 0.0),
            **functions,
        }
        layers.append((reverse, common))
    return batch_first, layers


def _stack_directions(layers: Sequence[Sequence[Expr]], batch_first: bool) -> list[Expr]:
    """Emit Y [steps, directions, batch, hidden] and the last states [directions, batch, hidden]."""
    every, *states = zip(*layers, strict=True)
    stacked = op.stack(every, axis=1)
    last = [op.stack(state, axis=0) for state in states]
    # layout 1 moves the batch to the front: Y [batch, steps, directions, hidden].
    if not batch_first:
        return [stacked, *last]
    return [op.transpose(stacked, (2, 0, 1, 3)), *map(exchange_steps_and_batch, last)]


def _time_major_input(node: OnnxNode, batch_first: bool) -> Expr:
    """Emit input 0 with the steps first."""
    return exchange_steps_and_batch(node.expr(0)) if batch_first else node.expr(0)


def _constrain_batch(node: OnnxNode, axis: int) -> None:
    """Constrain the initial states to the batch of the input."""
    for state in (5, 6):
        if node.optional_value(state) is not None and node.rank(state) == node.rank(0) == 3:
            node.scope.require_equal_dims(
                node.shape(0)[axis : axis + 1], node.shape(state)[axis : axis + 1]
            )


def _constrain_hidden(node: OnnxNode, kind: RecurrentCell) -> None:
    """Constrain weights and biases to `hidden_size` rows per gate."""
    hidden, gates = node.get_int("hidden_size", 0), len(kind.gates)
    if hidden < 1:
        node.reject("attribute 'hidden_size' must be given, and at least 1")
    columns = known_int(node.shape(2)[2])
    if columns not in (None, hidden):
        node.reject(
            f"attribute 'hidden_size' is {hidden}, and the recurrence weight has {columns} columns"
        )
    rows = ((1, 1, gates), (2, 1, gates), (2, 2, 1), (3, 1, 2 * gates), (5, 2, 1), (6, 2, 1))
    for index, axis, blocks in (*rows, (7, 1, 3)):
        node.constrain_extent(index, axis, blocks * hidden)
    if node.rank(0) == 3:
        node.constrain_extent(1, 2, node.shape(0)[2])


def _recurrent(node: OnnxNode) -> list[Expr]:
    kind = RECURRENT_CELLS[node.op_type]
    _constrain_hidden(node, kind)
    batch_first, layers = _layer_options(node, kind)
    data = _time_major_input(node, batch_first)
    _constrain_batch(node, 0 if batch_first else 1)
    # Kernels and scans assume at least one step and one row.
    if any(known_int(extent) == 0 for extent in node.tensor_type_of(data).shape[:2]):
        return _empty_results(node, node.tensor_type_of(data).shape, len(layers), batch_first)
    layer_outputs = []
    for direction, (_, options) in enumerate(layers):
        inputs, states = (
            _reorder_gates(node, node.value(i), direction, kind.gates) for i in (1, 2)
        )
        biases = _split_bias(node, kind, direction)
        if node.op_type == "LSTM":
            options |= _int8_lstm_options(node, kind, direction, batch_first)
        elif node.op_type == "GRU":
            options["reset_first"] = node.get_int("linear_before_reset", 0) == 0
        layer = RecurrentLayer(node.op_type.lower(), inputs, states, *biases, **options)
        layer_outputs.append(layer.emit(node, data))
    return _stack_directions(
        [_zero_empty_states(node, data, outputs) for outputs in layer_outputs], batch_first
    )


def _empty_results(node: OnnxNode, shape: Shape, directions: int, batch_first: bool) -> list[Expr]:
    """Emit the zero results of a layer without steps or without a batch. All inputs must have been
    checked before.
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


def _zero_empty_states(node: OnnxNode, data: Expr, outputs: Sequence[Expr]) -> list[Expr]:
    """Emit last states that are 0 for sequences without steps, if the layer has initial states."""
    if node.optional_value(5) is None and node.optional_value(6) is None:
        return list(outputs)
    every, *states = outputs
    steps = node.tensor_type_of(data).shape[0]
    is_empty: Expr | None = None
    if node.optional_value(4) is not None:
        lengths = op.expand_dims(node.expr(4), axis=1)
        is_empty = op.less(lengths, const(1, node.dtype(4)))
    elif known_int(steps) is None:
        is_empty = op.less(node.scope.emit_dim(steps), const(np.int64(1)))
    if is_empty is None:
        return list(outputs)
    zero = const(0, node.dtype(0))
    return [every, *(op.where(is_empty, zero, state) for state in states)]


def _int8_lstm_options(
    node: OnnxNode, kind: RecurrentCell, direction: int, batch_first: bool
) -> DirectionOptions:
    peephole = node.optional_value(7)
    rows = None if peephole is None else _reorder_gates(node, peephole, direction, kind.peepholes)
    return {
        "initial_c": _initial_state(node, 6, direction, batch_first),
        "peephole": rows,
        "input_forget": node.get_int("input_forget", 0) == 1,
    }


def _int8_weight(node: OnnxNode, index: int, direction: int, order: Sequence[int]) -> Constant:
    """Return an int8 weight [directions, n, 4 * hidden] as [4 * hidden, n] in our gate order."""
    weight = node.constant_array(index, "a weight")[direction].T
    gate_blocks = np.split(weight, len(order))
    return Constant(np.ascontiguousarray(np.concatenate([gate_blocks[i] for i in order])))


def _row_scales(
    node: OnnxNode, index: int, direction: int, rows: int, order: Sequence[int]
) -> Expr:
    """Return per-tensor or per-row scales as one float32 per row, in our gate order. Raises
    UnsupportedError for nonzero zero points.
    """
    scale: Array = node.constant_array(index, "a scale")[direction]
    # Symmetric weights: the kernel has no correction term for a zero point.
    points = node.optional_value(index + 1)
    if points is not None and (points.array is None or np.any(points.array)):
        node.reject("weights must have the zero point 0")
    gate_blocks = np.split(np.broadcast_to(scale, (rows,)), len(order))
    return const(np.concatenate([gate_blocks[i] for i in order]).astype(np.float32))


def _dynamic_quantize_lstm(node: OnnxNode) -> list[Expr]:
    kind = RECURRENT_CELLS["LSTM"]
    batch_first, layers = _layer_options(node, kind)
    data = _time_major_input(node, batch_first)
    _constrain_batch(node, 0 if batch_first else 1)
    if node.dtype(1) != "int8" or node.dtype(2) != "int8":
        node.reject(f"weights must be int8, got {node.dtype(1)} and {node.dtype(2)}")
    layer_outputs = []
    for direction, (_, options) in enumerate(layers):
        options |= _int8_lstm_options(node, kind, direction, batch_first)
        weights = [_int8_weight(node, i, direction, kind.gates) for i in (1, 2)]
        rows = weights[0].data.shape[0]
        scales = [_row_scales(node, i, direction, rows, kind.gates) for i in (8, 10)]
        first, second = _split_bias(node, kind, direction)
        # An LSTM adds both biases to the same sum, so one vector does for both.
        options["bias"] = first if first is None or second is None else op.add(first, second)
        layer_outputs.append(qnn.dynamic_lstm(data, weights[0], weights[1], *scales, **options))
    return _stack_directions(layer_outputs, batch_first)


_COMMON_ATTRIBUTES = "activation_alpha activation_beta activations clip direction hidden_size"

# fmt: off
ROWS = (
    OnnxRow("RNN",  _recurrent, 7, f"{_COMMON_ATTRIBUTES} layout"),
    OnnxRow("GRU",  _recurrent, 7, f"{_COMMON_ATTRIBUTES} layout linear_before_reset"),
    OnnxRow("LSTM", _recurrent, 7, f"{_COMMON_ATTRIBUTES} layout input_forget"),
    OnnxRow("DynamicQuantizeLSTM", _dynamic_quantize_lstm, 1, f"{_COMMON_ATTRIBUTES} input_forget",
        domain="com.microsoft"),
)
# fmt: on
