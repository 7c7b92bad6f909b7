"""Neural network operators; dense, convolution, pooling, normalisation, activations, losses."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.topi.nn._exports import EXPORTS

if TYPE_CHECKING:
    from ekiden.topi.nn.activation import *  # noqa: F403
    from ekiden.topi.nn.attention import *  # noqa: F403
    from ekiden.topi.nn.attention import attention
    from ekiden.topi.nn.bits import *  # noqa: F403
    from ekiden.topi.nn.blocks import *  # noqa: F403
    from ekiden.topi.nn.conv import *  # noqa: F403
    from ekiden.topi.nn.conv import conv
    from ekiden.topi.nn.conv_layouts import *  # noqa: F403
    from ekiden.topi.nn.conv_transpose import *  # noqa: F403
    from ekiden.topi.nn.conv_transpose import conv_transpose
    from ekiden.topi.nn.deformable import *  # noqa: F403
    from ekiden.topi.nn.dense import *  # noqa: F403
    from ekiden.topi.nn.dense import dense
    from ekiden.topi.nn.loss import *  # noqa: F403
    from ekiden.topi.nn.lstm import *  # noqa: F403
    from ekiden.topi.nn.lstm import lstm
    from ekiden.topi.nn.nibbles import *  # noqa: F403
    from ekiden.topi.nn.norm import *  # noqa: F403
    from ekiden.topi.nn.pad import *  # noqa: F403
    from ekiden.topi.nn.pad import pad
    from ekiden.topi.nn.pages import *  # noqa: F403
    from ekiden.topi.nn.pool import *  # noqa: F403
    from ekiden.topi.nn.recurrent import *  # noqa: F403
    from ekiden.topi.nn.recurrent import recurrent
    from ekiden.topi.nn.softmax import *  # noqa: F403
    from ekiden.topi.nn.softmax import softmax
    from ekiden.topi.nn.space import *  # noqa: F403
    from ekiden.topi.nn.upsample import *  # noqa: F403
    from ekiden.topi.nn.winograd import *  # noqa: F403

__all__ = ["attention", "conv", "conv_transpose", "dense", "lstm", "pad", "recurrent", "softmax"]
__all__ += [name for name in exported_names(EXPORTS) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTS, registers=True)
