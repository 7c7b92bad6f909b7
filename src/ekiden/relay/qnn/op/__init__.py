"""QNN operators by TVM's names and signatures."""

import sys

from ekiden.relay.op._document import attach_descriptions
from ekiden.relay.qnn.concat_pool_softmax import avg_pool2d, concatenate, softmax
from ekiden.relay.qnn.config import current_requantize_config, requantize_config
from ekiden.relay.qnn.elementwise import (
    abs,
    add,
    erf,
    exp,
    hardswish,
    leaky_relu,
    log,
    mul,
    rsqrt,
    sigmoid,
    sqrt,
    subtract,
    tanh,
)
from ekiden.relay.qnn.op import canonicalizations, legalizations
from ekiden.relay.qnn.product import batch_matmul, conv2d, conv2d_transpose, dense
from ekiden.relay.qnn.scale_conversion import dequantize, quantize, requantize
from ekiden.relay.qnn.simulated import simulated_dequantize, simulated_quantize

attach_descriptions("qnn.", globals())

qnn = sys.modules[__name__]
"""TVM's module name of these operators."""

__all__ = [
    "abs",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "canonicalizations",
    "concatenate",
    "conv2d",
    "conv2d_transpose",
    "current_requantize_config",
    "dense",
    "dequantize",
    "erf",
    "exp",
    "hardswish",
    "leaky_relu",
    "legalizations",
    "log",
    "mul",
    "quantize",
    "requantize",
    "requantize_config",
    "rsqrt",
    "sigmoid",
    "simulated_dequantize",
    "simulated_quantize",
    "softmax",
    "sqrt",
    "subtract",
    "tanh",
]
