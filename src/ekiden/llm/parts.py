"""The tensors of a decoder as Relay expressions: products, embeddings and norms of what a
checkpoint holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.architectures import DecoderConfig
from ekiden.llm.weights import Checkpoint, Weight
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.runtime.errors import ImportModelError

__all__ = ["ACTIVATIONS", "Parts"]

PLAIN_FORMATS = ("float32", "float16", "bfloat16")
IGNORED_SUFFIXES = (
    "rotary_emb.inv_freq", "attention.bias", "attention.masked_bias",
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
)  # fmt: skip
"""Ends of names: masks and frequencies, which older checkpoints and GGUF files have beside what the
configuration says."""


class Parts:
    """Builder of decoder layers (linear, embedding, norm) from a checkpoint's tensors. Raises
    ImportModelError naming a tensor that is missing or has another shape.
    """

    def __init__(self, checkpoint: Checkpoint, config: DecoderConfig) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._names = frozenset(checkpoint)
        self._read: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """Return the tensors that were not used, except redundant ones."""
        unread_names = self._names - self._read
        return sorted(name for name in unread_names if not name.endswith(IGNORED_SUFFIXES))

    def has(self, name: str) -> bool:
        """Return whether a tensor exists."""
        return name in self._names

    def weight(self, name: str, shape: tuple[int | None, ...]) -> Weight:
        """Return the tensor of a name and shape, in which None is any size. Raises ImportModelError
        if it is missing or has another shape.
        """
        if name not in self._names:
            near = difflib.get_close_matches(name, self._names, 1)
            hint = f" (there is '{near[0]}')" if near else ""
            raise ImportModelError(f"checkpoint: no tensor '{name}'{hint}")
        self._read.add(name)
        tensor = self._checkpoint[name]
        fits = len(tensor.shape) == len(shape) and all(
            expected in (None, size) for expected, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise ImportModelError(
                f"checkpoint: '{name}' must have the shape {_shown(shape)}, got"
                f" {_shown(tensor.shape)}"
            )
        return tensor

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """Return a vector as numbers."""
        return _plain(self.weight(name, (size,)))

    def linear(self, data: Expr, names: Sequence[str], rows: int, depth: int,
               has_bias: bool, by_head: bool = False) -> Expr:  # fmt: skip
        """Return data [n, depth] times the transposed, stacked weights: [n, rows]. Weights of the
        same format are one product. With `by_head`, rows are grouped by head: query, key and
        value of the first head, then of the next. Raises ImportModelError for missing weights or
        mismatched row counts.
        """
        single = (rows,) if len(names) == 1 else (None,) * len(names)
        weights = [
            self.weight(f"{n}.weight", (size, depth)) for n, size in zip(names, single, strict=True)
        ]
        if sum(weight.shape[0] for weight in weights) != rows:
            shapes = ", ".join(_shown(stored.shape) for stored in weights)
            raise ImportModelError(
                f"checkpoint: '{names[0]}.weight' and what stands with it must have {rows} rows,"
                f" got {shapes}"
            )
        order = self._by_head(rows) if by_head else slice(None)
        if len({row_source.format for row_source in weights}) == 1:
            # One product over stacked rows (fused QKV) reads the input once.
            stacked = np.concatenate([block.data for block in weights])[order]
            result = _product(data, weights[0].format, stacked)
        else:
            assert not by_head, "one tensor has one format"
            result = op.concatenate([_product(data, w.format, w.data) for w in weights], axis=1)
        if not has_bias:
            return result
        biases = [self.vector(f"{n}.bias", w.shape[0]) for n, w in zip(names, weights, strict=True)]
        return op.add(result, const(np.concatenate(biases)[order]))

    def _by_head(self, rows: int) -> NDArray[np.int64]:
        heads = self._config.heads
        return np.arange(rows).reshape(heads, 3, -1).transpose(1, 0, 2).reshape(-1)

    def embedding(self, name: str) -> Weight:
        """Return the embedding table."""
        return self.weight(name, (self._config.vocabulary, self._config.hidden))

    def norm(self, data: Expr, name: str, size: int | None = None) -> Expr:
        """Normalize data along its last axis, as the family does."""
        config = self._config
        size = size or config.hidden
        weight = self.vector(f"{name}.weight", size)
        if config.norm == "layer":
            bias = f"{name}.bias"
            beta = self.vector(bias, size) if self.has(bias) else np.zeros(size, np.float32)
            return op.nn.layer_norm(data, const(weight), const(beta), -1, config.epsilon)
        # Gemma's RMSNorm multiplies by 1 + weight.
        weight = weight + np.float32(1) if config.norm == "rms_one" else weight
        return op.nn.rms_norm(data, const(weight), -1, config.epsilon)


def looked_up(table: Weight, ids: Expr) -> Expr:
    """Look up rows of the embedding table: [n, hidden] of float32."""
    if table.format in PLAIN_FORMATS:
        return op.take(const(_plain(table)), ids, axis=0)
    return op.nn.take_blocks(const(table.data), ids, table.format)


def _product(data: Expr, kind: str, weight: NDArray[np.generic]) -> Expr:
    if kind in PLAIN_FORMATS:
        return op.nn.dense(data, const(np.ascontiguousarray(weight, np.float32)))
    return op.nn.dense_blocks(data, const(weight), kind)


def product(data: Expr, weight: Weight) -> Expr:
    """Return data [n, k] times the transpose of a weight."""
    return _product(data, weight.format, weight.data)


def _plain(weight: Weight) -> NDArray[np.float32]:
    if weight.format in PLAIN_FORMATS:
        return np.ascontiguousarray(weight.data, np.float32)
    return weight.values()


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def _scalar(value: float) -> Constant:
    return const(np.float32(value))


def _gelu(x: Expr) -> Call:
    half = op.multiply(x, _scalar(0.5))
    return op.multiply(half, op.add(_scalar(1), op.erf(op.multiply(x, _scalar(0.5**0.5)))))


def _gelu_tanh(x: Expr) -> Call:
    cube = op.multiply(op.multiply(x, x), x)
    inner = op.multiply(
        op.add(x, op.multiply(cube, _scalar(0.044715))), _scalar((2 / np.pi) ** 0.5)
    )
    return op.multiply(op.multiply(x, _scalar(0.5)), op.add(_scalar(1), op.tanh(inner)))


ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "silu": lambda x: op.multiply(x, op.sigmoid(x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": op.nn.relu,
}
