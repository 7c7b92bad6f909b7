"""Normalisation operators: statistics as reductions, then one elementwise computation.

    mean = sum(x) / n,   variance = sum((x - mean)^2) / n
    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta

Two passes, the mean first: E[x^2] - mean^2 in one pass loses the digits that both share. The row is
in a cache by then, so that the second pass costs little. Sums are in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast, const, maximum
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    as_dim,
    known_int,
    normalize_axes,
    normalize_axis,
    product_of_dims,
    replace_dim,
    require_positive,
    simplify_dim,
)
from ekiden.topi.elementwise import elementwise, widen_half
from ekiden.topi.nn.convolution import guarded_load, in_range_conditions
from ekiden.topi.reduce import (
    accumulator_dtype,
    reduce_axes,
    reduce_elements,
    source_indices,
    variance,
)
from ekiden.topi.reduce import mean as reduce_mean


def batch_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    moving_mean: Tensor,
    moving_var: Tensor,
    axis: int | None = None,
    epsilon: float | None = None,
    center: bool | None = None,
    scale: bool | None = None,
    training: bool | None = None,
    momentum: float | None = None,
) -> list[Tensor]:
    """Return [(data - mean) / sqrt(var + epsilon) * gamma + beta, mean, var], per channel of
    `axis`.

    Args:
        data: the tensor.
        gamma: scale of each channel.
        beta: offset of each channel.
        moving_mean: mean of each channel.
        moving_var: variance of each channel.
        axis: the channel axis, 1 by default.
        epsilon: 1e-5 by default.
        center: whether beta is added (default).
        scale: whether gamma multiplies (default).
        training: compute the statistics from the data; the moving ones absorb them with `momentum`.
        momentum: 0.1 by default.

    Returns:
        The normalised data and the moving statistics.
    """
    axis_index = normalize_axis(1 if axis is None else axis, data.ndim, "batch_norm")
    small = 1e-5 if epsilon is None else epsilon
    mean, var = moving_mean, moving_var
    news = [elementwise(t, lambda v: v, "copy") for t in (moving_mean, moving_var)]
    if training:
        axes = [n for n in range(data.ndim) if n != axis_index]
        share = 0.1 if momentum is None else momentum
        mean, var = reduce_mean(data, axes), variance(data, axes)
        pairs = ((moving_mean, mean), (moving_var, var))
        news = [_moving_average(old, new, share) for old, new in pairs]

    def normalize_element(*i: Var) -> PrimExpr:
        """Return (data - mean) * (1 / sqrt(var + epsilon) * gamma) + beta, in the dtype of the
        data.
        """
        c = i[axis_index]
        factor = call_intrin("rsqrt", var[c] + const(small, var.dtype))
        value = (data[i] - mean[c]) * (factor if scale is False else factor * gamma[c])
        return value if center is False else value + beta[c]

    return [te.compute(data.shape, normalize_element, name="batch_norm", tag="elemwise"), *news]


def _moving_average(old: Tensor, new: Tensor, share: float) -> Tensor:
    return te.compute(
        old.shape, lambda c: old[c] * (1 - share) + new[c] * share, name="moving", tag="elemwise"
    )


def _moments(
    data: Tensor, axes: Sequence[int]
) -> tuple[Callable[[Sequence[PrimExpr]], PrimExpr], Tensor]:
    """Return the mean, as a function of a row's indices, and the sum of squared deviations."""
    wide = accumulator_dtype(data.dtype)
    count = cast(product_of_dims([data.shape[a] for a in axes]), wide)
    total = reduce_elements(data, axes, True, te.sum, "row_sum", lambda v: cast(v, wide))
    variables = reduce_axes(data.shape, axes)

    def mean_of_row(row: Sequence[PrimExpr]) -> PrimExpr:
        return total[row] / count

    def squared_deviation(*i: Var) -> PrimExpr:
        """Return the sum of squared deviations from a row's mean."""
        # A second pass over the deviations avoids the cancellation of E[x^2] - E[x]^2.
        distance = cast(
            data[source_indices(i, variables, axes, data.ndim, True)], wide
        ) - mean_of_row(i)
        return te.sum(distance * distance, variables)

    return mean_of_row, te.compute(total.shape, squared_deviation, name="row_squares", tag="reduce")


def normalize(
    data: Tensor,
    axes: Sequence[int],
    epsilon: float,
    affine: Callable[[PrimExpr, Sequence[PrimExpr]], PrimExpr],
    name: str,
) -> Tensor:
    """Normalise rows along `axes` to mean 0 and variance 1, then apply `affine` to the value and
    its indices.
    """
    mean, squares = _moments(data, axes)
    wide = accumulator_dtype(data.dtype)
    count = cast(product_of_dims([data.shape[a] for a in axes]), wide)

    def normalize_element(*i: Var) -> PrimExpr:
        """Normalise in the row's wide dtype; rounded once, at the end."""
        row = [as_dim(0) if n in axes else index for n, index in enumerate(i)]
        factor = call_intrin("rsqrt", squares[row] / count + const(epsilon, wide))
        return cast(affine((cast(data[i], wide) - mean(row)) * factor, i), data.dtype)

    return te.compute(
        data.shape, normalize_element, name=name, tag=name, attrs={"axes": tuple(axes)}
    )


def affine_transform(
    gamma: Tensor | None,
    beta: Tensor | None,
    parameters: Callable[[Sequence[PrimExpr]], Sequence[PrimExpr]],
) -> Callable[[PrimExpr, Sequence[PrimExpr]], PrimExpr]:
    """Return the function `value * gamma + beta`; either parameter may be None."""

    def apply_affine(value: PrimExpr, indices: Sequence[PrimExpr]) -> PrimExpr:
        """Apply the affine map to one element; parameters may have another dtype."""
        position = parameters(indices)
        scaled = value if gamma is None else value * cast(gamma[position], value.dtype)
        return scaled if beta is None else scaled + cast(beta[position], value.dtype)

    return apply_affine


Axes = int | Sequence[int]


def layer_norm(
    data: Tensor, gamma: Tensor | None, beta: Tensor | None, axis: Axes, epsilon: float = 1e-5
) -> Tensor:
    """Normalise rows along `axis` to mean 0 and variance 1, times gamma, plus beta, which have
    their axes (None: absent).
    """
    axes = normalize_axes(axis, data.ndim, "layer_norm")
    affine = affine_transform(gamma, beta, lambda i: [i[a] for a in axes])
    return normalize(data, axes, epsilon, affine, "layer_norm")


def rms_norm(data: Tensor, weight: Tensor, axis: Axes, epsilon: float = 1e-5) -> Tensor:
    """Return data / sqrt(mean of squares + epsilon) * weight, along `axis`, whose axes the weight
    has.
    """
    axes = normalize_axes(axis, data.ndim, "rms_norm")
    wide = accumulator_dtype(data.dtype)
    count = cast(product_of_dims([data.shape[a] for a in axes]), wide)
    squares = reduce_elements(
        data, axes, True, te.sum, "row_squares", lambda v: cast(v, wide) * cast(v, wide)
    )

    def normalize_element(*i: Var) -> PrimExpr:
        """Normalise in the wide dtype; rounded once, at the end."""
        row = [as_dim(0) if n in axes else index for n, index in enumerate(i)]
        factor = call_intrin("rsqrt", squares[row] / count + const(epsilon, wide))
        weight_element = cast(weight[[i[a] for a in axes]], wide)
        return cast(cast(data[i], wide) * factor * weight_element, data.dtype)

    return te.compute(
        data.shape, normalize_element, name="rms_norm", tag="layer_norm", attrs={"axes": axes}
    )


def instance_norm(
    data: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    axis: Axes,
    epsilon: float = 1e-5,
    channel_axis: int = 1,
) -> Tensor:
    """Normalise each channel of each sample over `axis` (all axes but the first and the channels),
    then scale by gamma and add beta of its channel.
    """
    axes = normalize_axes(axis, data.ndim, "instance_norm")
    axis_index = normalize_axis(channel_axis, data.ndim, "instance_norm")
    return normalize(
        data,
        axes,
        epsilon,
        affine_transform(gamma, beta, lambda i: [i[axis_index]]),
        "instance_norm",
    )


def group_norm(
    data: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    num_groups: int,
    channel_axis: int,
    axes: Sequence[int],
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalise groups of adjacent channels of each sample over themselves and `axes`, then scale
    by gamma and add beta of each channel.
    """
    axis = normalize_axis(channel_axis, data.ndim, "group_norm")
    norm_axes = normalize_axes(axes, data.ndim, "group_norm")
    per_group = simplify_dim(data.shape[axis] // num_groups)
    grouped_shape = (*data.shape[:axis], as_dim(num_groups), per_group, *data.shape[axis + 1 :])
    grouped = te.compute(
        grouped_shape,
        lambda *i: data[(*i[:axis], i[axis] * per_group + i[axis + 1], *i[axis + 2 :])],
        name="grouped",
        tag="injective",
    )
    inner = tuple(sorted({axis + 1, *(a if a < axis else a + 1 for a in norm_axes if a != axis)}))
    apply = affine_transform(gamma, beta, lambda i: [i[axis] * per_group + i[axis + 1]])
    normal = normalize(grouped, inner, epsilon, apply, "group_norm")
    return te.compute(
        data.shape,
        lambda *i: normal[(*i[:axis], i[axis] // per_group, i[axis] % per_group, *i[axis + 1 :])],
        name="ungrouped",
        tag="injective",
    )


def l2_normalize(data: Tensor, eps: float, axis: Axes | None = None) -> Tensor:
    """Return data / sqrt(max(sum of squares along `axis`, eps))."""
    axes = normalize_axes(axis, data.ndim, "l2_normalize")
    wide = accumulator_dtype(data.dtype)
    squares = reduce_elements(
        data, axes, True, te.sum, "row_squares", lambda v: cast(v, wide) * cast(v, wide)
    )

    def normalize_element(*i: Var) -> PrimExpr:
        """Normalise in the wide dtype; rounded once, at the end."""
        row = [as_dim(0) if n in axes else index for n, index in enumerate(i)]
        length = call_intrin("sqrt", maximum(squares[row], const(eps, wide)))
        return cast(cast(data[i], wide) / length, data.dtype)

    return te.compute(
        data.shape, normalize_element, name="l2_normalize", tag="layer_norm", attrs={"axes": axes}
    )


def lrn(
    data: Tensor,
    size: int,
    axis: int = 1,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 2,
) -> Tensor:
    """Return x / (bias + alpha / size * sum of squares over `size` channels) ** beta (local
    response normalisation).
    """
    axis_index = normalize_axis(axis, data.ndim, "lrn")
    require_positive("lrn", size=size)
    before = (size - 1) // 2
    extent, zero = data.shape[axis_index], const(0, data.dtype)
    reach = known_int(extent)
    beyond = size if reach is None else max(reach, 1)  # what lies farther away adds 0
    offsets = range(max(-before, 1 - beyond), min(size - before, beyond))

    def squared_channel(i: Sequence[PrimExpr], offset: int) -> PrimExpr:
        """Return the square of the channel at `offset`; 0 beyond the first and last."""
        channel_index = i[axis_index] + offset
        conditions = in_range_conditions(channel_index, extent, offset < 0, offset > 0)
        value = widen_half(
            guarded_load(data, replace_dim(i, axis_index, channel_index), conditions, zero)
        )
        return value * value

    def normalize_element(*i: Var) -> PrimExpr:
        """Normalise one element; the window is unrolled, as `size` is small."""
        total = squared_channel(i, offsets[0])
        for offset in offsets[1:]:
            total = total + squared_channel(i, offset)
        base = total * const(alpha / size, total.dtype) + const(bias, total.dtype)
        return cast(widen_half(data[i]) / _power_of(base, beta), data.dtype)

    return te.compute(data.shape, normalize_element, name="lrn", tag="elemwise")


def scale_shift_nchw(Input: Tensor, Scale: Tensor, Shift: Tensor) -> Tensor:  # noqa: N803
    """Return [N, C, H, W] times a factor plus an offset per channel."""
    return _scale_shift(Input, Scale, Shift, 1)


def scale_shift_nhwc(Input: Tensor, Scale: Tensor, Shift: Tensor) -> Tensor:  # noqa: N803
    """Return [N, H, W, C] times a factor plus an offset per channel."""
    return _scale_shift(Input, Scale, Shift, 3)


def _scale_shift(data: Tensor, scale: Tensor, shift: Tensor, axis: int) -> Tensor:
    return te.compute(
        data.shape,
        lambda *i: data[i] * scale[i[axis]] + shift[i[axis]],
        name="scale_shift",
        tag="broadcast",
    )


def _power_of(base: PrimExpr, exponent: float) -> PrimExpr:
    """Return base ** exponent, by square roots for the common exponents."""
    root = call_intrin("sqrt", base)
    if exponent == 0.75:
        # x**0.75 = x**0.5 * x**0.25
        return root * call_intrin("sqrt", root)
    if exponent in (0.5, 1.0):
        return root if exponent == 0.5 else base
    return call_intrin("pow", base, const(exponent, base.dtype))


__all__ = [
    "batch_norm", "group_norm", "instance_norm", "l2_normalize", "layer_norm", "lrn", "rms_norm",
    "scale_shift_nchw", "scale_shift_nhwc",
]  # fmt: skip
