"""Normalisations: statistics as reductions, then one computation on each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.topi.nn.conv import guarded, inside
from ekiden.topi.reduce import accumulator, reduce, reduce_axes, source_indices
from ekiden.topi.shape import as_dim, product, replaced, tidy


def batch_norm(
    data: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, axis: int, epsilon: float,
    center: bool, scale: bool
) -> Tensor:  # fmt: skip
    """(data - mean) / sqrt(var + epsilon) * gamma + beta, along the channels of `axis`."""

    def body(*i: Var) -> PrimExpr:
        c = i[axis]
        factor = call_intrin("rsqrt", var[c] + const(epsilon, var.dtype))
        value = (data[i] - mean[c]) * (factor * gamma[c] if scale else factor)
        return value + beta[c] if center else value

    return te.compute(data.shape, body, name="batch_norm", tag="elemwise")


def _moments(
    data: Tensor, axes: Sequence[int]
) -> tuple[Callable[[Sequence[PrimExpr]], PrimExpr], Tensor]:
    """The mean, as a function of a row's indices, and the sum of squared distances from it."""
    wide = accumulator(data.dtype)
    count = cast(product([data.shape[a] for a in axes]), wide)
    total = reduce(data, axes, True, te.sum, "row_sum", lambda v: cast(v, wide))
    variables = reduce_axes(data.shape, axes)

    def mean(row: Sequence[PrimExpr]) -> PrimExpr:
        return total[row] / count

    def body(*i: Var) -> PrimExpr:
        distance = cast(data[source_indices(i, variables, axes, data.ndim, True)], wide) - mean(i)
        return te.sum(distance * distance, variables)

    return mean, te.compute(total.shape, body, name="row_squares", tag="reduce")


def normalize(
    data: Tensor,
    axes: Sequence[int],
    epsilon: float,
    affine: Callable[[PrimExpr, Sequence[PrimExpr]], PrimExpr],
    name: str,
) -> Tensor:
    """Rows along `axes` with mean 0 and variance 1, then `affine` of the value and its indices."""
    mean, squares = _moments(data, axes)
    wide = accumulator(data.dtype)
    count = cast(product([data.shape[a] for a in axes]), wide)

    def body(*i: Var) -> PrimExpr:
        row = [as_dim(0) if n in axes else index for n, index in enumerate(i)]
        factor = call_intrin("rsqrt", squares[row] / count + const(epsilon, wide))
        return cast(affine((cast(data[i], wide) - mean(row)) * factor, i), data.dtype)

    return te.compute(data.shape, body, name=name, tag=name, attrs={"axes": tuple(axes)})


def affine(
    gamma: Tensor,
    beta: Tensor,
    center: bool,
    scale: bool,
    channel: Callable[[Sequence[PrimExpr]], PrimExpr],
) -> Callable[[PrimExpr, Sequence[PrimExpr]], PrimExpr]:
    """`value * gamma + beta` at the channel of an element."""

    def apply(value: PrimExpr, indices: Sequence[PrimExpr]) -> PrimExpr:
        c = channel(indices)
        scaled = value * cast(gamma[c], value.dtype) if scale else value
        return scaled + cast(beta[c], value.dtype) if center else scaled

    return apply


def layer_norm(
    data: Tensor, gamma: Tensor, beta: Tensor, axis: int, epsilon: float, center: bool, scale: bool
) -> Tensor:
    """Rows along `axis` normalised."""
    return normalize(
        data, (axis,), epsilon, affine(gamma, beta, center, scale, lambda i: i[axis]), "layer_norm"
    )


def instance_norm(
    data: Tensor, gamma: Tensor, beta: Tensor, axis: int, epsilon: float, center: bool, scale: bool
) -> Tensor:
    """Each channel of each sample normalised."""
    axes = tuple(i for i in range(1, data.ndim) if i != axis)
    return normalize(
        data, axes, epsilon, affine(gamma, beta, center, scale, lambda i: i[axis]), "instance_norm"
    )


def group_norm(
    data: Tensor,
    gamma: Tensor,
    beta: Tensor,
    num_groups: int,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
) -> Tensor:
    """Each group of channels of each sample normalised."""
    per_group = tidy(data.shape[axis] // num_groups)
    grouped_shape = (*data.shape[:axis], as_dim(num_groups), per_group, *data.shape[axis + 1 :])
    grouped = te.compute(
        grouped_shape,
        lambda *i: data[(*i[:axis], i[axis] * per_group + i[axis + 1], *i[axis + 2 :])],
        name="grouped",
        tag="injective",
    )
    axes = tuple(i for i in range(1, grouped.ndim) if i != axis)
    apply = affine(gamma, beta, center, scale, lambda i: i[axis] * per_group + i[axis + 1])
    normal = normalize(grouped, axes, epsilon, apply, "group_norm")
    return te.compute(
        data.shape,
        lambda *i: normal[(*i[:axis], i[axis] // per_group, i[axis] % per_group, *i[axis + 1 :])],
        name="ungrouped",
        tag="injective",
    )


def lrn(data: Tensor, size: int, axis: int, bias: float, alpha: float, beta: float) -> Tensor:
    """x / (bias + alpha / size * sum of squares over `size` channels) ** beta."""
    before = (size - 1) // 2
    extent, zero = data.shape[axis], const(0, data.dtype)

    def square(i: Sequence[PrimExpr], offset: int) -> PrimExpr:
        at = i[axis] + offset
        conditions = inside(at, extent, offset < 0, offset > 0)
        value = guarded(data, replaced(i, axis, at), conditions, zero)
        return value * value

    def body(*i: Var) -> PrimExpr:
        total = square(i, -before)
        for offset in range(1 - before, size - before):
            total = total + square(i, offset)
        base = total * const(alpha / size, data.dtype) + const(bias, data.dtype)
        return data[i] / _power(base, beta)

    return te.compute(data.shape, body, name="lrn", tag="elemwise")


def _power(base: PrimExpr, exponent: float) -> PrimExpr:
    """base ** exponent, by square roots for the exponents in use."""
    root = call_intrin("sqrt", base)
    if exponent == 0.75:
        return root * call_intrin("sqrt", root)
    if exponent in (0.5, 1.0):
        return root if exponent == 0.5 else base
    return call_intrin("pow", base, const(exponent, base.dtype))
