"""Tensor expressions: placeholders, computations, and the loop programs they become.

Names and signatures are those of TVM's `te` but for its schedules: a computation becomes a
PrimFunc (`te.create_prim_func`), which `tir.Schedule` transforms.
"""

from ekiden.ir.prim import const
from ekiden.te import intrin, reducer, tensor
from ekiden.te.inline import inline_injective, is_injective, post_order_tensors, tensor_loads
from ekiden.te.intrin import *  # noqa: F403
from ekiden.te.prim_func import create_prim_func
from ekiden.te.range_check import index_check, range_check
from ekiden.te.reducer import *  # noqa: F403
from ekiden.te.scan import scan
from ekiden.te.tensor import *  # noqa: F403

__all__ = [
    "const", "create_prim_func", "index_check", "inline_injective", "is_injective",
    "post_order_tensors", "range_check", "scan",
    "tensor_loads", *intrin.__all__, *reducer.__all__, *tensor.__all__,
]  # fmt: skip
