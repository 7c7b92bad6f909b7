"""The operators of Relay: each is declared once (see ekiden.ir.op) and called by the function of
its TVM name. Each family is a module, whose `__all__` is the one list of its names."""

from ekiden.ir.op import get
from ekiden.relay.expr import const
from ekiden.relay.op import algebra as _algebra
from ekiden.relay.op import (
    annotation,
    contrib,
    image,
    linalg,
    memory,
    ml,
    nn,
    op,
    random,
    sequence,
    text,
    vision,
    vm,
)
from ekiden.relay.op import broadcast as _broadcast
from ekiden.relay.op import create as _create
from ekiden.relay.op import debugging as _debugging
from ekiden.relay.op import dynamic as dyn
from ekiden.relay.op import dynamic_create as _dynamic_create  # noqa: F401  declares operators
from ekiden.relay.op import dynamic_repeat as _dynamic_repeat  # noqa: F401
from ekiden.relay.op import elementwise as _elementwise
from ekiden.relay.op import index as _index
from ekiden.relay.op import join as _join
from ekiden.relay.op import likeness as _likeness
from ekiden.relay.op import placing as _placing
from ekiden.relay.op import reduce as _reduce
from ekiden.relay.op import reshape as _reshape
from ekiden.relay.op import scan as _scan
from ekiden.relay.op import slice as _slice
from ekiden.relay.op import sorting as _sorting
from ekiden.relay.op import sparse as _sparse
from ekiden.relay.op import transform as _transform
from ekiden.relay.op._document import attach
from ekiden.relay.op.algebra import *  # noqa: F403
from ekiden.relay.op.annotation import device_copy
from ekiden.relay.op.broadcast import *  # noqa: F403
from ekiden.relay.op.create import *  # noqa: F403
from ekiden.relay.op.debugging import *  # noqa: F403
from ekiden.relay.op.elementwise import *  # noqa: F403
from ekiden.relay.op.gradient import register_gradient
from ekiden.relay.op.index import *  # noqa: F403
from ekiden.relay.op.join import *  # noqa: F403
from ekiden.relay.op.likeness import *  # noqa: F403
from ekiden.relay.op.op import (
    register_alter_op_layout,
    register_convert_op_layout,
    register_fake_quantization_to_integer,
    register_infer_correct_layout,
    register_mixed_precision_conversion,
    register_optional_fake_quantization_to_integer,
)
from ekiden.relay.op.placing import *  # noqa: F403
from ekiden.relay.op.reduce import *  # noqa: F403
from ekiden.relay.op.reshape import *  # noqa: F403
from ekiden.relay.op.scan import *  # noqa: F403
from ekiden.relay.op.shape_func import register_shape_func
from ekiden.relay.op.slice import *  # noqa: F403
from ekiden.relay.op.sorting import *  # noqa: F403
from ekiden.relay.op.sparse import *  # noqa: F403
from ekiden.relay.op.strategy import (
    OpImplementation,
    OpSpecialization,
    OpStrategy,
    SpecializedCondition,
    register_compute,
    register_schedule,
    register_strategy,
)
from ekiden.relay.op.transform import *  # noqa: F403

_FAMILIES = (
    _algebra,
    _broadcast,
    _create,
    _debugging,
    _elementwise,
    _index,
    _join,
    _likeness,
    _placing,
    _reduce,
    _reshape,
    _scan,
    _slice,
    _sorting,
    _sparse,
    _transform,
)
_NAMESPACES = (image, linalg, memory, ml, nn, random, sequence, text, vision, vm)

attach("", globals())
for _family in _NAMESPACES:
    attach(_family.__name__.rpartition(".")[2] + ".", vars(_family))

__all__ = [
    "OpImplementation",
    "OpSpecialization",
    "OpStrategy",
    "SpecializedCondition",
    "annotation",
    "const",
    "contrib",
    "device_copy",
    "dyn",
    "get",
    "image",
    "linalg",
    "memory",
    "ml",
    "nn",
    "op",
    "random",
    "register_alter_op_layout",
    "register_compute",
    "register_convert_op_layout",
    "register_fake_quantization_to_integer",
    "register_gradient",
    "register_infer_correct_layout",
    "register_mixed_precision_conversion",
    "register_optional_fake_quantization_to_integer",
    "register_schedule",
    "register_shape_func",
    "register_strategy",
    "text",
    "vision",
    "vm",
]
__all__ += [name for family in _FAMILIES for name in family.__all__]
