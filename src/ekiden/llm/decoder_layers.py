"""Relay expressions of a decoder's layers: linear, embedding and norm over a checkpoint's
tensors.
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

__all__ = ["ACTIVATION_FUNCTIONS", "DecoderLayers"]

UNQUANTIZED_FORMATS = ("float32", "float16", "bfloat16")
IGNORED_SUFFIXES = (
    "rotary_emb.inv_freq", "attention.bias", "attention.masked_bias",
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
)  # fmt: skip
"""Ends of names: masks and frequencies, which older checkpoints and GGUF files have beside what the
configuration says."""


class DecoderLayers:
    """Builder of decoder layers (linear, embedding, norm) from a checkpoint's tensors. Raises
    ImportModelError naming a tensor that is missing or has another shape.
    """

    def __init__(self, checkpoint: Checkpoint, config: DecoderConfig) -> None:
        self._checkpoint, self._config = checkpoint, config
        self._names = frozenset(checkpoint)
        self._read: set[str] = set()

    @property
    def unused_tensors(self) -> list[str]:
        """Return the tensors that were not used, except redundant ones."""
        unread_names = self._names - self._read
        return sorted(name for name in unread_names if not name.endswith(IGNORED_SUFFIXES))

    def has_tensor(self, name: str) -> bool:
        """Return whether a tensor exists."""
        return name in self._names

    def read_weight(self, name: str, shape: tuple[int | None, ...]) -> Weight:
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
                f"checkpoint: '{name}' must have the shape {_format_shape(shape)}, got"
                f" {_format_shape(tensor.shape)}"
            )
        return tensor

    def read_vector(self, name: str, size: int) -> NDArray[np.float32]:
        """Return a vector as numbers."""
        return _dequantize(self.read_weight(name, (size,)))

    def linear(self, data: Expr, names: Sequence[str], rows: int, depth: int,
               has_bias: bool, by_head: bool = False) -> Expr:  # fmt: skip
        """Return data [n, depth] times the transposed, stacked weights: [n, rows]. Weights of the
        same format are one product. With `by_head`, rows are grouped by head: query, key and
        value of the first head, then of the next. Raises ImportModelError for missing weights or
        mismatched row counts.
        """
        single = (rows,) if len(names) == 1 else (None,) * len(names)
        weights = [
            self.read_weight(f"{n}.weight", (size, depth))
            for n, size in zip(names, single, strict=True)
        ]
        if sum(weight.shape[0] for weight in weights) != rows:
            shapes = ", ".join(_format_shape(stored.shape) for stored in weights)
            raise ImportModelError(
                f"checkpoint: '{names[0]}.weight' and what stands with it must have {rows} rows,"
                f" got {shapes}"
            )
        order = self._head_interleaved_rows(rows) if by_head else slice(None)
        if len({row_source.format for row_source in weights}) == 1:
            # One product over stacked rows (fused QKV) reads the input once.
            stacked = np.concatenate([block.data for block in weights])[order]
            result = _multiply_weight(data, weights[0].format, stacked)
        else:
            assert not by_head, "one tensor has one format"
            result = op.concatenate(
                [_multiply_weight(data, w.format, w.data) for w in weights], axis=1
            )
        if not has_bias:
            return result
        biases = [
            self.read_vector(f"{n}.bias", w.shape[0]) for n, w in zip(names, weights, strict=True)
        ]
        return op.add(result, const(np.concatenate(biases)[order]))

    def _head_interleaved_rows(self, rows: int) -> NDArray[np.int64]:
        heads = self._config.num_heads
        return np.arange(rows).reshape(heads, 3, -1).transpose(1, 0, 2).reshape(-1)

    def embedding_table(self, name: str) -> Weight:
        """Return the embedding table."""
        return self.read_weight(name, (self._config.vocab_size, self._config.hidden_size))

    def norm(self, data: Expr, name: str, size: int | None = None) -> Expr:
        """Normalize data along its last axis, as the family does."""
        config = self._config
        size = size or config.hidden_size
        weight = self.read_vector(f"{name}.weight", size)
        if config.norm == "layer":
            bias = f"{name}.bias"
            beta = (
                self.read_vector(bias, size)
                if self.has_tensor(bias)
                else np.zeros(size, np.float32)
            )
            return op.nn.layer_norm(data, const(weight), const(beta), -1, config.epsilon)
        # Gemma's RMSNorm multiplies by 1 + weight.
        weight = weight + np.float32(1) if config.norm == "rms_one" else weight
        return op.nn.rms_norm(data, const(weight), -1, config.epsilon)


def embedding_lookup(table: Weight, ids: Expr) -> Expr:
    """Look up rows of the embedding table: [n, hidden] of float32."""
    if table.format in UNQUANTIZED_FORMATS:
        return op.take(const(_dequantize(table)), ids, axis=0)
    return op.nn.take_blocks(const(table.data), ids, table.format)


def _multiply_weight(data: Expr, kind: str, weight: NDArray[np.generic]) -> Expr:
    if kind in UNQUANTIZED_FORMATS:
        return op.nn.dense(data, const(np.ascontiguousarray(weight, np.float32)))
    return op.nn.dense_blocks(data, const(weight), kind)


def matmul_weight(data: Expr, weight: Weight) -> Expr:
    """Return data [n, k] times the transpose of a weight."""
    return _multiply_weight(data, weight.format, weight.data)


def _dequantize(weight: Weight) -> NDArray[np.float32]:
    if weight.format in UNQUANTIZED_FORMATS:
        return np.ascontiguousarray(weight.data, np.float32)
    return weight.decode()


def _format_shape(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def _scalar_constant(value: float) -> Constant:
    return const(np.float32(value))


def _gelu(x: Expr) -> Call:
    half = op.multiply(x, _scalar_constant(0.5))
    return op.multiply(
        half, op.add(_scalar_constant(1), op.erf(op.multiply(x, _scalar_constant(0.5**0.5))))
    )


def _gelu_tanh(x: Expr) -> Call:
    cube = op.multiply(op.multiply(x, x), x)
    inner = op.multiply(
        op.add(x, op.multiply(cube, _scalar_constant(0.044715))),
        _scalar_constant((2 / np.pi) ** 0.5),
    )
    return op.multiply(
        op.multiply(x, _scalar_constant(0.5)), op.add(_scalar_constant(1), op.tanh(inner))
    )


ACTIVATION_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "silu": lambda x: op.multiply(x, op.sigmoid(x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": op.nn.relu,
}
