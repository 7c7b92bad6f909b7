"""Gram matrices of layer inputs, by which output errors of weight rounding are measured (GPTQ,
AWQ).

With G = X^T X of the rows X that a weight multiplies, an error E of the weight makes the squared
error trace(E G E^T) of the result. Of a convolution the rows are its windows, for each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from ekiden.ir.op import Array
from ekiden.quantization.calibrate import Feeds, ModelCompiler, TensorStats, iter_tensor_values
from ekiden.quantization.quantizable_layers import Layer, node_attributes
from ekiden.runtime.errors import InputError

__all__ = ["accumulate_gram_matrices", "input_rows"]

MAX_GRAM_WINDOWS = 4096
"""The most windows of a convolution that one run adds, taken evenly."""


def accumulate_gram_matrices(
    model: onnx.ModelProto, layers: Sequence[Layer], feeds: Feeds, compile: ModelCompiler,
    stats: Mapping[str, TensorStats],
) -> None:  # fmt: skip
    """Add X^T X of each layer's input rows X to the statistics of its data tensor, by
    layer name.
    """
    for values in iter_tensor_values(model, {layer.data_name for layer in layers}, feeds, compile):
        for layer in layers:
            # float64: G is inverted later, and float32 sums of squares lose its small eigenvalues.
            rows = input_rows(layer, values[layer.data_name]).astype(np.float64)
            gram = np.matmul(rows.transpose(0, 2, 1), rows)
            grams = stats[layer.data_name].gram_matrices
            grams[layer.name] = grams[layer.name] + gram if layer.name in grams else gram


def input_rows(layer: Layer, data: Array) -> Array:
    """Return the rows that a layer's weight multiplies, [groups, rows, elements per output
    channel].
    """
    if layer.node.op_type != "Conv":
        attrs = node_attributes(layer.node)
        turned = np.moveaxis(data, 0, -1) if attrs.get("transA") else data
        return turned.reshape(1, -1, turned.shape[-1])
    return _im2col_rows(layer, data)


def _im2col_rows(layer: Layer, data: Array) -> Array:
    """Return the im2col patches of a convolution's input as rows."""
    attrs = node_attributes(layer.node)
    kernel = layer.weight.shape[2:]
    count = len(kernel)
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise InputError(
            f"quantize: '{layer.name}': rounding by data takes a Conv with pads, not auto_pad"
        )
    strides = _int_list(attrs.get("strides"), count)
    dilations = _int_list(attrs.get("dilations"), count)
    pads = _int_list(attrs.get("pads"), 2 * count, 0)
    widths = [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)]
    wide = np.pad(data, widths)
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, 2 + count))
    # im2col by strides: no element is copied before the final reshape.
    patches = np.lib.stride_tricks.sliding_window_view(wide, spans, axes)
    strided = tuple(slice(None, None, step) for step in strides)
    inside = tuple(slice(None, None, step) for step in dilations)
    patches = patches[(slice(None), slice(None), *strided, *inside)]
    groups = int(attrs.get("group", 1))  # type: ignore[call-overload]  # an integer of ONNX
    batch, channels = patches.shape[:2]
    sizes = patches.shape[2 : 2 + count]
    patches = patches.reshape(batch, groups, channels // groups, *sizes, *kernel)
    order = (1, 0, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count))
    rows = patches.transpose(order).reshape(groups, -1, layer.weight[0].size)
    # Windows overlap heavily; an even subset estimates the Gram matrix as well.
    step = max(1, rows.shape[1] // MAX_GRAM_WINDOWS)
    return rows[:, ::step]


def _int_list(value: object, count: int, default: int = 1) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else [default] * count
