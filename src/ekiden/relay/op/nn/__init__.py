"""Neural-network operators."""

from ekiden.relay.op.image import upsampling
from ekiden.relay.op.nn import activation as _activation
from ekiden.relay.op.nn import attention as _attention
from ekiden.relay.op.nn import backward as _backward
from ekiden.relay.op.nn import bits as _bits
from ekiden.relay.op.nn import blocks as _blocks
from ekiden.relay.op.nn import conv as _conv
from ekiden.relay.op.nn import dense as _dense
from ekiden.relay.op.nn import enlarge as _enlarge
from ekiden.relay.op.nn import nibbles as _nibbles
from ekiden.relay.op.nn import norm as _norm
from ekiden.relay.op.nn import pad as _pad
from ekiden.relay.op.nn import pages as _pages
from ekiden.relay.op.nn import pool as _pool
from ekiden.relay.op.nn import recurrent as _recurrent
from ekiden.relay.op.nn import space as _space
from ekiden.relay.op.nn import sparse as _sparse
from ekiden.relay.op.nn import volume as _volume
from ekiden.relay.op.nn import winograd as _winograd
from ekiden.relay.op.nn.activation import *  # noqa: F403
from ekiden.relay.op.nn.attention import *  # noqa: F403
from ekiden.relay.op.nn.backward import *  # noqa: F403
from ekiden.relay.op.nn.bits import *  # noqa: F403
from ekiden.relay.op.nn.blocks import *  # noqa: F403
from ekiden.relay.op.nn.conv import *  # noqa: F403
from ekiden.relay.op.nn.dense import *  # noqa: F403
from ekiden.relay.op.nn.enlarge import *  # noqa: F403
from ekiden.relay.op.nn.nibbles import *  # noqa: F403
from ekiden.relay.op.nn.norm import *  # noqa: F403
from ekiden.relay.op.nn.pad import *  # noqa: F403
from ekiden.relay.op.nn.pages import *  # noqa: F403
from ekiden.relay.op.nn.pool import *  # noqa: F403
from ekiden.relay.op.nn.recurrent import *  # noqa: F403
from ekiden.relay.op.nn.space import *  # noqa: F403
from ekiden.relay.op.nn.sparse import *  # noqa: F403
from ekiden.relay.op.nn.volume import *  # noqa: F403
from ekiden.relay.op.nn.winograd import *  # noqa: F403
from ekiden.relay.op.reshape import batch_flatten

_FAMILIES = (
    _activation, _attention, _backward, _bits, _blocks, _conv, _dense, _enlarge, _nibbles, _norm,
    _pad, _pages, _pool, _recurrent, _space, _sparse, _volume, _winograd,
)  # fmt: skip
__all__ = ["batch_flatten", "upsampling"]
__all__ += [name for family in _FAMILIES for name in family.__all__]
