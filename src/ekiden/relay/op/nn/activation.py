"""Activation functions, softmax, bias_add, dropout.

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
from ekiden.ir.op import (
    Array,
    LinearForm,
    OpDef,
    OpPattern,
    PrecisionPolicy,
    TransposeRule,
    register_op,
)
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, TupleGetItem
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_same_dtype,
    check_tensors,
    identity_relation,
    unify_vector_axis,
)
from ekiden.relay.op.nn._infer_params import infer_channel_vectors
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis

register_op(
    OpDef(
        name="nn.relu",
        homogeneous=True,
        lowest=lambda attrs: 0.0,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        relation=identity_relation("nn.relu"),
        reference=lambda attrs, data: np.maximum(data, np.zeros((), data.dtype)),
        lower=lambda attrs, inputs, out: [topi.nn.relu(inputs[0])],
        pattern=OpPattern.ELEMWISE,
        result="the type of data",
    )
)


def relu(data: Expr) -> Call:
    """Return max(data, 0) elementwise."""
    return call_op("nn.relu", data)


@node("relay.attrs.LeakyReluAttrs")
class LeakyReluAttrs(Attrs):
    """Attributes of leaky_relu: the slope for negative values."""

    alpha: float = 0.25


def _leaky_relu_reference(attrs: LeakyReluAttrs, data: Array) -> Array:
    return np.where(data > 0, data, data * np.asarray(attrs.alpha, data.dtype)).astype(data.dtype)


register_op(
    OpDef(
        name="nn.leaky_relu",
        homogeneous=True,
        precision=PrecisionPolicy.FOLLOW,
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
    """Return leaky ReLU: negative elements multiplied by `alpha`."""
    return call_op("nn.leaky_relu", data, attrs=LeakyReluAttrs(alpha))


@node("relay.attrs.PReluAttrs")
class PReluAttrs(Attrs):
    """Attributes of prelu: the channel axis."""

    axis: int = 1


@node("relay.attrs.BiasAddAttrs")
class BiasAddAttrs(Attrs):
    """Attributes of bias_add: the channel axis."""

    axis: int = 1


def reshape_along_axis(values: Array, axis: int, rank: int) -> Array:
    """Reshape a vector to broadcast along one axis of a tensor of the given rank."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def _per_channel_relation(
    name: str, kind: type[PReluAttrs] | type[BiasAddAttrs]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The second argument is no vector as long as the axis.
        """
        data, vector = check_tensors(name, types, 2)
        check_same_dtype(name, (data, vector))
        check_rank(name, vector, 1, "alpha" if kind is PReluAttrs else "bias")
        settings: PReluAttrs | BiasAddAttrs = check_attrs(kind, attrs)
        axis = call_shape_rule(name, normalize_axis, settings.axis, len(data.shape), name)
        return unify_vector_axis(name, data, axis, vector, "the vector")

    return relation


register_op(
    OpDef(
        name="nn.prelu",
        transpose_rule=TransposeRule.AXIS,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "alpha"),
        attrs=PReluAttrs,
        relation=_per_channel_relation("nn.prelu", PReluAttrs),
        solve=infer_channel_vectors(),
        reference=lambda attrs, data, alpha: np.where(
            data > 0, data, data * reshape_along_axis(alpha, attrs.axis, data.ndim)
        ),
        lower=lambda attrs, inputs, out: [
            topi.nn.prelu(inputs[0], inputs[1], attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.BROADCAST,
        result="the type of data",
    )
)


def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call:
    """Return parametric ReLU: negative elements multiplied by their channel's `alpha`."""
    return call_op("nn.prelu", data, alpha, attrs=PReluAttrs(axis))


register_op(
    OpDef(
        name="nn.bias_add",
        transpose_rule=TransposeRule.AXIS,
        linear=LinearForm.SHIFTS,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "bias"),
        attrs=BiasAddAttrs,
        relation=_per_channel_relation("nn.bias_add", BiasAddAttrs),
        solve=infer_channel_vectors(),
        reference=lambda attrs, data, bias: data + reshape_along_axis(bias, attrs.axis, data.ndim),
        lower=lambda attrs, inputs, out: [
            topi.nn.bias_add(inputs[0], inputs[1], attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.BROADCAST,
        result="the type of data",
    )
)


def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call:
    """Add a bias vector along one axis."""
    return call_op("nn.bias_add", data, bias, attrs=BiasAddAttrs(axis))


@node("relay.attrs.SoftmaxAttrs")
class SoftmaxAttrs(Attrs):
    """Attributes of softmax: the normalised axis."""

    axis: int = -1


def _softmax_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The data does not have the axis.
        """
        (data,) = check_tensors(name, types, 1)
        call_shape_rule(
            name, normalize_axis, check_attrs(SoftmaxAttrs, attrs).axis, len(data.shape), name
        )
        return data

    return relation


def _softmax_reference(attrs: SoftmaxAttrs, data: Array) -> Array:
    exponent = _subtract_max(attrs, data)
    return np.asarray(np.exp(exponent) / np.exp(exponent).sum(attrs.axis, keepdims=True)).astype(
        data.dtype
    )


def _log_softmax_reference(attrs: SoftmaxAttrs, data: Array) -> Array:
    exponent = _subtract_max(attrs, data)
    # Not the logarithm of softmax: small shares would underflow to 0 first.
    return np.asarray(exponent - np.log(np.exp(exponent).sum(attrs.axis, keepdims=True))).astype(
        data.dtype
    )


def _subtract_max(attrs: SoftmaxAttrs, data: Array) -> Array:
    # The maximum is taken off so that exp does not overflow.
    wide = data.astype(np.float64)
    if not data.size:
        return wide
    with np.errstate(invalid="ignore"):  # a row of -inf alone is NaN
        # Shifting by the maximum leaves softmax as it is, and keeps every exponential at most 1.
        return np.asarray(wide - wide.max(attrs.axis, keepdims=True, initial=-np.inf))


def _declare_softmax(
    name: str,
    reference: Callable[[SoftmaxAttrs, Array], Array],
    compute: Callable[[Tensor, int], Tensor],
    precision: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
    fast: str = "",
) -> None:
    register_op(
        OpDef(
            name=name,
            fast=fast,
            transpose_rule=TransposeRule.AXIS,
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
    "nn.softmax", _softmax_reference, topi.nn.softmax, PrecisionPolicy.NEVER, "nn.fast_softmax"
)
_declare_softmax("nn.fast_softmax", _softmax_reference, topi.nn.softmax)
_declare_softmax(
    "nn.log_softmax", _log_softmax_reference, topi.nn.log_softmax, PrecisionPolicy.NEVER
)


def softmax(data: Expr, axis: int = -1) -> Call:
    """Return softmax along an axis, stabilised by the maximum."""
    return call_op("nn.softmax", data, attrs=SoftmaxAttrs(axis))


def fast_softmax(data: Expr, axis: int = -1) -> Call:
    """Return softmax by the fast approximation of exp."""
    return call_op("nn.fast_softmax", data, attrs=SoftmaxAttrs(axis))


def log_softmax(data: Expr, axis: int = -1) -> Call:
    """Return log-softmax along an axis."""
    return call_op("nn.log_softmax", data, attrs=SoftmaxAttrs(axis))


@node("relay.attrs.DropoutAttrs")
class DropoutAttrs(Attrs):
    """Attributes of dropout: the drop rate during training."""

    rate: float = 0.5


def _dropout_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("nn.dropout", types, 1)
    # TVM's dropout returns its mask too.
    return TupleType((data, TensorType(data.shape, data.dtype)))


register_op(
    OpDef(
        name="nn.dropout",
        precision=PrecisionPolicy.FOLLOW,
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
    """Return the data and a mask of ones, the inference form of dropout."""
    return call_op("nn.dropout", data, attrs=DropoutAttrs(rate))


def dropout(data: Expr, rate: float = 0.5) -> Expr:
    """Return the data unchanged, the inference form of dropout."""
    return TupleGetItem(dropout_raw(data, rate), 0)


__all__ = [
    "bias_add", "dropout", "dropout_raw", "fast_softmax", "leaky_relu", "log_softmax", "prelu",
    "relu", "softmax",
]  # fmt: skip
