"""Neural-network operators."""

from ekiden.relay.op.image import upsampling as upsampling
from ekiden.relay.op.nn.activation import (
    bias_add as bias_add,
)
from ekiden.relay.op.nn.activation import (
    dropout as dropout,
)
from ekiden.relay.op.nn.activation import (
    leaky_relu as leaky_relu,
)
from ekiden.relay.op.nn.activation import (
    log_softmax as log_softmax,
)
from ekiden.relay.op.nn.activation import (
    prelu as prelu,
)
from ekiden.relay.op.nn.activation import (
    relu as relu,
)
from ekiden.relay.op.nn.activation import (
    softmax as softmax,
)
from ekiden.relay.op.nn.conv import conv1d as conv1d
from ekiden.relay.op.nn.conv import conv2d as conv2d
from ekiden.relay.op.nn.conv import conv2d_transpose as conv2d_transpose
from ekiden.relay.op.nn.dense import (
    batch_matmul as batch_matmul,
)
from ekiden.relay.op.nn.dense import (
    contrib_dense_pack as contrib_dense_pack,
)
from ekiden.relay.op.nn.dense import (
    contrib_pack_weight as contrib_pack_weight,
)
from ekiden.relay.op.nn.dense import (
    dense as dense,
)
from ekiden.relay.op.nn.dense import (
    matmul as matmul,
)
from ekiden.relay.op.nn.norm import (
    batch_norm as batch_norm,
)
from ekiden.relay.op.nn.norm import (
    group_norm as group_norm,
)
from ekiden.relay.op.nn.norm import (
    instance_norm as instance_norm,
)
from ekiden.relay.op.nn.norm import (
    layer_norm as layer_norm,
)
from ekiden.relay.op.nn.norm import (
    lrn as lrn,
)
from ekiden.relay.op.nn.pad import pad as pad
from ekiden.relay.op.nn.pool import (
    adaptive_avg_pool2d as adaptive_avg_pool2d,
)
from ekiden.relay.op.nn.pool import (
    avg_pool1d as avg_pool1d,
)
from ekiden.relay.op.nn.pool import (
    avg_pool2d as avg_pool2d,
)
from ekiden.relay.op.nn.pool import (
    global_avg_pool2d as global_avg_pool2d,
)
from ekiden.relay.op.nn.pool import (
    global_max_pool2d as global_max_pool2d,
)
from ekiden.relay.op.nn.pool import (
    max_pool1d as max_pool1d,
)
from ekiden.relay.op.nn.pool import (
    max_pool2d as max_pool2d,
)
from ekiden.relay.op.reshape import batch_flatten as batch_flatten
