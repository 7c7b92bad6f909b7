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


def conv2d(
    data: Expr,
    channels: int,
    kernel_size: tuple[int, int],
    name: str,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    groups: int = 1,
    weight: Expr | None = None,
) -> Expr:
    """Return an NCHW convolution with weight `{name}_weight`."""
    inputs = shape_of(data)[1]
    new_weight = _layer_param(f"{name}_weight", (channels, inputs // groups, *kernel_size), data)
    return nn.conv2d(
        data,
        new_weight if weight is None else weight,
        strides=strides,
        padding=padding,
        groups=groups,
        channels=channels,
        kernel_size=kernel_size,
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
    """Close a network over its free variables as a function."""
    return Function(tuple(free_vars(net)), net)


__all__ = ["add_bias", "batch_norm_infer", "closed", "conv2d", "conv2d_transpose", "dense_add_bias"]
