"""Neural network operators; dense, convolution, pooling, normalisation, activations, losses."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.topi.nn._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.topi.nn.activation import *  # noqa: F403
    from ekiden.topi.nn.bitpacking import *  # noqa: F403
    from ekiden.topi.nn.block_quantized import *  # noqa: F403
    from ekiden.topi.nn.conv_layouts import *  # noqa: F403
    from ekiden.topi.nn.convolution import *  # noqa: F403
    from ekiden.topi.nn.convolution import conv
    from ekiden.topi.nn.deformable import *  # noqa: F403
    from ekiden.topi.nn.dot_product_attention import *  # noqa: F403
    from ekiden.topi.nn.dot_product_attention import attention
    from ekiden.topi.nn.int4_dense import *  # noqa: F403
    from ekiden.topi.nn.loss import *  # noqa: F403
    from ekiden.topi.nn.lstm_cell import *  # noqa: F403
    from ekiden.topi.nn.lstm_cell import lstm
    from ekiden.topi.nn.matrix_products import *  # noqa: F403
    from ekiden.topi.nn.matrix_products import dense
    from ekiden.topi.nn.norm import *  # noqa: F403
    from ekiden.topi.nn.padding import *  # noqa: F403
    from ekiden.topi.nn.padding import pad
    from ekiden.topi.nn.paged_kv_cache import *  # noqa: F403
    from ekiden.topi.nn.pool import *  # noqa: F403
    from ekiden.topi.nn.recurrent_layers import *  # noqa: F403
    from ekiden.topi.nn.recurrent_layers import recurrent
    from ekiden.topi.nn.softmax_stages import *  # noqa: F403
    from ekiden.topi.nn.softmax_stages import softmax
    from ekiden.topi.nn.space_depth_transforms import *  # noqa: F403
    from ekiden.topi.nn.transposed_convolution import *  # noqa: F403
    from ekiden.topi.nn.transposed_convolution import conv_transpose
    from ekiden.topi.nn.upsample import *  # noqa: F403
    from ekiden.topi.nn.winograd import *  # noqa: F403

__all__ = ["attention", "conv", "conv_transpose", "dense", "lstm", "pad", "recurrent", "softmax"]
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
