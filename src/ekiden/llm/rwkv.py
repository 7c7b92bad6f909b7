"""RWKV layers (version 4), which keep a state of fixed size per text.

    shifted = x of the token before                  r, k, v = products of mixes of x and shifted
    y = (sum(exp(k_i - age_i * decay) * v_i) + exp(first + k) * v) / (the same without v)

The sums over earlier tokens i are two numbers per channel, multiplied by exp(-decay) from token to
token. As exp(k) overflows, they are stored divided by exp(maximum of the exponents): the online
softmax of Milakov and Gimelshein (2018). The state of a text is a row of the cache, as that of a
state-space layer: the last inputs of both token shifts, numerator, denominator and maximum.

Source: Peng et al., "RWKV: Reinventing RNNs for the Transformer Era" (2023); parameters as
transformers stores them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.llm.decoder_config import DecoderConfig, RwkvConfig
from ekiden.llm.decoder_layers import DecoderLayers, slice_axis
from ekiden.llm.state_space import StateInputs
from ekiden.llm.tensor_reader import dequantize
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, TupleGetItem, Var, const
from ekiden.relay.parser import parse

__all__ = ["rwkv_functions", "rwkv_layer", "rwkv_state_width"]

RWKV_SOURCE = """
def @shift(%i: int32, %count: int32, %last: Tensor[(b, HIDDEN), float32],
           %shifted: Tensor[(n, HIDDEN), float32], %data: Tensor[(n, HIDDEN), float32],
           %rows: Tensor[(n), int32], %fresh: Tensor[(n), bool])
    -> (Tensor[(b, HIDDEN), float32], Tensor[(n, HIDDEN), float32]) {
  if (less(%i, %count)) {
    let %token = reshape(%i, newshape=[1]);
    let %row = take(%rows, %token, axis=0);
    let %begins = reshape(take(%fresh, %token, axis=0), newshape=[1, 1]);
    let %before = where(%begins, 0f, take(%last, %row, axis=0));
    let %row_index = reshape(%row, newshape=[1, 1]);
    let %token_index = reshape(%token, newshape=[1, 1]);
    let %current = take(%data, %token, axis=0);
    @shift(add(%i, 1), %count, scatter_nd(%last, %row_index, %current, mode="update"),
           scatter_nd(%shifted, %token_index, %before, mode="update"), %data, %rows, %fresh)
  } else {
    (%last, %shifted)
  }
}

def @mix_values(%i: int32, %count: int32, %states: Tensor[(b, 3, INNER), float32],
                %mixed: Tensor[(n, INNER), float32], %keys: Tensor[(n, INNER), float32],
                %values: Tensor[(n, INNER), float32], %rows: Tensor[(n), int32],
                %fresh: Tensor[(n), bool], %initial: Tensor[(1, 3, INNER), float32],
                %decay: Tensor[(1, INNER), float32], %first: Tensor[(1, INNER), float32])
    -> (Tensor[(b, 3, INNER), float32], Tensor[(n, INNER), float32]) {
  if (less(%i, %count)) {
    let %token = reshape(%i, newshape=[1]);
    let %row = take(%rows, %token, axis=0);
    let %begins = reshape(take(%fresh, %token, axis=0), newshape=[1, 1, 1]);
    let %state = where(%begins, %initial, take(%states, %row, axis=0));
    let %numerator = take(%state, 0, axis=1);
    let %denominator = take(%state, 1, axis=1);
    let %maximum = take(%state, 2, axis=1);
    let %key = take(%keys, %token, axis=0);
    let %value = take(%values, %token, axis=0);
    let %now = add(%first, %key);
    let %top = maximum(%maximum, %now);
    let %past = exp(subtract(%maximum, %top));
    let %present = exp(subtract(%now, %top));
    let %result = divide(add(multiply(%past, %numerator), multiply(%present, %value)),
                         add(multiply(%past, %denominator), %present));
    let %decayed = subtract(%maximum, %decay);
    let %next_maximum = maximum(%decayed, %key);
    let %old = exp(subtract(%decayed, %next_maximum));
    let %new = exp(subtract(%key, %next_maximum));
    let %next_numerator = add(multiply(%old, %numerator), multiply(%new, %value));
    let %next_denominator = add(multiply(%old, %denominator), %new);
    let %next = stack((%next_numerator, %next_denominator, %next_maximum), axis=1);
    let %row_index = reshape(%row, newshape=[1, 1]);
    let %token_index = reshape(%token, newshape=[1, 1]);
    @mix_values(add(%i, 1), %count, scatter_nd(%states, %row_index, %next, mode="update"),
                scatter_nd(%mixed, %token_index, %result, mode="update"), %keys, %values, %rows,
                %fresh, %initial, %decay, %first)
  } else {
    (%states, %mixed)
  }
}
"""
LOWEST_EXPONENT = np.float32(-1e38)
"""Maximum of the exponents before the first token: exp(it - any key) is 0, and never NaN."""


def rwkv_functions(config: DecoderConfig) -> dict[GlobalVar, BaseFunc]:
    """Return the loops over tokens that the layers call, for the sizes of a model."""
    sizes = _sizes(config)
    text = RWKV_SOURCE.replace("HIDDEN", str(config.hidden)).replace("INNER", str(sizes.inner))
    return dict(parse(text, "RWKV").functions)


def rwkv_state_width(config: DecoderConfig) -> int:
    """Return the numbers of a layer's state: two token shifts and three rows of the sums."""
    return 2 * config.hidden + 3 * _sizes(config).inner


def rwkv_layer(
    n: int, x: Var, cache: Var, inputs: StateInputs, config: DecoderConfig, layers: DecoderLayers,
    bind: Callable[[str, Expr], Var],
) -> tuple[Var, Var]:  # fmt: skip
    """Emit one layer: the hidden states [n, hidden], and the cache with its new states.

    Args:
        n: The number of the layer.
        x: The hidden states.
        cache: The states of all texts and layers.
        inputs: The texts of the call's tokens.
        config: The configuration.
        layers: The tensors.
        bind: Binds a value to a new variable of a name.

    Raises ImportModelError for a tensor that is missing, or has another shape.
    """
    hidden, inner, names = config.hidden, _sizes(config).inner, config.names
    prefix = names.layer.format(n)
    layer = op.full_like(inputs.slots, const(np.int32(n)))
    place = bind(f"place_{n}", op.stack([inputs.slots, layer], axis=0))
    state = bind(f"state_{n}", op.gather_nd(cache, place))
    emitter = _LayerEmitter(n, prefix, inputs, layers, bind)

    normed = bind(f"normed_{n}", layers.norm(x, prefix + names.before_attention))
    attention_shift, attended, sums = emitter.time_mix(
        normed, slice_axis(state, 0, hidden, 1),
        op.reshape(slice_axis(state, 2 * hidden, 2 * hidden + 3 * inner, 1), (-1, 3, inner)),
        hidden, inner,
    )  # fmt: skip
    # transformers halves hidden states after every few layers, for float16, and divides what the
    # layers behind add by the same power of two: both are exact.
    halvings = n // _sizes(config).rescale_every if _sizes(config).rescale_every else 0
    x = bind(f"attended_{n}", op.add(x, _scaled(attended, 0.5**halvings)))
    normed = bind(f"mlp_input_{n}", layers.norm(x, prefix + names.before_mlp))
    mlp_shift, mixed = emitter.channel_mix(
        normed, slice_axis(state, hidden, 2 * hidden, 1), hidden, config.inner
    )
    added: Expr = op.add(x, _scaled(mixed, 0.5**halvings))
    is_last_of_group = (n + 1) // max(_sizes(config).rescale_every, 1) > halvings
    if _sizes(config).rescale_every and is_last_of_group:
        added = _scaled(added, 0.5)
    x = bind(f"x_{n}", added)
    new = op.concatenate([attention_shift, mlp_shift, op.reshape(sums, (-1, 3 * inner))], axis=1)
    return x, bind(f"cache_{n}", op.scatter_nd(cache, place, new, "update"))


class _LayerEmitter:
    """Emitter of the two halves of a layer."""

    def __init__(
        self, n: int, prefix: str, inputs: StateInputs, layers: DecoderLayers,
        bind: Callable[[str, Expr], Var],
    ) -> None:  # fmt: skip
        self._n, self._prefix, self._inputs = n, prefix, inputs
        self._layers, self._bind = layers, bind

    def time_mix(
        self, x: Expr, last: Expr, sums: Expr, hidden: int, inner: int
    ) -> tuple[Expr, Expr, Expr]:
        """Return the new state of the shift, what is added to tokens, and the new sums."""
        prefix, layers, n = f"{self._prefix}attention.", self._layers, self._n
        shift = self._shift("time", x, last)
        shifted = TupleGetItem(shift, 1)
        receptance, keys, values = (
            self._bind(
                f"{name}_{n}",
                layers.linear(
                    self._mix(x, shifted, f"{prefix}time_mix_{name}", hidden),
                    [prefix + name], inner, hidden, has_bias=False,
                ),
            )
            for name in ("receptance", "key", "value")
        )  # fmt: skip
        decay, first = (
            layers.read_vector(prefix + name, inner).reshape(1, inner)
            for name in ("time_decay", "time_first")
        )
        initial = np.zeros((1, 3, inner), np.float32)
        initial[:, 2] = LOWEST_EXPONENT
        mixed = self._bind(f"mixed_{n}", Call(self._inputs.functions["mix_values"], (
            const(np.int32(0)), self._inputs.count, sums, op.zeros_like(keys), keys, values,
            self._inputs.rows, self._inputs.fresh, const(initial), const(np.exp(decay)),
            const(first),
        )))  # fmt: skip
        gated = op.multiply(op.sigmoid(receptance), TupleGetItem(mixed, 1))
        added = layers.linear(gated, [prefix + "output"], hidden, inner, has_bias=False)
        return TupleGetItem(shift, 0), added, TupleGetItem(mixed, 0)

    def channel_mix(self, x: Expr, last: Expr, hidden: int, inner: int) -> tuple[Expr, Expr]:
        """Return the new state of the shift, and what is added to tokens."""
        prefix, layers = f"{self._prefix}feed_forward.", self._layers
        shift = self._shift("channel", x, last)
        shifted = TupleGetItem(shift, 1)
        key = self._mix(x, shifted, f"{prefix}time_mix_key", hidden)
        key = op.nn.relu(layers.linear(key, [prefix + "key"], inner, hidden, has_bias=False))
        key = self._bind(f"squared_{self._n}", op.multiply(key, key))
        value = layers.linear(key, [prefix + "value"], hidden, inner, has_bias=False)
        receptance = layers.linear(
            self._mix(x, shifted, f"{prefix}time_mix_receptance", hidden),
            [prefix + "receptance"], hidden, hidden, has_bias=False,
        )  # fmt: skip
        return TupleGetItem(shift, 0), op.multiply(op.sigmoid(receptance), value)

    def _shift(self, name: str, x: Expr, last: Expr) -> Var:
        """Return (last token of each text, the token before each token)."""
        inputs = self._inputs
        return self._bind(f"{name}_shift_{self._n}", Call(inputs.functions["shift"], (
            const(np.int32(0)), inputs.count, last, op.zeros_like(x), x, inputs.rows, inputs.fresh,
        )))  # fmt: skip

    def _mix(self, x: Expr, shifted: Expr, name: str, hidden: int) -> Expr:
        """Return share * x + (1 - share) * shifted, by a share for each channel."""
        share = dequantize(self._layers.read_weight(name, (1, 1, hidden))).reshape(1, hidden)
        return op.add(op.multiply(x, const(share)), op.multiply(shifted, const(1 - share)))


def _sizes(config: DecoderConfig) -> RwkvConfig:
    assert config.rwkv is not None
    return config.rwkv


def _scaled(x: Expr, factor: float) -> Expr:
    return x if factor == 1 else op.multiply(x, const(np.float32(factor)))
