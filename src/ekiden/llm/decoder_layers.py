"""Relay builders of a decoder's layers: linear, embedding and norm over a checkpoint's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.llm.decoder_config import DecoderConfig
from ekiden.llm.multi_lora import AdapterProducts
from ekiden.llm.tensor_reader import UNQUANTIZED_FORMATS, TensorReader, dequantize, format_shape
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.runtime.errors import ImportModelError

__all__ = [
    "ACTIVATION_FUNCTIONS",
    "DecoderLayers",
    "embedding_lookup",
    "gated_product",
    "matmul_weight",
    "slice_axis",
]

IGNORED_SUFFIXES = (
    "inv_freq", "attention.bias", "attention.masked_bias", "attn.bias", "attn.masked_bias",
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
)  # fmt: skip
"""Ends of names: masks and frequencies, which older checkpoints and GGUF files have beside what the
configuration says."""
LAYER_NUMBER = re.compile(r"(\d+)\.")


class DecoderLayers(TensorReader):
    """Builder of decoder layers (linear, embedding, norm) from a checkpoint's tensors. Raises
    ImportModelError naming a tensor that is missing or has another shape.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: DecoderConfig, adapters: AdapterProducts | None = None
    ) -> None:
        super().__init__(checkpoint, config.names.prefix, config.names.embedding)
        self._config, self._adapters = config, adapters

    @property
    def unused_tensors(self) -> list[str]:
        """Return the checkpoint's tensors that no layer has read, except those known to be
        redundant.
        """
        return [name for name in self.unread if not self._is_ignored(name)]

    def _is_ignored(self, name: str) -> bool:
        """Return whether a tensor is redundant: masks, frequencies, biases of 0, what predicts
        several tokens, and the other parts of a multimodal model.
        """
        if name.endswith(IGNORED_SUFFIXES):
            return True
        if not name.startswith(self._prefix):
            return "language_model" in self._prefix
        layer_prefix = self.stored_name(self._config.names.layer.split("{}")[0])
        number = LAYER_NUMBER.match(name.removeprefix(layer_prefix))
        # DeepSeek-V3 has layers behind the last one, for tokens after the next.
        if number and name.startswith(layer_prefix) and int(number[1]) >= self._config.layers:
            return True
        # Quantisers write biases of 0 for products that have none.
        return name.endswith(".bias") and not self._checkpoint[name].values().any()

    def linear(self, data: Expr, names: Sequence[str], rows: int, depth: int, has_bias: bool,
               by_group: bool = False, is_adapted: bool = True) -> Expr:  # fmt: skip
        """Emit data [n, depth] times the transposed weights, stacked along their rows: [n, rows].
        Weights of the same format are one product. With `by_group`, rows are ordered by group: its
        queries, its key and its value, then those of the next. Adapters change it unless data are
        other tokens than those of a call (`is_adapted`). Raises ImportModelError for missing
        weights or mismatched row counts.
        """
        single = (rows,) if len(names) == 1 else (None,) * len(names)
        weights = [
            self._linear_weight(f"{n}.weight", size, depth)
            for n, size in zip(names, single, strict=True)
        ]
        if sum(weight.shape[0] for weight in weights) != rows:
            shapes = ", ".join(format_shape(stored.shape) for stored in weights)
            raise ImportModelError(
                f"checkpoint: '{names[0]}.weight' and what stands with it must have {rows} rows,"
                f" got {shapes}"
            )
        order = self._ungrouped_rows(rows) if by_group else slice(None)
        factors = None
        if self._adapters is not None and is_adapted:
            counts = [weight.shape[0] for weight in weights]
            stored = [self.stored_name(f"{name}.weight") for name in names]
            factors = self._adapters.adapters.stack(stored, counts, depth)
        if self._adapters is not None and factors is not None:
            token_data = self._adapters.bind("adapter_input", data)
            result = self._stacked_product(token_data, weights, order)
            factors = replace(factors, up=factors.up[order])
            result = self._adapters.add(result, token_data, factors)
        else:
            result = self._stacked_product(data, weights, order)
        if not has_bias:
            return result
        biases = [
            self.read_vector(f"{n}.bias", w.shape[0]) for n, w in zip(names, weights, strict=True)
        ]
        return op.add(result, const(np.concatenate(biases)[order]))

    def _stacked_product(
        self, data: Expr, weights: Sequence[Weight], order: slice | NDArray[np.int64]
    ) -> Expr:
        """Emit data times the transposed, stacked weights with permuted rows."""
        if len({row_source.format for row_source in weights}) == 1:
            # One product over stacked rows (fused QKV) reads the input once.
            stacked = np.concatenate([block.data for block in weights])[order]
            return _multiply_weight(data, weights[0].format, stacked)
        assert isinstance(order, slice), "one tensor has one format"
        return op.concatenate([_multiply_weight(data, w.format, w.data) for w in weights], axis=1)

    def _linear_weight(self, name: str, rows: int | None, depth: int) -> Weight:
        """Return the weight [rows, depth] of a product."""
        if not self._config.transposed:
            return self.read_weight(name, (rows, depth))
        # GPT-2's Conv1D stores [inputs, outputs].
        weight = self.read_weight(name, (depth, rows))
        return Weight.of(name, np.ascontiguousarray(weight.values().T))

    def _ungrouped_rows(self, rows: int) -> NDArray[np.int64]:
        """Return the row permutation that moves all queries first, then keys, then values."""
        config = self._config
        per_group = config.heads // config.groups
        order = np.arange(rows).reshape(config.groups, per_group + 2, -1)
        row_blocks = order[:, :per_group], order[:, per_group], order[:, per_group + 1]
        return np.concatenate([block.reshape(-1) for block in row_blocks])

    def embedding_table(self, name: str) -> Weight:
        """Return the embedding table."""
        return self.read_weight(name, (self._config.vocabulary, self._config.hidden))

    def norm(
        self, data: Expr, name: str, shape: tuple[int, ...] = (), epsilon: float | None = None
    ) -> Expr:
        """Normalize data along its last axis, as the family does.

        Args:
            data: What is normalized.
            name: That of the weight, without its end.
            shape: Of the weight, the hidden size if it is empty; several rows are one a head.
            epsilon: What is added to variances, else what the configuration says.

        Raises:
            ImportModelError: A tensor is missing, or has another shape.
        """
        config = self._config
        epsilon = config.epsilon if epsilon is None else epsilon
        shape = shape or (config.hidden,)
        size = shape[-1]
        if config.norm == "layer_plain":
            ones, zeros = np.ones(size, np.float32), np.zeros(size, np.float32)
            return op.nn.layer_norm(data, const(ones), const(zeros), -1, epsilon)
        weight = dequantize(self.read_weight(f"{name}.weight", shape))
        bias = f"{name}.bias"
        if len(shape) > 1:
            assert not self.has_tensor(bias), "Cohere's norms of heads have none"
            ones, zeros = np.ones(size, np.float32), np.zeros(size, np.float32)
            scaled = op.nn.layer_norm(data, const(ones), const(zeros), -1, epsilon)
            return op.multiply(scaled, const(weight))
        if config.norm == "layer":
            beta = (
                self.read_vector(bias, size)
                if self.has_tensor(bias)
                else np.zeros(size, np.float32)
            )
            return op.nn.layer_norm(data, const(weight), const(beta), -1, epsilon)
        # Gemma's RMSNorm multiplies by 1 + weight.
        weight = weight + np.float32(1) if config.norm == "rms_one" else weight
        return op.nn.rms_norm(data, const(weight), -1, epsilon)


def slice_axis(x: Expr, begin: int, end: int, axis: int) -> Expr:
    """Return the elements from begin up to end along an axis."""
    return op.strided_slice(x, [begin], [end], axes=[axis])


def gated_product(both: Expr, activation: Callable[[Expr], Expr], inner: int) -> Expr:
    """Emit activation(gate) * up for the halves gate and up of [n, 2 * inner]."""
    gate = slice_axis(both, 0, inner, 1)
    return op.multiply(activation(gate), slice_axis(both, inner, 2 * inner, 1))


def embedding_lookup(table: Weight, ids: Expr) -> Expr:
    """Look up rows of the embedding table: [n, hidden] of float32."""
    if table.format in UNQUANTIZED_FORMATS:
        return op.take(const(dequantize(table)), ids, axis=0)
    return op.nn.take_blocks(const(table.data), ids, table.format)


def _multiply_weight(data: Expr, kind: str, weight: NDArray[np.generic]) -> Expr:
    if kind in UNQUANTIZED_FORMATS:
        return op.nn.dense(data, const(np.ascontiguousarray(weight, np.float32)))
    return op.nn.dense_blocks(data, const(weight), kind)


def matmul_weight(data: Expr, weight: Weight) -> Expr:
    """Return data [n, k] times the transpose of a weight."""
    return _multiply_weight(data, weight.format, weight.data)


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
