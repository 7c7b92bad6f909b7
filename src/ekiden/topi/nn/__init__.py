"""Neural-network computations: dense, convolution, pooling, normalisation, activations, losses."""

from ekiden.topi.nn import activation as _activation
from ekiden.topi.nn import attention as _attention
from ekiden.topi.nn import bits as _bits
from ekiden.topi.nn import blocks as _blocks
from ekiden.topi.nn import conv as _conv
from ekiden.topi.nn import conv_layouts as _conv_layouts
from ekiden.topi.nn import conv_transpose as _conv_transpose
from ekiden.topi.nn import deformable as _deformable
from ekiden.topi.nn import dense as _dense
from ekiden.topi.nn import loss as _loss
from ekiden.topi.nn import lstm as _lstm
from ekiden.topi.nn import nibbles as _nibbles
from ekiden.topi.nn import norm as _norm
from ekiden.topi.nn import pad as _pad
from ekiden.topi.nn import pages as _pages
from ekiden.topi.nn import pool as _pool
from ekiden.topi.nn import recurrent as _recurrent
from ekiden.topi.nn import softmax as _softmax
from ekiden.topi.nn import space as _space
from ekiden.topi.nn import upsample as _upsample
from ekiden.topi.nn import winograd as _winograd
from ekiden.topi.nn.activation import *  # noqa: F403
from ekiden.topi.nn.attention import *  # noqa: F403
from ekiden.topi.nn.bits import *  # noqa: F403
from ekiden.topi.nn.blocks import *  # noqa: F403
from ekiden.topi.nn.conv import *  # noqa: F403
from ekiden.topi.nn.conv_layouts import *  # noqa: F403
from ekiden.topi.nn.conv_transpose import *  # noqa: F403
from ekiden.topi.nn.deformable import *  # noqa: F403
from ekiden.topi.nn.dense import *  # noqa: F403
from ekiden.topi.nn.loss import *  # noqa: F403
from ekiden.topi.nn.lstm import *  # noqa: F403
from ekiden.topi.nn.nibbles import *  # noqa: F403
from ekiden.topi.nn.norm import *  # noqa: F403
from ekiden.topi.nn.pad import *  # noqa: F403
from ekiden.topi.nn.pages import *  # noqa: F403
from ekiden.topi.nn.pool import *  # noqa: F403
from ekiden.topi.nn.recurrent import *  # noqa: F403
from ekiden.topi.nn.softmax import *  # noqa: F403
from ekiden.topi.nn.space import *  # noqa: F403
from ekiden.topi.nn.upsample import *  # noqa: F403
from ekiden.topi.nn.winograd import *  # noqa: F403

_FAMILIES = (
    _activation, _attention, _bits, _blocks, _conv, _conv_layouts, _conv_transpose, _deformable,
    _dense, _loss, _lstm, _nibbles, _norm, _pad, _pages, _pool, _recurrent, _softmax, _space,
    _upsample, _winograd,
)  # fmt: skip
__all__ = [name for family in _FAMILIES for name in family.__all__]
