"""Neural-network operators."""

from ekiden.relay.op.image import upsampling as upsampling
from ekiden.relay.op.nn.activation import (
    bias_add as bias_add,
    dropout as dropout,
    leaky_relu as leaky_relu,
    log_softmax as log_softmax,
    prelu as prelu,
    relu as relu,
    softmax as softmax,
)
from ekiden.relay.op.nn.conv import conv1d as conv1d, conv2d as conv2d, conv2d_transpose as conv2d_transpose
from ekiden.relay.op.nn.dense import (
    batch_matmul as batch_matmul,
    contrib_dense_pack as contrib_dense_pack,
    contrib_pack_weight as contrib_pack_weight,
    dense as dense,
    matmul as matmul,
)
from ekiden.relay.op.nn.norm import (
    batch_norm as batch_norm,
    group_norm as group_norm,
    instance_norm as instance_norm,
    layer_norm as layer_norm,
    lrn as lrn,
)
from ekiden.relay.op.nn.pad import pad as pad
from ekiden.relay.op.nn.pool import (
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    avg_pool1d as avg_pool1d,
    avg_pool2d as avg_pool2d,
    global_avg_pool2d as global_avg_pool2d,
    global_max_pool2d as global_max_pool2d,
    max_pool1d as max_pool1d,
    max_pool2d as max_pool2d,
)
from ekiden.relay.op.reshape import batch_flatten as batch_flatten
