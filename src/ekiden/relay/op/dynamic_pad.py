"""Padding with widths given as tensor arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, ShapeCheck
from ekiden.ir.prim import PrimExpr, cast, minimum
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import call_shape_rule, check_rank, raise_type_error
from ekiden.relay.op.dynamic import Dims, declare_dynamic_op, load_scalar, unknown_tensor_type
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import require_shape
from ekiden.topi.nn.padding import pad_by_mode


@node("relay.attrs.DynPadAttrs")
class DynPadAttrs(Attrs):
    """Attributes of dyn.nn.pad: the mode "constant", "edge", "reflect" or "wrap"."""

    pad_mode: str = "constant"
    symbols: tuple[PrimExpr, ...] = ()


def _pad_dims(attrs: DynPadAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, width, _ = buffers
    pairs = [(load_scalar(width, i, 0), load_scalar(width, i, 1)) for i in range(len(data.shape))]
    dims = [d + a + b for d, (a, b) in zip(data.shape, pairs, strict=True)]
    if attrs.pad_mode == "constant":
        return dims, []
    # Negative widths crop first: what is left is what edge, reflect and wrap read.
    uncropped = [
        d + minimum(a, 0) + minimum(b, 0) for d, (a, b) in zip(data.shape, pairs, strict=True)
    ]
    return dims, [
        ShapeCheck(n > 0, "there is nothing that borders show", {"left": n}) for n in uncropped
    ]


def _pad_lower(attrs: DynPadAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    data, width, value = inputs
    pairs = [tuple(cast(width[i, n], "int64") for n in range(2)) for i in range(data.ndim)]
    return [pad_by_mode(data, value, pairs, attrs.pad_mode, out.shape)]


PAD_MODES = ("constant", "edge", "reflect", "wrap")
"""Padding modes: constant, edge, reflect, and wrap (not in TVM)."""


def padded(data: Array, width: Sequence[Sequence[int]] | Array, mode: str) -> Array:
    """Pad `data` by a mode without a fill value."""
    return np.pad(data, width, mode=mode)  # type: ignore[call-overload,no-any-return]


def pad_or_crop(
    name: str, data: Array, width: Sequence[Sequence[int]], mode: str, value: Array
) -> Array:
    """Pad `data` by a mode; negative widths crop, even beyond the extent.

    Raises:
        InputError: An axis has no elements to crop or to repeat.
    """
    pairs = list(zip(data.shape, width, strict=True))
    shape = [d + a + b for d, (a, b) in pairs]
    if min(shape, default=0) < 0:
        raise InputError(f"run: {name}: a dimension of the result is negative; it is {min(shape)}")
    # A crop beyond the extent leaves nothing: the slice must not run backwards.
    cropped = [slice(max(0, -a), max(0, -a, min(d, d + b))) for d, (a, b) in pairs]
    if mode != "constant":
        if not data[tuple(cropped)].size and data.size:
            raise InputError(f"run: {name}: borders of mode {mode!r} around nothing")
        return padded(data[tuple(cropped)], [(max(0, a), max(0, b)) for _, (a, b) in pairs], mode)
    # np.pad takes no negative widths; here they only move the slices.
    bordered_data = np.full(shape, value, data.dtype)
    # The position of the cropped data within the result.
    moved = [slice(k.start + a, k.stop + a) for k, (_, (a, _)) in zip(cropped, pairs, strict=True)]
    bordered_data[tuple(moved)] = data[tuple(cropped)]
    return bordered_data


def _pad_reference(attrs: DynPadAttrs, data: Array, width: Array, value: Array) -> Array:
    return pad_or_crop("dyn.nn.pad", data, width.tolist(), attrs.pad_mode, value)


def _pad_type(attrs: DynPadAttrs, types: Sequence[TensorType]) -> TensorType:
    data, width, value = types
    rank = len(data.shape)
    call_shape_rule("dyn.nn.pad", require_shape, "dyn.nn.pad", "pad_width", width.shape, (rank, 2))
    check_rank("dyn.nn.pad", value, 0, "pad_value")
    if attrs.pad_mode not in PAD_MODES:
        modes = ", ".join(PAD_MODES)
        raise_type_error("dyn.nn.pad", f"pad_mode must be one of {modes}, got {attrs.pad_mode!r}")
    return unknown_tensor_type(rank, data.dtype)


declare_dynamic_op(
    "dyn.nn.pad",
    ("data", "pad_width", "pad_value"),
    DynPadAttrs,
    _pad_type,
    _pad_dims,
    _pad_lower,
    _pad_reference,
    "data's shape with both pads added to each dimension",
    sizes=(1,),
)


__all__ = ["PAD_MODES", "DynPadAttrs", "pad_or_crop", "padded"]
