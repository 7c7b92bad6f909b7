"""Normalisation operators: batch, layer, RMS, instance, group and local response normalisation.

    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta

with mean and variance (of the whole, not the sample: over n, not n - 1)

    nn.batch_norm     given, one for each channel (Ioffe and Szegedy 2015)
    nn.layer_norm     of each row along an axis (Ba, Kiros and Hinton 2016)
    nn.instance_norm  of each channel of each sample (Ulyanov, Vedaldi and Lempitsky 2016)
    nn.group_norm     of each group of channels of each sample (Wu and He 2018)
    nn.rms_norm       mean 0, variance the mean of squares, no beta (Zhang and Sennrich 2019)

nn.lrn is x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta, as
ONNX's; Krizhevsky, Sutskever and Hinton 2012 do not divide by the size.

Sums are in float32 at least, whatever the data: of float16 the squares of 256 and more overflow. So
those that sum stay in float32 under mixed precision, and batch_norm follows its data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, TransposeRule, register_op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_same_dtype,
    check_tensors,
    raise_type_error,
    unify_vector_axis,
)
from ekiden.relay.op.nn._infer_params import infer_channel_vectors
from ekiden.relay.op.nn.activation import reshape_along_axis
from ekiden.te import Tensor
from ekiden.topi.dimensions import known_int, normalize_axis


def _check_channel_vectors(
    name: str, data: TensorType, vectors: Sequence[TensorType], axis: int
) -> tuple[TensorType, int]:
    """Check that parameter vectors have the extent of an axis; return the data's type and the axis.

    Returns:
        The type of the result, with an extent of the axis that is known from any of the vectors,
        and the axis counted from the front.
    """
    check_same_dtype(name, (data, *vectors))
    axis_index = call_shape_rule(name, normalize_axis, axis, len(data.shape), name)
    for position, vector in enumerate(vectors, 1):
        check_rank(name, vector, 1, f"argument {position}")
        data = unify_vector_axis(name, data, axis_index, vector, f"argument {position}")
    return data, axis_index


def _standardize(data: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return data standardised to mean 0 and variance 1 along axes, by the two-pass algorithm.

    The difference of E[x^2] and E[x]^2 would lose all digits if the mean is large beside the
    deviation.
    """
    wide = data.astype(np.float64)
    # Two passes: the mean of squares minus the square of the mean cancels for large means.
    centred = wide - wide.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + epsilon))


def _scale_and_shift(
    normal: Array,
    gamma: Array,
    beta: Array,
    axis: int,
    attrs: LayerNormAttrs | InstanceNormAttrs | GroupNormAttrs,
) -> Array:
    if attrs.scale:
        normal = normal * reshape_along_axis(gamma, axis, normal.ndim)
    # gamma has the data's dtype, to which the float64 result is rounded once.
    return (
        normal + reshape_along_axis(beta, axis, normal.ndim) if attrs.center else normal
    ).astype(gamma.dtype)


@node("relay.attrs.BatchNormAttrs")
class BatchNormAttrs(Attrs):
    """Attributes of batch_norm: channel axis, epsilon, and whether beta (center) and gamma (scale)
    apply.
    """

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def _batch_norm_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, *vectors = check_tensors("nn.batch_norm", types, 5)
    result_type, _ = _check_channel_vectors(
        "nn.batch_norm", data, vectors, check_attrs(BatchNormAttrs, attrs).axis
    )
    # Inference: the moving statistics are handed through as they are.
    return TupleType((result_type, vectors[2], vectors[3]))


def _batch_norm_reference(
    attrs: BatchNormAttrs, data: Array, gamma: Array, beta: Array, mean: Array, var: Array
) -> tuple[Array, ...]:
    # In float64 until the end, so that the reference is the better of two that are compared.
    factor = 1 / np.sqrt(var.astype(np.float64) + attrs.epsilon)
    if attrs.scale:
        factor = factor * gamma
    out = (data - reshape_along_axis(mean, attrs.axis, data.ndim)) * reshape_along_axis(
        factor, attrs.axis, data.ndim
    )
    if attrs.center:
        out = out + reshape_along_axis(beta, attrs.axis, data.ndim)
    return out.astype(data.dtype), mean, var


def _lower_batch_norm(attrs: BatchNormAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    data, gamma, beta, mean, var = inputs
    return topi.nn.batch_norm(
        data, gamma, beta, mean, var, attrs.axis, attrs.epsilon, attrs.center, attrs.scale
    )


register_op(
    OpDef(
        name="nn.batch_norm",
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "gamma", "beta", "moving_mean", "moving_var"),
        attrs=BatchNormAttrs,
        relation=_batch_norm_relation,
        solve=infer_channel_vectors(),
        reference=_batch_norm_reference,
        lower=_lower_batch_norm,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(the type of data, the type of moving_mean, the type of moving_var)",
        fields=lambda attrs: 3,
    )
)


def batch_norm(
    data: Expr, gamma: Expr, beta: Expr, moving_mean: Expr, moving_var: Expr,
    axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = True,
) -> Call:  # fmt: skip
    """Return the normalised data and the moving statistics, in inference form."""
    attrs = BatchNormAttrs(axis, epsilon, center, scale)
    return call_op("nn.batch_norm", data, gamma, beta, moving_mean, moving_var, attrs=attrs)


def _non_channel_axes(axis: int, rank: int) -> list[int]:
    """Return all axes except the batch and channel axes."""
    return [n for n in range(1, rank) if n != axis % rank]


def _affine_parameters(
    attrs: LayerNormAttrs | InstanceNormAttrs | GroupNormAttrs, inputs: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return (gamma, beta), each None where it does not apply."""
    return (inputs[1] if attrs.scale else None), (inputs[2] if attrs.center else None)


@node("relay.attrs.LayerNormAttrs")
class LayerNormAttrs(Attrs):
    """Attributes of layer_norm: axis, epsilon, center, scale."""

    axis: int = -1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def _layer_norm_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, *vectors = check_tensors("nn.layer_norm", types, 3)
    return _check_channel_vectors(
        "nn.layer_norm", data, vectors, check_attrs(LayerNormAttrs, attrs).axis
    )[0]


def _layer_norm_reference(attrs: LayerNormAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    return _scale_and_shift(
        _standardize(data, (attrs.axis,), attrs.epsilon), gamma, beta, attrs.axis, attrs
    )


register_op(
    OpDef(
        name="nn.layer_norm",
        precision=PrecisionPolicy.NEVER,
        arguments=("data", "gamma", "beta"),
        attrs=LayerNormAttrs,
        relation=_layer_norm_relation,
        solve=infer_channel_vectors(-1),
        reference=_layer_norm_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.layer_norm(
                inputs[0], *_affine_parameters(attrs, inputs), attrs.axis, attrs.epsilon
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the type of data",
    )
)


def layer_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    axis: int = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Return layer normalisation along `axis`, times gamma plus beta."""
    return call_op(
        "nn.layer_norm", data, gamma, beta, attrs=LayerNormAttrs(axis, epsilon, center, scale)
    )


@node("relay.attrs.RMSNormAttrs")
class RMSNormAttrs(Attrs):
    """Attributes of rms_norm: axis and epsilon."""

    axis: int = -1
    epsilon: float = 1e-5


def _rms_norm_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors("nn.rms_norm", types, 2)
    return _check_channel_vectors(
        "nn.rms_norm", data, [weight], check_attrs(RMSNormAttrs, attrs).axis
    )[0]


def _rms_norm_reference(attrs: RMSNormAttrs, data: Array, weight: Array) -> Array:
    wide = data.astype(np.float64)
    factor = 1 / np.sqrt((wide * wide).mean(attrs.axis, keepdims=True) + attrs.epsilon)
    return np.asarray(wide * factor * reshape_along_axis(weight, attrs.axis, data.ndim)).astype(
        data.dtype
    )


register_op(
    OpDef(
        name="nn.rms_norm",
        precision=PrecisionPolicy.NEVER,
        arguments=("data", "weight"),
        attrs=RMSNormAttrs,
        relation=_rms_norm_relation,
        solve=infer_channel_vectors(-1),
        reference=_rms_norm_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.rms_norm(inputs[0], inputs[1], attrs.axis, attrs.epsilon)
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the type of data",
    )
)


def rms_norm(data: Expr, weight: Expr, axis: int = -1, epsilon: float = 1e-5) -> Call:
    """Return data / sqrt(mean(data**2 along `axis`) + epsilon) * weight."""
    return call_op("nn.rms_norm", data, weight, attrs=RMSNormAttrs(axis, epsilon))


@node("relay.attrs.InstanceNormAttrs")
class InstanceNormAttrs(Attrs):
    """Attributes of instance_norm: channel axis, epsilon, center, scale."""

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def _instance_norm_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, *vectors = check_tensors("nn.instance_norm", types, 3)
    axis = check_attrs(InstanceNormAttrs, attrs).axis
    result_type, position = _check_channel_vectors("nn.instance_norm", data, vectors, axis)
    if position == 0:
        raise_type_error("nn.instance_norm", "axis must not be the batch axis 0")
    return result_type


def _instance_norm_reference(
    attrs: InstanceNormAttrs, data: Array, gamma: Array, beta: Array
) -> Array:
    axis_index = attrs.axis % data.ndim
    axes = tuple(i for i in range(1, data.ndim) if i != axis_index)
    return _scale_and_shift(_standardize(data, axes, attrs.epsilon), gamma, beta, axis_index, attrs)


register_op(
    OpDef(
        name="nn.instance_norm",
        precision=PrecisionPolicy.NEVER,
        arguments=("data", "gamma", "beta"),
        attrs=InstanceNormAttrs,
        relation=_instance_norm_relation,
        solve=infer_channel_vectors(),
        reference=_instance_norm_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.instance_norm(
                inputs[0],
                *_affine_parameters(attrs, inputs),
                _non_channel_axes(attrs.axis, inputs[0].ndim),
                attrs.epsilon,
                attrs.axis,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the type of data",
    )
)


def instance_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Return instance normalisation per sample and channel, times gamma plus beta."""
    return call_op(
        "nn.instance_norm", data, gamma, beta, attrs=InstanceNormAttrs(axis, epsilon, center, scale)
    )


@node("relay.attrs.GroupNormAttrs")
class GroupNormAttrs(Attrs):
    """Attributes of group_norm: number of groups, channel axis, epsilon, center, scale."""

    num_groups: int = 1
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def _group_norm_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, *vectors = check_tensors("nn.group_norm", types, 3)
    settings = check_attrs(GroupNormAttrs, attrs)
    result_type, position = _check_channel_vectors("nn.group_norm", data, vectors, settings.axis)
    channels = known_int(result_type.shape[position])
    if (
        settings.num_groups < 1
        or position == 0
        or (channels is not None and channels % settings.num_groups)
    ):
        raise_type_error(
            "nn.group_norm",
            f"{channels} channels on axis {position} do not form {settings.num_groups} groups",
        )
    return result_type


def _group_norm_reference(attrs: GroupNormAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    axis_index, groups = attrs.axis % data.ndim, attrs.num_groups
    split = data.reshape(
        *data.shape[:axis_index],
        groups,
        data.shape[axis_index] // groups,
        *data.shape[axis_index + 1 :],
    )
    # All but the batch and the axis of groups, which stands where the channels were.
    axes = tuple(i for i in range(1, split.ndim) if i != axis_index)
    return _scale_and_shift(
        _standardize(split, axes, attrs.epsilon).reshape(data.shape), gamma, beta, axis_index, attrs
    )


register_op(
    OpDef(
        name="nn.group_norm",
        precision=PrecisionPolicy.NEVER,
        arguments=("data", "gamma", "beta"),
        attrs=GroupNormAttrs,
        relation=_group_norm_relation,
        solve=infer_channel_vectors(),
        reference=_group_norm_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.group_norm(
                inputs[0],
                *_affine_parameters(attrs, inputs),
                attrs.num_groups,
                attrs.axis,
                _non_channel_axes(attrs.axis, inputs[0].ndim),
                attrs.epsilon,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the type of data",
    )
)


def group_norm(
    data: Expr, gamma: Expr, beta: Expr, num_groups: int,
    axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = True,
) -> Call:  # fmt: skip
    """Return group normalisation, times gamma plus beta.

    gamma and beta are vectors of channels. One group is layer normalisation over all axes but the
    first, as many groups as channels is instance normalisation.
    """
    return call_op(
        "nn.group_norm",
        data,
        gamma,
        beta,
        attrs=GroupNormAttrs(num_groups, axis, epsilon, center, scale),
    )


@node("relay.attrs.LRNAttrs")
class LRNAttrs(Attrs):
    """Attributes of lrn: window size over channels, axis, bias, alpha, beta."""

    size: int = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-5
    beta: float = 0.75


MAX_LRN_WINDOW = 2**10
"""Maximum window of lrn for an unknown number of channels, since the window is unrolled."""


def _lrn_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("nn.lrn", types, 1)
    settings = check_attrs(LRNAttrs, attrs)
    call_shape_rule("nn.lrn", normalize_axis, settings.axis, len(data.shape), "nn.lrn")
    if settings.size < 1:
        raise_type_error("nn.lrn", f"size must be at least 1, got {settings.size}")
    if known_int(data.shape[settings.axis]) is None and settings.size > MAX_LRN_WINDOW:
        raise_type_error(
            "nn.lrn",
            f"size must be at most {MAX_LRN_WINDOW} over channels whose number is not"
            f" known, got {settings.size}",
        )
    return data


def _lrn_reference(attrs: LRNAttrs, data: Array) -> Array:
    if not data.size:
        return data
    axis_index, before = attrs.axis % data.ndim, (attrs.size - 1) // 2
    beyond = data.shape[axis_index] - 1  # what lies farther away is not there
    # A window wider than the channels sums all of them; padding further would only add zeros.
    width = min(before, beyond), min(attrs.size - 1 - before, beyond)
    borders = [width if i == axis_index else (0, 0) for i in range(data.ndim)]
    squares = np.pad(np.square(data.astype(np.float64)), borders)
    windows = np.lib.stride_tricks.sliding_window_view(squares, sum(width) + 1, axis=axis_index)
    return np.asarray(
        data / (attrs.bias + attrs.alpha / attrs.size * windows.sum(-1)) ** attrs.beta
    ).astype(data.dtype)


register_op(
    OpDef(
        name="nn.lrn",
        transpose_rule=TransposeRule.AXIS,
        arguments=("data",),
        attrs=LRNAttrs,
        relation=_lrn_relation,
        reference=_lrn_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.lrn(inputs[0], attrs.size, attrs.axis, attrs.alpha, attrs.beta, attrs.bias)
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the type of data",
    )
)


def lrn(
    data: Expr,
    size: int = 5,
    axis: int = 1,
    bias: float = 2.0,
    alpha: float = 1e-5,
    beta: float = 0.75,
) -> Call:
    """Return local response normalisation: x / (bias + alpha / size * squares) ** beta.

    squares is the sum of squares of `size` neighbouring channels.
    """
    return call_op("nn.lrn", data, attrs=LRNAttrs(size, axis, bias, alpha, beta))


__all__ = [
    "batch_norm", "group_norm", "instance_norm", "layer_norm", "lrn",
    "rms_norm",
]  # fmt: skip
