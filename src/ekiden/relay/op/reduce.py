"""Reduction operators.

Axes are counted from the end when negative; `axis=()` reduces none, None all. What is reduced has
the neutral element's value where there is nothing: 0, 1, the least and the greatest number of the
dtype, true, false; a mean of nothing is NaN, or 0 of integers, and a position of nothing a type
error.

Sums of float16 and bfloat16 are added up in float32 and rounded once; integers wrap around. The
order of summing is the kernel's: by vectors and threads, so that the last bits of a sum are not
NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float
from ekiden.ir.node import node
from ekiden.ir.op import (
    Array,
    OpDef,
    OpPattern,
    PrecisionPolicy,
    TransposeRule,
    TypeRelationFunc,
    register_op,
)
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, call_shape_rule, check_attrs, check_tensors
from ekiden.te import Tensor
from ekiden.topi.dimensions import Shape, as_dim, normalize_axes, require_min_extent, to_attr_axes


@node("relay.attrs.ReduceAttrs")
class ReduceAttrs(Attrs):
    """Attributes of reductions: axes (None: all), keepdims; `exclude` reduces the complement."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    exclude: bool = False


@node("relay.attrs.ArgReduceAttrs")
class ArgReduceAttrs(Attrs):
    """Attributes of argmax and argmin: axes (None: flattened), keepdims, tie-breaking by
    `select_last_index`.
    """

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    select_last_index: bool = False
    exclude: bool = False


class ReductionAttrs(Protocol):
    """Protocol of attributes with reduced axes."""

    @property
    def axis(self) -> tuple[int, ...] | None:
        """Return the axes that are reduced, or None for all."""

    @property
    def exclude(self) -> bool:
        """Return whether `axis` lists the axes that stay instead."""


def reduced_axes(name: str, attrs: ReductionAttrs, rank: int) -> tuple[int, ...]:
    """Return the reduced axes, non-negative and sorted.

    Raises:
        ValueError: An axis is out of range.
    """
    axes = normalize_axes(attrs.axis, rank, name)
    return tuple(a for a in range(rank) if a not in axes) if attrs.exclude else axes


def infer_reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return the shape without the reduced axes, or with extent 1 for them."""
    one = as_dim(1)
    return tuple(one if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes)


def _reduce_relation(
    name: str, kind: type[Attrs], dtype: str | None
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the shape without the reduced axes, or with extent 1 for them.

        Raises:
            TypeInferenceError: The data does not have the axes.
        """
        (data,) = check_tensors(name, types, 1)
        settings = check_attrs(kind, attrs)
        assert isinstance(settings, (ReduceAttrs, ArgReduceAttrs))
        axes = call_shape_rule(name, reduced_axes, name, settings, len(data.shape))
        return TensorType(
            infer_reduced_shape(data.shape, axes, settings.keepdims), dtype or data.dtype
        )

    return relation


def _reduce_reference(
    name: str, function: Callable[..., Array], dtype: str | None
) -> Callable[..., Array]:
    def reference(attrs: ReduceAttrs, data: Array) -> Array:
        """Reduce by NumPy; 16-bit floats accumulate in float32.

        Sums of nothing and overflows are intended, and cause no warning.
        """
        axes = reduced_axes(name, attrs, data.ndim)
        # Kernels accumulate float16 and bfloat16 in float32.
        is_narrow = is_float(str(data.dtype)) and data.dtype.itemsize < 4
        wide = data.astype(np.float32) if is_narrow else data
        with np.errstate(all="ignore"):
            return np.asarray(function(wide, axis=axes, keepdims=attrs.keepdims)).astype(
                dtype or data.dtype, copy=False
            )

    return reference


def _dtype_limits(data: Array) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a dtype, the identities of max and min."""
    if data.dtype.kind == "b":
        return False, True
    if data.dtype.kind in "iu":
        return np.iinfo(data.dtype).min, np.iinfo(data.dtype).max
    # As arrays of the dtype: Python's inf would promote narrow floats.
    return np.asarray(-np.inf, data.dtype), np.asarray(np.inf, data.dtype)


def _max_reference(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return NumPy's max (NaN propagates), or the lowest value for an empty reduction."""
    return np.asarray(np.max(data, axis=axis, keepdims=keepdims, initial=_dtype_limits(data)[0]))


def _min_reference(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.min(data, axis=axis, keepdims=keepdims, initial=_dtype_limits(data)[1]))


def _arg_reference(name: str, function: Callable[..., Array]) -> Callable[..., Array]:
    def reference(attrs: ArgReduceAttrs, data: Array) -> Array:
        """Return flattened indices over the reduced axes.

        The last of equal elements is searched from the row's end.
        """
        axes = reduced_axes(name, attrs, data.ndim)
        outer_axes = tuple(i for i in range(data.ndim) if i not in axes)
        count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
        # The reduced axes last and flattened, so that positions count over all of them.
        rows = data.transpose(outer_axes + axes).reshape(
            [data.shape[k] for k in outer_axes] + [count]
        )
        positions = (
            count - 1 - function(rows[..., ::-1], axis=-1)
            if attrs.select_last_index
            else function(rows, axis=-1)
        )
        shape = [
            1 if i in axes else d
            for i, d in enumerate(data.shape)
            if attrs.keepdims or i not in axes
        ]
        return np.asarray(positions, dtype=np.int32).reshape(shape)

    return reference


_DESCRIPTIONS = {
    "sum": "sum",
    "mean": "mean",
    "max": "largest element",
    "min": "smallest element",
    "prod": "product",
    "all": "conjunction (whether all are true)",
    "any": "disjunction (whether one is true)",
}


def declare_reduction(
    name: str,
    function: Callable[..., Array],
    compute: Callable[..., Tensor],
    dtype: str | None = None,
    precision: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
    is_extremum: bool = False,
) -> Callable[..., Call]:
    """Declare a reduction, and return the function that calls it; `dtype` is the result's if not
    the data's.
    """
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ReduceAttrs,
            precision=precision,
            is_extremum=is_extremum,
            transpose_rule=TransposeRule.AXES,
            relation=_reduce_relation(name, ReduceAttrs, dtype),
            reference=_reduce_reference(name, function, dtype),
            lower=lambda attrs, inputs, out: [
                compute(inputs[0], reduced_axes(name, attrs, inputs[0].ndim), attrs.keepdims)
            ],
            pattern=OpPattern.COMM_REDUCE,
            result="data's shape without the reduced axes (1 with `keepdims`)",
        )
    )

    def build_call(
        data: Expr,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        exclude: bool = False,
    ) -> Call:
        """Return a call of the operator."""
        return call_op(name, data, attrs=ReduceAttrs(to_attr_axes(axis), keepdims, exclude))

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"The {_DESCRIPTIONS.get(name, name)} over `axis` (all axes by default)."
    return build_call


def _arg_reduce_relation(name: str) -> TypeRelationFunc:
    """Return the relation of an arg-reduction, which rejects empty axes."""
    plain = _reduce_relation(name, ArgReduceAttrs, "int32")

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the type of a reduction.

        Raises:
            TypeInferenceError: A reduced axis is known to be empty.
        """
        result_type = plain(types, attrs)
        (data,) = check_tensors(name, types, 1)
        axes = reduced_axes(name, check_attrs(ArgReduceAttrs, attrs), len(data.shape))
        # Of no elements there is no position to return.
        minimums = [1 if position in axes else None for position in range(len(data.shape))]
        call_shape_rule(name, require_min_extent, name, "data", data.shape, minimums)
        return result_type

    return relation


def declare_arg_reduction(
    name: str, function: Callable[..., Array], compute: Callable[..., Tensor]
) -> Callable[..., Call]:
    """Declare an arg-reduction (int32 indices), and return the function that calls it."""
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ArgReduceAttrs,
            relation=_arg_reduce_relation(name),
            reference=_arg_reference(name, function),
            lower=lambda attrs, inputs, out: [
                compute(
                    inputs[0],
                    reduced_axes(name, attrs, inputs[0].ndim),
                    attrs.keepdims,
                    attrs.select_last_index,
                )
            ],
            pattern=OpPattern.COMM_REDUCE,
            result="data's shape without the reduced axes (1 with `keepdims`), int32",
        )
    )

    def build_call(
        data: Expr,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        exclude: bool = False,
        select_last_index: bool = False,
    ) -> Call:
        """Return a call of the operator."""
        return call_op(
            name,
            data,
            attrs=ArgReduceAttrs(to_attr_axes(axis), keepdims, select_last_index, exclude),
        )

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"Position (int32) of the {name[3:]}imum over `axis`."
    return build_call


def _mean_reference(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return NumPy's mean; integer sums divide as in C."""
    if is_float(str(data.dtype)):
        return np.asarray(np.mean(data, axis=axis, keepdims=keepdims))
    # Sums of narrow integers would wrap around in their own type.
    wide = np.uint64 if data.dtype == np.uint64 else np.int64
    total = np.sum(data, axis=axis, keepdims=keepdims, dtype=wide)
    count = data.size // (total.size or 1) or 1
    floor = np.floor_divide(total, count)
    # NumPy floors; C truncates negative quotients.
    toward_zero = (total < 0) & (floor * count != total)
    return np.asarray(floor + toward_zero.astype(total.dtype))


# fmt: off
sum    = declare_reduction("sum",  np.sum, topi.sum, precision=PrecisionPolicy.NEVER)
mean   = declare_reduction("mean", _mean_reference, topi.mean, precision=PrecisionPolicy.NEVER)
max    = declare_reduction("max",  _max_reference,   topi.max, precision=PrecisionPolicy.FOLLOW,
                           is_extremum=True)
min    = declare_reduction("min",  _min_reference,   topi.min, precision=PrecisionPolicy.FOLLOW,
                           is_extremum=True)
prod   = declare_reduction("prod", np.prod, topi.prod, precision=PrecisionPolicy.NEVER)
all    = declare_reduction("all",  np.all, topi.all, "bool")
any    = declare_reduction("any",  np.any, topi.any, "bool")
argmax = declare_arg_reduction("argmax", np.argmax, topi.argmax)
argmin = declare_arg_reduction("argmin", np.argmin, topi.argmin)
# fmt: on

__all__ = [
    "all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum",
]  # fmt: skip
