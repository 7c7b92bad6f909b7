"""Running sums and products.

    cumsum(x)[i] = sum over j <= i of x[j];   exclusive: over j < i, which begins with 0

cumprod likewise, where nothing is 1. Without an axis the data are one row. Sums are taken from the
first to the last element, in the dtype of the result, or of float16 and bfloat16 in float32, with
each rounded once: of float32 their error grows with the length, as NumPy's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, Relation, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, attrs_of, call, tensors
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis, product
from ekiden.topi.reduce import accumulator


@node("relay.attrs.CumsumAttrs")
class ScanAttrs(Attrs):
    """The axis (None: over the flattened data), the dtype to compute in, and whether to leave out
    the element itself."""

    axis: int | None = None
    dtype: str = ""
    exclusive: bool = False


def _relation(name: str) -> Relation:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's shape, or one axis of all elements without an axis, in the attributes'
        dtype.
        """
        (data,) = tensors(name, types, 1)
        settings = attrs_of(ScanAttrs, attrs)
        dtype = settings.dtype or data.dtype
        if settings.axis is None:
            return TensorType((product(data.shape),), dtype)
        attempt(name, normalize_axis, settings.axis, len(data.shape), name)
        return TensorType(data.shape, dtype)

    return relation


def _reference(
    function: Callable[..., Array], identity: int
) -> Callable[[ScanAttrs, Array], Array]:
    def reference(attrs: ScanAttrs, data: Array) -> Array:
        """Return running results; `exclusive` ones are those of the element before.

        The first of these is the identity.
        """
        dtype = str(attrs.dtype or data.dtype)
        wide = to_numpy(accumulator(dtype) if is_float(dtype) else dtype)
        running = function(data.astype(wide), attrs.axis, dtype=wide).astype(to_numpy(dtype))
        if not attrs.exclusive:
            return np.asarray(running)
        axis = attrs.axis or 0
        before = running.take(range(max(running.shape[axis] - 1, 0)), axis)
        first = np.full_like(running.take(range(min(running.shape[axis], 1)), axis), identity)
        return np.concatenate([first, before], axis)

    return reference


def _declare(
    name: str,
    function: Callable[..., Array],
    identity: int,
    compute: Callable[..., Tensor],
    precision: Precision = Precision.UNKNOWN,
) -> None:
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=ScanAttrs,
            relation=_relation(name),
            reference=_reference(function, identity),
            lower=lambda attrs, inputs, out: [
                compute(inputs[0], attrs.axis, out.dtype, attrs.exclusive)
            ],
            pattern=OpPattern.OPAQUE,
            precision=precision,
            result="data's shape (flat where `axis` is None), with `dtype`",
        )
    )


_declare("cumsum", np.cumsum, 0, topi.cumsum, Precision.NEVER)
_declare("cumprod", np.cumprod, 1, topi.cumprod)


def cumsum(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return running sums along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call("cumsum", data, attrs=ScanAttrs(axis, dtype, exclusive))


def cumprod(data: Expr, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> Call:
    """Return running products along an axis (None: of the flattened data).

    `exclusive` leaves out the element itself.
    """
    return call("cumprod", data, attrs=ScanAttrs(axis, dtype, exclusive))


__all__ = ["cumprod", "cumsum"]
