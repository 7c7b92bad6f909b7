"""Deep Q-network (Mnih et al. 2015)."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function, var
from ekiden.relay.op import nn
from ekiden.relay.testing import layers
from ekiden.relay.testing.init import create_workload
from ekiden.runtime import Tensor


def get_net(
    batch_size: int,
    num_actions: int = 18,
    image_shape: tuple[int, ...] = (4, 84, 84),
    dtype: str = "float32",
) -> Function:
    """Return the Q-network from four frames to action values."""
    body: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    for number, (channels, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 1):
        name = f"conv{number}"
        body = layers.conv2d(body, channels, (size, size), name, (stride, stride))
        body = nn.relu(layers.add_bias(body, name))
    body = nn.relu(layers.dense_add_bias(nn.batch_flatten(body), 512, "dense1"))
    return layers.closed(layers.dense_add_bias(body, num_actions, "dense2"))


def get_workload(
    batch_size: int,
    num_actions: int = 18,
    image_shape: tuple[int, ...] = (4, 84, 84),
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, Tensor]]:
    """Return the network as a module with initialised parameters."""
    return create_workload(get_net(batch_size, num_actions, image_shape, dtype))


__all__ = ["get_net", "get_workload"]
