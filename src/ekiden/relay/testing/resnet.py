"""Pre-activation ResNet (He et al. 2016)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import add, nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

RESNET_UNITS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual units per stage by network depth."""
_BN_EPSILON = 2e-5


def _batch_norm(data: Expr, name: str, layout: str, scale: bool = True) -> Expr:
    axis = layers.channel_axis(layout)
    return layers.batch_norm_infer(data, name, _BN_EPSILON, scale, axis)


def residual_unit(
    data: Expr,
    channels: int,
    stride: int,
    is_same: bool,
    name: str,
    is_bottleneck: bool,
    layout: str = "NCHW",
) -> Expr:
    """Return a residual unit: two 3x3 convolutions, or 1x1, 3x3, 1x1, with a shortcut."""
    inner = channels // 4
    # fmt: off
    steps = (
        ((inner, 1, stride), (inner, 3, 1), (channels, 1, 1))
        if is_bottleneck
        else ((channels, 3, stride), (channels, 3, 1))
    )
    # fmt: on
    body: Expr = nn.relu(_batch_norm(data, f"{name}_bn1", layout))
    first = body
    for number, (outputs, size, step) in enumerate(steps, 1):
        if number > 1:
            body = nn.relu(_batch_norm(body, f"{name}_bn{number}", layout))
        pad = (size // 2, size // 2)
        body = layers.conv2d(
            body, outputs, (size, size), f"{name}_conv{number}", (step, step), pad, layout=layout
        )
    if is_same:
        return add(body, data)
    return add(
        body, layers.conv2d(first, channels, (1, 1), f"{name}_sc", (stride, stride), layout=layout)
    )


def resnet(
    units: tuple[int, ...],
    filters: tuple[int, ...],
    num_classes: int,
    data_shape: tuple[int, ...],
    is_bottleneck: bool,
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """Return a ResNet with the given number of units per stage; `data_shape` is in `layout`."""
    body: Expr = _batch_norm(
        var("data", shape=data_shape, dtype=dtype), "bn_data", layout, scale=False
    )
    if data_shape[layout.index("H")] <= 32:
        body = layers.conv2d(body, filters[0], (3, 3), "conv0", padding=(1, 1), layout=layout)
    else:
        body = layers.conv2d(body, filters[0], (7, 7), "conv0", (2, 2), (3, 3), layout=layout)
        body = nn.relu(_batch_norm(body, "bn0", layout))
        body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout=layout)
    for stage, (count, channels) in enumerate(zip(units, filters[1:], strict=True), 1):
        for unit in range(1, count + 1):
            stride = 2 if stage > 1 and unit == 1 else 1
            name = f"stage{stage}_unit{unit}"
            body = residual_unit(body, channels, stride, unit > 1, name, is_bottleneck, layout)
    body = nn.relu(_batch_norm(body, "bn1", layout))
    body = nn.batch_flatten(nn.global_avg_pool2d(body, layout=layout))
    return layers.closed(nn.softmax(layers.dense_add_bias(body, num_classes, "fc1")))


def get_net(
    batch_size: int,
    num_classes: int = 1000,
    num_layers: int = 50,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """Return a ResNet of 18 to 152 layers, or of 6n + 2 for images of at most 28 rows.

    `image_shape` is in `layout`: (rows, columns, channels) for NHWC.

    Raises:
        ValueError: There is no network of that number of layers.
    """
    shape = (batch_size, *image_shape)
    if image_shape[layout.index("H") - 1] <= 28:
        if (num_layers - 2) % 6:
            raise ValueError(f"resnet: small images take 6n + 2 layers, got {num_layers}")
        units = ((num_layers - 2) // 6,) * 3
        return resnet(units, (16, 16, 32, 64), num_classes, shape, False, dtype, layout)
    if num_layers not in RESNET_UNITS:
        sizes = ", ".join(map(str, RESNET_UNITS))
        raise ValueError(f"resnet: no network of {num_layers} layers; there are {sizes}")
    is_deep = num_layers >= 50
    filters = (64, 256, 512, 1024, 2048) if is_deep else (64, 64, 128, 256, 512)
    return resnet(RESNET_UNITS[num_layers], filters, num_classes, shape, is_deep, dtype, layout)


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    net = get_net(batch_size, num_classes, num_layers, image_shape, dtype, layout)
    return create_workload(net)


__all__ = ["get_net", "get_workload", "resnet"]
