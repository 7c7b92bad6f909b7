"""Weights as integers with scales."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from ekiden.ir.op import Array
from ekiden.quantization.layers import Layer
from ekiden.quantization.plan import Recipe
from ekiden.quantization.rounding import ROUNDINGS, Ends, squared_error
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Integers", "aware_factor", "bias_shift", "integers_of", "nibbles_of"]

NIBBLES: Ends = (-8, 7)
LEAST = 0.05
"""Of the mean size of inputs: one that the data hardly reach is not taken for smaller."""
POWERS = np.linspace(0.0, 1.0, 11)
"""Of the size of inputs: how much steps follow it, as AWQ tries."""
SHARES = np.linspace(1.0, 0.5, 32)
"""Of the largest element: the ranges that the method "mse" tries for each scale."""


@dataclass(frozen=True, slots=True, eq=False)
class Integers:
    """A weight: its elements are `values * scale`, with 0 as the zero point."""

    values: Array
    scale: Array
    axis: int | None
    """The axis of the scales; None where there is one."""
    block: int = 0
    """Elements along the axis that share one; 0: each has its own."""

    def floats(self) -> Array:
        """The elements that these stand for."""
        scale = self.scale
        if self.block:
            assert self.axis is not None
            scale = np.repeat(scale, self.block, self.axis)
        elif self.axis is not None:
            shape = [1] * self.values.ndim
            shape[self.axis] = -1
            scale = scale.reshape(shape)
        return self.values.astype(np.float32) * scale


def nibbles_of(layer: Layer, recipe: Recipe, gram: Array | None = None) -> tuple[Array, Array]:
    """A weight of 4 bits in groups as MatMulNBits has it: bytes [N, groups, group / 2] of two
    elements each, the lower first, with 8 for 0; and scales [N, groups]. The last group is filled
    up with zeros."""
    weight = layer.weight if layer.sum_axis == 1 else np.ascontiguousarray(layer.weight.T)
    rows, columns = weight.shape
    groups = -(-columns // recipe.group)
    blocks = np.zeros((rows, groups * recipe.group), np.float32)
    blocks[:, :columns] = weight
    blocks = blocks.reshape(rows, groups, recipe.group)
    scale = _signed_scale(blocks, recipe.method)
    steps = np.repeat(scale.squeeze(2), recipe.group, axis=1)[:, :columns]
    found = np.zeros((rows, groups * recipe.group))
    found[:, :columns] = _levels(weight, steps, NIBBLES, recipe, gram)
    levels = (found.reshape(blocks.shape) + 8).astype(np.uint8)
    return levels[..., ::2] | (levels[..., 1::2] << 4), scale.squeeze(2)


def integers_of(layer: Layer, recipe: Recipe, gram: Array | None = None) -> Integers:
    """A weight with symmetric levels: for each group, each channel, or for all of it. `gram` is
    that of the layer, where the recipe needs it.

    The group divides the summed axis: `judge` has left other layers alone.
    """
    weight = layer.weight
    most = 2 ** (recipe.bits - 1) - 1
    dtype = np.dtype(np.int8) if recipe.bits == 8 else np.dtype(ml_dtypes.int4)
    if recipe.group:
        axis = layer.sum_axis
        shape = list(weight.shape)
        shape[axis : axis + 1] = [weight.shape[axis] // recipe.group, recipe.group]
        blocks = weight.reshape(shape)
        scale = _scale(blocks, (axis + 1,), most, recipe.method)
        steps = np.broadcast_to(scale, blocks.shape).reshape(weight.shape)
        values = _of_layer(layer, steps, (-most, most), recipe, gram)
        return Integers(values.astype(dtype), scale.squeeze(axis + 1), axis, recipe.group)
    kept = layer.channel_axis if recipe.per_channel else None
    others = tuple(at for at in range(weight.ndim) if at != kept)
    scale = _scale(weight, others, most, recipe.method)
    steps = np.broadcast_to(scale, weight.shape)
    values = _of_layer(layer, steps, (-most, most), recipe, gram).astype(dtype)
    return Integers(values, scale.reshape(-1) if recipe.per_channel else scale.reshape(()), kept)


def _of_layer(layer: Layer, steps: Array, ends: Ends, recipe: Recipe, gram: Array | None) -> Array:
    """The integers of a weight, for the step of each element."""
    matrix, scale = (_as_rows(layer, each) for each in (layer.weight, steps))
    made = _levels(matrix, scale, ends, recipe, gram)
    moved = np.moveaxis(layer.weight, layer.channel_axis, 0).shape
    return np.moveaxis(made.reshape(moved), 0, layer.channel_axis)


def _as_rows(layer: Layer, array: Array) -> Array:
    """A row for each channel of the result."""
    moved = np.moveaxis(array, layer.channel_axis, 0)
    return moved.reshape(len(moved), -1)


def _levels(matrix: Array, scale: Array, ends: Ends, recipe: Recipe, gram: Array | None) -> Array:
    """The integers of rows; those of a convolution with groups each by the group's own data."""
    levels = ROUNDINGS[recipe.rounding].levels
    if gram is None:
        return levels(matrix, scale, ends, None)
    parts = (np.split(each, len(gram)) for each in (matrix, scale))
    made = [levels(w, s, ends, g) for w, s, g in zip(*parts, gram, strict=True)]
    return np.concatenate(made)


def aware_factor(layer: Layer, recipe: Recipe, gram: Array) -> Array:
    """What each column of a weight is multiplied by before it is rounded: the root mean square of
    what it multiplies to the power of 0 to 1, the one with the least error of the result."""
    (cost,) = gram
    size = np.sqrt(np.diagonal(cost))
    size = np.maximum(size, LEAST * float(size.mean()) or 1.0)
    plain = replace(recipe, rounding="nearest")
    best, least = np.ones(len(size), np.float32), np.inf
    for power in POWERS:
        factor = size**power
        factor = (factor / np.sqrt(factor.max() * factor.min())).astype(np.float32)
        shape = [1, 1]
        shape[layer.sum_axis] = -1
        scaled = replace(layer, weight=layer.weight * factor.reshape(shape))
        got = _floats(scaled, plain) / factor.reshape(shape)
        error = squared_error(_as_rows(layer, got - layer.weight).astype(np.float64), cost)
        if error < least:
            best, least = factor, error
    return best


def _floats(layer: Layer, recipe: Recipe) -> Array:
    """What the integers of a weight stand for."""
    if not (recipe.group and recipe.bits == 4):
        return integers_of(layer, recipe).floats()
    packed, scale = nibbles_of(layer, recipe)
    levels = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    rows, groups = scale.shape
    floats = (levels.reshape(rows, groups, -1) * scale[..., None]).reshape(rows, -1)
    floats = floats[:, : layer.weight.shape[layer.sum_axis]]
    return floats if layer.sum_axis == 1 else floats.T


def _signed_scale(blocks: Array, method: str) -> Array:
    """The steps of blocks along the last axis, which stays with size 1, for levels from -8 to 7:
    the largest element is -8 of them, so that a step has the other sign. "mse" as in `_scale`."""
    at = np.abs(blocks).argmax(axis=-1, keepdims=True)
    whole = np.take_along_axis(blocks, at, -1) / np.float32(NIBBLES[0])
    whole = np.where(np.abs(whole) > np.finfo(np.float32).tiny, whole, np.float32(1.0))
    if method != "mse":
        return np.asarray(whole, np.float32)
    best, least = whole, np.full(whole.shape, np.inf)
    for share in SHARES:
        scale = whole * share
        rounded = np.clip(np.round(blocks / scale), *NIBBLES) * scale
        error = ((blocks - rounded) ** 2).sum(axis=-1, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return np.asarray(best, np.float32)


def _scale(weight: Array, axes: tuple[int, ...], most: int, method: str) -> Array:
    """The scale over these axes, which stay with size 1: that of the largest element, or of the
    share of it with the least squared error."""
    largest = np.abs(weight).max(axis=axes, keepdims=True).astype(np.float32)
    largest = np.where(largest > np.finfo(np.float32).tiny * most, largest, np.float32(most))
    if method != "mse":
        return (largest / most).astype(np.float32)
    best, least = largest / most, np.full(largest.shape, np.inf)
    for share in SHARES:
        scale = largest * share / most
        rounded = np.clip(np.round(weight / scale), -most, most) * scale
        error = ((weight - rounded) ** 2).sum(axis=axes, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return np.asarray(best, np.float32)


def bias_shift(layer: Layer, wanted: Array, got: Array, mean: Array) -> Array:
    """What the rounding of a weight adds to each channel of the result on average, for inputs of
    these means. Padding is taken for the mean too."""
    error = np.moveaxis(got - wanted, layer.channel_axis, 0).astype(np.float64)
    if layer.node.op_type != "Conv":
        return np.asarray(error @ mean, np.float32)
    channels, width = error.shape[:2]
    groups = len(mean) // width
    of_group = np.repeat(mean.reshape(groups, width), channels // groups, axis=0)
    shift = (error.reshape(channels, width, -1).sum(-1) * of_group).sum(-1)
    return np.asarray(shift, np.float32)
