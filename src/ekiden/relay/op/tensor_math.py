"""Einsum, determinants, Fourier transforms, statistics, and operators that copy another tensor's
shape.

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
from ekiden.ir.op import Array, OpPattern, PrecisionPolicy
from ekiden.relay.expr import Call, Expr, Tuple, TupleWrapper, const
from ekiden.relay.op._declare import call_op, check_range, widen_for_numpy
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op.broadcast import add, subtract, where
from ekiden.relay.op.create import zeros_like
from ekiden.relay.op.elementwise import exp, isinf, log, sqrt
from ekiden.relay.op.join import to_tuple_expr
from ekiden.relay.op.reduce import max as largest_of
from ekiden.relay.op.reduce import mean, reduced_axes
from ekiden.relay.op.reduce import sum as sum_of
from ekiden.relay.op.reshaping import squeeze
from ekiden.topi.broadcast import broadcast_to as repeated
from ekiden.topi.dimensions import Dim, Dims, as_ints, as_shape, to_attr_axes, to_attr_dims
from ekiden.topi.reduce import accumulator_dtype

if TYPE_CHECKING:
    from ekiden.topi import transform as arranging
else:
    arranging = LazyModule("ekiden.topi.transform")


@node("relay.attrs.EinsumAttrs")
class EinsumAttrs(Attrs):
    """Attributes of einsum: the equation, such as "ij,jk->ik"."""

    equation: str = ""


@node("relay.attrs.DFTAttrs")
class DFTAttrs(Attrs):
    """Attributes of dft: whether to compute the inverse transform."""

    inverse: bool = False


@node("relay.attrs.StftAttrs")
class StftAttrs(Attrs):
    """Attributes of stft: FFT size, hop length, window length, normalisation by sqrt(n_fft),
    one-sided output.
    """

    n_fft: int = 1
    hop_length: int = 1
    win_length: int = 1
    normalized: bool = False
    onesided: bool = True


@node("relay.attrs.TriluAttrs")
class TriluAttrs(Attrs):
    """Attributes of trilu: whether to keep the upper or the lower triangle."""

    upper: bool = True


@node("relay.attrs.MatrixSetDiagAttrs")
class MatrixSetDiagAttrs(Attrs):
    """Attributes of matrix_set_diag: the first and last diagonal, and the alignment of super- and
    subdiagonals.
    """

    k1: int = 0
    k2: int = 0
    super_diag_right_align: bool = True
    sub_diag_right_align: bool = False


@node("relay.attrs.MeshgridAttrs")
class MeshgridAttrs(Attrs):
    """Attributes of meshgrid: the indexing, "ij" (matrix) or "xy" (Cartesian)."""

    indexing: str = "ij"


@node("relay.attrs.VarianceAttrs")
class VarianceAttrs(Attrs):
    """Attributes of variance: axes (None: all), keepdims, unbiased (Bessel's correction),
    exclude.
    """

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    unbiased: bool = False
    exclude: bool = False


@node("relay.attrs.SliceLikeAttrs")
class SliceLikeAttrs(Attrs):
    """Attributes of slice_like: the axes to slice; None for all."""

    axes: tuple[int, ...] | None = None


@node("relay.attrs.CollapseSumAttrs")
class CollapseSumAttrs(Attrs):
    """Attributes of collapse_sum_to: the target shape."""

    shape: Dims = ()


@node("relay.attrs.FixedPointMultiplyAttrs")
class FixedPointMultiplyAttrs(Attrs):
    """Attributes of fixed_point_multiply: the Q31 multiplier and the shift."""

    multiplier: int = 0
    shift: int = 0


@node("relay.attrs.FixedPointMultiplyPerAxisAttrs")
class FixedPointMultiplyPerAxisAttrs(Attrs):
    """Attributes of fixed_point_multiply_per_axis: which shifts apply, and the axes of the
    multipliers.
    """

    is_lshift_required: bool = False
    is_rshift_required: bool = False
    axes: tuple[int, ...] = ()


def _fixed_point_multiply_reference(data: Array, multiplier: int, shift: int) -> Array:
    """Return data * multiplier * 2**(shift - 31) in integer arithmetic, rounded half up."""
    left_shift, right_shift = max(shift, 0), min(31 - min(shift, 0), 63)
    # 31 bits of data, the shift and 31 bits of the multiplier need int64.
    scaled = (data.astype(np.int64) << left_shift) * multiplier
    # Half of the last place that stays is added before the shift drops the others.
    return np.asarray((scaled + (1 << (right_shift - 1))) >> right_shift).astype(np.int32)


def _einsum_reference(attrs: EinsumAttrs, *arrays: Array) -> Array:
    result = np.asarray(np.einsum(attrs.equation, *map(widen_for_numpy, arrays)))
    return result.astype(arrays[0].dtype, copy=False)


def _dft_reference(attrs: DFTAttrs, re: Array, im: Array) -> tuple[Array, ...]:
    spectrum = (np.fft.ifft if attrs.inverse else np.fft.fft)(re + 1j * im)
    return spectrum.real.astype(re.dtype), spectrum.imag.astype(re.dtype)


def _invert_permutation_reference(attrs: None, data: Array) -> Array:
    check_range("invert_permutation: position", data, (0, len(data)))
    inverse = np.zeros_like(data)
    # Of equal positions the largest index stays, whatever order a kernel's threads have.
    np.maximum.at(inverse, data.astype(np.int64), np.arange(len(data)).astype(data.dtype))
    return inverse


def _variance_reference(attrs: VarianceAttrs, data: Array) -> Array:
    axes = reduced_axes("variance", attrs, data.ndim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of too few elements
        # ddof is Bessel's correction: n - 1 instead of n.
        variances = np.var(data, axis=axes, keepdims=attrs.keepdims, ddof=int(attrs.unbiased))
    return np.asarray(variances).astype(data.dtype)


def _unravel_index_reference(attrs: None, data: Array, shape: Array) -> Array:
    dims = [int(d) for d in shape]
    if not data.size:  # no kernel is run for nothing
        return np.empty((len(dims), *data.shape), data.dtype)
    check_range("unravel_index: extent", shape, (0, 2**31))
    count, limit = 1, arranging.MAX_UNRAVEL_ELEMENTS
    # The product of the extents is capped, so that it does not overflow.
    for extent in dims:
        count = count * extent if count <= limit // max(extent, 1) else limit
    check_range("unravel_index: position", data, (0, count), "{} elements", (count,))
    remaining, coordinates = data.astype(np.int64), []
    # The last axis varies fastest.
    for extent in reversed(dims):
        # An extent of 0 has no coordinate, and must not divide.
        coordinates.append(remaining % max(extent, 1))
        remaining = remaining // max(extent, 1)
    return np.stack(coordinates[::-1]).astype(data.dtype)


def _diagonal_alignment(attrs: MatrixSetDiagAttrs) -> str:
    right = (attrs.super_diag_right_align, attrs.sub_diag_right_align)
    return "_".join("RIGHT" if is_right else "LEFT" for is_right in right)


def _meshgrid_reference(attrs: MeshgridAttrs, *vectors: Array) -> tuple[Array, ...]:
    return tuple(map(np.array, np.meshgrid(*vectors, indexing=attrs.indexing)))  # type: ignore[call-overload]


def _collapse_sum_reference(data: Array, shape: Sequence[int]) -> Array:
    extra = data.ndim - len(shape)
    # Broadcasting has put axes in front and repeated those of extent 1: both are summed back.
    axes = (*range(extra), *(extra + n for n, d in enumerate(shape) if d == 1))
    # Sums accumulate in the type that the kernel uses.
    wide = data.astype(to_numpy(accumulator_dtype(str(data.dtype))))
    return np.asarray(wide.sum(axes, dtype=wide.dtype).reshape(shape)).astype(data.dtype)


declare_topi_op(
    "einsum",
    ("data",),
    lambda attrs, *x: topi.einsum(attrs.equation, *x),
    "the axes the equation names, with the operands' dtype",
    EinsumAttrs,
    reference=_einsum_reference,
    variadic=True,
)
declare_topi_op(
    "det",
    ("data",),
    lambda attrs, data: topi.linalg.det(data),
    "the determinants of the matrices in the last two axes",
    reference=lambda attrs, data: np.linalg.det(data.astype(np.float64)).astype(data.dtype),
)
declare_topi_op(
    "dft",
    ("re_data", "im_data"),
    lambda attrs, re_data, im_data: topi.dft(re_data, im_data, attrs.inverse),
    "a tuple of two of the type of re_data",
    DFTAttrs,
    reference=_dft_reference,
    fields=2,
)
declare_topi_op(
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
declare_topi_op("trilu", ("data", "k"), lambda attrs, data, k: topi.trilu(data, k, attrs.upper),
        "the type of data", TriluAttrs, OpPattern.INJECTIVE,
        lambda attrs, data, k: (np.triu if attrs.upper else np.tril)(data, int(k)))  # fmt: skip
declare_topi_op(
    "matrix_set_diag",
    ("input", "diagonal"),
    lambda attrs, data, diagonal: topi.matrix_set_diag(
        data, diagonal, (attrs.k1, attrs.k2), _diagonal_alignment(attrs)
    ),
    "the type of input",
    MatrixSetDiagAttrs,
    OpPattern.INJECTIVE,
)
declare_topi_op(
    "invert_permutation",
    ("data",),
    lambda attrs, data: topi.invert_permutation(data),
    "the type of data",
    reference=_invert_permutation_reference,
    takes={"data": "integer"},
    refuses=True,
)
declare_topi_op(
    "unravel_index",
    ("data", "shape"),
    lambda attrs, data, shape: topi.unravel_index(data, shape),
    "an axis of coordinates, then the axes of data",
    takes={"data": "integer", "shape": "integer"},
    pattern=OpPattern.INJECTIVE,
    reference=_unravel_index_reference,
    refuses=True,
)
declare_topi_op(
    "meshgrid",
    ("data",),
    lambda attrs, *x: topi.meshgrid(x, attrs.indexing),
    "a tuple of a grid for each vector",
    MeshgridAttrs,
    OpPattern.INJECTIVE,
    _meshgrid_reference,
    variadic=True,
)
declare_topi_op(
    "variance",
    ("data",),
    lambda attrs, data: topi.variance(
        data, reduced_axes("variance", attrs, len(data.shape)), attrs.keepdims, attrs.unbiased
    ),
    "data's shape without `axis` (with 1 there: `keepdims`)",
    VarianceAttrs,
    OpPattern.COMM_REDUCE,
    precision=PrecisionPolicy.NEVER,
    reference=_variance_reference,
)
declare_topi_op(
    "full_like",
    ("data", "fill_value"),
    lambda attrs, data, fill: topi.full_like(data, fill),
    "the type of data",
    pattern=OpPattern.BROADCAST,
    reference=lambda attrs, data, fill: np.full_like(data, fill),
)
declare_topi_op("slice_like", ("data", "shape_like"),
        lambda attrs, data, like: topi.slice_like(data, like, attrs.axes),
        "data's shape, with the extents of shape_like along the axes", SliceLikeAttrs,
        OpPattern.INJECTIVE)  # fmt: skip
declare_topi_op(
    "broadcast_to_like",
    ("data", "broadcast_type"),
    lambda attrs, data, like: repeated(data, like.shape),
    "the shape of broadcast_type, with the dtype of data",
    pattern=OpPattern.BROADCAST,
    reference=lambda attrs, data, like: np.array(np.broadcast_to(data, like.shape)),
)
declare_topi_op("collapse_sum_like", ("data", "collapse_type"),
        lambda attrs, data, like: topi.collapse_sum(data, like.shape),
        "the shape of collapse_type, with the dtype of data", pattern=OpPattern.COMM_REDUCE,
        reference=lambda attrs, data, like: _collapse_sum_reference(data, like.shape))  # fmt: skip
declare_topi_op("collapse_sum_to", ("data",),
        lambda attrs, data: topi.collapse_sum(data, as_shape(attrs.shape)),
        "`shape`, with the dtype of data", CollapseSumAttrs, OpPattern.COMM_REDUCE,
        lambda attrs, data: _collapse_sum_reference(data, as_ints(attrs.shape)))  # fmt: skip
declare_topi_op(
    "fixed_point_multiply",
    ("data",),
    lambda attrs, data: topi.fixed_point_multiply(data, attrs.multiplier, attrs.shift),
    "the type of data",
    FixedPointMultiplyAttrs,
    OpPattern.ELEMWISE,
    lambda attrs, data: _fixed_point_multiply_reference(data, attrs.multiplier, attrs.shift),
)
declare_topi_op(
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
    """Return the Einstein summation of tensors, such as "ij,jk->ik"."""
    return call_op("einsum", to_tuple_expr(data), attrs=EinsumAttrs(equation))


def det(data: Expr) -> Call:
    """Return the determinants of the matrices in the last two axes."""
    return call_op("det", data)


def dft(re_data: Expr, im_data: Expr, inverse: bool = False) -> Call:
    """Return the real and imaginary parts of the discrete Fourier transform along the last axis."""
    return call_op("dft", re_data, im_data, attrs=DFTAttrs(inverse))


def stft(
    data: Expr,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Expr,
    normalized: bool = False,
    onesided: bool = True,
) -> Call:
    """Return the short-time Fourier transform of signals [batch, time]."""
    attrs = StftAttrs(n_fft, hop_length, win_length, normalized, onesided)
    return call_op("stft", data, window, attrs=attrs)


def trilu(data: Expr, k: Expr | int, upper: bool = True) -> Call:
    """Return the upper (or lower) triangle of matrices from the k-th diagonal on, with zeros
    elsewhere.
    """
    position = k if isinstance(k, Expr) else const(k, "int32")
    return call_op("trilu", data, position, attrs=TriluAttrs(upper))


def matrix_set_diag(
    data: Expr, diagonal: Expr, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT"
) -> Call:
    """Return matrices with their diagonals from k[0] to k[1] replaced."""
    low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
    # TVM writes both alignments in one text, that of the superdiagonals first.
    above, below = (alignment == "RIGHT" for alignment in align.split("_"))
    return call_op(
        "matrix_set_diag", data, diagonal, attrs=MatrixSetDiagAttrs(low, high, above, below)
    )


def logsumexp(data: Expr, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Expr:
    """Return log(sum(exp(data))) along axes (None: all), stabilised by the maximum."""
    # exp of the differences is at most 1: it cannot overflow.
    largest: Expr = largest_of(data, axis, True)
    largest = where(isinf(largest), zeros_like(largest), largest)  # inf - inf is nan
    total = add(log(sum_of(exp(subtract(data, largest)), axis, True)), largest)
    return total if keepdims else squeeze(total, axis)


def invert_permutation(data: Expr) -> Call:
    """Return the inverse of a permutation."""
    return call_op("invert_permutation", data)


def unravel_index(indices: Expr, shape: Expr) -> Call:
    """Return flat indices as coordinates in a shape given as a tensor."""
    return call_op("unravel_index", indices, shape)


def meshgrid(data: Sequence[Expr] | Expr, indexing: str = "ij") -> Call:
    """Return the coordinate grids of vectors, as a tuple."""
    return call_op("meshgrid", to_tuple_expr(data), attrs=MeshgridAttrs(indexing))


def variance(
    data: Expr,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
    with_mean: Expr | None = None,
) -> Call:
    """Return the variance over `axis` (with `exclude`, over its complement).

    Args:
        data: The tensor.
        axis: The axes; None for all.
        keepdims: Keep reduced axes with extent 1.
        exclude: Reduce all axes but `axis`.
        unbiased: Divide by n - 1 rather than n.
        with_mean: TVM's; the mean is computed anyway.
    """
    attrs = VarianceAttrs(to_attr_axes(axis), keepdims, unbiased, exclude)
    return call_op("variance", data, attrs=attrs)


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
    return call_op("full_like", data, fill_value)


def slice_like(data: Expr, shape_like: Expr, axes: Sequence[int] | None = None) -> Call:
    """Return the leading slice of `data` with the extents of another tensor."""
    attrs = SliceLikeAttrs(tuple(axes) if axes else None)
    return call_op("slice_like", data, shape_like, attrs=attrs)


def broadcast_to_like(data: Expr, broadcast_type: Expr) -> Call:
    """Return `data` broadcast to the shape of another tensor."""
    return call_op("broadcast_to_like", data, broadcast_type)


def collapse_sum_like(data: Expr, collapse_type: Expr) -> Call:
    """Return `data` summed to another tensor's shape, the reverse of broadcasting it."""
    return call_op("collapse_sum_like", data, collapse_type)


def collapse_sum_to(data: Expr, shape: Sequence[Dim]) -> Call:
    """Return `data` summed to a given shape, the reverse of broadcasting from it."""
    return call_op("collapse_sum_to", data, attrs=CollapseSumAttrs(to_attr_dims(shape)))


def fixed_point_multiply(data: Expr, multiplier: int, shift: int) -> Call:
    """Return int32 times multiplier * 2**(shift - 31), rounded half up."""
    return call_op("fixed_point_multiply", data, attrs=FixedPointMultiplyAttrs(multiplier, shift))


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
    return call_op("fixed_point_multiply_per_axis", x, y, lshift, rshift, attrs=attrs)


__all__ = [
    "broadcast_to_like", "collapse_sum_like", "collapse_sum_to", "det", "dft", "einsum",
    "fixed_point_multiply", "fixed_point_multiply_per_axis", "full_like", "invert_permutation",
    "logsumexp", "matrix_set_diag",
    "mean_std", "mean_variance", "meshgrid", "slice_like", "std", "stft", "trilu", "unravel_index",
    "variance",
]  # fmt: skip
