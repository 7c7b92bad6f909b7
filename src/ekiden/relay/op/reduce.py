"""Reductions over axes.

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
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, Relation, Transposes, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, attrs_of, call, tensors
from ekiden.te import Tensor
from ekiden.topi.dimensions import Shape, as_dim, axes_attr, expect_least, normalize_axes


@node("relay.attrs.ReduceAttrs")
class ReduceAttrs(Attrs):
    """Axes to reduce (None: all); `exclude` reduces all others instead."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    exclude: bool = False


@node("relay.attrs.ArgReduceAttrs")
class ArgReduceAttrs(Attrs):
    """Axes to search (None: all, giving the flat position); ties go to the first unless
    `select_last_index`."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    select_last_index: bool = False
    exclude: bool = False


class Reduces(Protocol):
    """Attributes that say which axes are reduced."""

    @property
    def axis(self) -> tuple[int, ...] | None: ...
    @property
    def exclude(self) -> bool: ...


def reduced_axes(name: str, attrs: Reduces, rank: int) -> tuple[int, ...]:
    """Return the axes that are reduced, from the front, in order.

    Raises:
        ValueError: An axis is out of range.
    """
    axes = normalize_axes(attrs.axis, rank, name)
    return tuple(a for a in range(rank) if a not in axes) if attrs.exclude else axes


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return the shape without `axes`, or with 1 for them."""
    one = as_dim(1)
    return tuple(one if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes)


def _relation(
    name: str, kind: type[Attrs], dtype: str | None
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the shape without the reduced axes, or with 1 for them.

        Raises:
            TypeInferenceError: The data does not have the axes.
        """
        (data,) = tensors(name, types, 1)
        settings = attrs_of(kind, attrs)
        assert isinstance(settings, (ReduceAttrs, ArgReduceAttrs))
        axes = attempt(name, reduced_axes, name, settings, len(data.shape))
        return TensorType(reduced_shape(data.shape, axes, settings.keepdims), dtype or data.dtype)

    return relation


def _reference(
    name: str, function: Callable[..., Array], dtype: str | None
) -> Callable[..., Array]:
    def reference(attrs: ReduceAttrs, data: Array) -> Array:
        """Return the reduction by NumPy, of narrow floats in float32.

        Sums of nothing and overflows are intended, and cause no warning.
        """
        axes = reduced_axes(name, attrs, data.ndim)
        is_narrow = is_float(str(data.dtype)) and data.dtype.itemsize < 4
        wide = data.astype(np.float32) if is_narrow else data
        with np.errstate(all="ignore"):
            return np.asarray(function(wide, axis=axes, keepdims=attrs.keepdims)).astype(
                dtype or data.dtype, copy=False
            )

    return reference


def _ends(data: Array) -> tuple[Any, Any]:
    """Return the least and the greatest value of a dtype, the results of max and min of nothing."""
    if data.dtype.kind == "b":
        return False, True
    if data.dtype.kind in "iu":
        return np.iinfo(data.dtype).min, np.iinfo(data.dtype).max
    return np.asarray(-np.inf, data.dtype), np.asarray(np.inf, data.dtype)


def _max(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """NaN if there is one, as NumPy's; the least number of nothing."""
    return np.asarray(np.max(data, axis=axis, keepdims=keepdims, initial=_ends(data)[0]))


def _min(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.min(data, axis=axis, keepdims=keepdims, initial=_ends(data)[1]))


def _arg_reference(name: str, function: Callable[..., Array]) -> Callable[..., Array]:
    def reference(attrs: ArgReduceAttrs, data: Array) -> Array:
        """Return positions along the reduced axes in their order, as in a row flattened from them.

        The last of equal elements is searched from the row's end.
        """
        axes = reduced_axes(name, attrs, data.ndim)
        outer_axes = tuple(i for i in range(data.ndim) if i not in axes)
        count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
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


_MEANINGS = {
    "sum": "sum",
    "mean": "mean",
    "max": "largest element",
    "min": "smallest element",
    "prod": "product",
    "all": "conjunction (whether all are true)",
    "any": "disjunction (whether one is true)",
}


def reduction(
    name: str,
    function: Callable[..., Array],
    compute: Callable[..., Tensor],
    dtype: str | None = None,
    precision: Precision = Precision.UNKNOWN,
) -> Callable[..., Call]:
    """Declare a reduction, to `dtype` if not the data's; gives the function that calls it."""
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ReduceAttrs,
            precision=precision,
            turns=Transposes.AXES,
            relation=_relation(name, ReduceAttrs, dtype),
            reference=_reference(name, function, dtype),
            lower=lambda attrs, inputs, out: [
                compute(inputs[0], reduced_axes(name, attrs, inputs[0].ndim), attrs.keepdims)
            ],
            pattern=OpPattern.COMM_REDUCE,
            result="data's shape without the reduced axes (1 with `keepdims`)",
        )
    )

    def _construct(
        data: Expr,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        exclude: bool = False,
    ) -> Call:
        return call(name, data, attrs=ReduceAttrs(axes_attr(axis), keepdims, exclude))

    _construct.__name__ = _construct.__qualname__ = name
    _construct.__doc__ = f"The {_MEANINGS.get(name, name)} over `axis` (all axes by default)."
    return _construct


def _arg_relation(name: str) -> Relation:
    """Return the relation of a reduction that also refuses empty axes, which have no position."""
    plain = _relation(name, ArgReduceAttrs, "int32")

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the type of a reduction.

        Raises:
            TypeInferenceError: A reduced axis is known to be empty.
        """
        result_type = plain(types, attrs)
        (data,) = tensors(name, types, 1)
        axes = reduced_axes(name, attrs_of(ArgReduceAttrs, attrs), len(data.shape))
        minimums = [1 if at in axes else None for at in range(len(data.shape))]
        attempt(name, expect_least, name, "data", data.shape, minimums)
        return result_type

    return relation


def arg_reduction(
    name: str, function: Callable[..., Array], compute: Callable[..., Tensor]
) -> Callable[..., Call]:
    """Declare a search for a position (int32); gives the function that calls it."""
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ArgReduceAttrs,
            relation=_arg_relation(name),
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

    def _construct(
        data: Expr,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        exclude: bool = False,
        select_last_index: bool = False,
    ) -> Call:
        return call(
            name, data, attrs=ArgReduceAttrs(axes_attr(axis), keepdims, select_last_index, exclude)
        )

    _construct.__name__ = _construct.__qualname__ = name
    _construct.__doc__ = f"Position (int32) of the {name[3:]}imum over `axis`."
    return _construct


def _mean(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """NumPy's mean; the sum of integers is divided as C does."""
    if is_float(str(data.dtype)):
        return np.asarray(np.mean(data, axis=axis, keepdims=keepdims))
    wide = np.uint64 if data.dtype == np.uint64 else np.int64
    total = np.sum(data, axis=axis, keepdims=keepdims, dtype=wide)
    count = data.size // (total.size or 1) or 1
    floor = np.floor_divide(total, count)
    toward_zero = (total < 0) & (floor * count != total)
    return np.asarray(floor + toward_zero.astype(total.dtype))


# fmt: off
sum    = reduction("sum",  np.sum, topi.sum, precision=Precision.NEVER)
mean   = reduction("mean", _mean, topi.mean, precision=Precision.NEVER)
max    = reduction("max",  _max,   topi.max, precision=Precision.FOLLOW)
min    = reduction("min",  _min,   topi.min, precision=Precision.FOLLOW)
prod   = reduction("prod", np.prod, topi.prod, precision=Precision.NEVER)
all    = reduction("all",  np.all, topi.all, "bool")
any    = reduction("any",  np.any, topi.any, "bool")
argmax = arg_reduction("argmax", np.argmax, topi.argmax)
argmin = arg_reduction("argmin", np.argmin, topi.argmin)
# fmt: on

__all__ = [
    "all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum",
]  # fmt: skip
