"""Weights as integers with scales."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ekiden.ir.op import Array
from ekiden.quantization.layers import Layer
from ekiden.quantization.plan import Recipe

__all__ = ["Integers", "bias_shift", "integers_of", "nibbles_of"]

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


def nibbles_of(layer: Layer, recipe: Recipe) -> tuple[Array, Array]:
    """A weight of 4 bits in groups as MatMulNBits has it: bytes [N, groups, group / 2] of two
    elements each, the lower first, with 8 for 0; and scales [N, groups]. The last group is filled
    up with zeros."""
    weight = layer.weight if layer.sum_axis == 1 else np.ascontiguousarray(layer.weight.T)
    rows, columns = weight.shape
    groups = -(-columns // recipe.group)
    blocks = np.zeros((rows, groups * recipe.group), np.float32)
    blocks[:, :columns] = weight
    blocks = blocks.reshape(rows, groups, recipe.group)
    scale = _scale(blocks, (2,), 7, recipe.method)
    levels = (np.clip(np.round(blocks / scale), -7, 7) + 8).astype(np.uint8)
    return levels[..., ::2] | (levels[..., 1::2] << 4), scale.squeeze(2)


def integers_of(layer: Layer, recipe: Recipe) -> Integers:
    """A weight with symmetric levels: for each group, each channel, or for all of it.

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
        values = np.clip(np.round(blocks / scale), -most, most).reshape(weight.shape)
        return Integers(values.astype(dtype), scale.squeeze(axis + 1), axis, recipe.group)
    kept = layer.channel_axis if recipe.per_channel else None
    others = tuple(at for at in range(weight.ndim) if at != kept)
    scale = _scale(weight, others, most, recipe.method)
    values = np.clip(np.round(weight / scale), -most, most).astype(dtype)
    return Integers(values, scale.reshape(-1) if recipe.per_channel else scale.reshape(()), kept)


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
