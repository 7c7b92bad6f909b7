"""Operators that join tensors and take them apart: concatenate, stack, split.

    concatenate((a, b), axis)    extents along the axis add up, all others agree
    stack((a, b), axis)          a new axis, with one entry for each
    split(x, n) = n equal parts; split(x, (i, j)) = x[:i], x[i:j], x[j:]      as numpy.split

split is the inverse of concatenate, and each is the other's gradient. Kernels of both often vanish:
parts are written where they belong (ConcatenateInPlace), slices lie where they are (SliceInPlace).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, Transposes, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import (
    agree,
    attempt,
    attrs_of,
    call,
    fail,
    one_dtype,
    show,
    tensor_fields,
    tensors,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_attr,
    as_dim,
    as_ints,
    is_any,
    normalize_axis,
    replaced,
    tidy,
)
from ekiden.topi.slice import SliceRange, split_ranges


@node("relay.attrs.ConcatenateAttrs")
class ConcatenateAttrs(Attrs):
    """The axis to join along."""

    axis: int = 0


def _total(dims: Sequence[PrimExpr]) -> PrimExpr:
    unknown = next((d for d in dims if is_any(d)), None)
    if unknown is not None:
        return unknown
    total = as_dim(0)
    for dim in dims:
        total = total + dim
    return tidy(total)


def _concatenate_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = tensor_fields("concatenate", types)
    dtype, rank = one_dtype("concatenate", fields), len(fields[0].shape)
    if any(len(f.shape) != rank for f in fields):
        fail("concatenate", f"ranks must agree, got {', '.join(show(f.shape) for f in fields)}")
    at = attempt(
        "concatenate", normalize_axis, attrs_of(ConcatenateAttrs, attrs).axis, rank, "concatenate"
    )
    shape = list(fields[0].shape)
    for field in fields[1:]:
        for i, dim in enumerate(field.shape):
            shape[i] = (
                shape[i] if i == at else agree("concatenate", shape[i], dim, f"extents of axis {i}")
            )
    shape[at] = _total([f.shape[at] for f in fields])
    return TensorType(tuple(shape), dtype)


register_op(
    OpDef(
        name="concatenate",
        turns=Transposes.FIELDS,
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=ConcatenateAttrs,
        relation=_concatenate_relation,
        reference=lambda attrs, *data: np.concatenate(data, attrs.axis),
        lower=lambda attrs, inputs, out: [topi.concatenate(inputs, attrs.axis % inputs[0].ndim)],
        pattern=OpPattern.INJECTIVE,
        result="the shape of the first, with the extents along `axis` added up",
        variadic=True,
    )
)


def concatenate(data: Sequence[Expr] | Expr, axis: int) -> Call:
    """Return tensors (a sequence, or an expression of tuple type) joined along an axis."""
    return call("concatenate", as_tuple(data), attrs=ConcatenateAttrs(axis))


def as_tuple(data: Sequence[Expr] | Expr) -> Expr:
    """Return a tuple expression."""
    return Tuple(tuple(data)) if isinstance(data, Sequence) else data


@node("relay.attrs.StackAttrs")
class StackAttrs(Attrs):
    """The position of the new axis in the result."""

    axis: int = 0


def _stack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = tensor_fields("stack", types)
    dtype, shape = one_dtype("stack", fields), list(fields[0].shape)
    for field in fields[1:]:
        if len(field.shape) != len(shape):
            fail("stack", f"ranks must agree, got {', '.join(show(f.shape) for f in fields)}")
        shape = [
            agree("stack", a, b, f"extents of axis {i}")
            for i, (a, b) in enumerate(zip(shape, field.shape, strict=True))
        ]
    at = attempt("stack", normalize_axis, attrs_of(StackAttrs, attrs).axis, len(shape) + 1, "stack")
    return TensorType((*shape[:at], as_dim(len(fields)), *shape[at:]), dtype)


register_op(
    OpDef(
        name="stack",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=StackAttrs,
        relation=_stack_relation,
        reference=lambda attrs, *data: np.stack(data, attrs.axis),
        lower=lambda attrs, inputs, out: [topi.stack(inputs, attrs.axis % (inputs[0].ndim + 1))],
        pattern=OpPattern.INJECTIVE,
        result="the shape of one, with their number inserted at `axis`",
        variadic=True,
    )
)


def stack(data: Sequence[Expr] | Expr, axis: int = 0) -> Call:
    """Return tensors of one shape joined along a new axis."""
    return call("stack", as_tuple(data), attrs=StackAttrs(axis))


@node("relay.attrs.SplitAttrs")
class SplitAttrs(Attrs):
    """How many equal parts, or the positions to cut at; and the axis."""

    indices_or_sections: int | Dims = 1
    axis: int = 0


def _split_count(attrs: Attrs | None) -> int:
    cuts = attrs_of(SplitAttrs, attrs).indices_or_sections
    return cuts if isinstance(cuts, int) else len(cuts) + 1


def _split_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("split", types, 1)
    settings = attrs_of(SplitAttrs, attrs)
    at = attempt("split", normalize_axis, settings.axis, len(data.shape), "split")
    ranges = attempt("split", split_ranges, settings.indices_or_sections, data.shape[at])
    return TupleType(
        tuple(TensorType(replaced(data.shape, at, extent), data.dtype) for _, extent in ranges)
    )


def _split_reference(attrs: SplitAttrs, data: Array) -> tuple[Array, ...]:
    at = normalize_axis(attrs.axis, data.ndim, "split")
    ranges = [as_ints(r) for r in split_ranges(attrs.indices_or_sections, as_dim(data.shape[at]))]
    return tuple(np.take(data, range(begin, begin + extent), axis=at) for begin, extent in ranges)


def _split_boxes(attrs: SplitAttrs, shape: Sequence[PrimExpr]) -> list[list[SliceRange]]:
    at = normalize_axis(attrs.axis, len(shape), "split")
    full_ranges: list[SliceRange] = [(as_dim(0), 1, d) for d in shape]
    ranges = split_ranges(attrs.indices_or_sections, shape[at])
    return [[*full_ranges[:at], (b, 1, n), *full_ranges[at + 1 :]] for b, n in ranges]


def _split_lower(attrs: SplitAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    at = normalize_axis(attrs.axis, inputs[0].ndim, "split")
    return topi.split(inputs[0], attrs.indices_or_sections, at)


register_op(
    OpDef(
        name="split",
        turns=Transposes.PARTS,
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=SplitAttrs,
        relation=_split_relation,
        reference=_split_reference,
        lower=_split_lower,
        pattern=OpPattern.INJECTIVE,
        boxes=_split_boxes,
        result="a tuple of tensors that share data's extent along `axis`",
        fields=_split_count,
    )
)


def split(data: Expr, indices_or_sections: int | Sequence[Dim], axis: int = 0) -> Call:
    """Return a tuple of sections of `data` along an axis: equal ones, or cut at positions."""
    cuts = indices_or_sections
    return call(
        "split", data, attrs=SplitAttrs(cuts if isinstance(cuts, int) else as_attr(cuts), axis)
    )


__all__ = ["concatenate", "split", "stack"]
