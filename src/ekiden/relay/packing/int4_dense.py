"""Packing of int4 dense weights.

nn.contrib_dense_nibbles(%x, W, S, P), bytes multiplied  ->
    %q, %step, %total = %x rounded to bytes for each block, of what a step is, their sum
    nn.contrib_dense_nibbles_pack(%q, %step, %total, packed W, packed S, packed P)
... elsewhere                                            ->  nn.dense(%x, (W - P) * S)
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.kernels.families import FAMILIES
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.target import Target
from ekiden.topi.nn.int4_dense import VALUES_PER_WORD, pack_nibbles, unpack_nibbles

DENSE_NIBBLES_FAMILY = "dense_nibbles_pack"
MAX_INT8_LEVEL = 127.0
"""Quantised magnitude of a block's largest element."""


def pack_int4_dense(call: Call, target: Target) -> Call:
    """Rewrite an int4 product to operators with kernels on the target.

    It is the call itself if its weight is computed, or its depth unknown.
    """
    data, *parameters = call.args
    arrays = [a.data for a in parameters if isinstance(a, Constant)]
    kind = data.checked_type
    assert isinstance(kind, TensorType)
    depth = kind.shape[-1]
    if len(arrays) != len(parameters) or not isinstance(depth, IntImm):
        return call
    weight, scale, point = arrays
    if (
        FAMILIES[DENSE_NIBBLES_FAMILY].supports_target(target)
        and weight.shape[2] * 2 % VALUES_PER_WORD == 0
    ):
        rounded = _quantize_blocks(data, len(kind.shape), depth.value, weight.shape[2] * 2)
        packed, scales, points = (Constant(a) for a in pack_nibbles(weight, scale, point))
        units = len(weight)
        product = op.nn.contrib_dense_nibbles_pack(*rounded, packed, scales, points, units)
    else:
        levels = (unpack_nibbles(weight) - point[..., None].astype(np.float32)) * scale[..., None]
        plain = levels.reshape(len(weight), -1)[:, : depth.value]
        product = op.nn.dense(data, Constant(np.ascontiguousarray(plain, np.float32)))
    checked = infer_new_types(product.with_fields(span=call.span))
    assert isinstance(checked, Call)
    return checked


def _quantize_blocks(data: Expr, rank: int, depth: int, block: int) -> tuple[Expr, Expr, Expr]:
    """Quantise data to int8 per block: return the data, the scale and the sum of each block."""
    same, missing = (0,) * (rank - 1), -depth % block
    if missing:
        data = op.nn.pad(data, (*((0, 0) for _ in same), (0, missing)))
    blocks = (depth + missing) // block
    blocked = op.reshape(data, (*same, blocks, block))
    largest = op.max(op.abs(blocked), axis=[-1], keepdims=True)
    smallest = Constant(np.array(np.finfo(np.float32).tiny))
    # The floor keeps the division of a block of zeros finite.
    finer = op.divide(Constant(np.array(MAX_INT8_LEVEL, np.float32)), op.maximum(largest, smallest))
    bytes_ = op.cast(op.round(op.multiply(blocked, finer)), "int8")
    total = op.sum(op.cast(bytes_, "int32"), axis=[-1])
    step = op.multiply(largest, Constant(np.array(1 / MAX_INT8_LEVEL, np.float32)))
    return op.reshape(bytes_, (*same, blocks * block)), op.squeeze(step, axis=[-1]), total
