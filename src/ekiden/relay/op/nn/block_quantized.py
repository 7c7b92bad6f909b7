"""Block-quantised weights (GGUF formats): dense layers and row lookup."""

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
    call_op,
    check_attrs,
    check_indices,
    check_min_rank,
    check_rank,
    check_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op.nn._macs import count_matmul_macs
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim, simplify_dim
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME, BlockFormat
from ekiden.topi.nn.block_quantized import PackedBlock, unpack_blocks

_DENSE_BLOCKS_OP, _TAKE_BLOCKS_OP, _DENSE_BLOCKS_PACK_OP = (
    "nn.dense_blocks",
    "nn.take_blocks",
    "nn.contrib_dense_blocks_pack",
)
_TAKE_BLOCKS_PACK_OP = "nn.contrib_take_blocks_pack"
ACTIVATION_DTYPES = ("int8", "float32")


@node("relay.attrs.BlocksAttrs")
class BlocksAttrs(Attrs):
    """Attributes of take_blocks: the block format (a name in `topi.nn.block_formats`)."""

    format: str = "q4_0"


@node("relay.attrs.DenseBlocksAttrs")
class DenseBlocksAttrs(Attrs):
    """Attributes of dense_blocks: the block format, and the activation dtype in kernels ("int8" in
    blocks of 32, or "float32").
    """

    format: str = "q4_0"
    activations: str = "int8"


def _lookup_format(name: str, format: str) -> BlockFormat:
    row = BLOCK_FORMATS_BY_NAME.get(format)
    if row is None:
        raise_type_error(
            name, f"format must be one of {', '.join(BLOCK_FORMATS_BY_NAME)}, got {format!r}"
        )
    return row


def _check_activations(name: str, activations: str) -> None:
    if activations not in ACTIVATION_DTYPES:
        raise_type_error(
            name, f"activations must be {' or '.join(ACTIVATION_DTYPES)}, got {activations!r}"
        )


def _check_dtype(name: str, what: str, kind: TensorType, dtype: str) -> None:
    if kind.dtype != dtype:
        raise_type_error(name, f"'{what}' must be {dtype}, got {kind.dtype}")


def _row_length(name: str, weight: TensorType, format: str) -> PrimExpr:
    """Check a block-quantised weight, and return the length of its rows."""
    row = _lookup_format(name, format)
    _check_dtype(name, "weight", weight, "uint8")
    check_rank(name, weight, 3, "weight")
    unify_dims(name, weight.shape[2], as_dim(row.block_bytes), f"the bytes of a block of {format}")
    # Blocks of a format hold a fixed number of values: the row's length follows.
    return simplify_dim(weight.shape[1] * row.values_per_block)


def _dense_blocks_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors(_DENSE_BLOCKS_OP, types, 2)
    settings = check_attrs(DenseBlocksAttrs, attrs)
    _check_dtype(_DENSE_BLOCKS_OP, "data", data, "float32")
    check_min_rank(_DENSE_BLOCKS_OP, data, 1, "data")
    depth = _row_length(_DENSE_BLOCKS_OP, weight, settings.format)
    _check_activations(_DENSE_BLOCKS_OP, settings.activations)
    unify_dims(
        _DENSE_BLOCKS_OP, data.shape[-1], depth, "the numbers of a row of 'data' and of 'weight'"
    )
    return TensorType((*data.shape[:-1], weight.shape[0]), "float32")


def _dense_blocks_reference(attrs: DenseBlocksAttrs, data: Array, weight: Array) -> Array:
    return np.asarray(data @ BLOCK_FORMATS_BY_NAME[attrs.format].decode(weight).T)


register_op(
    OpDef(
        name=_DENSE_BLOCKS_OP,
        arguments=("data", "weight"),
        attrs=DenseBlocksAttrs,
        relation=_dense_blocks_relation,
        reference=_dense_blocks_reference,
        macs=count_matmul_macs,
        lower=lambda attrs, inputs, out: [topi.nn.dense_blocks(inputs[0], inputs[1], attrs.format)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., n) of data (..., k) and a weight [n, blocks, bytes of a block]",
    )
)


def dense_blocks(data: Expr, weight: Expr, format: str = "q4_0", activations: str = "int8") -> Call:
    """Return data[..., k] times the transpose of a block-quantised weight in a GGUF format.

    Unless activations are "float32", processors that multiply bytes take data rounded to 8 bits in
    blocks of 32: each number is wrong by at most 1/254 of the largest of its block.
    """
    return call_op(_DENSE_BLOCKS_OP, data, weight, attrs=DenseBlocksAttrs(format, activations))


def _take_blocks_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    weight, indices = check_tensors(_TAKE_BLOCKS_OP, types, 2)
    depth = _row_length(_TAKE_BLOCKS_OP, weight, check_attrs(BlocksAttrs, attrs).format)
    if not is_int(indices.dtype):
        raise_type_error(_TAKE_BLOCKS_OP, f"'indices' must be integers, got {indices.dtype}")
    return TensorType((*indices.shape, depth), "float32")


def _take_blocks_reference(attrs: BlocksAttrs, weight: Array, indices: Array) -> Array:
    row = BLOCK_FORMATS_BY_NAME[attrs.format]
    shape = (*indices.shape, weight.shape[1] * row.values_per_block)
    if 0 in shape:  # nothing is read
        return np.empty(shape, np.float32)
    check_indices(_TAKE_BLOCKS_OP, indices, weight.shape[0], 0)
    return row.decode(weight[indices.astype(np.int64)])


register_op(
    OpDef(
        name=_TAKE_BLOCKS_OP,
        is_expensive=True,
        arguments=("weight", "indices"),
        attrs=BlocksAttrs,
        relation=_take_blocks_relation,
        reference=_take_blocks_reference,
        lower=lambda attrs, inputs, out: [topi.nn.take_blocks(inputs[0], inputs[1], attrs.format)],
        pattern=OpPattern.INJECTIVE,
        may_fail=True,
        result="(..., k): the rows of a weight [n, blocks, bytes of a block] at indices (...)",
    )
)


def take_blocks(weight: Expr, indices: Expr, format: str = "q4_0") -> Call:
    """Return dequantised float32 rows of a block-quantised weight in a GGUF format.

    Negative indices count from the end; those out of range are refused.
    """
    return call_op(_TAKE_BLOCKS_OP, weight, indices, attrs=BlocksAttrs(format))


@node("relay.attrs.DenseBlocksPackAttrs")
class DenseBlocksPackAttrs(Attrs):
    """Attributes of dense_blocks_pack: block format, number of units, rows per panel, activation
    dtype.
    """

    format: str = "q4_0"
    units: int = 0
    panel: int = 64
    activations: str = "int8"


def _packed_row_length(name: str, weight: TensorType, settings: DenseBlocksPackAttrs) -> PrimExpr:
    """Check a packed block-quantised weight, and return the length of its rows."""
    row = _lookup_format(name, settings.format)
    if settings.panel < 1:
        raise_type_error(name, f"panel must be positive, got {settings.panel}")
    _check_activations(name, settings.activations)
    _check_dtype(name, "weight", weight, "uint8")
    check_rank(name, weight, 3, "weight")
    size = PackedBlock(row, settings.panel).block_bytes
    unify_dims(name, weight.shape[2], as_dim(size), "the bytes of a block of a panel")
    # The last panel is filled up: the number of units cannot be read from the shape.
    panels = as_dim(-(-settings.units // settings.panel))
    unify_dims(name, panels, weight.shape[0], "the panels of 'units'")
    return simplify_dim(weight.shape[1] * row.values_per_block)


def _dense_blocks_pack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors(_DENSE_BLOCKS_PACK_OP, types, 2)
    settings = check_attrs(DenseBlocksPackAttrs, attrs)
    _check_dtype(_DENSE_BLOCKS_PACK_OP, "data", data, "float32")
    check_min_rank(_DENSE_BLOCKS_PACK_OP, data, 1, "data")
    depth = _packed_row_length(_DENSE_BLOCKS_PACK_OP, weight, settings)
    unify_dims(
        _DENSE_BLOCKS_PACK_OP,
        data.shape[-1],
        depth,
        "the numbers of a row of 'data' and of 'weight'",
    )
    return TensorType((*data.shape[:-1], as_dim(settings.units)), "float32")


def _dense_blocks_pack_reference(attrs: DenseBlocksPackAttrs, data: Array, weight: Array) -> Array:
    # The rows that fill up the last panel are cut off again.
    plain = unpack_blocks(weight, attrs.format, attrs.panel)[: attrs.units]
    return np.asarray(data @ plain.T)


def _lower_dense_blocks_pack(
    attrs: DenseBlocksPackAttrs, inputs: Sequence[Tensor], out: Type
) -> list[Tensor]:
    data, weight = inputs
    options = attrs.format, attrs.units, attrs.panel, attrs.activations
    return [topi.nn.dense_blocks_pack(data, weight, *options)]


register_op(
    OpDef(
        name=_DENSE_BLOCKS_PACK_OP,
        arguments=("data", "weight"),
        attrs=DenseBlocksPackAttrs,
        relation=_dense_blocks_pack_relation,
        reference=_dense_blocks_pack_reference,
        macs=count_matmul_macs,
        lower=_lower_dense_blocks_pack,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units)",
    )
)


def contrib_dense_blocks_pack(
    data: Expr, weight: Expr, format: str, units: int, panel: int, activations: str = "int8"
) -> Call:
    """Return `dense_blocks` with a weight packed by `topi.nn.block_quantized`."""
    attrs = DenseBlocksPackAttrs(format, units, panel, activations)
    return call_op(_DENSE_BLOCKS_PACK_OP, data, weight, attrs=attrs)


def _take_blocks_pack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    weight, indices = check_tensors(_TAKE_BLOCKS_PACK_OP, types, 2)
    depth = _packed_row_length(
        _TAKE_BLOCKS_PACK_OP, weight, check_attrs(DenseBlocksPackAttrs, attrs)
    )
    if not is_int(indices.dtype):
        raise_type_error(_TAKE_BLOCKS_PACK_OP, f"'indices' must be integers, got {indices.dtype}")
    return TensorType((*indices.shape, depth), "float32")


def _take_blocks_pack_reference(
    attrs: DenseBlocksPackAttrs, weight: Array, indices: Array
) -> Array:
    plain = unpack_blocks(weight, attrs.format, attrs.panel)[: attrs.units]
    if not indices.size:
        return np.empty((*indices.shape, plain.shape[1]), np.float32)
    # By the name of the plain operator: messages do not depend on packing.
    check_indices(_TAKE_BLOCKS_OP, indices, attrs.units, 0)
    return np.asarray(plain[indices.astype(np.int64)])


def _lower_take_blocks_pack(
    attrs: DenseBlocksPackAttrs, inputs: Sequence[Tensor], out: Type
) -> list[Tensor]:
    weight, indices = inputs
    return [topi.nn.take_blocks_pack(weight, indices, attrs.format, attrs.units, attrs.panel)]


register_op(
    OpDef(
        name=_TAKE_BLOCKS_PACK_OP,
        is_expensive=True,
        arguments=("weight", "indices"),
        attrs=DenseBlocksPackAttrs,
        relation=_take_blocks_pack_relation,
        reference=_take_blocks_pack_reference,
        lower=_lower_take_blocks_pack,
        pattern=OpPattern.INJECTIVE,
        may_fail=True,
        result="(..., k): the rows of a packed weight at indices (...)",
    )
)


def contrib_take_blocks_pack(
    weight: Expr, indices: Expr, format: str, units: int, panel: int
) -> Call:
    """Return `take_blocks` with a weight packed by `topi.nn.block_quantized`."""
    attrs = DenseBlocksPackAttrs(format, units, panel)
    return call_op(_TAKE_BLOCKS_PACK_OP, weight, indices, attrs=attrs)


__all__ = [
    "contrib_dense_blocks_pack", "contrib_take_blocks_pack", "dense_blocks", "take_blocks",
]  # fmt: skip
