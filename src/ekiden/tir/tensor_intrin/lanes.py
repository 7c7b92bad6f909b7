"""Tensor intrinsics of horizontal vector reductions; importing this module registers them.

    from ekiden.tir.tensor_intrin.lanes import lane_reduction_name
    schedule.tensorize(loop, lane_reduction_name("sum", 16))
    for i in range(16): c[0] = c[0] + a[i]   ->   c[0] = c[0] + T.VectorReduce("sum", a[0:16])

A sum adds lanes in another order than left to right.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.prim import Add, BinaryExpr, Max, Min, Var, const, fold_binary
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
)
from ekiden.tir.tensor_intrin import TensorIntrin

LANE_REDUCTIONS: Mapping[type[BinaryExpr], str] = {Add: "sum", Max: "max", Min: "min"}
"""Lane reduction of each reduction operator."""
F32_LANE_COUNTS = (4, 8, 16)
"""Supported numbers of float32 lanes."""


def lane_reduction_name(kind: str, lanes: int) -> str:
    """Return the name of the reduction intrinsic for a number of float32 lanes."""
    return f"lanes_{kind}_float32x{lanes}"


def _register_lane_reduction(kind: type[BinaryExpr], lanes: int) -> None:
    a = Buffer("A", (const(lanes),), "float32")
    c = Buffer("C", (const(1),), "float32")
    zero, v, i = const(0), Var("v"), Var("i")
    old = BufferLoad(c, (zero,), "float32")
    update = fold_binary(kind, old, BufferLoad(a, (v,), "float32"))
    block = Block(
        "update",
        (IterVar(v, const(lanes), IterKind.REDUCE),),
        BufferStore(c, update, (zero,)),
    )
    nest = For(i, zero, const(lanes), ForKind.SERIAL, BlockRealize((i,), const(True), block))
    vector = BufferLoad(a, (ramp(zero, 1, lanes),), f"float32x{lanes}")
    combined = fold_binary(kind, old, VectorReduce(vector, LANE_REDUCTIONS[kind], "float32"))
    TensorIntrin.register(
        lane_reduction_name(LANE_REDUCTIONS[kind], lanes),
        PrimFunc((a, c), nest),
        PrimFunc((a, c), BufferStore(c, combined, (zero,))),
    )


for _kind in LANE_REDUCTIONS:
    for _lanes in F32_LANE_COUNTS:
        _register_lane_reduction(_kind, _lanes)

__all__ = ["F32_LANE_COUNTS", "LANE_REDUCTIONS", "lane_reduction_name"]
