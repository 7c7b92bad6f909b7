"""Recurrent layers, and the layout of their weights."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const, logical_and
from ekiden.kernels.recurrent.layers import RecurrentLayerKernel
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY, range_check
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import as_dim, ceil_div, simplify_dim
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS
from ekiden.topi.recurrent_cells import RecurrentCell


def packed_recurrent_shape(
    shape: Sequence[PrimExpr], gates: int, lanes: int, dtype: str
) -> tuple[PrimExpr, ...]:
    """Return [ceil(hidden / lanes)][hidden][gates * lanes] for a weight [gates * hidden, hidden];
    for int8 [...][ceil(hidden / 4)][gates * lanes][4], four adjacent elements of a row together.
    """
    panels, width = simplify_dim(ceil_div(shape[1], lanes)), as_dim(gates * lanes)
    if dtype == "int8":
        return (
            panels,
            simplify_dim(ceil_div(shape[1], DOT_WORD_CHANNELS)),
            width,
            as_dim(DOT_WORD_CHANNELS),
        )
    return panels, shape[1], width


def pack_recurrent(weight: Tensor, gates: int, lanes: int) -> Tensor:
    """Return a recurrent weight in panels: `lanes` adjacent units of each gate together."""
    hidden = weight.shape[1]

    def load_packed_element(p: Var, k: PrimExpr, i: Var, *byte: Var) -> PrimExpr:
        """Return element k of lane i of a panel; gate after gate, in each `lanes` units; 0 beyond
        the last unit.
        """
        unit = p * lanes + i % lanes
        k = k * DOT_WORD_CHANNELS + byte[0] if byte else k
        load = weight[i // lanes * hidden + unit, k]
        inside = logical_and(unit < hidden, k < hidden) if byte else unit < hidden
        return if_then_else(inside, load, const(0, weight.dtype))

    shape = packed_recurrent_shape(weight.shape, gates, lanes, weight.dtype)
    return te.compute(shape, load_packed_element, name="pack_recurrent", tag="injective")


def recurrent(cell: RecurrentCell, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return all hidden states [steps, batch, hidden] and the last states [batch, hidden] (h, and c
    for an lstm), from projected data [steps, batch, gates * hidden], a weight, packed or not,
    and the optional inputs that the cell names. Sequence lengths are checked: in a reversed
    layer they index the data.
    """
    data = inputs[0]
    state = (data.shape[1], simplify_dim(data.shape[2] // cell.num_gates))
    shapes = [(data.shape[0], *state), state, *([state] if cell.kind == "lstm" else [])]

    def emit_recurrent(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the kernel of the layer over its buffers."""
        return RecurrentLayerKernel(cell, ins, outs).emit_layer()

    attrs: dict[str, object] = {"cell": cell}
    if "lengths" in cell.optional_inputs:
        lengths = inputs[2 + cell.optional_inputs.index("lengths")]
        attrs[RANGE_CHECKS_ATTR_KEY] = (
            range_check("recurrent: length", lengths, 0, data.shape[0] + 1),
        )
    outputs = te.extern_op(
        shapes, inputs, emit_recurrent, ["float32"] * len(shapes), cell.kind, "recurrent", attrs
    )
    return list(outputs)


__all__ = ["pack_recurrent", "recurrent"]
