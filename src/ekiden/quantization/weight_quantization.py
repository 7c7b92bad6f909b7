"""Symmetric weight quantization per tensor, channel or group."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from ekiden.ir.op import Array
from ekiden.quantization.plan import Recipe
from ekiden.quantization.quantizable_layers import Layer
from ekiden.quantization.weight_rounding import ROUNDING_METHODS, LevelRange, weighted_squared_error
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "QuantizedWeight",
    "awq_factor",
    "bias_correction",
    "quantize_int4_groups",
    "quantize_weight",
]

INT4_LEVEL_RANGE: LevelRange = (-8, 7)
MIN_ACTIVATION_SCALE_SHARE = 0.05
"""Of the mean size of inputs: one that the data hardly reach is not taken for smaller."""
AWQ_EXPONENTS = np.linspace(0.0, 1.0, 11)
"""Of the size of inputs: how much steps follow it, as AWQ tries."""
MSE_RANGE_FRACTIONS = np.linspace(1.0, 0.5, 32)
"""Of the largest element: the ranges that the method "mse" tries for each scale."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """Symmetrically quantized weight: its elements are `values * scale`."""

    values: Array
    scale: Array
    axis: int | None
    """The axis of the scales; None where there is one."""
    block: int = 0
    """Elements along the axis that share one; 0: each has its own."""

    def dequantize(self) -> Array:
        """Return the dequantized elements."""
        scale = self.scale
        if self.block:
            assert self.axis is not None
            scale = np.repeat(scale, self.block, self.axis)
        elif self.axis is not None:
            shape = [1] * self.values.ndim
            shape[self.axis] = -1
            scale = scale.reshape(shape)
        return self.values.astype(np.float32) * scale


def quantize_int4_groups(
    layer: Layer, recipe: Recipe, gram: Array | None = None
) -> tuple[Array, Array]:
    """Quantize a weight to 4-bit groups in MatMulNBits' layout: bytes [N, groups, group / 2], low
    nibble first, offset by 8, and scales [N, groups]. The last group is zero-padded.
    """
    weight = layer.weight if layer.reduction_axis == 1 else np.ascontiguousarray(layer.weight.T)
    rows, columns = weight.shape
    groups = -(-columns // recipe.group)
    blocks = np.zeros((rows, groups * recipe.group), np.float32)
    blocks[:, :columns] = weight
    blocks = blocks.reshape(rows, groups, recipe.group)
    scale = _asymmetric_int4_scale(blocks, recipe.method)
    steps = np.repeat(scale.squeeze(2), recipe.group, axis=1)[:, :columns]
    levels_2d = np.zeros((rows, groups * recipe.group))
    levels_2d[:, :columns] = _round_rows(weight, steps, INT4_LEVEL_RANGE, recipe, gram)
    # MatMulNBits stores unsigned nibbles with an implicit zero point of 8.
    levels = (levels_2d.reshape(blocks.shape) + 8).astype(np.uint8)
    return levels[..., ::2] | (levels[..., 1::2] << 4), scale.squeeze(2)


def quantize_weight(layer: Layer, recipe: Recipe, gram: Array | None = None) -> QuantizedWeight:
    """Quantize a weight symmetrically, with one scale per group, per channel or per tensor. `gram`
    is the layer's Gram matrix, if the recipe needs it. The group divides the reduction axis:
    `judge` has left other layers in floats.
    """
    weight = layer.weight
    # Symmetric: the lowest integer is unused, so that |q| <= max_level on both sides.
    max_level = 2 ** (recipe.bits - 1) - 1
    dtype = np.dtype(np.int8) if recipe.bits == 8 else np.dtype(ml_dtypes.int4)
    if recipe.group:
        axis = layer.reduction_axis
        shape = list(weight.shape)
        shape[axis : axis + 1] = [weight.shape[axis] // recipe.group, recipe.group]
        blocks = weight.reshape(shape)
        scale = _symmetric_scale(blocks, (axis + 1,), max_level, recipe.method)
        steps = np.broadcast_to(scale, blocks.shape).reshape(weight.shape)
        values = _quantize_layer_levels(layer, steps, (-max_level, max_level), recipe, gram)
        return QuantizedWeight(values.astype(dtype), scale.squeeze(axis + 1), axis, recipe.group)
    scale_axis = layer.channel_axis if recipe.per_channel else None
    reduced_axes = tuple(position for position in range(weight.ndim) if position != scale_axis)
    scale = _symmetric_scale(weight, reduced_axes, max_level, recipe.method)
    steps = np.broadcast_to(scale, weight.shape)
    values = _quantize_layer_levels(layer, steps, (-max_level, max_level), recipe, gram).astype(
        dtype
    )
    return QuantizedWeight(
        values, scale.reshape(-1) if recipe.per_channel else scale.reshape(()), scale_axis
    )


def _quantize_layer_levels(
    layer: Layer, steps: Array, ends: LevelRange, recipe: Recipe, gram: Array | None
) -> Array:
    """Return the integer levels of a layer's weight, given the step of each element."""
    matrix, scale = (
        _reshape_to_rows(layer, matrix_source) for matrix_source in (layer.weight, steps)
    )
    levels = _round_rows(matrix, scale, ends, recipe, gram)
    moved = np.moveaxis(layer.weight, layer.channel_axis, 0).shape
    return np.moveaxis(levels.reshape(moved), 0, layer.channel_axis)


def _reshape_to_rows(layer: Layer, array: Array) -> Array:
    """Reshape a weight to one row per output channel."""
    moved = np.moveaxis(array, layer.channel_axis, 0)
    return moved.reshape(len(moved), -1)


def _round_rows(
    matrix: Array, scale: Array, ends: LevelRange, recipe: Recipe, gram: Array | None
) -> Array:
    """Round rows to integer levels; each group of a grouped convolution has its own Gram matrix."""
    levels = ROUNDING_METHODS[recipe.rounding].round_weight
    if gram is None:
        return levels(matrix, scale, ends, None)
    groups = (np.split(group_source, len(gram)) for group_source in (matrix, scale))
    group_levels = [levels(w, s, ends, g) for w, s, g in zip(*groups, gram, strict=True)]
    return np.concatenate(group_levels)


def awq_factor(layer: Layer, recipe: Recipe, gram: Array) -> Array:
    """Return AWQ's factor of each weight column: the root mean square of its input to the power,
    from 0 to 1, of least output error.
    """
    (cost,) = gram
    size = np.sqrt(np.diagonal(cost))
    size = np.maximum(size, MIN_ACTIVATION_SCALE_SHARE * float(size.mean()) or 1.0)
    plain = replace(recipe, rounding="nearest")
    best, best_error = np.ones(len(size), np.float32), np.inf
    for power in AWQ_EXPONENTS:
        factor = size**power
        # AWQ's normalization: the geometric centre of the factors stays at 1.
        factor = (factor / np.sqrt(factor.max() * factor.min())).astype(np.float32)
        shape = [1, 1]
        shape[layer.reduction_axis] = -1
        scaled = replace(layer, weight=layer.weight * factor.reshape(shape))
        dequantised = _quantize_dequantize(scaled, plain) / factor.reshape(shape)
        error = weighted_squared_error(
            _reshape_to_rows(layer, dequantised - layer.weight).astype(np.float64), cost
        )
        if error < best_error:
            best, best_error = factor, error
    return best


def _quantize_dequantize(layer: Layer, recipe: Recipe) -> Array:
    """Return a layer's weight after quantization and dequantization under a recipe."""
    if not (recipe.group and recipe.bits == 4):
        return quantize_weight(layer, recipe).dequantize()
    packed, scale = quantize_int4_groups(layer, recipe)
    levels = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    rows, groups = scale.shape
    floats = (levels.reshape(rows, groups, -1) * scale[..., None]).reshape(rows, -1)
    floats = floats[:, : layer.weight.shape[layer.reduction_axis]]
    return floats if layer.reduction_axis == 1 else floats.T


def _asymmetric_int4_scale(blocks: Array, method: str) -> Array:
    """Return the signed steps of blocks along the last axis, kept with size 1, for levels from -8
    to 7. The largest element maps to -8, so that the step's sign is opposite to its sign. "mse"
    as in `_scale`.
    """
    axis_index = np.abs(blocks).argmax(axis=-1, keepdims=True)
    # The element of largest magnitude maps to -8, so one side keeps the 16th level.
    full_scale = np.take_along_axis(blocks, axis_index, -1) / np.float32(INT4_LEVEL_RANGE[0])
    full_scale = np.where(
        np.abs(full_scale) > np.finfo(np.float32).tiny, full_scale, np.float32(1.0)
    )
    if method != "mse":
        return np.asarray(full_scale, np.float32)
    best, best_error = full_scale, np.full(full_scale.shape, np.inf)
    for share in MSE_RANGE_FRACTIONS:
        scale = full_scale * share
        rounded = np.clip(np.round(blocks / scale), *INT4_LEVEL_RANGE) * scale
        error = ((blocks - rounded) ** 2).sum(axis=-1, keepdims=True)
        best, best_error = np.where(error < best_error, scale, best), np.minimum(error, best_error)
    return np.asarray(best, np.float32)


def _symmetric_scale(weight: Array, axes: tuple[int, ...], max_level: int, method: str) -> Array:
    """Return the scale over `axes`, kept with size 1: that of the largest element, or of the
    fraction of it with the least squared error.
    """
    largest = np.abs(weight).max(axis=axes, keepdims=True).astype(np.float32)
    largest = np.where(
        largest > np.finfo(np.float32).tiny * max_level, largest, np.float32(max_level)
    )
    if method != "mse":
        return (largest / max_level).astype(np.float32)
    best, best_error = largest / max_level, np.full(largest.shape, np.inf)
    for share in MSE_RANGE_FRACTIONS:
        scale = largest * share / max_level
        rounded = np.clip(np.round(weight / scale), -max_level, max_level) * scale
        error = ((weight - rounded) ** 2).sum(axis=axes, keepdims=True)
        best, best_error = np.where(error < best_error, scale, best), np.minimum(error, best_error)
    return np.asarray(best, np.float32)


def bias_correction(layer: Layer, exact: Array, rounded: Array, mean: Array) -> Array:
    """Return the mean output error per channel that rounding a weight causes, for inputs with these
    means. Padding is assumed to have the mean too.
    """
    error = np.moveaxis(rounded - exact, layer.channel_axis, 0).astype(np.float64)
    if layer.node.op_type != "Conv":
        return np.asarray(error @ mean, np.float32)
    channels, width = error.shape[:2]
    groups = len(mean) // width
    of_group = np.repeat(mean.reshape(groups, width), channels // groups, axis=0)
    shift = (error.reshape(channels, width, -1).sum(-1) * of_group).sum(-1)
    return np.asarray(shift, np.float32)
