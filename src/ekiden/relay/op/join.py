"""Joining and splitting operators: concatenate, stack, split.

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
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, TransposeRule, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_same_dtype,
    check_tensors,
    check_tuple_of_tensors,
    raise_type_error,
    shape_text,
    unify_dims,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_dim,
    as_ints,
    is_unknown_dim,
    normalize_axis,
    replace_dim,
    simplify_dim,
    to_attr_dims,
)
from ekiden.topi.slice import SliceRange, split_ranges


@node("relay.attrs.ConcatenateAttrs")
class ConcatenateAttrs(Attrs):
    """Attributes of concatenate: the axis."""

    axis: int = 0


def _sum_dims(dims: Sequence[PrimExpr]) -> PrimExpr:
    # A sum with an unknown term is unknown; an expression of it would claim to know more.
    unknown = next((d for d in dims if is_unknown_dim(d)), None)
    if unknown is not None:
        return unknown
    total = as_dim(0)
    for dim in dims:
        total = total + dim
    return simplify_dim(total)


def _concatenate_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = check_tuple_of_tensors("concatenate", types)
    dtype, rank = check_same_dtype("concatenate", fields), len(fields[0].shape)
    if any(len(f.shape) != rank for f in fields):
        raise_type_error(
            "concatenate",
            f"ranks must agree, got {', '.join(shape_text(f.shape) for f in fields)}",
        )
    axis_index = call_shape_rule(
        "concatenate",
        normalize_axis,
        check_attrs(ConcatenateAttrs, attrs).axis,
        rank,
        "concatenate",
    )
    shape = list(fields[0].shape)
    for field in fields[1:]:
        for i, dim in enumerate(field.shape):
            # An extent that one tensor knows becomes that of the result.
            shape[i] = (
                shape[i]
                if i == axis_index
                else unify_dims("concatenate", shape[i], dim, f"extents of axis {i}")
            )
    shape[axis_index] = _sum_dims([f.shape[axis_index] for f in fields])
    return TensorType(tuple(shape), dtype)


register_op(
    OpDef(
        name="concatenate",
        transpose_rule=TransposeRule.FIELDS,
        precision=PrecisionPolicy.FOLLOW,
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
    """Concatenate tensors (a sequence, or a tuple expression) along an axis."""
    return call_op("concatenate", to_tuple_expr(data), attrs=ConcatenateAttrs(axis))


def to_tuple_expr(data: Sequence[Expr] | Expr) -> Expr:
    """Return a tuple expression."""
    return Tuple(tuple(data)) if isinstance(data, Sequence) else data


@node("relay.attrs.StackAttrs")
class StackAttrs(Attrs):
    """Attributes of stack: the index of the new axis."""

    axis: int = 0


def _stack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = check_tuple_of_tensors("stack", types)
    dtype, shape = check_same_dtype("stack", fields), list(fields[0].shape)
    for field in fields[1:]:
        if len(field.shape) != len(shape):
            raise_type_error(
                "stack",
                f"ranks must agree, got {', '.join(shape_text(f.shape) for f in fields)}",
            )
        shape = [
            unify_dims("stack", a, b, f"extents of axis {i}")
            for i, (a, b) in enumerate(zip(shape, field.shape, strict=True))
        ]
    axis_index = call_shape_rule(
        "stack", normalize_axis, check_attrs(StackAttrs, attrs).axis, len(shape) + 1, "stack"
    )
    return TensorType((*shape[:axis_index], as_dim(len(fields)), *shape[axis_index:]), dtype)


register_op(
    OpDef(
        name="stack",
        precision=PrecisionPolicy.FOLLOW,
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
    """Stack tensors of equal shape along a new axis."""
    return call_op("stack", to_tuple_expr(data), attrs=StackAttrs(axis))


@node("relay.attrs.SplitAttrs")
class SplitAttrs(Attrs):
    """Attributes of split: the number of equal sections or the split indices, and the axis."""

    indices_or_sections: int | Dims = 1
    axis: int = 0


def _num_sections(attrs: Attrs | None) -> int:
    cuts = check_attrs(SplitAttrs, attrs).indices_or_sections
    return cuts if isinstance(cuts, int) else len(cuts) + 1


def _split_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("split", types, 1)
    settings = check_attrs(SplitAttrs, attrs)
    axis_index = call_shape_rule("split", normalize_axis, settings.axis, len(data.shape), "split")
    ranges = call_shape_rule(
        "split", split_ranges, settings.indices_or_sections, data.shape[axis_index]
    )
    return TupleType(
        tuple(
            TensorType(replace_dim(data.shape, axis_index, extent), data.dtype)
            for _, extent in ranges
        )
    )


def _split_reference(attrs: SplitAttrs, data: Array) -> tuple[Array, ...]:
    axis_index = normalize_axis(attrs.axis, data.ndim, "split")
    ranges = [
        as_ints(r) for r in split_ranges(attrs.indices_or_sections, as_dim(data.shape[axis_index]))
    ]
    return tuple(
        np.take(data, range(begin, begin + extent), axis=axis_index) for begin, extent in ranges
    )


def _section_ranges(attrs: SplitAttrs, shape: Sequence[PrimExpr]) -> list[list[SliceRange]]:
    axis_index = normalize_axis(attrs.axis, len(shape), "split")
    full_ranges: list[SliceRange] = [(as_dim(0), 1, d) for d in shape]
    ranges = split_ranges(attrs.indices_or_sections, shape[axis_index])
    # Each part reads a box of the argument, with which it may share memory.
    return [
        [*full_ranges[:axis_index], (b, 1, n), *full_ranges[axis_index + 1 :]] for b, n in ranges
    ]


def _lower_split(attrs: SplitAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    axis_index = normalize_axis(attrs.axis, inputs[0].ndim, "split")
    return topi.split(inputs[0], attrs.indices_or_sections, axis_index)


register_op(
    OpDef(
        name="split",
        transpose_rule=TransposeRule.PARTS,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        attrs=SplitAttrs,
        relation=_split_relation,
        reference=_split_reference,
        lower=_lower_split,
        pattern=OpPattern.INJECTIVE,
        boxes=_section_ranges,
        result="a tuple of tensors that share data's extent along `axis`",
        fields=_num_sections,
    )
)


def split(data: Expr, indices_or_sections: int | Sequence[Dim], axis: int = 0) -> Call:
    """Split `data` along an axis into equal sections or at indices; return a tuple."""
    cuts = indices_or_sections
    return call_op(
        "split", data, attrs=SplitAttrs(cuts if isinstance(cuts, int) else to_attr_dims(cuts), axis)
    )


__all__ = ["concatenate", "split", "stack"]
