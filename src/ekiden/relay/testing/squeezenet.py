"""SqueezeNet (Iandola et al. 2016)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import concatenate, nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

# fmt: off
SQUEEZENET_CONFIGS: dict[str, tuple[int, int, tuple[int | str, ...]]] = {
    "1.0": (96, 7, ("pool", 16, 16, 32, "pool", 32, 48, 48, 64, "pool", 64)),
    "1.1": (64, 3, ("pool", 16, 16, "pool", 32, 32, "pool", 48, 48, 64, 64)),
}
# fmt: on
"""Stem convolution, squeeze channels of the fire modules and positions of the pools, by version."""


def _conv_relu(
    data: Expr, channels: int, size: int, name: str, stride: int = 1, pad: int = 0
) -> Expr:
    convolution = layers.conv2d(data, channels, (size, size), name, (stride, stride), (pad, pad))
    return nn.relu(layers.add_bias(convolution, name))


def fire(data: Expr, squeezed: int, name: str) -> Expr:
    """Return a fire module: a squeeze layer and two expand layers of four times its channels."""
    body = _conv_relu(data, squeezed, 1, f"{name}_squeeze1x1")
    pointwise = _conv_relu(body, 4 * squeezed, 1, f"{name}_left_expand1x1")
    spatial = _conv_relu(body, 4 * squeezed, 3, f"{name}_right_expand3x3", pad=1)
    return concatenate((pointwise, spatial), axis=1)


def get_net(
    batch_size: int,
    image_shape: tuple[int, ...] = (3, 224, 224),
    num_classes: int = 1000,
    version: str = "1.0",
    dtype: str = "float32",
) -> Function:
    """Return the network of version 1.0 or 1.1.

    Raises:
        ValueError: There is no such version.
    """
    if version not in SQUEEZENET_CONFIGS:
        raise ValueError(
            f"squeezenet: no version {version!r}; there are {', '.join(SQUEEZENET_CONFIGS)}"
        )
    channels, size, steps = SQUEEZENET_CONFIGS[version]
    body: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    body = _conv_relu(body, channels, size, "conv1", stride=2)
    for number, step in enumerate(steps, 1):
        if isinstance(step, int):
            body = fire(body, step, f"fire{number}")
        else:
            body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
    body = _conv_relu(nn.dropout(body), num_classes, 1, "conv_final")
    return layers.closed(nn.softmax(nn.batch_flatten(nn.global_avg_pool2d(body))))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    version: str = "1.0",
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(batch_size, image_shape, num_classes, version, dtype))


__all__ = ["get_net", "get_workload"]
