"""Running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, attrs_of, call, tensors
from ekiden.te import Tensor
from ekiden.topi.shape import normalize_axis, product


@node("relay.attrs.CumsumAttrs")
class ScanAttrs(Attrs):
    """The axis (None: over the flattened data), the dtype to add in, and whether to leave out the
    element itself."""

    axis: int | None = None
    dtype: str = ""
    exclusive: bool = False


def _cumsum_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("cumsum", types, 1)
    wanted = attrs_of(ScanAttrs, attrs)
    dtype = wanted.dtype or data.dtype
    if wanted.axis is None:
        return TensorType((product(data.shape),), dtype)
    attempt("cumsum", normalize_axis, wanted.axis, len(data.shape), "cumsum")
    return TensorType(data.shape, dtype)


def _cumsum_reference(attrs: ScanAttrs, data: Array) -> Array:
    summed = np.cumsum(data, attrs.axis, dtype=attrs.dtype or data.dtype)
    flat = data.reshape(summed.shape).astype(summed.dtype)
    return np.asarray(summed - flat if attrs.exclusive else summed)


def _cumsum_lower(attrs: ScanAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    data, axis = inputs[0], 0 if attrs.axis is None else attrs.axis % inputs[0].ndim
    flat = topi.reshape(data, out.shape) if attrs.axis is None and data.ndim != 1 else data
    return [topi.cumsum(flat, axis, out.dtype, attrs.exclusive)]


register_op(
    OpDef(
        name="cumsum",
        arguments=("data",),
        attrs=ScanAttrs,
        relation=_cumsum_relation,
        reference=_cumsum_reference,
        lower=_cumsum_lower,
        pattern=OpPattern.OPAQUE,
        result="the type of data, with `dtype`, if given",
    )
)


def cumsum(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Running sums along an axis."""
    return call("cumsum", data, attrs=ScanAttrs(axis, dtype, exclusive))
