"""Neural-network operators."""

from ekiden.relay.op.image import upsampling
from ekiden.relay.op.nn.activation import (
    bias_add,
    dropout,
    dropout_raw,
    fast_softmax,
    leaky_relu,
    log_softmax,
    prelu,
    relu,
    softmax,
)
from ekiden.relay.op.nn.conv import conv1d, conv2d, conv2d_transpose
from ekiden.relay.op.nn.dense import (
    batch_matmul,
    contrib_dense_pack,
    contrib_pack_weight,
    dense,
    matmul,
)
from ekiden.relay.op.nn.norm import batch_norm, group_norm, instance_norm, layer_norm, lrn
from ekiden.relay.op.nn.pad import pad
from ekiden.relay.op.nn.pool import (
    adaptive_avg_pool2d,
    avg_pool1d,
    avg_pool2d,
    global_avg_pool2d,
    global_max_pool2d,
    max_pool1d,
    max_pool2d,
)
from ekiden.relay.op.nn.winograd import (
    contrib_conv2d_winograd_weight_transform,
    contrib_conv2d_winograd_without_weight_transform,
)
from ekiden.relay.op.reshape import batch_flatten

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_flatten",
    "batch_matmul",
    "batch_norm",
    "bias_add",
    "contrib_conv2d_winograd_weight_transform",
    "contrib_conv2d_winograd_without_weight_transform",
    "contrib_dense_pack",
    "contrib_pack_weight",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dropout",
    "dropout_raw",
    "fast_softmax",
    "global_avg_pool2d",
    "global_max_pool2d",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "lrn",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "pad",
    "prelu",
    "relu",
    "softmax",
    "upsampling",
]
