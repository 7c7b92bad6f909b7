"""Layers of recurrent networks, and the layout of their weights."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt
from ekiden.topi.cells import Cell
from ekiden.topi.rule.recurrent import LANES, Layer
from ekiden.topi.shape import as_dim, ceil_div, tidy


def packed_shape(
    shape: Sequence[PrimExpr], gates: int, lanes: int
) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
    """[ceil(hidden / lanes)][hidden][gates * lanes] for a weight [gates * hidden, hidden]."""
    return tidy(ceil_div(shape[1], lanes)), shape[1], as_dim(gates * lanes)


def pack_recurrent(weight: Tensor, gates: int, lanes: int) -> Tensor:
    """A recurrent weight in panels: `lanes` neighbours of each gate side by side."""
    hidden = weight.shape[1]

    def body(p: Var, k: Var, i: Var) -> PrimExpr:
        unit = p * lanes + i % lanes
        load = weight[i // lanes * hidden + unit, k]
        return if_then_else(unit < hidden, load, const(0, weight.dtype))

    shape = packed_shape(weight.shape, gates, lanes)
    return te.compute(shape, body, name="pack_recurrent", tag="injective")


def recurrent(cell: Cell, inputs: Sequence[Tensor]) -> list[Tensor]:
    """All hidden states [steps, batch, hidden] and the last states [batch, hidden] (h; c of an
    lstm) of projected data [steps, batch, gates * hidden] and a weight, packed or not, and what
    `cell.given` names.
    """
    data, weight = inputs[:2]
    state = (data.shape[1], weight.shape[1])
    shapes = [(data.shape[0], *state), state, *([state] if cell.kind == "lstm" else [])]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        return Layer(cell, ins, outs, LANES, 1).body()

    made = te.extern_op(
        shapes, inputs, build, ["float32"] * len(shapes), cell.kind, "recurrent", {"cell": cell}
    )
    return list(made)


__all__ = ["pack_recurrent", "packed_shape", "recurrent"]
