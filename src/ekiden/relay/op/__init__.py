"""Relay operators, each declared once (see ekiden.ir.op) and called by the function of its TVM
name. Each family is a module, whose `__all__` is the one list of its names.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names, register_deferred_modules
from ekiden.ir.op import OP_NODES, OPS
from ekiden.relay.op._document import make_documenting_getattr
from ekiden.relay.op._exports import EXPORTED_NAMES, OPERATORS_BY_MODULE

if TYPE_CHECKING:
    from ekiden.ir.op import get as get
    from ekiden.relay.expr import const as const
    from ekiden.relay.op import annotation as annotation
    from ekiden.relay.op import contrib as contrib
    from ekiden.relay.op import dynamic as dyn
    from ekiden.relay.op import image as image
    from ekiden.relay.op import linalg as linalg
    from ekiden.relay.op import memory as memory
    from ekiden.relay.op import ml as ml
    from ekiden.relay.op import nn as nn
    from ekiden.relay.op import op as op
    from ekiden.relay.op import random as random
    from ekiden.relay.op import sequence as sequence
    from ekiden.relay.op import text as text
    from ekiden.relay.op import vision as vision
    from ekiden.relay.op import vm as vm
    from ekiden.relay.op.annotation import device_copy as device_copy
    from ekiden.relay.op.broadcast import *  # noqa: F403
    from ekiden.relay.op.create import *  # noqa: F403
    from ekiden.relay.op.debugging import *  # noqa: F403
    from ekiden.relay.op.elementwise import *  # noqa: F403
    from ekiden.relay.op.gradient import register_gradient as register_gradient
    from ekiden.relay.op.index import *  # noqa: F403
    from ekiden.relay.op.join import *  # noqa: F403
    from ekiden.relay.op.op import register_alter_op_layout as register_alter_op_layout
    from ekiden.relay.op.op import register_convert_op_layout as register_convert_op_layout
    from ekiden.relay.op.op import (
        register_fake_quantization_to_integer as register_fake_quantization_to_integer,
    )
    from ekiden.relay.op.op import register_infer_correct_layout as register_infer_correct_layout
    from ekiden.relay.op.op import (
        register_mixed_precision_conversion as register_mixed_precision_conversion,
    )
    from ekiden.relay.op.op import register_optional_fake_quantization_to_integer
    from ekiden.relay.op.op import register_reference as register_reference
    from ekiden.relay.op.reduce import *  # noqa: F403
    from ekiden.relay.op.reshaping import *  # noqa: F403
    from ekiden.relay.op.reshaping import reshape as reshape
    from ekiden.relay.op.scan import *  # noqa: F403
    from ekiden.relay.op.scatter_ops import *  # noqa: F403
    from ekiden.relay.op.shape_func import register_shape_func as register_shape_func
    from ekiden.relay.op.shape_like import *  # noqa: F403
    from ekiden.relay.op.slice import *  # noqa: F403
    from ekiden.relay.op.sorting import *  # noqa: F403
    from ekiden.relay.op.sparse import *  # noqa: F403
    from ekiden.relay.op.strategy import OpImplementation as OpImplementation
    from ekiden.relay.op.strategy import OpSpecialization as OpSpecialization
    from ekiden.relay.op.strategy import OpStrategy as OpStrategy
    from ekiden.relay.op.strategy import SpecializedCondition as SpecializedCondition
    from ekiden.relay.op.strategy import register_compute as register_compute
    from ekiden.relay.op.strategy import register_schedule as register_schedule
    from ekiden.relay.op.strategy import register_strategy as register_strategy
    from ekiden.relay.op.tensor_math import *  # noqa: F403
    from ekiden.relay.op.transform import *  # noqa: F403

OPS.row_modules = OP_NODES.row_modules = {
    name: home for home, names in OPERATORS_BY_MODULE.items() for name in names.split()
}
register_deferred_modules([*OPERATORS_BY_MODULE, f"{__name__}.all_operators"])
__all__ = ["dyn", "register_optional_fake_quantization_to_integer"]
__all__ += [name for name in exported_names(EXPORTED_NAMES) if name not in __all__]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
    __getattr__ = make_documenting_getattr("", __getattr__)
    register_deferred_modules(["ekiden.relay.op._module_descriptions"])
