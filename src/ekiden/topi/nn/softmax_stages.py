"""Softmax and log-softmax, in stages along one axis.

    m = max x,   s = sum exp(x - m),   softmax = exp(x - m) / s,   log_softmax = x - m - log s

Taking the maximum off changes nothing, as exp(-m) is in both parts of the quotient, and keeps exp
below 1. log_softmax takes no logarithm of a quotient, which would be -inf where that rounds to 0. A
row of -inf alone is NaN, as in PyTorch and ONNX. The stages share their outer axes, so that a row
is in the first cache for all of them; exponentials are kept, not computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim, normalize_axis
from ekiden.topi.reduce import accumulator_dtype, reduce_elements


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return exp(x - max) over its sum along an axis."""
    data, axis = x, normalize_axis(axis, x.ndim, "softmax")
    wide = accumulator_dtype(data.dtype)
    highest = reduce_elements(data, (axis,), True, te.max, "softmax_max")
    exponential = te.compute(
        data.shape,
        lambda *i: call_intrin(
            "exp", cast(data[i], wide) - cast(highest[_row_indices(i, axis)], wide)
        ),
        name="softmax_exp",
        tag="softmax_exp",
    )
    total = reduce_elements(exponential, (axis,), True, te.sum, "softmax_sum")
    return te.compute(
        data.shape,
        lambda *i: cast(exponential[i] * (1.0 / total[_row_indices(i, axis)]), data.dtype),
        name="softmax",
        tag="softmax",
        attrs={"axis": axis},
    )


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return x - max - log(sum(exp(x - max))) along an axis."""
    data, axis = x, normalize_axis(axis, x.ndim, "log_softmax")
    wide = accumulator_dtype(data.dtype)
    highest = reduce_elements(data, (axis,), True, te.max, "softmax_max")
    k = te.reduce_axis((0, data.shape[axis]), "k")

    def sum_of_exponentials(*i: Var) -> PrimExpr:
        """Sum the exponentials along the axis, less the highest value."""
        value = cast(data[(*i[:axis], k, *i[axis + 1 :])], wide)
        return te.sum(call_intrin("exp", value - cast(highest[i], wide)), k)

    total = te.compute(highest.shape, sum_of_exponentials, name="softmax_sum", tag="reduce")

    def log_probability(*i: Var) -> PrimExpr:
        """Compute in the wide dtype; rounded once, at the end."""
        row = _row_indices(i, axis)
        shifted = cast(data[i], wide) - cast(highest[row], wide)
        return cast(shifted - call_intrin("log", total[row]), data.dtype)

    return te.compute(
        data.shape, log_probability, name="log_softmax", tag="softmax", attrs={"axis": axis}
    )


def _row_indices(indices: Sequence[PrimExpr], axis: int) -> tuple[PrimExpr, ...]:
    return (*indices[:axis], as_dim(0), *indices[axis + 1 :])


fast_softmax = softmax
"""TVM's softmax with an approximate exponential; same as softmax, whose exponential is a
polynomial.
"""

__all__ = ["fast_softmax", "log_softmax", "softmax"]
