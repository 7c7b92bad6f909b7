"""Tensor expressions: placeholders, computations, and the loop programs they become."""

from ekiden.te.inline import inline_injective, is_injective, post_order_tensors
from ekiden.te.prim_func import create_prim_func
from ekiden.te.tensor import (
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    ProducerLoad,
    Reduce,
    ReduceAxis,
    Tensor,
    compute,
    compute_op,
    extern,
    identity,
    max,
    min,
    placeholder,
    prod,
    reduce_axis,
    sum,
)

__all__ = [
    "ComputeOp",
    "ExternOp",
    "Operation",
    "PlaceholderOp",
    "ProducerLoad",
    "Reduce",
    "ReduceAxis",
    "Tensor",
    "compute",
    "compute_op",
    "create_prim_func",
    "extern",
    "identity",
    "inline_injective",
    "is_injective",
    "max",
    "min",
    "placeholder",
    "post_order_tensors",
    "prod",
    "reduce_axis",
    "sum",
]
