"""MobileNet v1 (Howard et al. 2017)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

# fmt: off
MOBILENET_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
                    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1))
# fmt: on
"""Channels and stride of each separable block."""


def _bn_relu(data: Expr, name: str, layout: str) -> Expr:
    return nn.relu(layers.batch_norm_infer(data, name, axis=layers.channel_axis(layout)))


def separable_block(
    data: Expr, name: str, channels: int, stride: int, layout: str = "NCHW"
) -> Expr:
    """Return a depthwise separable convolution: 3x3 depthwise and 1x1 pointwise, each with BN and
    ReLU.
    """
    inputs = layers.shape_of(data)[layers.channel_axis(layout)]
    step = (stride, stride)
    body = layers.conv2d(
        data, inputs, (3, 3), f"{name}_depthwise_conv1", step, (1, 1), groups=inputs, layout=layout
    )
    body = _bn_relu(body, f"{name}_bn1", layout)
    body = layers.conv2d(body, channels, (1, 1), f"{name}_conv2", layout=layout)
    return _bn_relu(body, f"{name}_bn2", layout)


def mobile_net(
    num_classes: int = 1000,
    data_shape: tuple[int, ...] = (1, 3, 224, 224),
    dtype: str = "float32",
    alpha: float = 1.0,
    layout: str = "NCHW",
) -> Function:
    """Return the network with width multiplier `alpha`; `data_shape` is in `layout`."""
    body: Expr = var("data", shape=data_shape, dtype=dtype)
    body = layers.conv2d(
        body, int(32 * alpha), (3, 3), "conv_block_1_conv", (2, 2), (1, 1), layout=layout
    )
    body = _bn_relu(body, "conv_block_1_bn", layout)
    for number, (channels, stride) in enumerate(MOBILENET_BLOCKS, 1):
        name = f"separable_conv_block_{number}"
        body = separable_block(body, name, int(channels * alpha), stride, layout)
    body = nn.batch_flatten(nn.global_avg_pool2d(body, layout=layout))
    return layers.closed(nn.softmax(layers.dense_add_bias(body, num_classes, "fc")))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters; `image_shape` is in `layout`."""
    shape = (batch_size, *image_shape)
    return create_workload(mobile_net(num_classes, shape, dtype, layout=layout))


__all__ = ["get_workload", "mobile_net"]
