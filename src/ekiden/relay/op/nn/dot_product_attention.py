"""Scaled dot-product attention operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, Shapes, register_op
from ekiden.ir.prim import IntImm, PrimExpr, is_const
from ekiden.ir.type import TensorType, Type
from ekiden.kernels.attention.attention_config import CAUSAL_MODES, AttentionConfig
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import (
    call_op,
    check_attrs,
    check_rank,
    check_same_dtype,
    check_tuple_of_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op.nn._macs import multiply_dims
from ekiden.topi.nn.dot_product_attention import attention as attend
from ekiden.topi.nn.dot_product_attention import attention_shape

_ATTENTION_OP = "nn.attention"


@node("relay.attrs.AttentionAttrs")
class AttentionAttrs(Attrs):
    """Attributes of nn.attention: scale (None: 1 / sqrt(depth)), masking, soft cap, layouts.
    causal: "" for all keys, "start" for key j <= query i, "end" for j <= i + keys - queries.
    softcap: scores become softcap * tanh(score / softcap) before the bias, 0 for not. Layouts:
    the order of the axes batch, head, sequence, depth of query, key, value and result.
    nan_as_zero: shares that are NaN, as those of a row without keys, are 0.
    """

    scale: float | None = None
    causal: str = ""
    softcap: float = 0.0
    query_layout: str = "bhsd"
    key_layout: str = "bhsd"
    value_layout: str = "bhsd"
    out_layout: str = "bhsd"
    nan_as_zero: bool = False

    @property
    def heads(self) -> AttentionConfig:
        """Return the attributes as the kernel's AttentionConfig."""
        layouts = (self.query_layout, self.key_layout, self.value_layout, self.out_layout)
        return AttentionConfig(layouts, self.scale, self.causal, self.softcap, self.nan_as_zero)


def _check_operands(heads: AttentionConfig, operands: Sequence[TensorType]) -> None:
    if len(operands) not in (3, 4):
        raise_type_error(
            _ATTENTION_OP,
            f"expected query, key, value and perhaps a bias, got {len(operands)} tensors",
        )
    if check_same_dtype(_ATTENTION_OP, operands) != "float32":
        raise_type_error(_ATTENTION_OP, f"tensors must be float32, got {operands[0].dtype}")
    # Not strict: the bias may be missing.
    for what, kind in zip(("query", "key", "value", "bias"), operands, strict=False):
        check_rank(_ATTENTION_OP, kind, 4, what)
    for layout in heads.layouts:
        if sorted(layout) != sorted("bhsd"):
            raise_type_error(
                _ATTENTION_OP, f"a layout is an order of the letters b, h, s, d; got {layout!r}"
            )
    if heads.causal not in CAUSAL_MODES:
        raise_type_error(
            _ATTENTION_OP,
            f"causal must be one of {', '.join(map(repr, CAUSAL_MODES))}; got {heads.causal!r}",
        )


def _attention_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    heads, operands = (
        check_attrs(AttentionAttrs, attrs).heads,
        check_tuple_of_tensors(_ATTENTION_OP, types),
    )
    _check_operands(heads, operands)
    query, key, value = (
        dict(zip(layout, kind.shape, strict=True))
        for layout, kind in zip(heads.layouts[:3], operands[:3], strict=True)
    )
    unify_dims(_ATTENTION_OP, query["b"], key["b"], "the batches of 'query' and 'key'")
    unify_dims(_ATTENTION_OP, query["d"], key["d"], "the depths of 'query' and 'key'")
    for axis, what in (("b", "batches"), ("h", "heads"), ("s", "lengths")):
        unify_dims(_ATTENTION_OP, key[axis], value[axis], f"the {what} of 'key' and 'value'")
    # Grouped-query attention: several query heads share one head of keys and values.
    query_heads, few = query["h"], key["h"]
    if isinstance(query_heads, IntImm) and isinstance(few, IntImm):
        if few.value == 0 or query_heads.value % few.value:
            raise_type_error(
                _ATTENTION_OP,
                f"{query_heads.value} heads of 'query' are no multiple of {few.value} of 'key'",
            )
    else:
        unify_dims(_ATTENTION_OP, query_heads, few, "the heads of 'query' and 'key'")
    if not isinstance(value["d"], IntImm):
        raise_type_error(_ATTENTION_OP, "the depth of 'value' must be a number")
    if heads.scale is None and not isinstance(query["d"], IntImm):
        raise_type_error(
            _ATTENTION_OP, "the depth of 'query' must be a number where no scale is given"
        )
    if heads.scale is None and is_const(query["d"], 0):
        raise_type_error(_ATTENTION_OP, "a scale must be given where the depth of 'query' is 0")
    if len(operands) == 4:
        dims = (query["b"], query["h"], query["s"], key["s"])
        for actual, expected in zip(operands[3].shape, dims, strict=True):
            # A bias of extent 1 broadcasts.
            if not is_const(actual, 1):
                unify_dims(
                    _ATTENTION_OP, actual, expected, "the shape of 'bias' and that of the scores"
                )
    shape = attention_shape(heads, operands[0].shape, operands[2].shape)
    return TensorType(shape, operands[0].dtype)


def _attention_reference(attrs: AttentionAttrs, *arrays: Array) -> Array:
    heads = attrs.heads
    query, key, value = (
        array.transpose([layout.index(axis) for axis in "bhsd"])
        for array, layout in zip(arrays[:3], heads.layouts[:3], strict=True)
    )
    # Neighbouring query heads share one head of key and value.
    groups = query.shape[1] // key.shape[1]
    key, value = (np.repeat(array, groups, axis=1) for array in (key, value))
    scale = heads.scale if heads.scale is not None else 1 / math.sqrt(query.shape[-1])
    scores = query @ key.swapaxes(-1, -2) * np.float32(scale)
    if heads.softcap:
        # Soft capping bounds the scores smoothly (Gemma 2).
        scores = np.tanh(scores / np.float32(heads.softcap)) * np.float32(heads.softcap)
    if len(arrays) > 3:
        scores = scores + arrays[3]
    rows, columns = scores.shape[-2:]
    if heads.causal:
        # "end" aligns the last query with the last key, as decoding with a cache needs.
        shift = columns - rows if heads.causal == "end" else 0
        visible = np.tri(rows, columns, shift, dtype=bool)
        scores = np.where(visible, scores, np.float32(-np.inf))
    with np.errstate(invalid="ignore"):
        # A row whose keys are all masked is NaN, unless the attributes ask for 0.
        shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        total = shares.sum(-1, keepdims=True)
        if heads.nan_as_zero:
            is_none = np.isnan(total) | (total == 0)  # which no keys give
            shares = np.where(is_none, np.float32(0), shares)
            # Divided by infinity, rows without keys become 0.
            total = np.where(is_none, np.float32(np.inf), total)
        mixed = (shares @ value) / total
    return np.ascontiguousarray(mixed.transpose(["bhsd".index(a) for a in heads.layouts[3]]))


def _attention_macs(attrs: AttentionAttrs, shapes: Shapes, result: Sequence[PrimExpr]) -> PrimExpr:
    """Return the MACs of the scores and of the weighted values, masked ones included."""
    layouts = attrs.heads.layouts[:3]
    pairs = zip(layouts, shapes, strict=False)
    query, key, value = (dict(zip(layout, shape, strict=True)) for layout, shape in pairs)
    scores = multiply_dims([query["b"], query["h"], query["s"], key["s"]])
    # Both products have the scores' shape as rows: one over the depth of queries, one over that of
    # values.
    return scores * (query["d"] + value["d"])


register_op(
    OpDef(
        name=_ATTENTION_OP,
        arguments=("data",),
        attrs=AttentionAttrs,
        relation=_attention_relation,
        reference=_attention_reference,
        lower=lambda attrs, inputs, out: [attend(attrs.heads, inputs)],
        macs=_attention_macs,
        variadic=True,
        result="as the query, with the depth of a value, in out_layout",
        description="softmax(query * key^T * scale + bias) * value for each head.",
    )
)


def attention(
    query: Expr,
    key: Expr,
    value: Expr,
    bias: Expr | None = None,
    scale: float | None = None,
    causal: str = "",
    softcap: float = 0.0,
    layouts: tuple[str, str, str, str] = ("bhsd", "bhsd", "bhsd", "bhsd"),
    nan_as_zero: bool = False,
) -> Call:
    """Return softmax(query * key^T * scale + bias) * value per head, in float32, as one kernel.

    query [b, h, s, d], key [b, g, t, d] and value [b, g, t, e] give [b, h, s, e].

    Args:
        query: The queries; h must be a multiple of g.
        key: The keys; neighbouring query heads share a key head.
        value: The values.
        bias: Broadcasts to [b, h, s, t].
        scale: The factor of scores; 1 / sqrt(d) by default.
        causal: Hides keys: "start" those with j > i, "end" those with j > i + t - s.
        softcap: Bends scores before the bias.
        layouts: The orders of axes of query, key, value and result.
        nan_as_zero: Make a row without keys 0 rather than NaN.
    """
    operands = (query, key, value, *(() if bias is None else (bias,)))
    attrs = AttentionAttrs(scale, causal, softcap, *layouts, nan_as_zero)
    return call_op(_ATTENTION_OP, Tuple(operands), attrs=attrs)


__all__ = ["attention"]
