"""Activations, softmax, bias.

    relu max(x, 0)      leaky_relu x if x > 0 else alpha x      prelu the same, alpha per channel
    softmax exp(x) / sum exp(x) along an axis, the maximum taken off before; log_softmax its log

relu of NaN is NaN. bias_add adds a vector along one axis, which other operators would need a
reshape for; FoldScaleAxis makes it an addition before layouts change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, Linear, OpDef, OpPattern, Precision, Transposes, register_op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, TupleGetItem
from ekiden.relay.op._declare import (
    along_vector,
    attempt,
    attrs_of,
    call,
    identity_relation,
    one_dtype,
    rank_is,
    tensors,
)
from ekiden.relay.op.nn._solve import vectors_along
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis

register_op(
    OpDef(
        name="nn.relu",
        homogeneous=True,
        lowest=lambda attrs: 0.0,
        precision=Precision.FOLLOW,
        arguments=("data",),
        relation=identity_relation("nn.relu"),
        reference=lambda attrs, data: np.maximum(data, np.zeros((), data.dtype)),
        lower=lambda attrs, inputs, out: [topi.nn.relu(inputs[0])],
        pattern=OpPattern.ELEMWISE,
        result="the type of data",
    )
)


def relu(data: Expr) -> Call:
    """Return the larger of each element and 0."""
    return call("nn.relu", data)


@node("relay.attrs.LeakyReluAttrs")
class LeakyReluAttrs(Attrs):
    """The slope below 0."""

    alpha: float = 0.25


def _leaky_relu_reference(attrs: LeakyReluAttrs, data: Array) -> Array:
    return np.where(data > 0, data, data * np.asarray(attrs.alpha, data.dtype)).astype(data.dtype)


register_op(
    OpDef(
        name="nn.leaky_relu",
        homogeneous=True,
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=LeakyReluAttrs,
        relation=identity_relation("nn.leaky_relu"),
        reference=_leaky_relu_reference,
        lower=lambda attrs, inputs, out: [topi.nn.leaky_relu(inputs[0], attrs.alpha)],
        pattern=OpPattern.ELEMWISE,
        result="the type of data",
    )
)


def leaky_relu(data: Expr, alpha: float = 0.25) -> Call:
    """Return data with elements below 0 multiplied by `alpha`."""
    return call("nn.leaky_relu", data, attrs=LeakyReluAttrs(alpha))


@node("relay.attrs.PReluAttrs")
class PReluAttrs(Attrs):
    """The axis of channels."""

    axis: int = 1


@node("relay.attrs.BiasAddAttrs")
class BiasAddAttrs(Attrs):
    """The axis of channels."""

    axis: int = 1


def along(values: Array, axis: int, rank: int) -> Array:
    """Return a vector shaped to broadcast along one axis of a tensor of that rank."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def _per_channel(
    name: str, kind: type[PReluAttrs] | type[BiasAddAttrs]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The second argument is no vector as long as the axis.
        """
        data, vector = tensors(name, types, 2)
        one_dtype(name, (data, vector))
        rank_is(name, vector, 1, "alpha" if kind is PReluAttrs else "bias")
        settings: PReluAttrs | BiasAddAttrs = attrs_of(kind, attrs)
        axis = attempt(name, normalize_axis, settings.axis, len(data.shape), name)
        return along_vector(name, data, axis, vector, "the vector")

    return relation


register_op(
    OpDef(
        name="nn.prelu",
        turns=Transposes.AXIS,
        precision=Precision.FOLLOW,
        arguments=("data", "alpha"),
        attrs=PReluAttrs,
        relation=_per_channel("nn.prelu", PReluAttrs),
        solve=vectors_along(),
        reference=lambda attrs, data, alpha: np.where(
            data > 0, data, data * along(alpha, attrs.axis, data.ndim)
        ),
        lower=lambda attrs, inputs, out: [
            topi.nn.prelu(inputs[0], inputs[1], attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.BROADCAST,
        result="the type of data",
    )
)


def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call:
    """Return data with elements below 0 multiplied by the `alpha` of their channel."""
    return call("nn.prelu", data, alpha, attrs=PReluAttrs(axis))


register_op(
    OpDef(
        name="nn.bias_add",
        turns=Transposes.AXIS,
        linear=Linear.SHIFTS,
        precision=Precision.FOLLOW,
        arguments=("data", "bias"),
        attrs=BiasAddAttrs,
        relation=_per_channel("nn.bias_add", BiasAddAttrs),
        solve=vectors_along(),
        reference=lambda attrs, data, bias: data + along(bias, attrs.axis, data.ndim),
        lower=lambda attrs, inputs, out: [
            topi.nn.bias_add(inputs[0], inputs[1], attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.BROADCAST,
        result="the type of data",
    )
)


def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call:
    """Return data plus a vector along one axis."""
    return call("nn.bias_add", data, bias, attrs=BiasAddAttrs(axis))


@node("relay.attrs.SoftmaxAttrs")
class SoftmaxAttrs(Attrs):
    """The axis that sums to 1."""

    axis: int = -1


def _softmax_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The data does not have the axis.
        """
        (data,) = tensors(name, types, 1)
        attempt(name, normalize_axis, attrs_of(SoftmaxAttrs, attrs).axis, len(data.shape), name)
        return data

    return relation


def _softmax_reference(attrs: SoftmaxAttrs, data: Array) -> Array:
    exponent = _shifted(attrs, data)
    return np.asarray(np.exp(exponent) / np.exp(exponent).sum(attrs.axis, keepdims=True)).astype(
        data.dtype
    )


def _log_softmax_reference(attrs: SoftmaxAttrs, data: Array) -> Array:
    exponent = _shifted(attrs, data)
    return np.asarray(exponent - np.log(np.exp(exponent).sum(attrs.axis, keepdims=True))).astype(
        data.dtype
    )


def _shifted(attrs: SoftmaxAttrs, data: Array) -> Array:
    wide = data.astype(np.float64)
    if not data.size:
        return wide
    with np.errstate(invalid="ignore"):  # a row of -inf alone is NaN
        return np.asarray(wide - wide.max(attrs.axis, keepdims=True, initial=-np.inf))


def _declare_softmax(
    name: str,
    reference: Callable[[SoftmaxAttrs, Array], Array],
    compute: Callable[[Tensor, int], Tensor],
    precision: Precision = Precision.UNKNOWN,
    fast: str = "",
) -> None:
    register_op(
        OpDef(
            name=name,
            fast=fast,
            turns=Transposes.AXIS,
            arguments=("data",),
            attrs=SoftmaxAttrs,
            relation=_softmax_relation(name),
            precision=precision,
            reference=reference,
            lower=lambda attrs, inputs, out: [compute(inputs[0], attrs.axis % inputs[0].ndim)],
            pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
            result="the type of data",
        )
    )


_declare_softmax(
    "nn.softmax", _softmax_reference, topi.nn.softmax, Precision.NEVER, "nn.fast_softmax"
)
_declare_softmax("nn.fast_softmax", _softmax_reference, topi.nn.softmax)
_declare_softmax("nn.log_softmax", _log_softmax_reference, topi.nn.log_softmax, Precision.NEVER)


def softmax(data: Expr, axis: int = -1) -> Call:
    """Return exp(x - max) over its sum along an axis."""
    return call("nn.softmax", data, attrs=SoftmaxAttrs(axis))


def fast_softmax(data: Expr, axis: int = -1) -> Call:
    """Return softmax, as exact as the fastest exponential is."""
    return call("nn.fast_softmax", data, attrs=SoftmaxAttrs(axis))


def log_softmax(data: Expr, axis: int = -1) -> Call:
    """Return the logarithm of softmax, computed directly."""
    return call("nn.log_softmax", data, attrs=SoftmaxAttrs(axis))


@node("relay.attrs.DropoutAttrs")
class DropoutAttrs(Attrs):
    """The share of elements that training would drop."""

    rate: float = 0.5


def _dropout_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("nn.dropout", types, 1)
    return TupleType((data, TensorType(data.shape, data.dtype)))


register_op(
    OpDef(
        name="nn.dropout",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=DropoutAttrs,
        relation=_dropout_relation,
        reference=lambda attrs, data: (data.copy(), np.ones_like(data)),
        lower=lambda attrs, inputs, out: [
            topi.copy(inputs[0]),
            topi.constant(1, inputs[0].shape, inputs[0].dtype),
        ],
        pattern=OpPattern.OPAQUE,
        result="(the type of data, the type of the mask)",
        fields=lambda attrs: 2,
    )
)


def dropout_raw(data: Expr, rate: float = 0.5) -> Call:
    """Return a tuple of the data and a mask of ones, as in inference."""
    return call("nn.dropout", data, attrs=DropoutAttrs(rate))


def dropout(data: Expr, rate: float = 0.5) -> Expr:
    """Return the data, as in inference."""
    return TupleGetItem(dropout_raw(data, rate), 0)


__all__ = [
    "bias_add", "dropout", "dropout_raw", "fast_softmax", "leaky_relu", "log_softmax", "prelu",
    "relu", "softmax",
]  # fmt: skip
