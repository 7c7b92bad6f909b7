"""Dense layers with int4 weights: contrib_dense_nibbles, also with packed weights and int8 data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    check_attrs,
    check_min_rank,
    check_rank,
    check_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op.nn._macs import count_matmul_macs
from ekiden.topi.dimensions import as_dim, simplify_dim
from ekiden.topi.nn.int4_dense import ROWS_PER_PANEL, VALUES_PER_WORD, unpack_nibbles, unpack_panels

_DENSE_NIBBLES_OP = "nn.contrib_dense_nibbles"
_DENSE_NIBBLES_PACK_OP = "nn.contrib_dense_nibbles_pack"


def _check_dtypes(name: str, kinds: Sequence[TensorType], dtypes: Sequence[str]) -> None:
    actual = [t.dtype for t in kinds]
    if actual != list(dtypes):
        raise_type_error(name, f"takes {', '.join(dtypes)}, got {', '.join(actual)}")


def _dense_nibbles_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight, scale, point = kinds = check_tensors(_DENSE_NIBBLES_OP, types, 4)
    _check_dtypes(_DENSE_NIBBLES_OP, kinds, ("float32", "uint8", "float32", "uint8"))
    check_min_rank(_DENSE_NIBBLES_OP, data, 1, "data")
    check_rank(_DENSE_NIBBLES_OP, weight, 3, "weight")
    for parameter, what in ((scale, "scale"), (point, "point")):
        check_rank(_DENSE_NIBBLES_OP, parameter, 2, what)
        for position in range(2):
            unify_dims(
                _DENSE_NIBBLES_OP,
                parameter.shape[position],
                weight.shape[position],
                f"'{what}' and the blocks of 'weight'",
            )
    # Two numbers of 4 bits in each byte.
    block = weight.shape[2] * 2
    # The last block may be longer than the data, which counts as 0 there.
    blocks = simplify_dim((data.shape[-1] + (block - 1)) // block)
    unify_dims(_DENSE_NIBBLES_OP, blocks, weight.shape[1], "the blocks of 'data' and of 'weight'")
    return TensorType((*data.shape[:-1], weight.shape[0]), data.dtype)


def _dense_nibbles_reference(
    attrs: None, data: Array, weight: Array, scale: Array, point: Array
) -> Array:
    levels = unpack_nibbles(weight).astype(np.float32) - point[..., None]
    plain = (levels * scale[..., None]).reshape(len(weight), -1)
    # The last block is filled up to its full length.
    return np.asarray(data @ plain[:, : data.shape[-1]].T)


register_op(
    OpDef(
        name=_DENSE_NIBBLES_OP,
        arguments=("data", "weight", "scale", "point"),
        relation=_dense_nibbles_relation,
        reference=_dense_nibbles_reference,
        macs=count_matmul_macs,
        lower=lambda attrs, inputs, out: [topi.nn.dense_nibbles(*inputs)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., n) of data (..., k) and a weight [n, blocks, bytes of a block] of two numbers"
        " in a byte, with a scale and a zero point for each block",
    )
)


def contrib_dense_nibbles(data: Expr, weight: Expr, scale: Expr, point: Expr) -> Call:
    """Return data[..., k] times the transpose of the int4 weight (weight - point) * scale.

    On processors that multiply bytes, data is rounded to 8 bits for each block.
    """
    return call_op(_DENSE_NIBBLES_OP, data, weight, scale, point)


@node("relay.attrs.DenseNibblesPackAttrs")
class DenseNibblesPackAttrs(Attrs):
    """Attributes of contrib_dense_nibbles_pack: the number of units."""

    units: int = 0


def _dense_nibbles_pack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    kinds = check_tensors(_DENSE_NIBBLES_PACK_OP, types, 6)
    data, step, total, weight = kinds[:4]
    _check_dtypes(
        _DENSE_NIBBLES_PACK_OP, kinds, ("int8", "float32", "int32", "int32", "float32", "uint8")
    )
    check_rank(_DENSE_NIBBLES_PACK_OP, weight, 4, "weight")
    unify_dims(
        _DENSE_NIBBLES_PACK_OP,
        as_dim(ROWS_PER_PANEL),
        weight.shape[3],
        "the rows of a panel of 'weight'",
    )
    depth = simplify_dim(weight.shape[1] * weight.shape[2] * VALUES_PER_WORD)
    unify_dims(_DENSE_NIBBLES_PACK_OP, data.shape[-1], depth, "the summed dimensions")
    for parameter, what in ((step, "step"), (total, "total")):
        unify_dims(
            _DENSE_NIBBLES_PACK_OP,
            parameter.shape[-1],
            weight.shape[1],
            f"'{what}' and the blocks of 'weight'",
        )
    units = check_attrs(DenseNibblesPackAttrs, attrs).units
    unify_dims(
        _DENSE_NIBBLES_PACK_OP,
        as_dim(-(-units // ROWS_PER_PANEL)),
        weight.shape[0],
        "the panels of 'units'",
    )
    return TensorType((*data.shape[:-1], as_dim(units)), "float32")


def _dense_nibbles_pack_reference(
    attrs: DenseNibblesPackAttrs,
    data: Array,
    step: Array,
    total: Array,
    weight: Array,
    scale: Array,
    point: Array,
) -> Array:
    # From [panel, block, row] to a row for each result.
    scales, points = (x.transpose(0, 2, 1).reshape(-1, x.shape[1], 1) for x in (scale, point))
    levels = (unpack_panels(weight).astype(np.float32) - points) * scales
    blocks = data.reshape(*step.shape, weight.shape[2] * VALUES_PER_WORD)
    # Each block of a row of data has a step of its own.
    values = blocks.astype(np.float32) * step[..., None]
    rows = values.reshape(data.shape)
    return np.asarray(rows @ levels.reshape(len(levels), -1)[: attrs.units].T)


register_op(
    OpDef(
        name=_DENSE_NIBBLES_PACK_OP,
        arguments=("data", "step", "total", "weight", "scale", "point"),
        attrs=DenseNibblesPackAttrs,
        relation=_dense_nibbles_pack_relation,
        reference=_dense_nibbles_pack_reference,
        macs=count_matmul_macs,
        lower=lambda attrs, inputs, out: [topi.nn.dense_nibbles_pack(inputs, attrs.units)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units)",
    )
)


def contrib_dense_nibbles_pack(
    data: Expr, step: Expr, total: Expr, weight: Expr, scale: Expr, point: Expr, units: int
) -> Call:
    """Return `contrib_dense_nibbles` of int8 data with a weight packed by `topi.nn.int4_dense`.

    `step` and `total` are the step of each block of the data, and its sum.
    """
    attrs = DenseNibblesPackAttrs(units)
    return call_op(_DENSE_NIBBLES_PACK_OP, data, step, total, weight, scale, point, attrs=attrs)


__all__ = ["contrib_dense_nibbles", "contrib_dense_nibbles_pack"]
