"""Products with weights in blocks of few bits, and rows of such weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_int
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    agree,
    attrs_of,
    call,
    check_indices,
    fail,
    rank_at_least,
    rank_is,
    tensors,
)
from ekiden.relay.op.nn._work import of_product
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim, tidy
from ekiden.topi.nn.block_formats import BLOCK_FORMATS, BlockFormat
from ekiden.topi.nn.blocks import PackedBlock, unpack_blocks

_DENSE, _TAKE, _PACKED = "nn.dense_blocks", "nn.take_blocks", "nn.contrib_dense_blocks_pack"
_TAKE_PACKED = "nn.contrib_take_blocks_pack"
ACTIVATIONS = ("int8", "float32")


@node("relay.attrs.BlocksAttrs")
class BlocksAttrs(Attrs):
    """The format of the weight: a name of `topi.nn.block_formats`."""

    format: str = "q4_0"


@node("relay.attrs.DenseBlocksAttrs")
class DenseBlocksAttrs(Attrs):
    """The format of the weight: a name of `topi.nn.block_formats`; and what kernels may take data
    as: "int8" for numbers rounded to 8 bits in blocks of 32, or "float32".
    """

    format: str = "q4_0"
    activations: str = "int8"


def _row(name: str, format: str) -> BlockFormat:
    row = BLOCK_FORMATS.get(format)
    if row is None:
        fail(name, f"format must be one of {', '.join(BLOCK_FORMATS)}, got {format!r}")
    return row


def _check_activations(name: str, activations: str) -> None:
    if activations not in ACTIVATIONS:
        fail(name, f"activations must be {' or '.join(ACTIVATIONS)}, got {activations!r}")


def _takes(name: str, what: str, kind: TensorType, dtype: str) -> None:
    if kind.dtype != dtype:
        fail(name, f"'{what}' must be {dtype}, got {kind.dtype}")


def _depth(name: str, weight: TensorType, format: str) -> PrimExpr:
    """Return the length of a row of a plain weight, which is checked."""
    row = _row(name, format)
    _takes(name, "weight", weight, "uint8")
    rank_is(name, weight, 3, "weight")
    agree(name, weight.shape[2], as_dim(row.size), f"the bytes of a block of {format}")
    return tidy(weight.shape[1] * row.values)


def _dense_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors(_DENSE, types, 2)
    settings = attrs_of(DenseBlocksAttrs, attrs)
    _takes(_DENSE, "data", data, "float32")
    rank_at_least(_DENSE, data, 1, "data")
    depth = _depth(_DENSE, weight, settings.format)
    _check_activations(_DENSE, settings.activations)
    agree(_DENSE, data.shape[-1], depth, "the numbers of a row of 'data' and of 'weight'")
    return TensorType((*data.shape[:-1], weight.shape[0]), "float32")


def _dense_reference(attrs: DenseBlocksAttrs, data: Array, weight: Array) -> Array:
    return np.asarray(data @ BLOCK_FORMATS[attrs.format].decode(weight).T)


register_op(
    OpDef(
        name=_DENSE,
        arguments=("data", "weight"),
        attrs=DenseBlocksAttrs,
        relation=_dense_relation,
        reference=_dense_reference,
        macs=of_product,
        lower=lambda attrs, inputs, out: [topi.nn.dense_blocks(inputs[0], inputs[1], attrs.format)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., n) of data (..., k) and a weight [n, blocks, bytes of a block]",
    )
)


def dense_blocks(data: Expr, weight: Expr, format: str = "q4_0", activations: str = "int8") -> Call:
    """Return data[..., k] times the transpose of a weight in blocks of a format of GGUF files.

    Unless activations are "float32", processors that multiply bytes take data rounded to 8 bits in
    blocks of 32: each number is wrong by at most 1/254 of the largest of its block.
    """
    return call(_DENSE, data, weight, attrs=DenseBlocksAttrs(format, activations))


def _take_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    weight, indices = tensors(_TAKE, types, 2)
    depth = _depth(_TAKE, weight, attrs_of(BlocksAttrs, attrs).format)
    if not is_int(indices.dtype):
        fail(_TAKE, f"'indices' must be integers, got {indices.dtype}")
    return TensorType((*indices.shape, depth), "float32")


def _take_reference(attrs: BlocksAttrs, weight: Array, indices: Array) -> Array:
    row = BLOCK_FORMATS[attrs.format]
    shape = (*indices.shape, weight.shape[1] * row.values)
    if 0 in shape:  # nothing is read
        return np.empty(shape, np.float32)
    check_indices(_TAKE, indices, weight.shape[0], 0)
    return row.decode(weight[indices.astype(np.int64)])


register_op(
    OpDef(
        name=_TAKE,
        costly=True,
        arguments=("weight", "indices"),
        attrs=BlocksAttrs,
        relation=_take_relation,
        reference=_take_reference,
        lower=lambda attrs, inputs, out: [topi.nn.take_blocks(inputs[0], inputs[1], attrs.format)],
        pattern=OpPattern.INJECTIVE,
        refuses=True,
        result="(..., k): the rows of a weight [n, blocks, bytes of a block] at indices (...)",
    )
)


def take_blocks(weight: Expr, indices: Expr, format: str = "q4_0") -> Call:
    """Return rows of a weight in blocks of a format of GGUF files, as float32.

    Negative indices count from the end; those out of range are refused.
    """
    return call(_TAKE, weight, indices, attrs=BlocksAttrs(format))


@node("relay.attrs.DenseBlocksPackAttrs")
class DenseBlocksPackAttrs(Attrs):
    """The format of the weight, the true number of results per row, the rows of a panel, and what
    kernels may take data as.
    """

    format: str = "q4_0"
    units: int = 0
    panel: int = 64
    activations: str = "int8"


def _packed_depth(name: str, weight: TensorType, settings: DenseBlocksPackAttrs) -> PrimExpr:
    """Return the length of a row of a packed weight, which is checked."""
    row = _row(name, settings.format)
    if settings.panel < 1:
        fail(name, f"panel must be positive, got {settings.panel}")
    _check_activations(name, settings.activations)
    _takes(name, "weight", weight, "uint8")
    rank_is(name, weight, 3, "weight")
    size = PackedBlock(row, settings.panel).size
    agree(name, weight.shape[2], as_dim(size), "the bytes of a block of a panel")
    panels = as_dim(-(-settings.units // settings.panel))
    agree(name, panels, weight.shape[0], "the panels of 'units'")
    return tidy(weight.shape[1] * row.values)


def _packed_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors(_PACKED, types, 2)
    settings = attrs_of(DenseBlocksPackAttrs, attrs)
    _takes(_PACKED, "data", data, "float32")
    rank_at_least(_PACKED, data, 1, "data")
    depth = _packed_depth(_PACKED, weight, settings)
    agree(_PACKED, data.shape[-1], depth, "the numbers of a row of 'data' and of 'weight'")
    return TensorType((*data.shape[:-1], as_dim(settings.units)), "float32")


def _packed_reference(attrs: DenseBlocksPackAttrs, data: Array, weight: Array) -> Array:
    plain = unpack_blocks(weight, attrs.format, attrs.panel)[: attrs.units]
    return np.asarray(data @ plain.T)


def _packed_lower(attrs: DenseBlocksPackAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    data, weight = inputs
    options = attrs.format, attrs.units, attrs.panel, attrs.activations
    return [topi.nn.dense_blocks_pack(data, weight, *options)]


register_op(
    OpDef(
        name=_PACKED,
        arguments=("data", "weight"),
        attrs=DenseBlocksPackAttrs,
        relation=_packed_relation,
        reference=_packed_reference,
        macs=of_product,
        lower=_packed_lower,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units)",
    )
)


def contrib_dense_blocks_pack(
    data: Expr, weight: Expr, format: str, units: int, panel: int, activations: str = "int8"
) -> Call:
    """Return `dense_blocks` with a weight that `topi.nn.blocks` packed."""
    attrs = DenseBlocksPackAttrs(format, units, panel, activations)
    return call(_PACKED, data, weight, attrs=attrs)


def _take_packed_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    weight, indices = tensors(_TAKE_PACKED, types, 2)
    depth = _packed_depth(_TAKE_PACKED, weight, attrs_of(DenseBlocksPackAttrs, attrs))
    if not is_int(indices.dtype):
        fail(_TAKE_PACKED, f"'indices' must be integers, got {indices.dtype}")
    return TensorType((*indices.shape, depth), "float32")


def _take_packed_reference(attrs: DenseBlocksPackAttrs, weight: Array, indices: Array) -> Array:
    plain = unpack_blocks(weight, attrs.format, attrs.panel)[: attrs.units]
    if not indices.size:
        return np.empty((*indices.shape, plain.shape[1]), np.float32)
    check_indices(_TAKE, indices, attrs.units, 0)
    return np.asarray(plain[indices.astype(np.int64)])


def _take_packed_lower(
    attrs: DenseBlocksPackAttrs, inputs: Sequence[Tensor], out: Type
) -> list[Tensor]:
    weight, indices = inputs
    return [topi.nn.take_blocks_pack(weight, indices, attrs.format, attrs.units, attrs.panel)]


register_op(
    OpDef(
        name=_TAKE_PACKED,
        costly=True,
        arguments=("weight", "indices"),
        attrs=DenseBlocksPackAttrs,
        relation=_take_packed_relation,
        reference=_take_packed_reference,
        lower=_take_packed_lower,
        pattern=OpPattern.INJECTIVE,
        refuses=True,
        result="(..., k): the rows of a packed weight at indices (...)",
    )
)


def contrib_take_blocks_pack(
    weight: Expr, indices: Expr, format: str, units: int, panel: int
) -> Call:
    """Return `take_blocks` of a weight that `topi.nn.blocks` packed."""
    attrs = DenseBlocksPackAttrs(format, units, panel)
    return call(_TAKE_PACKED, weight, indices, attrs=attrs)


__all__ = [
    "contrib_dense_blocks_pack", "contrib_take_blocks_pack", "dense_blocks", "take_blocks",
]  # fmt: skip
