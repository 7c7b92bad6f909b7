"""Multilayer perceptron with three layers."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function, var
from ekiden.relay.op import nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor


def get_net(
    batch_size: int,
    num_classes: int = 10,
    image_shape: tuple[int, ...] = (1, 28, 28),
    dtype: str = "float32",
) -> Function:
    """Return the perceptron with hidden layers of 128 and 64 units and a softmax output."""
    body = nn.batch_flatten(var("data", shape=(batch_size, *image_shape), dtype=dtype))
    body = nn.relu(layers.dense_add_bias(body, 128, "fc1"))
    body = nn.relu(layers.dense_add_bias(body, 64, "fc2"))
    return layers.closed(nn.softmax(layers.dense_add_bias(body, num_classes, "fc3")))


def get_workload(
    batch_size: int,
    num_classes: int = 10,
    image_shape: tuple[int, ...] = (1, 28, 28),
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(batch_size, num_classes, image_shape, dtype))


__all__ = ["get_net", "get_workload"]
