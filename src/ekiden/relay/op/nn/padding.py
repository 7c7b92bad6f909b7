"""Padding.

constant puts a value around, edge the nearest element, reflect mirrors without the border element,
wrap goes on at the other end; each as often as the widths ask for. Widths below 0 crop, in every
mode: a pad by (1, -1) moves elements though the shape stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, TransposeRule, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_tensors,
    raise_type_error,
)
from ekiden.relay.op.dynamic import call_dynamic, constant_value
from ekiden.relay.op.dynamic_pad import PAD_MODES, DynPadAttrs, pad_or_crop
from ekiden.topi.dimensions import (
    Dim,
    as_ints,
    as_shape,
    is_unknown_dim,
    simplify_dim,
    to_attr_dims,
)
from ekiden.topi.nn.padding import pad_by_mode, require_nonempty


@node("relay.attrs.PadAttrs")
class PadAttrs(Attrs):
    """Attributes of nn.pad: (before, after) per axis, possibly symbolic; mode "constant", "edge",
    "reflect" or "wrap".
    """

    pad_width: tuple[tuple[Dim, ...], ...] = ()
    pad_mode: str = "constant"


def _pad_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, pad_value = check_tensors("nn.pad", types, 2)
    settings = check_attrs(PadAttrs, attrs)
    check_rank("nn.pad", pad_value, 0, "pad_value")
    if len(settings.pad_width) != len(data.shape):
        raise_type_error(
            "nn.pad", f"pad_width must have {len(data.shape)} pairs, got {settings.pad_width}"
        )
    if any(len(pair) != 2 for pair in settings.pad_width):
        raise_type_error(
            "nn.pad", f"pad_width must have pairs (before, after), got {settings.pad_width}"
        )
    if settings.pad_mode not in PAD_MODES:
        raise_type_error(
            "nn.pad", f"pad_mode must be one of {', '.join(PAD_MODES)}, got {settings.pad_mode!r}"
        )
    pairs = [as_shape(p) for p in settings.pad_width]
    # A reflected border cannot be wider than what it reflects.
    if settings.pad_mode != "constant":
        call_shape_rule("nn.pad", require_nonempty, "nn.pad", data.shape, pairs)
    shape = tuple(
        d if is_unknown_dim(d) else simplify_dim(d + a + b)
        for d, (a, b) in zip(data.shape, pairs, strict=True)
    )
    return TensorType(shape, data.dtype)


def _pad_reference(attrs: PadAttrs, data: Array, pad_value: Array) -> Array:
    width = [as_ints(p) for p in attrs.pad_width]
    return pad_or_crop("nn.pad", data, width, attrs.pad_mode, pad_value)


register_op(
    OpDef(
        name="nn.pad",
        transpose_rule=TransposeRule.WIDTHS,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "pad_value"),
        attrs=PadAttrs,
        relation=_pad_relation,
        reference=_pad_reference,
        lower=lambda attrs, inputs, out: [
            pad_by_mode(
                inputs[0], inputs[1], [as_shape(p) for p in attrs.pad_width], attrs.pad_mode
            )
        ],
        pattern=OpPattern.INJECTIVE,
        result="data's shape with both pads added to each dimension, and its dtype, which"
        " pad_value is converted to",
    )
)


def pad(
    data: Expr,
    pad_width: Sequence[Sequence[Dim]] | Expr,
    pad_value: Expr | float = 0.0,
    pad_mode: str = "constant",
    dtype: str = "float32",
) -> Call:
    """Pad `data` with a value converted to its dtype, or by a mode.

    Negative widths crop. A number as `pad_value` takes `dtype` first; a constant of one element is
    its element.
    """
    value = pad_value if isinstance(pad_value, Expr) else const(pad_value, dtype)
    if isinstance(value, Constant) and value.data.ndim and value.data.size == 1:
        # TVM's frontends give the value as a tensor of one element.
        value = Constant(value.data.reshape(()))
    if (width := constant_value(pad_width)) is None:
        assert isinstance(pad_width, Expr)
        return call_dynamic("nn.pad", data, pad_width, value, attrs=DynPadAttrs(pad_mode))
    attrs = PadAttrs(tuple(to_attr_dims(p) for p in width), pad_mode)
    return call_op("nn.pad", data, value, attrs=attrs)


__all__ = ["pad"]
