"""A decoder in NumPy, in float64 and without a cache: what the compiled one is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from tiny_models import Memory

from ekiden.llm.decoder_config import DecoderConfig, read_config
from ekiden.llm.rope import RopeParameters

Floats = NDArray[np.float64]


def _erf(x: Floats) -> Floats:
    return np.array([math.erf(v) for v in x.reshape(-1)]).reshape(x.shape)


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
}


class Reference:
    """The logits of a checkpoint in memory."""

    def __init__(self, checkpoint: Memory, context: int | None = None) -> None:
        self.checkpoint = checkpoint
        self.config: DecoderConfig = read_config(checkpoint.config, context)

    def value(self, name: str) -> Floats:
        return np.asarray(self.checkpoint[name].data, np.float64)

    def linear(self, x: Floats, names: Sequence[str]) -> Floats:
        parts = []
        for name in names:
            made = x @ self.value(f"{name}.weight").T
            bias = f"{name}.bias"
            parts.append(made + self.value(bias) if bias in self.checkpoint.tensors else made)
        return np.concatenate(parts, -1)

    def norm(self, x: Floats, name: str) -> Floats:
        weight, kind = self.value(f"{name}.weight"), self.config.norm
        if kind == "layer":
            centred = x - x.mean(-1, keepdims=True)
            scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.epsilon)
            return scaled * weight + self.value(f"{name}.bias")
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.epsilon)
        return scaled * (weight + (kind == "rms_one"))

    def turned(self, x: Floats, rope: RopeParameters) -> Floats:
        """[n, heads, depth] at positions 0, 1, ..."""
        is_long = rope.long_frequencies and len(x) > rope.switch_tokens
        frequencies = rope.long_frequencies if is_long else rope.frequencies
        pairs = len(frequencies)
        angles = np.arange(len(x))[:, None, None] * np.array(frequencies)
        first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        c, s = np.cos(angles) * rope.factor, np.sin(angles) * rope.factor
        return np.concatenate((first * c - second * s, second * c + first * s, rest), -1)

    def attention(self, n: int, x: Floats) -> Floats:
        config, names = self.config, self.config.names
        at, h, g, d = names.layer.format(n), config.heads, config.groups, config.depth
        both = self.linear(x, [at + each for each in names.attention])
        if config.by_group:
            query, key, value = both.reshape(len(x), h, 3, d).transpose(2, 0, 1, 3)
        else:
            query, key, value = np.split(both.reshape(len(x), -1, d), [h, h + g], axis=1)
        if names.query_norm:
            query = self.norm(query, at + names.query_norm)
            key = self.norm(key, at + names.key_norm)
        rope = config.ropes[config.rope_of[n]]
        query, key = self.turned(query, rope), self.turned(key, rope)
        key, value = (np.repeat(each, h // g, 1) for each in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) * config.score_scale
        if cap := config.score_softcap:
            scores = np.tanh(scores / cap) * cap
        ahead = np.arange(len(x)) - np.arange(len(x))[:, None]
        is_seen = ahead <= 0
        if window := config.windows[n]:
            is_seen &= ahead > -window
        scores = np.where(is_seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, value).reshape(len(x), -1)
        return self.linear(mixed, [at + names.out])

    def mlp(self, n: int, x: Floats) -> Floats:
        config, names = self.config, self.config.names
        at, act = names.layer.format(n), ACTIVATIONS[config.activation]
        up = self.linear(x, [at + each for each in names.up])
        inner = act(up)
        if config.gated:
            gate, up = np.split(up, 2, -1)
            inner = act(gate) * up
        return self.linear(inner, [at + names.down])

    def logits(self, ids: Sequence[int]) -> Floats:
        config, names = self.config, self.config.names
        x = self.value(names.embedding)[list(ids)] * config.embedding_scale
        for n in range(config.layers):
            at = names.layer.format(n)
            found = self.attention(n, self.norm(x, at + names.before_attention))
            if names.after_attention:
                found = self.norm(found, at + names.after_attention)
            middle = x + found
            mixed = self.mlp(n, self.norm(x if config.parallel else middle, at + names.before_mlp))
            if names.after_mlp:
                mixed = self.norm(mixed, at + names.after_mlp)
            x = middle + mixed
        head = names.embedding if config.tied else names.head[-1]
        logits = self.norm(x, names.norm) @ self.value(head).T
        cap = config.logit_softcap
        return np.tanh(logits / cap) * cap if cap else logits
