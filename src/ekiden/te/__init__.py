"""Tensor expressions: placeholders, computations, and their lowering to loop programs.

Names and signatures are those of TVM's `te`. A computation becomes a PrimFunc
(`te.create_prim_func`), which `tir.Schedule` transforms; `te.create_schedule` is TVM's older way to
say the same, and becomes that.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach
from ekiden.ir.prim import const
from ekiden.te import intrin, reducer, tensor
from ekiden.te.inline import inline_injective, is_injective, post_order_tensors, tensor_loads
from ekiden.te.intrin import *  # noqa: F403
from ekiden.te.reducer import *  # noqa: F403
from ekiden.te.tensor import *  # noqa: F403

if TYPE_CHECKING:
    from ekiden.te import hybrid, schedule
    from ekiden.te.differentiation import gradient
    from ekiden.te.prim_func import create_prim_func
    from ekiden.te.range_checks import index_check, info_check, range_check
    from ekiden.te.scan_op import scan
    from ekiden.te.schedule import Schedule, Stage, create_schedule, thread_axis
    from ekiden.te.tensor_intrin import TensorIntrin, decl_tensor_intrin

__all__ = [
    "Schedule", "Stage", "TensorIntrin", "const", "create_prim_func", "create_schedule",
    "decl_tensor_intrin", "gradient", "hybrid", "index_check", "info_check", "inline_injective",
    "is_injective", "post_order_tensors", "range_check", "scan", "schedule",
    "tensor_loads", "thread_axis", *intrin.__all__, *reducer.__all__, *tensor.__all__,
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "": "hybrid schedule",
            "differentiation": "gradient",
            "prim_func": "create_prim_func",
            "range_checks": "index_check info_check range_check",
            "scan_op": "scan",
            "schedule": "Schedule Stage create_schedule thread_axis",
            "tensor_intrin": "TensorIntrin decl_tensor_intrin",
        },
        registers=True,
    )
