"""Packing of block-quantised weights.

nn.dense_blocks(%x, W), bytes multiplied  ->  nn.contrib_dense_blocks_pack(%x, packed W)
... elsewhere                             ->  nn.dense(%x, W as numbers)
nn.take_blocks(W, %i) beside the first     ->  nn.contrib_take_blocks_pack(packed W, %i)
"""

from __future__ import annotations

from ekiden.ir.attrs import Attrs
from ekiden.kernels.families import FAMILIES
from ekiden.kernels.family import MatmulSizes
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.block_quantized import BlocksAttrs, DenseBlocksAttrs, DenseBlocksPackAttrs
from ekiden.relay.packing.common import num_rows, panel_width, static_last_dim
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.target import Target
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME
from ekiden.topi.nn.block_quantized import pack_blocks

DENSE_BLOCKS_FAMILY = "dense_blocks_pack"


def pack_dense_blocks(call: Call, target: Target) -> Call:
    """Rewrite a block-quantised product to operators with kernels on the target.

    It is the call itself if its weight is computed, or its depth unknown.
    """
    data, weight_expr = call.args
    attrs: Attrs | None = call.attrs
    assert isinstance(attrs, DenseBlocksAttrs)
    depth = static_last_dim(data)
    if not isinstance(weight_expr, Constant) or depth is None:
        return call
    weight, row = weight_expr.data, BLOCK_FORMATS_BY_NAME[attrs.format]
    if FAMILIES[DENSE_BLOCKS_FAMILY].supports_target(target):
        size = MatmulSizes.from_dims(num_rows(data), len(weight), depth)
        panel = panel_width(DENSE_BLOCKS_FAMILY, size, target, call)
        packed = Constant(pack_blocks(weight, attrs.format, panel))
        how = attrs.format, len(weight), panel, attrs.activations
        product = op.nn.contrib_dense_blocks_pack(data, packed, *how)
    else:
        product = op.nn.dense(data, Constant(row.decode(weight)))
    checked = infer_new_types(product.with_fields(span=call.span))
    assert isinstance(checked, Call)
    return checked


def take_from_packed_blocks(call: Call, product: Call) -> Call:
    """Read rows of a weight from the packed form of a product.

    A table of tokens that is also a decoder's last layer is thus in memory once. The call itself is
    returned if the formats differ.
    """
    attrs: Attrs | None = call.attrs
    how: Attrs | None = product.attrs
    assert isinstance(attrs, BlocksAttrs)
    if not isinstance(how, DenseBlocksPackAttrs) or how.format != attrs.format:
        return call
    packed, indices = product.args[1], call.args[1]
    rows = op.nn.contrib_take_blocks_pack(packed, indices, how.format, how.units, how.panel)
    return rows.with_fields(span=call.span)
