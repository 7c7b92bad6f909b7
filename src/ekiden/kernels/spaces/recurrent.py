"""Search space and default decision of layers of recurrent networks.

A panel of the weight has all gates of some hidden units, as a cell needs them together. Their sums
need not be in registers together: a tile of more rows takes the gates in groups, as few as there
can be. The loads per multiply-add fall with rows and with gates, and a group is a loop of its own:

    4 gates, 32 registers    6 rows of 4
             16 registers    6 rows of 2, then of the other 2
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.kernels.cost_model import NARROW_PANEL_PENALTY, most_rows, step_cycles
from ekiden.kernels.decision import Decision, Fixed, Knob, Space, descending
from ekiden.kernels.family import NARROW, size_of
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_ROWS
from ekiden.kernels.quantized.int8_dot import dot_space
from ekiden.kernels.spaces.product import MAX_TILE_ROWS
from ekiden.target import Target
from ekiden.topi.cells import Cell


def state_dtype(weight_dtype: str, cell: Cell) -> str:
    """Return the dtype by which the model knows the states that a weight is multiplied with."""
    if weight_dtype != "int8":
        return "float32"
    return NARROW if "places" in cell.given else "uint8"


def gate_groups(
    gates: Sequence[int], rows: int, target: Target, dtype: str
) -> tuple[Sequence[int], ...]:
    """Return groups of gates whose sums are in registers together beside `rows` rows."""
    max_gates = len(gates)
    while max_gates > 1 and most_rows(max_gates, target, dtype) < rows:
        max_gates -= 1
    group_size = -(-len(gates) // -(-len(gates) // max_gates))
    return tuple(gates[i : i + group_size] for i in range(0, len(gates), group_size))


def space(anchor: te.Tensor, target: Target) -> Space:
    """Return the search space of a layer: rows of a tile, and the instruction for a weight of
    bytes.
    """
    cell = _cell(anchor)
    rows = Knob(
        "rows", descending(MAX_TILE_ROWS), "sequences of a batch that a register tile takes"
    )
    return (rows, *dot_space(_weight(anchor), target, "places" in cell.given))


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return the default decision for a layer."""
    rows, *dot_knobs = space(anchor, target)
    tile_rows = fixed.get(rows.name) or _rows(anchor, target)
    named = {c.name: fixed.get(c.name, c.domain[0]) for c in dot_knobs}
    return Decision.of({rows.name: tile_rows, **named})


def _rows(anchor: te.Tensor, target: Target) -> int:
    """Return the rows of the tiles that take the fewest cycles for an iteration of k of one
    sequence.
    """
    cell, dtype = _cell(anchor), state_dtype(_weight(anchor).dtype, _cell(anchor))
    batch = size_of(anchor.shape[1])

    def cost(rows: int) -> float:
        """Return the cycles of all gates."""
        balanced_rows = rows if batch is None else batch / -(-batch // rows)
        groups = [p for gates in cell.phases for p in gate_groups(gates, rows, target, dtype)]
        cycles = (
            sum(step_cycles(balanced_rows, len(group), target, dtype) for group in groups)
            / balanced_rows
        )
        # Every further group is a loop of its own, with its own start and end.
        return cycles * (1 + NARROW_PANEL_PENALTY * (len(groups) - len(cell.phases)))

    max_rows = MAX_DYNAMIC_ROWS if batch is None else min(MAX_TILE_ROWS, max(batch, 1))
    return min(range(1, max_rows + 1), key=lambda rows: (round(cost(rows), 6), rows))


def _cell(anchor: te.Tensor) -> Cell:
    cell = anchor.op.attrs["cell"]
    assert isinstance(cell, Cell)
    return cell


def _weight(anchor: te.Tensor) -> te.Tensor:
    assert isinstance(anchor.op, te.ExternOp)
    return anchor.op.inputs[1]
