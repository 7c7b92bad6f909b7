"""Recurrent layers: RNN, LSTM and GRU.

`lstm`, `gru` and `rnn` make a layer of plain weights: the product of all inputs with their weight
first (nn.dense), then nn.recurrent, the loop over time.

    h[t], c[t] = cell(W x[t] + R h[t - 1] + b, c[t - 1])

Only R h[t - 1] depends on the step before, so the product W x of all steps is one large product,
and the loop is one kernel whose threads meet once a step. Gates are ordered i, f, g, o and r, z, n,
as PyTorch has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_range,
    check_rank,
    check_same_dtype,
    check_tensors,
    check_tuple_of_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op.broadcast import add
from ekiden.relay.op.nn._macs import multiply_dims
from ekiden.relay.op.nn.matrix_products import dense
from ekiden.topi.dimensions import as_dim, ceil_div, require_positive, require_shape, simplify_dim
from ekiden.topi.nn.recurrent_layers import pack_recurrent, packed_recurrent_shape
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS, add_residual_words
from ekiden.topi.recurrent_cells import (
    CELL_ACTIVATIONS,
    DEFAULT_ACTIVATIONS,
    GATE_COUNTS,
    INT32_CELL_INPUTS,
    OPTIONAL_CELL_INPUTS,
    ArrayMath,
    RecurrentCell,
)

_RECURRENT_OP = "nn.recurrent"
_PACK_RECURRENT_OP = "nn.contrib_pack_recurrent"


@node("relay.attrs.RecurrentAttrs")
class RecurrentAttrs(Attrs):
    """Attributes of nn.recurrent: the cell kind ("rnn", "lstm" or "gru"), the optional tensors that
    follow, activations with alpha and beta.

    reverse: from the last step to the first. reset_first (gru): the reset multiplies the state, not
    the product. input_forget (lstm): the forget gate is 1 - input gate. clip: of what goes into
    activations, 0 for none.
    """

    kind: str = "lstm"
    given: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    betas: tuple[float, ...] = ()
    reverse: bool = False
    reset_first: bool = False
    input_forget: bool = False
    clip: float = 0.0

    @property
    def cell(self) -> RecurrentCell:
        """Return the attributes as the kernel's RecurrentCell."""
        names = self.activations or DEFAULT_ACTIVATIONS[self.kind]
        alphas, betas = (
            tuple(values) + (0.0,) * (len(names) - len(values))
            for values in (self.alphas, self.betas)
        )
        return RecurrentCell(
            self.kind,
            tuple(zip(names, alphas, betas, strict=True)),
            tuple(self.given),
            self.reverse,
            self.reset_first,
            self.input_forget,
            self.clip,
        )


def _check_attrs(settings: RecurrentAttrs, count: int) -> None:
    if settings.kind not in GATE_COUNTS:
        raise_type_error(
            _RECURRENT_OP, f"kind must be one of {', '.join(GATE_COUNTS)}, got {settings.kind!r}"
        )
    unknown = [n for n in settings.given if n not in OPTIONAL_CELL_INPUTS]
    if unknown or len(set(settings.given)) < len(settings.given):
        raise_type_error(
            _RECURRENT_OP,
            f"given must name some of {', '.join(OPTIONAL_CELL_INPUTS)} once, got {settings.given}",
        )
    if count != 2 + len(settings.given):
        raise_type_error(
            _RECURRENT_OP, f"expected data, weight and {settings.given}, got {count} tensors"
        )
    unknown = [n for n in settings.activations if n not in CELL_ACTIVATIONS]
    if unknown:
        raise_type_error(
            _RECURRENT_OP,
            f"activations are {', '.join(CELL_ACTIVATIONS)}; got {', '.join(unknown)}",
        )
    if len(settings.activations) not in (0, len(DEFAULT_ACTIVATIONS[settings.kind])):
        needed = len(DEFAULT_ACTIVATIONS[settings.kind])
        raise_type_error(
            _RECURRENT_OP,
            f"{settings.kind} takes {needed} activations, got {len(settings.activations)}",
        )


def _recurrent_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    settings = check_attrs(RecurrentAttrs, attrs)
    operands = check_tuple_of_tensors(_RECURRENT_OP, types)
    _check_attrs(settings, len(operands))
    data, weight = operands[:2]
    check_rank(_RECURRENT_OP, data, 3, "data")
    # Words of bytes have an axis of their own.
    packed = 4 if "scale" in settings.given else 3
    if len(weight.shape) not in (2, packed):
        rank = len(weight.shape)
        raise_type_error(
            _RECURRENT_OP, f"'weight' must have 2 dimensions, or {packed} if packed, got {rank}"
        )
    gates, rows = GATE_COUNTS[settings.kind], data.shape[2]
    if not isinstance(rows, IntImm) or rows.value % gates:
        raise_type_error(
            _RECURRENT_OP, f"the last dimension of 'data' must be a multiple of {gates}"
        )
    hidden = as_dim(rows.value // gates)
    if len(weight.shape) == 2:
        unify_dims(_RECURRENT_OP, weight.shape[0], rows, "rows of 'weight' and gates * hidden")
    if len(weight.shape) < 4:
        unify_dims(_RECURRENT_OP, weight.shape[1], hidden, "columns of 'weight' and hidden")
    steps, batch = data.shape[:2]
    extras = dict(zip(settings.given, operands[2:], strict=True))
    shapes: Mapping[str, tuple[PrimExpr, ...]] = {
        "bias": (rows,),
        "initial_h": (batch, hidden),
        "initial_c": (batch, hidden),
        "peephole": (simplify_dim(hidden * 3),),
        "lengths": (batch,),
        "scale": (rows,),
        "sums": (rows,),
        "places": (
            weight.shape[0],
            simplify_dim(weight.shape[1] - ceil_div(hidden, DOT_WORD_CHANNELS)),
        ),
    }
    if "places" in extras and len(weight.shape) != 4:
        raise_type_error(_RECURRENT_OP, "places come with a packed weight of int8")
    for name, kind in extras.items():
        check_rank(_RECURRENT_OP, kind, len(shapes[name]), name)
        for actual, expected in zip(kind.shape, shapes[name], strict=True):
            unify_dims(_RECURRENT_OP, actual, expected, f"the shape of {name!r}")
    for name in INT32_CELL_INPUTS:
        if name in extras and extras[name].dtype != "int32":
            raise_type_error(_RECURRENT_OP, f"{name!r} must be int32, got {extras[name].dtype}")
    # int8 weights need their scales, and their sums to correct for the zero point of the states.
    if ("scale" in extras) != ("sums" in extras) or ("scale" in extras) != (weight.dtype == "int8"):
        raise_type_error(
            _RECURRENT_OP, f"scale and sums come with a weight of int8, got {weight.dtype}"
        )
    float_extras = [kind for name, kind in extras.items() if name not in INT32_CELL_INPUTS]
    floats = (data, *([] if "scale" in extras else [weight]), *float_extras)
    if check_same_dtype(_RECURRENT_OP, floats) != "float32":
        raise_type_error(_RECURRENT_OP, f"'data' must be float32, got {data.dtype}")
    state = TensorType((batch, hidden), data.dtype)
    every = TensorType((steps, batch, hidden), data.dtype)
    return TupleType((every, state, *([state] if settings.kind == "lstm" else [])))


def _unpack_weight(weight: Array, gates: int, hidden: int, word_indices: Array | None) -> Array:
    """Unpack a packed weight to [gates * hidden, hidden]."""
    if weight.ndim == 4:
        weight = add_residual_words(weight, word_indices)
        weight = weight.transpose(0, 1, 3, 2).reshape(len(weight), -1, weight.shape[2])
    panels, depth, width = weight.shape
    tiles = weight.reshape(panels, depth, gates, width // gates).transpose(2, 0, 3, 1)
    # Panels are padded in both directions.
    return tiles.reshape(gates, -1, depth)[:, :hidden, :hidden].reshape(-1, hidden)


Multiply = Callable[[Array], Array]
"""Function: states [batch, hidden] -> products with the weight [batch, gates * hidden]."""


def _make_quantized_product(weight: Array, scale: Array, sums: Array) -> Multiply:
    """Return the product for states that are quantised together at each step."""

    def multiply(states: Array) -> Array:
        """Multiply float32 states [batch, hidden], quantised with one common scale.

        They are rounded as ONNX DynamicQuantizeLinear does.
        """
        # 0 is among the levels, so that it is exact.
        low, high = np.minimum(states.min(), 0), np.maximum(states.max(), 0)
        step = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
        # Asymmetric uint8: the zero point is the level of 0.
        zero = np.clip(np.round(-low / step), 0, 255).astype(np.int32)
        data = np.clip(np.round(states / step) + zero, 0, 255).astype(np.int32)
        # sum(w * (q - zero)) = sum(w * q) - zero * sum(w).
        total = data @ weight.T.astype(np.int32) - zero * sums
        return np.asarray(total.astype(np.float32) * (step * scale))

    return multiply


def _recurrent_reference(attrs: RecurrentAttrs, *arrays: Array) -> tuple[Array, ...]:
    cell, (data, weight) = attrs.cell, arrays[:2]
    extras = dict(zip(cell.optional_inputs, arrays[2:], strict=True))
    steps, batch, rows = data.shape
    hidden = rows // cell.num_gates
    if weight.ndim > 2:
        weight = _unpack_weight(weight, cell.num_gates, hidden, extras.get("places"))
    zeros = np.zeros((batch, hidden), np.float32)
    state = {name: np.array(extras.get(f"initial_{name}", zeros)) for name in ("h", "c")}
    peephole = extras.get("peephole", np.zeros(3 * hidden, np.float32))
    peepholes = dict(zip(("p_i", "p_f", "p_o"), np.split(peephole, 3), strict=True))
    lengths = extras.get("lengths", np.full(batch, steps))
    check_range("recurrent: length", lengths, (0, steps + 1))
    products: Multiply = lambda states: states @ weight.T  # noqa: E731
    if "scale" in extras:
        products = _make_quantized_product(weight, extras["scale"], extras["sums"])
    outputs = np.zeros((steps, batch, hidden), np.float32)
    for t in range(steps):
        # A sequence that runs backwards starts at its own last step.
        at = [n - 1 - t if cell.reverse and t < n else t for n in lengths]
        x = data[at, np.arange(batch)]
        stepped = _run_step(cell, x, products, extras.get("bias"), state, peepholes)
        is_running = (t < lengths)[:, None]
        # A sequence that has ended keeps its last state.
        state = {name: np.where(is_running, stepped[name], state[name]) for name in state}
        # Steps behind the end of a sequence are 0, as ONNX has them.
        outputs[at, np.arange(batch)] = np.where(is_running, stepped["h"], 0)
    return (outputs, *(state[n] for n in ("h", "c")[: 2 if cell.kind == "lstm" else 1]))


def _run_step(
    cell: RecurrentCell,
    x: Array,
    multiply: Multiply,
    bias: Array | None,
    state: Mapping[str, Array],
    peepholes: Mapping[str, Array],
) -> dict[str, Array]:
    """Return the states of all sequences after one time step."""
    values = {**state, **peepholes}
    inputs = np.split(x, cell.num_gates, axis=-1)
    for phase, gates in enumerate(cell.gate_phases):
        # A GRU that resets first multiplies the weight twice, the second time with the states after
        # the reset.
        total = multiply(values["reset"] if phase else state["h"])
        products = np.split(total if bias is None else total + bias, cell.num_gates, axis=-1)
        values |= cell.compute_phase(
            ArrayMath(), phase, [inputs[g] for g in gates], [products[g] for g in gates], values
        )
    return {name: values[name] for name in ("h", "c")}


register_op(
    OpDef(
        name=_RECURRENT_OP,
        arguments=("data",),
        attrs=RecurrentAttrs,
        relation=_recurrent_relation,
        reference=_recurrent_reference,
        lower=lambda attrs, inputs, out: topi.nn.recurrent(attrs.cell, inputs),
        macs=lambda attrs, shapes, result: multiply_dims(shapes[0]) * result[-1],
        variadic=True,
        fields=lambda attrs: 3 if check_attrs(RecurrentAttrs, attrs).kind == "lstm" else 2,
        result="the hidden states of all steps, the last one and, of an lstm, the last cell state",
        description="A recurrent layer over projected inputs [steps, batch, gates * hidden].",
    )
)


@node("relay.attrs.PackRecurrentAttrs")
class PackRecurrentAttrs(Attrs):
    """Attributes of contrib_pack_recurrent: number of gates, hidden units per panel."""

    gates: int = 4
    lanes: int = 16


def _pack_recurrent_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (weight,) = check_tensors(_PACK_RECURRENT_OP, types, 1)
    settings = check_attrs(PackRecurrentAttrs, attrs)
    check_rank(_PACK_RECURRENT_OP, weight, 2, "weight")
    call_shape_rule(
        _PACK_RECURRENT_OP,
        require_positive,
        _PACK_RECURRENT_OP,
        gates=settings.gates,
        lanes=settings.lanes,
    )
    hidden = weight.shape[1]
    call_shape_rule(
        _PACK_RECURRENT_OP,
        require_shape,
        _PACK_RECURRENT_OP,
        "weight",
        weight.shape,
        (hidden * settings.gates, hidden),
    )
    shape = packed_recurrent_shape(weight.shape, settings.gates, settings.lanes, weight.dtype)
    return TensorType(shape, weight.dtype)


def packed_recurrent(attrs: PackRecurrentAttrs, weight: Array) -> Array:
    """Return a recurrent weight packed as by `contrib_pack_recurrent`."""
    hidden, lanes = weight.shape[1], attrs.lanes
    panels, word = -(-hidden // lanes), DOT_WORD_CHANNELS if weight.dtype == np.int8 else 1
    # Words of four bytes are what a dot-product instruction takes.
    depth = -(-hidden // word) * word
    # Rows of padding belong to no hidden unit, columns to no state.
    padded = np.zeros((attrs.gates, panels * lanes, depth), weight.dtype)
    padded[:, :hidden, :hidden] = weight.reshape(attrs.gates, hidden, hidden)
    tiles = padded.reshape(attrs.gates, panels, lanes, depth // word, word)
    packed = tiles.transpose(1, 3, 0, 2, 4).reshape(panels, -1, attrs.gates * lanes, word)
    return np.ascontiguousarray(packed if word > 1 else packed[..., 0])


register_op(
    OpDef(
        name=_PACK_RECURRENT_OP,
        arguments=("weight",),
        attrs=PackRecurrentAttrs,
        relation=_pack_recurrent_relation,
        reference=packed_recurrent,
        lower=lambda attrs, inputs, out: [pack_recurrent(inputs[0], attrs.gates, attrs.lanes)],
        pattern=OpPattern.INJECTIVE,
        result="[ceil(hidden / lanes), hidden, gates * lanes]",
        description="A recurrent weight in the order in which nn.recurrent reads it.",
    )
)


def contrib_pack_recurrent(weight: Expr, gates: int, lanes: int) -> Call:
    """Pack a recurrent weight [gates * hidden, hidden] into panels of `lanes` hidden units.

    The weight is float32 or int8.
    """
    return call_op(_PACK_RECURRENT_OP, weight, attrs=PackRecurrentAttrs(gates, lanes))


def recurrent(
    data: Expr,
    weight: Expr,
    kind: str = "lstm",
    extras: Mapping[str, Expr | None] | None = None,
    activations: Sequence[str] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    reverse: bool = False,
    reset_first: bool = False,
    input_forget: bool = False,
    clip: float = 0.0,
) -> Call:
    """Return a recurrent layer: the loop over time steps.

    See RecurrentAttrs for the other options.

    Args:
        data: Projected inputs [steps, batch, gates * hidden] with their biases.
        weight: The recurrent weight [gates * hidden, hidden], with gates in the order i, f, g, o
            (lstm) or r, z, n (gru).
        kind: "lstm", "gru" or "rnn".
        extras: Further tensors by name; None for absent ones.
        activations: The names of the activations.
        alphas: A first parameter for each activation.
        betas: A second parameter for each activation.
        reverse: Run from the last step to the first.
        reset_first: Multiply the state, not the product, by the reset gate (gru).
        input_forget: Make the forget gate 1 - input gate (lstm).
        clip: The limit of inputs of activations, 0 for none.
    """
    present = {k: v for k, v in (extras or {}).items() if v is not None}
    attrs = RecurrentAttrs(
        kind,
        tuple(present),
        tuple(activations),
        tuple(alphas),
        tuple(betas),
        reverse,
        reset_first,
        input_forget,
        clip,
    )
    return call_op(_RECURRENT_OP, Tuple((data, weight, *present.values())), attrs=attrs)


def _build_layer(
    kind: str,
    data: Expr,
    weight_i: Expr,
    weight_h: Expr,
    bias_i: Expr | None,
    bias_h: Expr | None,
    extras: Mapping[str, Expr | None],
    **options: object,
) -> Call:
    """Build a recurrent layer with unpacked weights.

    A recurrent bias that is only added is added to the projection.
    """
    # The products with the inputs do not depend on the states: one matrix product serves all steps.
    projected = dense(data, weight_i)
    # A GRU multiplies its reset gate with the biased product of the states: that bias cannot move
    # out of the loop.
    loop_bias = bias_h if kind == "gru" else None
    for bias in (bias_i, None if kind == "gru" else bias_h):
        projected = projected if bias is None else add(projected, bias)
    return recurrent(projected, weight_h, kind, {"bias": loop_bias, **extras}, **options)  # type: ignore[arg-type]


def lstm(
    data: Expr,
    weight_i: Expr,
    weight_h: Expr,
    bias_i: Expr | None = None,
    bias_h: Expr | None = None,
    initial_h: Expr | None = None,
    initial_c: Expr | None = None,
    lengths: Expr | None = None,
    peephole: Expr | None = None,
    **options: object,
) -> Call:
    """Return the hidden states, last hidden state and last cell state of an LSTM over [steps,
    batch, inputs].

    Weights and biases are as PyTorch has them (gates i, f, g, o); `peephole` is [3 * hidden] for i,
    f, o. The options are those of `recurrent`.
    """
    extras = {
        "initial_h": initial_h,
        "initial_c": initial_c,
        "lengths": lengths,
        "peephole": peephole,
    }
    return _build_layer("lstm", data, weight_i, weight_h, bias_i, bias_h, extras, **options)


def gru(
    data: Expr,
    weight_i: Expr,
    weight_h: Expr,
    bias_i: Expr | None = None,
    bias_h: Expr | None = None,
    initial_h: Expr | None = None,
    lengths: Expr | None = None,
    **options: object,
) -> Call:
    """Return the hidden states and the last hidden state of a GRU.

    Gates are r, z, n as PyTorch has them.
    """
    extras = {"initial_h": initial_h, "lengths": lengths}
    return _build_layer("gru", data, weight_i, weight_h, bias_i, bias_h, extras, **options)


def rnn(
    data: Expr,
    weight_i: Expr,
    weight_h: Expr,
    bias_i: Expr | None = None,
    bias_h: Expr | None = None,
    initial_h: Expr | None = None,
    lengths: Expr | None = None,
    **options: object,
) -> Call:
    """Return the hidden states and the last hidden state of a simple RNN (tanh by default)."""
    extras = {"initial_h": initial_h, "lengths": lengths}
    return _build_layer("rnn", data, weight_i, weight_h, bias_i, bias_h, extras, **options)


__all__ = ["contrib_pack_recurrent", "gru", "lstm", "packed_recurrent", "recurrent", "rnn"]
