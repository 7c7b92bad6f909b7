"""Scan operators: cumulative sums and products.

    cumsum(x)[i] = sum over j <= i of x[j];   exclusive: over j < i, which begins with 0

cumprod, cummax and cummin likewise, where nothing is 1, the lowest and the highest value of the
dtype (the infinities of floats); a NaN is the extreme of all from it on. Without an axis the data
are one row. Sums are taken from the first to the last element, in the dtype of the result, or of
float16 and bfloat16 in float32, with each rounded once: of float32 their error grows with the
length, as NumPy's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import int_range, is_float, to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, TypeRelationFunc, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, call_shape_rule, check_attrs, check_tensors
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis, product_of_dims
from ekiden.topi.reduce import accumulator_dtype


@node("relay.attrs.CumsumAttrs")
class ScanAttrs(Attrs):
    """Attributes of cumsum and cumprod: axis (None: flattened), accumulation dtype, exclusive."""

    axis: int | None = None
    dtype: str = ""
    exclusive: bool = False


def _scan_relation(name: str) -> TypeRelationFunc:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the data's shape, or the flattened one without an axis, in the attributes'
        dtype.
        """
        (data,) = check_tensors(name, types, 1)
        settings = check_attrs(ScanAttrs, attrs)
        dtype = settings.dtype or data.dtype
        if settings.axis is None:
            return TensorType((product_of_dims(data.shape),), dtype)
        call_shape_rule(name, normalize_axis, settings.axis, len(data.shape), name)
        return TensorType(data.shape, dtype)

    return relation


def _scan_reference(
    function: Callable[..., Array], identity: Callable[[str], float]
) -> Callable[[ScanAttrs, Array], Array]:
    def reference(attrs: ScanAttrs, data: Array) -> Array:
        """Return cumulative results; exclusive ones are shifted by one element.

        The first of these is the identity.
        """
        dtype = str(attrs.dtype or data.dtype)
        # A running sum loses a rounding error per element in its own type.
        wide = to_numpy(accumulator_dtype(dtype) if is_float(dtype) else dtype)
        running = function(data.astype(wide), attrs.axis, dtype=wide).astype(to_numpy(dtype))
        if not attrs.exclusive:
            return np.asarray(running)
        axis = attrs.axis or 0
        # All but the last running result, moved by one.
        before = running.take(range(max(running.shape[axis] - 1, 0)), axis)
        first = running.take(range(min(running.shape[axis], 1)), axis)
        # The exclusive scan starts with the operation's identity.
        first = np.full_like(first, identity(dtype))
        return np.concatenate([first, before], axis)

    return reference


def _declare_scan(
    name: str,
    function: Callable[..., Array],
    identity: Callable[[str], float],
    compute: Callable[..., Tensor],
    precision: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
) -> None:
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ScanAttrs,
            relation=_scan_relation(name),
            reference=_scan_reference(function, identity),
            lower=lambda attrs, inputs, out: [
                compute(inputs[0], attrs.axis, out.dtype, attrs.exclusive)
            ],
            pattern=OpPattern.OPAQUE,
            precision=precision,
            result="data's shape (flat where `axis` is None), with `dtype`",
        )
    )


def _extreme_value(dtype: str, number: int) -> float:
    """Return the lowest (0) or highest (1) value of a dtype; for floats an infinity."""
    ends = (0, 1) if dtype == "bool" else int_range(dtype)
    return (-np.inf, np.inf)[number] if ends is None else ends[number]


def _ufunc_accumulate(function: np.ufunc) -> Callable[..., Array]:
    """Wrap a binary ufunc's accumulate with the arguments of np.cumsum."""

    def accumulate(data: Array, axis: int | None, dtype: np.dtype[np.generic]) -> Array:
        row = data.reshape(-1) if axis is None else data
        return np.asarray(function.accumulate(row, axis or 0, dtype))

    return accumulate


_declare_scan("cumsum", np.cumsum, lambda dtype: 0, topi.cumsum, PrecisionPolicy.NEVER)
_declare_scan("cumprod", np.cumprod, lambda dtype: 1, topi.cumprod)
_declare_scan(
    "cummax", _ufunc_accumulate(np.maximum), lambda dtype: _extreme_value(dtype, 0), topi.cummax
)
_declare_scan(
    "cummin", _ufunc_accumulate(np.minimum), lambda dtype: _extreme_value(dtype, 1), topi.cummin
)


def cumsum(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return cumulative sums along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call_op("cumsum", data, attrs=ScanAttrs(axis, dtype, exclusive))


def cumprod(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return cumulative products along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call_op("cumprod", data, attrs=ScanAttrs(axis, dtype, exclusive))


def cummax(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return running maxima along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call_op("cummax", data, attrs=ScanAttrs(axis, dtype, exclusive))


def cummin(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return running minima along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call_op("cummin", data, attrs=ScanAttrs(axis, dtype, exclusive))


__all__ = ["cummax", "cummin", "cumprod", "cumsum"]
