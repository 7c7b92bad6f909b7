"""Dense layers: weights in panels.

nn.dense(%x, W)                       ->  nn.contrib_dense_pack(%x, packed W, units=N, tile=64)
nn.dense(%x u8, W s8)                 ->  the same with four bytes of a row side by side, made so
                                          that sums of two products fit int16 where that is faster
nn.dense(%x bf16, W bf16) in f32      ->  the same with two elements of a row side by side
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.packing.common import dtype_of, panel_width, rows_of
from ekiden.target import Target
from ekiden.topi.nn.weights import WORD_OF, pack_weight
from ekiden.topi.rule.family import NARROW, Product
from ekiden.topi.rule.model import narrowing_pays
from ekiden.topi.rule.words import narrowed_words

FAMILY = "dense_pack"


def dense(call: Call, target: Target) -> RelayExpr:
    """A layer of float32."""
    weight = call.args[1]
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    product = Product(rows_of(call), units, depth)
    tile = max(panel_width(FAMILY, product, target, call), 1)  # of no units a panel is none wide
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
    kind = "dense_bf16" if dtype_of(call.args[0]) == "bfloat16" else "dense_u8s8"
    out = dtype_of(call)
    if kind == "dense_u8s8" and (made := _narrow(call, weight.data, product, target)):
        tile, words, places = made
        packed = op.nn.contrib_dense_pack(
            data, Constant(words, span=weight.span), units, tile, out, Constant(places)
        )
        return packed.with_fields(span=call.span)
    tile = panel_width(FAMILY, product, target, call)
    packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile)
    return op.nn.contrib_dense_pack(data, packed, units, tile, out).with_fields(span=call.span)


def _narrow(
    call: Call, weight: Array, product: Product, target: Target
) -> tuple[int, Array, Array] | None:
    """(columns of a panel, words, places) of a weight whose sums of two products fit int16, if
    that is faster."""
    narrow = replace(product, dtype=NARROW)
    tile = panel_width(FAMILY, narrow, target, call)
    words, places = narrowed_words(pack_weight(weight, "dense_u8s8", tile))
    if not narrowing_pays(places.shape[1], product.depth or 0, target):
        return None
    return tile, words, places
