"""Neural-network computations: dense, convolution, pooling, normalisation, activations."""

from ekiden.topi.elementwise import bias_add as bias_add, leaky_relu as leaky_relu, prelu as prelu, relu as relu
from ekiden.topi.nn.conv import conv1d as conv1d, conv2d as conv2d, conv2d_transpose as conv2d_transpose
from ekiden.topi.nn.dense import (
    batch_matmul as batch_matmul,
    dense as dense,
    dense_pack as dense_pack,
    matmul as matmul,
    pack_weight as pack_weight,
)
from ekiden.topi.nn.norm import (
    batch_norm as batch_norm,
    group_norm as group_norm,
    instance_norm as instance_norm,
    layer_norm as layer_norm,
    lrn as lrn,
)
from ekiden.topi.nn.pad import pad as pad
from ekiden.topi.nn.pool import (
    Window as Window,
    adaptive_avg_pool as adaptive_avg_pool,
    avg_pool as avg_pool,
    max_pool as max_pool,
)
from ekiden.topi.nn.softmax import log_softmax as log_softmax, softmax as softmax
