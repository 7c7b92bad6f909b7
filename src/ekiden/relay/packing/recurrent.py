"""Packing of recurrent weights: panels of hidden units, all gates interleaved.

nn.recurrent((%x, W, ...))            ->  nn.recurrent((%x, packed W, ...))
nn.recurrent((%x, W s8, ...))         ->  nn.recurrent((%x, packed W, ..., places)), so that sums of
                                          two products fit int16, where that is faster
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.kernels.cost_model import are_int16_sums_faster
from ekiden.kernels.quantized.int8_dot import split_large_pairs
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.op.nn.recurrent_layers import (
    PackRecurrentAttrs,
    RecurrentAttrs,
    packed_recurrent,
)
from ekiden.target import Target


def pack_recurrent(call: Call, target: Target) -> RelayExpr:
    """Pack the constant weight of a recurrent layer."""
    operands, attrs = call.args[0], call.attrs
    assert isinstance(attrs, RecurrentAttrs)
    if not isinstance(operands, Tuple):
        return call
    data, weight, *extras = operands.fields
    if not isinstance(weight, Constant) or weight.data.ndim != 2:
        return call
    gates = attrs.cell.num_gates
    lanes = target.lanes("float32")
    if weight.data.dtype == np.int8:
        words = packed_recurrent(PackRecurrentAttrs(gates, lanes), weight.data)
        depth = words.shape[1]
        words, word_indices = split_large_pairs(words)
        if are_int16_sums_faster(word_indices.shape[1], depth, target):
            narrowed = Tuple(
                (data, Constant(words, span=weight.span), *extras, Constant(word_indices))
            )
            return call.with_fields(
                args=(narrowed,), attrs=replace(attrs, given=(*attrs.given, "places"))
            )
    packed = op.nn.contrib_pack_recurrent(weight, gates, lanes)
    return call.with_fields(args=(Tuple((data, packed, *extras)),))
