"""nn.contrib_dense_nibbles, and the same with a packed weight and quantised data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import agree, attrs_of, call, fail, rank_at_least, rank_is, tensors
from ekiden.relay.op.nn._work import of_product
from ekiden.topi.dimensions import as_dim, tidy
from ekiden.topi.nn.nibbles import PANEL_ROWS, WORD_VALUES, unpack_nibbles, unpack_words

_NAME = "nn.contrib_dense_nibbles"
_PACKED = "nn.contrib_dense_nibbles_pack"


def _takes(name: str, kinds: Sequence[TensorType], dtypes: Sequence[str]) -> None:
    actual = [t.dtype for t in kinds]
    if actual != list(dtypes):
        fail(name, f"takes {', '.join(dtypes)}, got {', '.join(actual)}")


def _relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight, scale, point = kinds = tensors(_NAME, types, 4)
    _takes(_NAME, kinds, ("float32", "uint8", "float32", "uint8"))
    rank_at_least(_NAME, data, 1, "data")
    rank_is(_NAME, weight, 3, "weight")
    for parameter, what in ((scale, "scale"), (point, "point")):
        rank_is(_NAME, parameter, 2, what)
        for at in range(2):
            agree(
                _NAME, parameter.shape[at], weight.shape[at], f"'{what}' and the blocks of 'weight'"
            )
    block = weight.shape[2] * 2
    blocks = tidy((data.shape[-1] + (block - 1)) // block)
    agree(_NAME, blocks, weight.shape[1], "the blocks of 'data' and of 'weight'")
    return TensorType((*data.shape[:-1], weight.shape[0]), data.dtype)


def _reference(attrs: None, data: Array, weight: Array, scale: Array, point: Array) -> Array:
    levels = unpack_nibbles(weight).astype(np.float32) - point[..., None]
    plain = (levels * scale[..., None]).reshape(len(weight), -1)
    return np.asarray(data @ plain[:, : data.shape[-1]].T)


register_op(
    OpDef(
        name=_NAME,
        arguments=("data", "weight", "scale", "point"),
        relation=_relation,
        reference=_reference,
        macs=of_product,
        lower=lambda attrs, inputs, out: [topi.nn.dense_nibbles(*inputs)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., n) of data (..., k) and a weight [n, blocks, bytes of a block] of two numbers"
        " in a byte, with a scale and a zero point for each block",
    )
)


def contrib_dense_nibbles(data: Expr, weight: Expr, scale: Expr, point: Expr) -> Call:
    """Return data[..., k] times the transpose of (weight - point) * scale.

    On processors that multiply bytes, data is rounded to 8 bits for each block.
    """
    return call(_NAME, data, weight, scale, point)


@node("relay.attrs.DenseNibblesPackAttrs")
class DenseNibblesPackAttrs(Attrs):
    """The true number of results per row."""

    units: int = 0


def _packed_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    kinds = tensors(_PACKED, types, 6)
    data, step, total, weight = kinds[:4]
    _takes(_PACKED, kinds, ("int8", "float32", "int32", "int32", "float32", "uint8"))
    rank_is(_PACKED, weight, 4, "weight")
    agree(_PACKED, as_dim(PANEL_ROWS), weight.shape[3], "the rows of a panel of 'weight'")
    depth = tidy(weight.shape[1] * weight.shape[2] * WORD_VALUES)
    agree(_PACKED, data.shape[-1], depth, "the summed dimensions")
    for parameter, what in ((step, "step"), (total, "total")):
        agree(_PACKED, parameter.shape[-1], weight.shape[1], f"'{what}' and the blocks of 'weight'")
    units = attrs_of(DenseNibblesPackAttrs, attrs).units
    agree(_PACKED, as_dim(-(-units // PANEL_ROWS)), weight.shape[0], "the panels of 'units'")
    return TensorType((*data.shape[:-1], as_dim(units)), "float32")


def _packed_reference(
    attrs: DenseNibblesPackAttrs,
    data: Array,
    step: Array,
    total: Array,
    weight: Array,
    scale: Array,
    point: Array,
) -> Array:
    scales, points = (x.transpose(0, 2, 1).reshape(-1, x.shape[1], 1) for x in (scale, point))
    levels = (unpack_words(weight).astype(np.float32) - points) * scales
    blocks = data.reshape(*step.shape, weight.shape[2] * WORD_VALUES)
    values = blocks.astype(np.float32) * step[..., None]
    rows = values.reshape(data.shape)
    return np.asarray(rows @ levels.reshape(len(levels), -1)[: attrs.units].T)


register_op(
    OpDef(
        name=_PACKED,
        arguments=("data", "step", "total", "weight", "scale", "point"),
        attrs=DenseNibblesPackAttrs,
        relation=_packed_relation,
        reference=_packed_reference,
        macs=of_product,
        lower=lambda attrs, inputs, out: [topi.nn.dense_nibbles_pack(inputs, attrs.units)],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units)",
    )
)


def contrib_dense_nibbles_pack(
    data: Expr, step: Expr, total: Expr, weight: Expr, scale: Expr, point: Expr, units: int
) -> Call:
    """Return `contrib_dense_nibbles` of int8 data with a weight that `topi.nn.nibbles` packed.

    `step` and `total` are the step of each block of the data, and its sum.
    """
    attrs = DenseNibblesPackAttrs(units)
    return call(_PACKED, data, step, total, weight, scale, point, attrs=attrs)


__all__ = ["contrib_dense_nibbles", "contrib_dense_nibbles_pack"]
