"""Layers with implicitly declared parameters, named after the layer."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.type import TensorType
from ekiden.relay.expr import Expr, Function, Var, var
from ekiden.relay.op import nn
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import free_vars


def shape_of(data: Expr) -> tuple[int, ...]:
    """Return the static shape of a layer's input."""
    kind = infer_expr_type(data)
    assert isinstance(kind, TensorType), f"a layer takes a tensor, got {kind!r}"
    return kind.concrete_shape


def dtype_of(data: Expr) -> str:
    """Return the dtype of a layer's input."""
    kind = infer_expr_type(data)
    assert isinstance(kind, TensorType), f"a layer takes a tensor, got {kind!r}"
    return kind.dtype


def _layer_param(name: str, shape: Sequence[int], data: Expr) -> Var:
    return var(name, shape=shape, dtype=dtype_of(data))


def channel_axis(layout: str) -> int:
    """Return the axis of the channels of a layout of images."""
    return layout.index("C")


def conv_kernel_layout(data_layout: str, is_depthwise: bool = False) -> str:
    """Return the layout of the weights of a convolution over images of a layout.

    Raises ValueError for a layout other than NCHW and NHWC.
    """
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"conv2d: layout: expected NCHW or NHWC, got {data_layout!r}")
    if data_layout == "NCHW":
        return "OIHW"
    return "HWOI" if is_depthwise else "HWIO"


def conv2d(
    data: Expr,
    channels: int,
    kernel_size: tuple[int, int],
    name: str,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    groups: int = 1,
    weight: Expr | None = None,
    layout: str = "NCHW",
) -> Expr:
    """Return a convolution with weight `{name}_weight`.

    The weight is OIHW beside NCHW, and HWIO or, of a depthwise convolution, HWOI beside NHWC.
    """
    inputs = shape_of(data)[channel_axis(layout)]
    kernel_layout = conv_kernel_layout(layout, is_depthwise=1 < groups == inputs)
    sizes = dict(zip("OIHW", (channels, inputs // groups, *kernel_size), strict=True))
    new_weight = _layer_param(f"{name}_weight", [sizes[axis] for axis in kernel_layout], data)
    return nn.conv2d(
        data,
        new_weight if weight is None else weight,
        strides=strides,
        padding=padding,
        groups=groups,
        channels=channels,
        kernel_size=kernel_size,
        data_layout=layout,
        kernel_layout=kernel_layout,
    )


def conv2d_transpose(
    data: Expr, weight: Expr | None = None, *, name: str, **options: object
) -> Expr:
    """Return a transposed convolution with weight `{name}_weight`; options as in
    `nn.conv2d_transpose`.
    """
    kernel = var(f"{name}_weight") if weight is None else weight
    return nn.conv2d_transpose(data, kernel, **options)  # type: ignore[arg-type]


def batch_norm_infer(
    data: Expr, name: str, epsilon: float = 1e-5, scale: bool = True, axis: int = 1
) -> Expr:
    """Return batch normalisation with its own parameters.

    They are `{name}_gamma`, `_beta`, `_moving_mean`, `_moving_var`.
    """
    size = (shape_of(data)[axis],)
    gamma, beta, mean, variance = (
        _layer_param(f"{name}_{suffix}", size, data)
        for suffix in ("gamma", "beta", "moving_mean", "moving_var")
    )
    normalized = nn.batch_norm(
        data, gamma, beta, mean, variance, axis=axis, epsilon=epsilon, scale=scale
    )
    return normalized[0]


def dense_add_bias(data: Expr, units: int, name: str) -> Expr:
    """Return a dense layer with `{name}_weight` and `{name}_bias`."""
    weight = _layer_param(f"{name}_weight", (units, shape_of(data)[-1]), data)
    product = nn.dense(data, weight, units=units)
    return nn.bias_add(product, _layer_param(f"{name}_bias", (units,), data), axis=-1)


def add_bias(data: Expr, name: str, axis: int = 1) -> Expr:
    """Add a bias vector `{name}_bias` along an axis."""
    return nn.bias_add(data, _layer_param(f"{name}_bias", (shape_of(data)[axis],), data), axis=axis)


def closed(net: Expr) -> Function:
    """Return a function whose parameters are the network's free variables."""
    return Function(tuple(free_vars(net)), net)


__all__ = [
    "add_bias", "batch_norm_infer", "channel_axis", "closed", "conv2d", "conv2d_transpose",
    "conv_kernel_layout", "dense_add_bias",
]  # fmt: skip
