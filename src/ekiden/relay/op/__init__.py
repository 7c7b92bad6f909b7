"""Relay operators, each declared once (see ekiden.ir.op) and called by the function of its TVM
name. Each family is a module, whose `__all__` is the one list of its names.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names, register_deferred_modules
from ekiden.ir.op import OP_NODES, OPS
from ekiden.relay.op._document import make_documenting_getattr
from ekiden.relay.op._exports import EXPORTED_NAMES, OPERATORS_BY_MODULE

if TYPE_CHECKING:
    from ekiden.ir.op import get
    from ekiden.relay.expr import const
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
    from ekiden.relay.op import dynamic as dyn
    from ekiden.relay.op.annotation import device_copy
    from ekiden.relay.op.broadcast import *  # noqa: F403
    from ekiden.relay.op.create import *  # noqa: F403
    from ekiden.relay.op.debugging import *  # noqa: F403
    from ekiden.relay.op.elementwise import *  # noqa: F403
    from ekiden.relay.op.gradient import register_gradient
    from ekiden.relay.op.index import *  # noqa: F403
    from ekiden.relay.op.join import *  # noqa: F403
    from ekiden.relay.op.op import (
        register_alter_op_layout,
        register_convert_op_layout,
        register_fake_quantization_to_integer,
        register_infer_correct_layout,
        register_mixed_precision_conversion,
        register_optional_fake_quantization_to_integer,
        register_reference,
    )
    from ekiden.relay.op.reduce import *  # noqa: F403
    from ekiden.relay.op.reshaping import *  # noqa: F403
    from ekiden.relay.op.reshaping import reshape
    from ekiden.relay.op.scan import *  # noqa: F403
    from ekiden.relay.op.scatter_ops import *  # noqa: F403
    from ekiden.relay.op.shape_func import register_shape_func
    from ekiden.relay.op.shape_like import *  # noqa: F403
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
    from ekiden.relay.op.tensor_math import *  # noqa: F403
    from ekiden.relay.op.transform import *  # noqa: F403

OPS.row_modules = OP_NODES.row_modules = {
    name: home for home, names in OPERATORS_BY_MODULE.items() for name in names.split()
}
register_deferred_modules([*OPERATORS_BY_MODULE, f"{__name__}.all_operators"])
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
    "register_reference",
    "register_schedule",
    "register_shape_func",
    "register_strategy",
    "reshape",
    "sequence",
    "text",
    "vision",
    "vm",
]
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
    __getattr__ = make_documenting_getattr("", __getattr__)
    register_deferred_modules(["ekiden.relay.op._module_descriptions"])
