"""Dense layers: weights in panels.

nn.dense(%x, W)                       ->  nn.contrib_dense_pack(%x, packed W, units=N, tile=64)
nn.dense(%x u8, W s8)                 ->  the same with four bytes of a row side by side
nn.dense(%x bf16, W bf16) in f32      ->  the same with two elements of a row side by side
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.packing.common import dtype_of, panel_width, rows_of
from ekiden.target import Target
from ekiden.topi.nn.weights import WORD_OF
from ekiden.topi.rule.family import Product

FAMILY = "dense_pack"


def dense(call: Call, target: Target) -> RelayExpr:
    """A layer of float32."""
    weight = call.args[1]
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    product = Product(rows_of(call), units, depth)
    tile = panel_width(FAMILY, product, target, call)
    packed = op.nn.contrib_pack_weight(weight, kind="dense", tile=tile)
    return op.nn.contrib_dense_pack(call.args[0], packed, units=units, tile=tile).with_fields(
        span=call.span
    )


def dense_words(call: Call, target: Target) -> RelayExpr:
    """A layer of bytes or bfloat16: neighbours in k side by side."""
    data, weight = call.args
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    missing = -depth % WORD_OF[dtype_of(data)]
    if missing:
        shape = data.checked_type
        assert isinstance(shape, TensorType)
        rows = ((0, 0),) * (len(shape.shape) - 1)
        zero = Constant(np.zeros((), to_numpy(shape.dtype)))
        data = op.nn.pad(data, (*rows, (0, missing)), zero)
        weight = Constant(np.pad(weight.data, ((0, 0), (0, missing))), span=weight.span)
    word = WORD_OF[dtype_of(call.args[0])]
    product = Product(rows_of(call), units, -(-depth // word), dtype_of(call.args[0]))
    tile = panel_width(FAMILY, product, target, call)
    kind = "dense_bf16" if dtype_of(call.args[0]) == "bfloat16" else "dense_u8s8"
    packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile)
    out = dtype_of(call)
    return op.nn.contrib_dense_pack(data, packed, units, tile, out).with_fields(span=call.span)
