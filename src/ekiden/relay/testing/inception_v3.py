"""Inception v3 (Szegedy et al. 2015), for images of 299 rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import concatenate, nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor

Step = tuple[int, int, int] | tuple[int, int, int, int]
"""Convolution: channels, kernel rows and columns, and the stride; without a stride the padding
keeps the size. Those without a stride pad so that the image keeps its size.
"""
Branch = Sequence[Step]
_BN_EPSILON = 2e-5


def _conv(data: Expr, step: Step, name: str, pads: bool = True) -> Expr:
    """Return a convolution with batch normalisation and ReLU."""
    channels, rows, columns, stride = (*step, 1)[:4]
    is_padded = pads and len(step) == 3
    padding = (rows // 2, columns // 2) if is_padded else (0, 0)
    body = layers.conv2d(
        data, channels, (rows, columns), f"{name}_conv2d", (stride, stride), padding
    )
    return nn.relu(layers.batch_norm_infer(body, f"{name}_batchnorm", _BN_EPSILON, scale=False))


def _conv_chain(data: Expr, steps: Branch, name: str) -> Expr:
    """Return a chain of convolutions."""
    for number, step in enumerate(steps):
        data = _conv(data, step, f"{name}_{number}")
    return data


def _pool(data: Expr, kind: str, channels: int, name: str) -> Expr:
    """Return a stride-1 pooling followed by a 1x1 convolution."""
    if kind == "max":
        pooled = nn.max_pool2d(data, pool_size=(3, 3), strides=(1, 1), padding=(1, 1))
    else:
        pooled = nn.avg_pool2d(
            data, pool_size=(3, 3), strides=(1, 1), padding=(1, 1), count_include_pad=True
        )
    return _conv(pooled, (channels, 1, 1), f"{name}_pool")


def _block(data: Expr, branches: Sequence[Branch], pooled_channels: int, name: str) -> Expr:
    """Return an Inception block: concatenated branches and a pooled branch."""
    parts = [
        _conv_chain(data, branch, f"{name}_{number}") for number, branch in enumerate(branches)
    ]
    return concatenate((*parts, _pool(data, "avg", pooled_channels, name)), axis=1)


def _reduction(data: Expr, branches: Sequence[Branch], name: str) -> Expr:
    """Return a reduction block, which halves the image: concatenated branches and a max pooling."""
    parts = [
        _conv_chain(data, branch, f"{name}_{number}") for number, branch in enumerate(branches)
    ]
    return concatenate((*parts, nn.max_pool2d(data, pool_size=(3, 3), strides=(2, 2))), axis=1)


def _expanded_block(data: Expr, pooling: str, name: str) -> Expr:
    """Return a block of the smallest image, whose branches end in a row and a column kernel."""
    branches = [_conv(data, (320, 1, 1), f"{name}_0")]
    for number, steps in enumerate((((384, 1, 1),), ((448, 1, 1), (384, 3, 3))), 1):
        body = _conv_chain(data, steps, f"{name}_{number}")
        branches.append(_conv(body, (384, 1, 3), f"{name}_{number}_row"))
        branches.append(_conv(body, (384, 3, 1), f"{name}_{number}_column"))
    return concatenate((*branches, _pool(data, pooling, 192, name)), axis=1)


def _factorized_branches(inner: int) -> tuple[Branch, ...]:
    """Return the branches whose 7x7 kernels are a row and a column kernel."""
    return (
        ((192, 1, 1),),
        ((inner, 1, 1), (inner, 1, 7), (192, 7, 1)),
        ((inner, 1, 1), (inner, 7, 1), (inner, 1, 7), (inner, 7, 1), (192, 1, 7)),
    )


def get_net(
    batch_size: int,
    num_classes: int,
    image_shape: tuple[int, ...],
    dtype: str,
) -> Function:
    """Return the network.

    Args:
        batch_size: the number of images.
        num_classes: the number of classes.
        image_shape: channels, rows and columns of an image; at least 75 rows and columns.
        dtype: the dtype of images and parameters.
    """
    body: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    body = _conv(body, (32, 3, 3, 2), "conv")
    body = _conv(body, (32, 3, 3), "conv_1", pads=False)
    body = _conv(body, (64, 3, 3), "conv_2")
    body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
    body = _conv(body, (80, 1, 1), "conv_3")
    body = _conv(body, (192, 3, 3), "conv_4", pads=False)
    body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2))
    square = ((64, 1, 1),), ((48, 1, 1), (64, 5, 5)), ((64, 1, 1), (96, 3, 3), (96, 3, 3))
    for number, channels in enumerate((32, 64, 64)):
        body = _block(body, square, channels, f"mixed_{number}")
    halved = ((384, 3, 3, 2),), ((64, 1, 1), (96, 3, 3), (96, 3, 3, 2))
    body = _reduction(body, halved, "mixed_3")
    for number, inner in enumerate((128, 160, 160, 192), 4):
        body = _block(body, _factorized_branches(inner), 192, f"mixed_{number}")
    halved_again = (
        ((192, 1, 1), (320, 3, 3, 2)),
        ((192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3, 2)),
    )
    body = _reduction(body, halved_again, "mixed_8")
    body = _expanded_block(body, "avg", "mixed_9")
    body = _expanded_block(body, "max", "mixed_10")
    body = nn.batch_flatten(nn.global_avg_pool2d(body))
    return layers.closed(nn.softmax(layers.dense_add_bias(body, num_classes, "fc1")))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 299, 299),
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(batch_size, num_classes, image_shape, dtype))


__all__ = ["get_net", "get_workload"]
