"""Functions that build modules and code, at TVM's path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.compiler.lowering import build, lower, schedule_to_prim_func
from ekiden.ir.module import IRModule
from ekiden.te.schedule import Schedule
from ekiden.te.tensor import Tensor
from ekiden.tir.expr import Buffer


def schedule_to_module(
    sch: Schedule,
    args: Sequence[Tensor | Buffer],
    name: str = "main",
    binds: Mapping[Tensor, Buffer] | None = None,
) -> IRModule:
    """Return the loop program of a schedule over its arguments, with its blocks, before
    any pass.
    """
    return IRModule({name: schedule_to_prim_func(sch, args, name, binds)})


__all__ = ["build", "lower", "schedule_to_module"]
