"""State-space layers (Mamba 1 and 2, Falcon-Mamba), which keep a state of fixed size per text.

    window = (window, x)[-K:]           y = silu(sum(weight * window) + bias)
    state = exp(dt * A) * state + dt * B * x        y = sum(C * state) + D * x

The state of a text stands where others have pages: a row of the cache [texts, layers, numbers], at
the number of the text's only page. It begins as zeros at position 0. Products go over all tokens of
a call at once; the two recurrences are loops over its tokens, in which a token moves the state of
its own text, so that several texts, and parts of prompts, may stand in one call.

Source: Gu and Dao, "Mamba" (2023); Dao and Gu, "Transformers are SSMs" (2024); the parameters as
transformers stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.llm.cache_layout import CacheLayout
from ekiden.llm.decoder_config import DecoderConfig, StateSpaceConfig
from ekiden.llm.decoder_layers import ACTIVATION_FUNCTIONS, DecoderLayers, slice_axis
from ekiden.llm.tensor_reader import dequantize
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, TupleGetItem, Var, const
from ekiden.relay.parser import parse
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "StateInputs",
    "recurrences",
    "reject_state_options",
    "state_layout",
    "state_space_layer",
    "state_width",
]

RECURRENCES_SOURCE = """
def @convolve(%i: int32, %count: int32, %windows: Tensor[(b, WINDOW, CONVOLVED), float32],
              %done: Tensor[(n, CONVOLVED), float32], %data: Tensor[(n, CONVOLVED), float32],
              %rows: Tensor[(n), int32], %fresh: Tensor[(n), bool],
              %weight: Tensor[(KERNEL, CONVOLVED), float32])
    -> (Tensor[(b, WINDOW, CONVOLVED), float32], Tensor[(n, CONVOLVED), float32]) {
  if (less(%i, %count)) {
    let %at = reshape(%i, newshape=[1]);
    let %row = take(%rows, %at, axis=0);
    let %begins = reshape(take(%fresh, %at, axis=0), newshape=[1, 1, 1]);
    let %before = where(%begins, 0f, take(%windows, %row, axis=0));
    let %new = take(%data, %at, axis=0);
    let %window = concatenate((%before, expand_dims(%new, axis=1)), axis=1);
    let %sum = sum(multiply(%window, %weight), axis=[1]);
    let %kept = strided_slice(%window, begin=[1], end=[KERNEL], axes=[1]);
    let %index = reshape(%row, newshape=[1, 1]);
    let %place = reshape(%at, newshape=[1, 1]);
    @convolve(add(%i, 1), %count, scatter_nd(%windows, %index, %kept, mode="update"),
              scatter_nd(%done, %place, %sum, mode="update"), %data, %rows, %fresh, %weight)
  } else {
    (%windows, %done)
  }
}

def @scan(%i: int32, %count: int32, %states: Tensor[(b, GROUPS, PART, SIZE), float32],
          %done: Tensor[(n, GROUPS, PART), float32], %data: Tensor[(n, GROUPS, PART, 1), float32],
          %steps: Tensor[(n, GROUPS, PART, 1), float32],
          %inputs: Tensor[(n, GROUPS, 1, SIZE), float32],
          %outputs: Tensor[(n, GROUPS, 1, SIZE), float32],
          %rows: Tensor[(n), int32], %fresh: Tensor[(n), bool],
          %rates: Tensor[(GROUPS, PART, RATES), float32])
    -> (Tensor[(b, GROUPS, PART, SIZE), float32], Tensor[(n, GROUPS, PART), float32]) {
  if (less(%i, %count)) {
    let %at = reshape(%i, newshape=[1]);
    let %row = take(%rows, %at, axis=0);
    let %begins = reshape(take(%fresh, %at, axis=0), newshape=[1, 1, 1, 1]);
    let %before = where(%begins, 0f, take(%states, %row, axis=0));
    let %step = take(%steps, %at, axis=0);
    let %decay = exp(multiply(%step, %rates));
    let %added = multiply(multiply(%step, take(%inputs, %at, axis=0)), take(%data, %at, axis=0));
    let %state = add(multiply(%decay, %before), %added);
    let %sum = sum(multiply(%state, take(%outputs, %at, axis=0)), axis=[3]);
    let %index = reshape(%row, newshape=[1, 1]);
    let %place = reshape(%at, newshape=[1, 1]);
    @scan(add(%i, 1), %count, scatter_nd(%states, %index, %state, mode="update"),
          scatter_nd(%done, %place, %sum, mode="update"), %data, %steps, %inputs, %outputs, %rows,
          %fresh, %rates)
  } else {
    (%states, %done)
  }
}
"""


def recurrences(config: DecoderConfig) -> dict[GlobalVar, BaseFunc]:
    """Return the functions of both recurrences, whose sizes are those of a model."""
    sizes = config.state_space
    assert sizes is not None
    named = {
        "WINDOW": sizes.kernel - 1, "KERNEL": sizes.kernel, "CONVOLVED": sizes.convolved,
        "GROUPS": sizes.groups, "PART": sizes.inner // sizes.groups, "SIZE": sizes.size,
        "RATES": 1 if sizes.heads else sizes.size,
    }  # fmt: skip
    text = RECURRENCES_SOURCE
    for name, value in named.items():
        text = text.replace(name, str(value))
    return dict(parse(text, "state space").functions)


def state_width(sizes: StateSpaceConfig) -> int:
    """Return the numbers of a layer's state: those of the window, then of the recurrence."""
    return (sizes.kernel - 1) * sizes.convolved + sizes.inner * sizes.size


def state_layout(context: int) -> CacheLayout:
    """Return the layout of states: a text has one page, which holds all of its context, and is a
    block of its own.
    """
    return CacheLayout(context, "float32", 1)


def reject_state_options(
    options: Mapping[str, object], cache: str | None, config: DecoderConfig
) -> None:
    """Raise InputError for what texts with states cannot have: pages that others share, tokens that
    are taken back, states that are rounded.
    """
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"load: a {config.architecture} keeps a state of each text and takes no '{name}'"
            )
    if cache not in (None, "float32"):
        raise InputError(
            f"load: the states of a {config.architecture} are float32, not {cache!r}: 'cache'"
        )


@dataclass(frozen=True, slots=True)
class StateInputs:
    """What the recurrences of all layers read of a call: the text of each token, whether it is the
    first of its text, the number of tokens, and each text's row of the cache.
    """

    rows: Var
    fresh: Var
    count: Var
    slots: Var
    functions: dict[str, GlobalVar]

    @staticmethod
    def create(
        sequences: Var, positions: Var, tables: Var, functions: dict[GlobalVar, BaseFunc],
        bind: Callable[[str, Expr], Var],
    ) -> StateInputs:  # fmt: skip
        """Bind the inputs that layers share."""
        return StateInputs(
            sequences,
            bind("fresh", op.equal(positions, const(np.int32(0)))),
            bind("token_count", op.sum(op.ones_like(positions))),
            bind("slots", op.reshape(slice_axis(tables, 0, 1, 1), (-1,))),
            {variable.name_hint: variable for variable in functions},
        )


def state_space_layer(
    n: int, x: Expr, cache: Var, inputs: StateInputs, config: DecoderConfig, layers: DecoderLayers,
    bind: Callable[[str, Expr], Var],
) -> tuple[Expr, Var]:  # fmt: skip
    """Return what a layer adds to tokens [n, hidden], and the cache with its new states.

    Args:
        n: The number of the layer.
        x: The tokens, normalised.
        cache: The states of all texts and layers.
        inputs: What describes the call's tokens.
        config: The configuration.
        layers: The tensors.
        bind: Binds a value to a new variable of a name.

    Raises ImportModelError for a tensor that is missing, or has another shape.
    """
    sizes = config.state_space
    assert sizes is not None
    prefix = f"{config.names.layer.format(n)}mixer."
    silu = ACTIVATION_FUNCTIONS["silu"]
    inner, size, groups = sizes.inner, sizes.size, sizes.groups
    part, window = inner // groups, sizes.kernel - 1
    layer = op.full_like(inputs.slots, const(np.int32(n)))
    place = bind(f"place_{n}", op.stack([inputs.slots, layer], axis=0))
    state = bind(f"state_{n}", op.gather_nd(cache, place))
    edge = window * sizes.convolved
    windows = op.reshape(slice_axis(state, 0, edge, 1), (-1, window, sizes.convolved))
    states = op.reshape(slice_axis(state, edge, state_width(sizes), 1), (-1, groups, part, size))

    total = 2 * inner if not sizes.heads else inner + sizes.convolved + sizes.heads
    projected = bind(
        f"projected_{n}",
        layers.linear(x, [prefix + "in_proj"], total, config.hidden, "mlp" in config.biases),
    )
    # Mamba 1 stores what is convolved before the gate, Mamba 2 behind it.
    first = inner if sizes.heads else 0
    gate = (
        slice_axis(projected, 0, inner, 1)
        if sizes.heads
        else slice_axis(projected, inner, 2 * inner, 1)
    )
    data = bind(f"data_{n}", slice_axis(projected, first, first + sizes.convolved, 1))
    kernel = dequantize(
        layers.read_weight(f"{prefix}conv1d.weight", (sizes.convolved, 1, sizes.kernel))
    )
    convolved = bind(f"convolution_{n}", Call(inputs.functions["convolve"], (
        const(np.int32(0)), inputs.count, windows, op.zeros_like(data), data, inputs.rows,
        inputs.fresh, const(np.ascontiguousarray(kernel[:, 0].T)),
    )))  # fmt: skip
    mixed: Expr = TupleGetItem(convolved, 1)
    if sizes.has_convolution_bias:
        bias = layers.read_vector(f"{prefix}conv1d.bias", sizes.convolved)
        mixed = op.add(mixed, const(bias))
    mixed = bind(f"mixed_{n}", silu(mixed))

    scan = (_grouped_scan if sizes.heads else _selective_scan)(
        prefix, projected, mixed, sizes, layers, lambda value: bind(f"low_{n}", value)
    )
    scanned = bind(f"scan_{n}", Call(inputs.functions["scan"], (
        const(np.int32(0)), inputs.count, states,
        op.reshape(op.zeros_like(scan.values), (-1, groups, part)),
        op.reshape(scan.values, (-1, groups, part, 1)),
        op.reshape(scan.steps, (-1, groups, part, 1)),
        op.reshape(scan.into, (-1, groups, 1, size)),
        op.reshape(scan.out_of, (-1, groups, 1, size)),
        inputs.rows, inputs.fresh,
        const(np.ascontiguousarray(scan.rates.reshape(groups, part, -1), np.float32)),
    )))  # fmt: skip
    y: Expr = op.reshape(TupleGetItem(scanned, 1), (-1, inner))
    y = op.multiply(op.add(y, op.multiply(scan.values, const(scan.skip))), silu(gate))
    if sizes.heads:
        y = _grouped_norm(y, layers.read_vector(f"{prefix}norm.weight", inner), config)
    out = layers.linear(y, [prefix + "out_proj"], config.hidden, inner, "mlp" in config.biases)
    new = op.concatenate([
        op.reshape(TupleGetItem(convolved, 0), (-1, edge)),
        op.reshape(TupleGetItem(scanned, 0), (-1, inner * size)),
    ], axis=1)  # fmt: skip
    written = bind(f"cache_{n}", op.scatter_nd(cache, place, new, "update"))
    return out, written


@dataclass(frozen=True, slots=True)
class _ScanInputs:
    """What the recurrence of a layer reads of its tokens, and its weights.

    values and steps are [n, inner], into and out_of (B and C of the papers) [n, groups * size],
    rates [inner, size or 1] and skip [inner].
    """

    values: Expr
    steps: Expr
    into: Expr
    out_of: Expr
    rates: np.ndarray
    skip: np.ndarray


def _grouped_scan(
    prefix: str, projected: Expr, mixed: Expr, sizes: StateSpaceConfig, layers: DecoderLayers,
    bind_low: Callable[[Expr], Var],
) -> _ScanInputs:  # fmt: skip
    """Return the inputs of Mamba 2's recurrence: a step a head, B and C beside the values."""
    del bind_low
    inner, size, groups = sizes.inner, sizes.size, sizes.groups
    both = slice_axis(mixed, inner, sizes.convolved, 1)
    total = inner + sizes.convolved + sizes.heads
    steps = slice_axis(projected, total - sizes.heads, total, 1)
    steps = op.add(steps, const(layers.read_vector(f"{prefix}dt_bias", sizes.heads)))
    steps = op.clip(_softplus(steps), *sizes.step_limits)
    depth = inner // sizes.heads
    rates = -np.exp(_log_decay_rates(layers, f"{prefix}A_log", sizes))
    return _ScanInputs(
        slice_axis(mixed, 0, inner, 1),
        op.repeat(steps, depth, axis=1),
        slice_axis(both, 0, groups * size, 1),
        slice_axis(both, groups * size, 2 * groups * size, 1),
        np.repeat(rates, depth)[:, None],
        np.repeat(layers.read_vector(f"{prefix}D", sizes.heads), depth),
    )


def _selective_scan(
    prefix: str, projected: Expr, mixed: Expr, sizes: StateSpaceConfig, layers: DecoderLayers,
    bind_low: Callable[[Expr], Var],
) -> _ScanInputs:  # fmt: skip
    """Return the inputs of Mamba 1's recurrence: steps, B and C are products of the values."""
    del projected
    inner, size, rank = sizes.inner, sizes.size, sizes.step_rank
    low = bind_low(layers.linear(mixed, [prefix + "x_proj"], rank + 2 * size, inner, False))
    parts = [
        slice_axis(low, *bounds, 1)
        for bounds in ((0, rank), (rank, rank + size), (rank + size, rank + 2 * size))
    ]
    if sizes.norm_epsilon:
        parts = [_plain_norm(p, s, sizes.norm_epsilon) for p, s in zip(
            parts, (rank, size, size), strict=True)]  # fmt: skip
    return _ScanInputs(
        mixed,
        _softplus(layers.linear(parts[0], [prefix + "dt_proj"], inner, rank, True)),
        parts[1],
        parts[2],
        -np.exp(_log_decay_rates(layers, f"{prefix}A_log", sizes)),
        layers.read_vector(f"{prefix}D", inner),
    )


def _log_decay_rates(layers: DecoderLayers, name: str, sizes: StateSpaceConfig) -> np.ndarray:
    """Return the logarithms of the decay rates: [inner, size], or [heads]."""
    shape = (sizes.heads,) if sizes.heads else (sizes.inner, sizes.size)
    return dequantize(layers.read_weight(name, shape))


def _softplus(x: Expr) -> Expr:
    """Return log(1 + exp(x)), of large numbers themselves."""
    magnitude = op.exp(op.negative(op.abs(x)))
    return op.add(op.nn.relu(x), op.log(op.add(magnitude, const(np.float32(1)))))


def _plain_norm(x: Expr, size: int, epsilon: float) -> Expr:
    """Return the root-mean-square norm without a weight."""
    return op.nn.rms_norm(x, const(np.ones(size, np.float32)), -1, epsilon)


def _grouped_norm(y: Expr, weight: np.ndarray, config: DecoderConfig) -> Expr:
    """Return the norm of each group's part [n, inner], times a weight."""
    sizes = config.state_space
    assert sizes is not None
    part = sizes.inner // sizes.groups
    normed = _plain_norm(op.reshape(y, (-1, sizes.groups, part)), part, config.epsilon)
    return op.multiply(op.reshape(normed, (-1, sizes.inner)), const(weight))
