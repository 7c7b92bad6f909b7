"""Neural-network operators."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.relay.op._document import make_documenting_getattr
from ekiden.relay.op.nn._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.relay.op.image import upsampling
    from ekiden.relay.op.nn.activation import *  # noqa: F403
    from ekiden.relay.op.nn.backward import *  # noqa: F403
    from ekiden.relay.op.nn.bitserial import *  # noqa: F403
    from ekiden.relay.op.nn.block_quantized import *  # noqa: F403
    from ekiden.relay.op.nn.conv import *  # noqa: F403
    from ekiden.relay.op.nn.conv_variants import *  # noqa: F403
    from ekiden.relay.op.nn.dot_product_attention import *  # noqa: F403
    from ekiden.relay.op.nn.dot_product_attention import attention
    from ekiden.relay.op.nn.int4_dense import *  # noqa: F403
    from ekiden.relay.op.nn.matrix_products import *  # noqa: F403
    from ekiden.relay.op.nn.matrix_products import dense
    from ekiden.relay.op.nn.norm import *  # noqa: F403
    from ekiden.relay.op.nn.padding import *  # noqa: F403
    from ekiden.relay.op.nn.padding import pad
    from ekiden.relay.op.nn.paged_attention import *  # noqa: F403
    from ekiden.relay.op.nn.pool import *  # noqa: F403
    from ekiden.relay.op.nn.recurrent_layers import *  # noqa: F403
    from ekiden.relay.op.nn.recurrent_layers import recurrent
    from ekiden.relay.op.nn.space_to_batch import *  # noqa: F403
    from ekiden.relay.op.nn.sparse import *  # noqa: F403
    from ekiden.relay.op.nn.volume_resize import *  # noqa: F403
    from ekiden.relay.op.nn.winograd import *  # noqa: F403
    from ekiden.relay.op.reshaping import batch_flatten

__all__ = ["attention", "batch_flatten", "dense", "pad", "recurrent", "upsampling"]
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
    __getattr__ = make_documenting_getattr("nn.", __getattr__)
