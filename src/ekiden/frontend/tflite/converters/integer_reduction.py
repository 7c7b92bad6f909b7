"""Reductions and softmax of quantised tensors."""

from __future__ import annotations

import math

import numpy as np

from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.integer import centred, levels, stored
from ekiden.frontend.tflite.node import Node
from ekiden.ir.dtype import to_numpy
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.rescale import fixed_point, times_array, times_whole
from ekiden.topi.shape import known


def _axes(node: Node) -> tuple[tuple[int, ...], int]:
    """The axes, and how many elements become one."""
    axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.axes(1)))
    extents = [known(node.shape(0)[a]) for a in axes]
    if None in extents or 0 in extents:
        node.unsupported(f"axes {axes} of {node.ins[0]} must have known extents")
    return axes, math.prod(e for e in extents if e)


def mean(node: Node) -> Expr:
    """The sum times a multiplier that holds the number of elements."""
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    axes, count = _axes(node)
    total = op.sum(centred(node.expr(0), 0), axis=axes, keepdims=bool(node.option("KeepDims")))
    moved = op.subtract(total, const(np.int32(source.point * count)))
    whole, exponent = fixed_point(np.asarray(np.float64(source.scale) / np.float64(result.scale)))
    shift = min(count.bit_length() - 1, 32, 31 + int(exponent))
    factor = (int(whole) << shift) // count
    return stored(node, times_whole(moved, factor, int(exponent) - shift, "TWICE"))


def total(node: Node) -> Expr:
    """In floating point, as the reference kernel computes it."""
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    axes, count = _axes(node)
    numbers = op.sum(centred(node.expr(0), 0), axis=axes, keepdims=bool(node.option("KeepDims")))
    scale = np.float32(source.scale / result.scale)
    bias = np.float32(-np.float32(source.point) * scale * np.float32(count))
    real = op.add(op.multiply(op.cast(numbers, "float32"), const(scale)), const(bias))
    return stored(node, op.cast(op.round(real), "int32"))


def softmax(node: Node) -> Expr:
    """gemmlowp's: a table of exponentials of the difference from the largest number of a row, their
    sum in 12 bits before the point, and its reciprocal by three steps of Newton's.
    """
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    beta = float(node.option("Beta", 1))
    factor = min(beta * float(source.scale) * (1 << 26), float((1 << 31) - 1))
    _, left = fixed_point(np.asarray(factor, np.float64))
    radius = math.floor(31 * (1 << 26) / (1 << int(left)))
    apart = np.arange(-255, 1, dtype=np.int64)
    table = gemmlowp.exp_of_negative(times_array(apart, factor, "TWICE"))
    table = np.where(apart >= -radius, table, 0).astype(np.int32)
    x = centred(node.expr(0), 0)
    difference = op.subtract(x, op.max(x, axis=-1, keepdims=True))
    index = op.add(difference, const(np.int32(255)))
    shifted = ((table.astype(np.int64) + (1 << 11)) >> 12).astype(np.int32)
    sums = op.sum(op.take(const(shifted), index, mode="fast"), axis=-1, keepdims=True)
    zeros, scale = gemmlowp.reciprocal(op.cast(sums, "int64"))
    bits = 8 * to_numpy(result.dtype).itemsize
    shift = op.subtract(const(np.int64(12 + 31 - bits)), zeros)
    wide = op.cast(op.take(const(table), index, mode="fast"), "int64")
    made = gemmlowp.shifted(gemmlowp.product(wide, scale), shift)
    low, high = result.limits
    made = op.clip(op.add(made, const(np.int64(low))), low, high)
    outside = op.less(difference, const(np.int32(-radius)))
    return op.where(outside, const(low, result.dtype), op.cast(made, result.dtype))
