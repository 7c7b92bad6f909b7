"""Neural-network computations: dense, convolution, pooling, normalisation, activations."""

from ekiden.topi.elementwise import bias_add, leaky_relu, prelu, relu
from ekiden.topi.nn.conv import conv1d, conv2d, conv2d_transpose
from ekiden.topi.nn.dense import batch_matmul, dense, dense_pack, matmul, pack_weight
from ekiden.topi.nn.norm import batch_norm, group_norm, instance_norm, layer_norm, lrn
from ekiden.topi.nn.pad import pad
from ekiden.topi.nn.pool import Window, adaptive_avg_pool, avg_pool, max_pool
from ekiden.topi.nn.softmax import log_softmax, softmax
from ekiden.topi.nn.winograd import winograd_conv2d, winograd_weight

__all__ = [
    "Window",
    "adaptive_avg_pool",
    "avg_pool",
    "batch_matmul",
    "batch_norm",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dense_pack",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "lrn",
    "matmul",
    "max_pool",
    "pack_weight",
    "pad",
    "prelu",
    "relu",
    "softmax",
    "winograd_conv2d",
    "winograd_weight",
]
