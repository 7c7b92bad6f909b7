"""DenseNet (Huang et al. 2016)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import concatenate, nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

DENSENET_CONFIGS = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}
"""Stem channels, growth rate and layers per block by network depth."""
_BOTTLENECK_FACTOR = 4


def _bn_relu(data: Expr, name: str) -> Expr:
    return nn.relu(layers.batch_norm_infer(data, name))


def _dense_layer(data: Expr, growth: int, index: str) -> Expr:
    body = _bn_relu(data, f"batch_1_{index}")
    body = layers.conv2d(body, _BOTTLENECK_FACTOR * growth, (1, 1), f"conv2d_1_{index}")
    body = _bn_relu(body, f"batch_2_{index}")
    body = layers.conv2d(body, growth, (3, 3), f"conv2d_2_{index}", padding=(1, 1))
    return concatenate((data, body), axis=1)


def get_net(
    densenet_size: int = 121,
    classes: int = 1000,
    batch_size: int = 4,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
) -> Function:
    """Return DenseNet-121, -161, -169 or -201.

    Raises:
        ValueError: There is no network of that number of layers.
    """
    if densenet_size not in DENSENET_CONFIGS:
        sizes = ", ".join(map(str, DENSENET_CONFIGS))
        raise ValueError(f"densenet: no network of {densenet_size} layers; there are {sizes}")
    first, growth, blocks = DENSENET_CONFIGS[densenet_size]
    body: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    body = _bn_relu(layers.conv2d(body, first, (7, 7), "conv1", (2, 2), (3, 3)), "batch1")
    body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    for block, count in enumerate(blocks):
        for number in range(count):
            body = _dense_layer(body, growth, f"{block}_{number}")
        if block < len(blocks) - 1:
            half = layers.shape_of(body)[1] // 2
            body = _bn_relu(body, f"batch_t_{block}")
            body = layers.conv2d(body, half, (1, 1), f"conv_t_{block}")
            body = nn.avg_pool2d(body, pool_size=(2, 2), strides=(2, 2))
    body = nn.batch_flatten(nn.global_avg_pool2d(_bn_relu(body, "batch2")))
    return layers.closed(layers.dense_add_bias(body, classes, "dense"))


def get_workload(
    densenet_size: int = 121,
    classes: int = 1000,
    batch_size: int = 4,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(densenet_size, classes, batch_size, image_shape, dtype))


__all__ = ["get_net", "get_workload"]
