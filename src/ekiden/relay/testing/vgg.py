"""VGG (Simonyan and Zisserman 2014)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

VGG_CONFIGS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Convolutions per stage by network depth."""
_STAGE_CHANNELS = (64, 128, 256, 512, 512)


def get_net(
    batch_size: int,
    image_shape: tuple[int, ...] = (3, 224, 224),
    num_classes: int = 1000,
    dtype: str = "float32",
    num_layers: int = 11,
    batch_norm: bool = False,
) -> Function:
    """Return VGG-11, -13, -16 or -19.

    Raises:
        ValueError: There is no network of that number of layers.
    """
    if num_layers not in VGG_CONFIGS:
        sizes = ", ".join(map(str, VGG_CONFIGS))
        raise ValueError(f"vgg: no network of {num_layers} layers; there are {sizes}")
    body: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    for stack, (count, channels) in enumerate(
        zip(VGG_CONFIGS[num_layers], _STAGE_CHANNELS, strict=True), 1
    ):
        for number in range(1, count + 1):
            name = f"{stack}_{number}"
            body = layers.conv2d(body, channels, (3, 3), f"conv{name}", padding=(1, 1))
            body = layers.add_bias(body, f"conv{name}")
            if batch_norm:
                body = layers.batch_norm_infer(body, f"bn{name}")
            body = nn.relu(body)
        body = nn.max_pool2d(body, pool_size=(2, 2), strides=(2, 2))
    body = nn.batch_flatten(body)
    for name in ("fc6", "fc7"):
        body = nn.dropout(nn.relu(layers.dense_add_bias(body, 4096, name)))
    return layers.closed(nn.softmax(layers.dense_add_bias(body, num_classes, "fc8")))


def get_workload(
    batch_size: int,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    num_layers: int = 11,
    batch_norm: bool = False,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    net = get_net(batch_size, image_shape, num_classes, dtype, num_layers, batch_norm)
    return create_workload(net)


__all__ = ["get_net", "get_workload"]
