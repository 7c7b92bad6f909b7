"""Neural-network computations: dense, convolution, pooling, normalisation, activations."""

from ekiden.topi.elementwise import bias_add as bias_add
from ekiden.topi.elementwise import leaky_relu as leaky_relu
from ekiden.topi.elementwise import prelu as prelu
from ekiden.topi.elementwise import relu as relu
from ekiden.topi.nn.conv import conv1d as conv1d
from ekiden.topi.nn.conv import conv2d as conv2d
from ekiden.topi.nn.conv import conv2d_transpose as conv2d_transpose
from ekiden.topi.nn.dense import (
    batch_matmul as batch_matmul,
)
from ekiden.topi.nn.dense import (
    dense as dense,
)
from ekiden.topi.nn.dense import (
    dense_pack as dense_pack,
)
from ekiden.topi.nn.dense import (
    matmul as matmul,
)
from ekiden.topi.nn.dense import (
    pack_weight as pack_weight,
)
from ekiden.topi.nn.norm import (
    batch_norm as batch_norm,
)
from ekiden.topi.nn.norm import (
    group_norm as group_norm,
)
from ekiden.topi.nn.norm import (
    instance_norm as instance_norm,
)
from ekiden.topi.nn.norm import (
    layer_norm as layer_norm,
)
from ekiden.topi.nn.norm import (
    lrn as lrn,
)
from ekiden.topi.nn.pad import pad as pad
from ekiden.topi.nn.pool import (
    Window as Window,
)
from ekiden.topi.nn.pool import (
    adaptive_avg_pool as adaptive_avg_pool,
)
from ekiden.topi.nn.pool import (
    avg_pool as avg_pool,
)
from ekiden.topi.nn.pool import (
    max_pool as max_pool,
)
from ekiden.topi.nn.softmax import log_softmax as log_softmax
from ekiden.topi.nn.softmax import softmax as softmax
