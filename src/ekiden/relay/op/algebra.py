"""Sums of products, matrices, Fourier transforms, and results in the shape of another tensor.

einsum("ij,jk->ik")    sums over letters that the result lacks; "..." are axes that broadcast
variance               the mean of squared distances from the mean: over n, unbiased over n - 1
Fourier                X[k] = sum over n of x[n] exp(-2 pi i k n / N)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ekiden import topi
from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern, Precision
from ekiden.relay.expr import Call, Expr, Tuple, TupleWrapper, const
from ekiden.relay.op._declare import call, check_range, summable
from ekiden.relay.op._inventory import declare
from ekiden.relay.op.broadcast import add, subtract, where
from ekiden.relay.op.create import zeros_like
from ekiden.relay.op.elementwise import exp, isinf, log, sqrt
from ekiden.relay.op.join import as_tuple
from ekiden.relay.op.reduce import max as largest_of
from ekiden.relay.op.reduce import mean, reduced_axes
from ekiden.relay.op.reduce import sum as sum_of
from ekiden.relay.op.reshaping import squeeze
from ekiden.topi.broadcast import broadcast_to as repeated
from ekiden.topi.dimensions import Dim, Dims, as_attr, as_ints, as_shape, axes_attr
from ekiden.topi.reduce import accumulator

if TYPE_CHECKING:
    from ekiden.topi import transform as arranging
else:
    arranging = LazyModule("ekiden.topi.transform")


@node("relay.attrs.EinsumAttrs")
class EinsumAttrs(Attrs):
    """The labels of axes: "ij,jk->ik"."""

    equation: str = ""


@node("relay.attrs.DFTAttrs")
class DFTAttrs(Attrs):
    """Whether to transform back."""

    inverse: bool = False


@node("relay.attrs.StftAttrs")
class StftAttrs(Attrs):
    """The length of a frame, the distance of frames, the length of the window, whether to divide by
    the root of the first, and to leave out the mirrored frequencies."""

    n_fft: int = 1
    hop_length: int = 1
    win_length: int = 1
    normalized: bool = False
    onesided: bool = True


@node("relay.attrs.TriluAttrs")
class TriluAttrs(Attrs):
    """Whether to keep what is above the diagonal, or below."""

    upper: bool = True


@node("relay.attrs.MatrixSetDiagAttrs")
class MatrixSetDiagAttrs(Attrs):
    """The first and last diagonal, and whether shorter ones stand right or left in their row: above
    and below the main diagonal."""

    k1: int = 0
    k2: int = 0
    super_diag_right_align: bool = True
    sub_diag_right_align: bool = False


@node("relay.attrs.MeshgridAttrs")
class MeshgridAttrs(Attrs):
    """Whether the first axis is that of the first vector ("ij") or of the second ("xy")."""

    indexing: str = "ij"


@node("relay.attrs.VarianceAttrs")
class VarianceAttrs(Attrs):
    """The axes (None: all), whether they stay with extent 1, whether to divide by one less, and
    whether the axes are those to keep."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    unbiased: bool = False
    exclude: bool = False


@node("relay.attrs.SliceLikeAttrs")
class SliceLikeAttrs(Attrs):
    """The axes to cut; None: all."""

    axes: tuple[int, ...] | None = None


@node("relay.attrs.CollapseSumAttrs")
class CollapseSumAttrs(Attrs):
    """The shape to sum to."""

    shape: Dims = ()


@node("relay.attrs.FixedPointMultiplyAttrs")
class FixedPointMultiplyAttrs(Attrs):
    """A fraction in Q31 and a power of two to multiply by."""

    multiplier: int = 0
    shift: int = 0


@node("relay.attrs.FixedPointMultiplyPerAxisAttrs")
class FixedPointMultiplyPerAxisAttrs(Attrs):
    """Which of the shifts are made, and the axes that multipliers and shifts run along."""

    is_lshift_required: bool = False
    is_rshift_required: bool = False
    axes: tuple[int, ...] = ()


def _multiplied(data: Array, multiplier: int, shift: int) -> Array:
    """data * multiplier * 2**(shift - 31), rounded half up, in integers."""
    left_shift, right_shift = max(shift, 0), min(31 - min(shift, 0), 63)
    scaled = (data.astype(np.int64) << left_shift) * multiplier
    return np.asarray((scaled + (1 << (right_shift - 1))) >> right_shift).astype(np.int32)


def _einsum(attrs: EinsumAttrs, *arrays: Array) -> Array:
    result = np.asarray(np.einsum(attrs.equation, *map(summable, arrays)))
    return result.astype(arrays[0].dtype, copy=False)


def _dft(attrs: DFTAttrs, re: Array, im: Array) -> tuple[Array, ...]:
    spectrum = (np.fft.ifft if attrs.inverse else np.fft.fft)(re + 1j * im)
    return spectrum.real.astype(re.dtype), spectrum.imag.astype(re.dtype)


def _inverted(attrs: None, data: Array) -> Array:
    check_range("invert_permutation: position", data, (0, len(data)))
    inverse = np.zeros_like(data)
    np.maximum.at(inverse, data.astype(np.int64), np.arange(len(data)).astype(data.dtype))
    return inverse


def _variance(attrs: VarianceAttrs, data: Array) -> Array:
    axes = reduced_axes("variance", attrs, data.ndim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of too few elements
        variances = np.var(data, axis=axes, keepdims=attrs.keepdims, ddof=int(attrs.unbiased))
    return np.asarray(variances).astype(data.dtype)


def _unraveled(attrs: None, data: Array, shape: Array) -> Array:
    dims = [int(d) for d in shape]
    if not data.size:  # no kernel is run for nothing
        return np.empty((len(dims), *data.shape), data.dtype)
    check_range("unravel_index: extent", shape, (0, 2**31))
    count, limit = 1, arranging.MAX_ELEMENTS
    # The product of the extents is capped, so that it does not overflow.
    for extent in dims:
        count = count * extent if count <= limit // max(extent, 1) else limit
    check_range("unravel_index: position", data, (0, count), "{} elements", (count,))
    remaining, coordinates = data.astype(np.int64), []
    # The last axis varies fastest.
    for extent in reversed(dims):
        coordinates.append(remaining % max(extent, 1))
        remaining = remaining // max(extent, 1)
    return np.stack(coordinates[::-1]).astype(data.dtype)


def _diagonals(attrs: MatrixSetDiagAttrs) -> str:
    right = (attrs.super_diag_right_align, attrs.sub_diag_right_align)
    return "_".join("RIGHT" if is_right else "LEFT" for is_right in right)


def _meshgrid(attrs: MeshgridAttrs, *vectors: Array) -> tuple[Array, ...]:
    return tuple(map(np.array, np.meshgrid(*vectors, indexing=attrs.indexing)))  # type: ignore[call-overload]


def _collapsed(data: Array, shape: Sequence[int]) -> Array:
    extra = data.ndim - len(shape)
    axes = (*range(extra), *(extra + n for n, d in enumerate(shape) if d == 1))
    # Sums accumulate in the type that the kernel uses.
    wide = data.astype(to_numpy(accumulator(str(data.dtype))))
    return np.asarray(wide.sum(axes, dtype=wide.dtype).reshape(shape)).astype(data.dtype)


declare("einsum", ("data",), lambda attrs, *x: topi.einsum(attrs.equation, *x),
        "the axes the equation names, with the operands' dtype", EinsumAttrs, reference=_einsum,
        variadic=True)  # fmt: skip
declare(
    "det",
    ("data",),
    lambda attrs, data: topi.linalg.det(data),
    "the determinants of the matrices in the last two axes",
    reference=lambda attrs, data: np.linalg.det(data.astype(np.float64)).astype(data.dtype),
)
declare(
    "dft",
    ("re_data", "im_data"),
    lambda attrs, re_data, im_data: topi.dft(re_data, im_data, attrs.inverse),
    "a tuple of two of the type of re_data",
    DFTAttrs,
    reference=_dft,
    fields=2,
)
declare(
    "stft",
    ("data", "window"),
    lambda attrs, data, window: topi.stft(
        data,
        attrs.n_fft,
        attrs.hop_length,
        attrs.win_length,
        window,
        attrs.normalized,
        attrs.onesided,
    ),
    "(batch, frequencies, frames, 2), with the dtype of data",
    StftAttrs,
)
declare("trilu", ("data", "k"), lambda attrs, data, k: topi.trilu(data, k, attrs.upper),
        "the type of data", TriluAttrs, OpPattern.INJECTIVE,
        lambda attrs, data, k: (np.triu if attrs.upper else np.tril)(data, int(k)))  # fmt: skip
declare(
    "matrix_set_diag",
    ("input", "diagonal"),
    lambda attrs, data, diagonal: topi.matrix_set_diag(
        data, diagonal, (attrs.k1, attrs.k2), _diagonals(attrs)
    ),
    "the type of input",
    MatrixSetDiagAttrs,
    OpPattern.INJECTIVE,
)
declare("invert_permutation", ("data",), lambda attrs, data: topi.invert_permutation(data),
        "the type of data",
        reference=_inverted, takes={"data": "integer"}, refuses=True)  # fmt: skip
declare(
    "unravel_index",
    ("data", "shape"),
    lambda attrs, data, shape: topi.unravel_index(data, shape),
    "an axis of coordinates, then the axes of data",
    takes={"data": "integer", "shape": "integer"},
    pattern=OpPattern.INJECTIVE,
    reference=_unraveled,
    refuses=True,
)
declare("meshgrid", ("data",), lambda attrs, *x: topi.meshgrid(x, attrs.indexing),
        "a tuple of a grid for each vector", MeshgridAttrs, OpPattern.INJECTIVE, _meshgrid,
        variadic=True)  # fmt: skip
declare(
    "variance",
    ("data",),
    lambda attrs, data: topi.variance(
        data, reduced_axes("variance", attrs, len(data.shape)), attrs.keepdims, attrs.unbiased
    ),
    "data's shape without `axis` (with 1 there: `keepdims`)",
    VarianceAttrs,
    OpPattern.COMM_REDUCE,
    precision=Precision.NEVER,
    reference=_variance,
)
declare("full_like", ("data", "fill_value"), lambda attrs, data, fill: topi.full_like(data, fill),
        "the type of data", pattern=OpPattern.BROADCAST,
        reference=lambda attrs, data, fill: np.full_like(data, fill))  # fmt: skip
declare("slice_like", ("data", "shape_like"),
        lambda attrs, data, like: topi.slice_like(data, like, attrs.axes),
        "data's shape, with the extents of shape_like along the axes", SliceLikeAttrs,
        OpPattern.INJECTIVE)  # fmt: skip
declare(
    "broadcast_to_like",
    ("data", "broadcast_type"),
    lambda attrs, data, like: repeated(data, like.shape),
    "the shape of broadcast_type, with the dtype of data",
    pattern=OpPattern.BROADCAST,
    reference=lambda attrs, data, like: np.array(np.broadcast_to(data, like.shape)),
)
declare("collapse_sum_like", ("data", "collapse_type"),
        lambda attrs, data, like: topi.collapse_sum(data, like.shape),
        "the shape of collapse_type, with the dtype of data", pattern=OpPattern.COMM_REDUCE,
        reference=lambda attrs, data, like: _collapsed(data, like.shape))  # fmt: skip
declare("collapse_sum_to", ("data",),
        lambda attrs, data: topi.collapse_sum(data, as_shape(attrs.shape)),
        "`shape`, with the dtype of data", CollapseSumAttrs, OpPattern.COMM_REDUCE,
        lambda attrs, data: _collapsed(data, as_ints(attrs.shape)))  # fmt: skip
declare(
    "fixed_point_multiply",
    ("data",),
    lambda attrs, data: topi.fixed_point_multiply(data, attrs.multiplier, attrs.shift),
    "the type of data",
    FixedPointMultiplyAttrs,
    OpPattern.ELEMWISE,
    lambda attrs, data: _multiplied(data, attrs.multiplier, attrs.shift),
)
declare(
    "fixed_point_multiply_per_axis",
    ("x", "y", "lshift", "rshift"),
    lambda attrs, x, y, lshift, right: topi.fixed_point_multiply_per_axis(
        x, y, lshift, right, attrs.is_lshift_required, attrs.is_rshift_required, attrs.axes
    ),
    "the type of x",
    FixedPointMultiplyPerAxisAttrs,
    OpPattern.BROADCAST,
)


def einsum(data: Sequence[Expr] | Expr, equation: str) -> Call:
    """Return Einstein's sum over the axes that the equation names, such as "ij,jk->ik"."""
    return call("einsum", as_tuple(data), attrs=EinsumAttrs(equation))


def det(data: Expr) -> Call:
    """Return the determinants of the matrices in the last two axes."""
    return call("det", data)


def dft(re_data: Expr, im_data: Expr, inverse: bool = False) -> Call:
    """Return the real and imaginary components of the Fourier transform along the last axis."""
    return call("dft", re_data, im_data, attrs=DFTAttrs(inverse))


def stft(
    data: Expr,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Expr,
    normalized: bool = False,
    onesided: bool = True,
) -> Call:
    """Return Fourier transforms of windowed frames of signals [batch, time]."""
    attrs = StftAttrs(n_fft, hop_length, win_length, normalized, onesided)
    return call("stft", data, window, attrs=attrs)


def trilu(data: Expr, k: Expr | int, upper: bool = True) -> Call:
    """Return the k-th diagonal of matrices and everything above (or below) it, with 0 elsewhere."""
    at = k if isinstance(k, Expr) else const(k, "int32")
    return call("trilu", data, at, attrs=TriluAttrs(upper))


def matrix_set_diag(
    data: Expr, diagonal: Expr, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT"
) -> Call:
    """Return matrices with their diagonals from k[0] to k[1] replaced."""
    low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
    above, below = (alignment == "RIGHT" for alignment in align.split("_"))
    return call(
        "matrix_set_diag", data, diagonal, attrs=MatrixSetDiagAttrs(low, high, above, below)
    )


def logsumexp(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Expr:
    """Return log(sum(exp(data))) along axes (None: all), computed from the largest element."""
    largest: Expr = largest_of(data, axis, True)
    largest = where(isinf(largest), zeros_like(largest), largest)  # inf - inf is nan
    total = add(log(sum_of(exp(subtract(data, largest)), axis, True)), largest)
    return total if keepdims else squeeze(total, axis)


def invert_permutation(data: Expr) -> Call:
    """Return the positions of 0, 1, 2, ... in a vector that permutes them."""
    return call("invert_permutation", data)


def unravel_index(indices: Expr, shape: Expr) -> Call:
    """Return flat positions as coordinates in a shape that is data."""
    return call("unravel_index", indices, shape)


def meshgrid(data: Sequence[Expr] | Expr, indexing: str = "ij") -> Call:
    """Return a tuple of the coordinates of a grid, from those of its axes."""
    return call("meshgrid", as_tuple(data), attrs=MeshgridAttrs(indexing))


def variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
    with_mean: Expr | None = None,
) -> Call:
    """Return the mean of squared distances from the mean over `axis`, or with `exclude` over the
    complement of `axis`.

    Args:
        data: The tensor.
        axis: The axes; None for all.
        keepdims: Keep reduced axes with extent 1.
        exclude: Reduce all axes but `axis`.
        unbiased: Divide by n - 1 rather than n.
        with_mean: TVM's; the mean is computed anyway.
    """
    attrs = VarianceAttrs(axes_attr(axis), keepdims, unbiased, exclude)
    return call("variance", data, attrs=attrs)


def std(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """Return the square root of `variance`."""
    return sqrt(variance(data, axis, keepdims, exclude, unbiased))


def mean_variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> TupleWrapper:
    """Return `mean` and `variance` over the same axes, as a tuple."""
    spread = variance(data, axis, keepdims, exclude, unbiased)
    return TupleWrapper(Tuple((mean(data, axis, keepdims, exclude), spread)), 2)


def mean_std(
    data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False,
    exclude: bool = False,
) -> TupleWrapper:  # fmt: skip
    """Return `mean` and `std` over the same axes, as a tuple."""
    spread = std(data, axis, keepdims, exclude)
    return TupleWrapper(Tuple((mean(data, axis, keepdims, exclude), spread)), 2)


def full_like(data: Expr, fill_value: Expr) -> Call:
    """Return a tensor in the shape of `data` with one scalar in every element."""
    return call("full_like", data, fill_value)


def slice_like(data: Expr, shape_like: Expr, axes: Sequence[int] | None = None) -> Call:
    """Return the leading slice of `data` with the extents of another tensor."""
    attrs = SliceLikeAttrs(tuple(axes) if axes else None)
    return call("slice_like", data, shape_like, attrs=attrs)


def broadcast_to_like(data: Expr, broadcast_type: Expr) -> Call:
    """Return `data` repeated to the shape of another tensor."""
    return call("broadcast_to_like", data, broadcast_type)


def collapse_sum_like(data: Expr, collapse_type: Expr) -> Call:
    """Return the sum over the axes along which another tensor broadcasts to `data`."""
    return call("collapse_sum_like", data, collapse_type)


def collapse_sum_to(data: Expr, shape: Sequence[Dim]) -> Call:
    """Return the sum over the axes along which a shape broadcasts to that of `data`."""
    return call("collapse_sum_to", data, attrs=CollapseSumAttrs(as_attr(shape)))


def fixed_point_multiply(data: Expr, multiplier: int, shift: int) -> Call:
    """Return int32 times multiplier * 2**(shift - 31), rounded half up."""
    return call("fixed_point_multiply", data, attrs=FixedPointMultiplyAttrs(multiplier, shift))


def fixed_point_multiply_per_axis(
    x: Expr,
    y: Expr,
    lshift: Expr,
    rshift: Expr,
    is_lshift_required: bool,
    is_rshift_required: bool,
    axes: Sequence[int],
) -> Call:
    """Return int32 times y * 2**(lshift - rshift - 31), rounded half up.

    `y` and the shifts are vectors along an axis.
    """
    attrs = FixedPointMultiplyPerAxisAttrs(is_lshift_required, is_rshift_required, tuple(axes))
    return call("fixed_point_multiply_per_axis", x, y, lshift, rshift, attrs=attrs)


__all__ = [
    "broadcast_to_like", "collapse_sum_like", "collapse_sum_to", "det", "dft", "einsum",
    "fixed_point_multiply", "fixed_point_multiply_per_axis", "full_like", "invert_permutation",
    "logsumexp", "matrix_set_diag",
    "mean_std", "mean_variance", "meshgrid", "slice_like", "std", "stft", "trilu", "unravel_index",
    "variance",
]  # fmt: skip
