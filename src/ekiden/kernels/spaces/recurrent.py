"""What may be chosen about layers of recurrent networks, and what is.

A panel of the weight has all gates of some hidden units, as a cell needs them together. Their sums
need not be in registers together: a tile of more rows takes the gates in parts, as few as there can
be. What is loaded for a multiply-add falls with rows and with gates, and a part is a loop of its
own:

    4 gates, 32 registers    6 rows of 4
             16 registers    6 rows of 2, then of the other 2
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.kernels.cost_model import TAIL, most_rows, step_cycles
from ekiden.kernels.decision import Choice, Decision, Fixed, Space, steps_down
from ekiden.kernels.family import NARROW, size_of
from ekiden.kernels.micro_kernels.register_tiles import DYNAMIC_ROWS
from ekiden.kernels.quantized.words import dot_space
from ekiden.kernels.spaces.product import MOST_ROWS
from ekiden.target import Target
from ekiden.topi.cells import Cell


def factor_of(weight_dtype: str, cell: Cell) -> str:
    """What the model calls the states that a weight is multiplied with."""
    if weight_dtype != "int8":
        return "float32"
    return NARROW if "places" in cell.given else "uint8"


def parts_of(
    gates: Sequence[int], rows: int, target: Target, dtype: str
) -> tuple[Sequence[int], ...]:
    """Gates whose sums are in registers together beside so many rows."""
    most = len(gates)
    while most > 1 and most_rows(most, target, dtype) < rows:
        most -= 1
    each = -(-len(gates) // -(-len(gates) // most))
    return tuple(gates[i : i + each] for i in range(0, len(gates), each))


def space(anchor: te.Tensor, target: Target) -> Space:
    """What may be chosen for a layer: rows of a tile, how a weight of bytes is multiplied."""
    cell = _cell(anchor)
    rows = Choice("rows", steps_down(MOST_ROWS), "sequences of a batch that a register tile takes")
    return (rows, *dot_space(_weight(anchor), target, "places" in cell.given))


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """What is chosen for a layer."""
    rows, *others = space(anchor, target)
    wanted = fixed.get(rows.name) or _rows(anchor, target)
    named = {c.name: fixed.get(c.name, c.domain[0]) for c in others}
    return Decision.of({rows.name: wanted, **named})


def _rows(anchor: te.Tensor, target: Target) -> int:
    """Of the tiles that take the fewest cycles for a step of k of one sequence."""
    cell, dtype = _cell(anchor), factor_of(_weight(anchor).dtype, _cell(anchor))
    batch = size_of(anchor.shape[1])

    def cost(rows: int) -> float:
        """Cycles of all gates."""
        each = rows if batch is None else batch / -(-batch // rows)
        parts = [p for gates in cell.phases for p in parts_of(gates, rows, target, dtype)]
        cycles = sum(step_cycles(each, len(part), target, dtype) for part in parts) / each
        return cycles * (1 + TAIL * (len(parts) - len(cell.phases)))

    most = DYNAMIC_ROWS if batch is None else min(MOST_ROWS, max(batch, 1))
    return min(range(1, most + 1), key=lambda rows: (round(cost(rows), 6), rows))


def _cell(anchor: te.Tensor) -> Cell:
    cell = anchor.op.attrs["cell"]
    assert isinstance(cell, Cell)
    return cell


def _weight(anchor: te.Tensor) -> te.Tensor:
    assert isinstance(anchor.op, te.ExternOp)
    return anchor.op.inputs[1]
