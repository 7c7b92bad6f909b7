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
from ekiden.kernels.cost_model import NARROW_PANEL_PENALTY, max_register_rows, step_cycles
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import INT16_PAIR_SUMS, known_extent
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_TILE_ROWS
from ekiden.kernels.quantized.int8_dot import dot_instruction_knobs
from ekiden.kernels.spaces.batch_matmul import MAX_PRODUCT_TILE_ROWS
from ekiden.target import Target
from ekiden.topi.recurrent_cells import RecurrentCell


def state_dtype(weight_dtype: str, cell: RecurrentCell) -> str:
    """Return the cost model's dtype of the states that a weight is multiplied with."""
    if weight_dtype != "int8":
        return "float32"
    return INT16_PAIR_SUMS if "places" in cell.optional_inputs else "uint8"


def register_gate_groups(
    gates: Sequence[int], rows: int, target: Target, dtype: str
) -> tuple[Sequence[int], ...]:
    """Return groups of gates whose accumulators, for `rows` rows, fit the registers together."""
    max_gates = len(gates)
    while max_gates > 1 and max_register_rows(max_gates, target, dtype) < rows:
        max_gates -= 1
    # Groups of equal size: a short last one would load states for few sums.
    group_size = -(-len(gates) // -(-len(gates) // max_gates))
    return tuple(gates[i : i + group_size] for i in range(0, len(gates), group_size))


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a layer: rows of a tile, and the instruction for a weight of
    bytes.
    """
    cell = _cell_of(anchor)
    rows = Knob(
        "rows",
        descending_range(MAX_PRODUCT_TILE_ROWS),
        "sequences of a batch that a register tile takes",
    )
    return (
        rows,
        *dot_instruction_knobs(_weight_of(anchor), target, "places" in cell.optional_inputs),
    )


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a layer."""
    rows, *dot_knobs = search_space(anchor, target)
    tile_rows = fixed.get(rows.name) or _cheapest_tile_rows(anchor, target)
    named = {c.name: fixed.get(c.name, c.domain[0]) for c in dot_knobs}
    return Decision.from_mapping({rows.name: tile_rows, **named})


def _cheapest_tile_rows(anchor: te.Tensor, target: Target) -> int:
    """Return the tile rows with the fewest estimated cycles per step of k and sequence."""
    cell, dtype = _cell_of(anchor), state_dtype(_weight_of(anchor).dtype, _cell_of(anchor))
    batch = known_extent(anchor.shape[1])

    def gate_cycles(rows: int) -> float:
        """Return the cycles of all gates."""
        balanced_rows = rows if batch is None else batch / -(-batch // rows)
        groups = [
            p
            for gates in cell.gate_phases
            for p in register_gate_groups(gates, rows, target, dtype)
        ]
        cycles = (
            sum(step_cycles(balanced_rows, len(group), target, dtype) for group in groups)
            / balanced_rows
        )
        # Every further group is a loop of its own, with its own start and end.
        return cycles * (1 + NARROW_PANEL_PENALTY * (len(groups) - len(cell.gate_phases)))

    # With a dynamic batch every height is a copy of the tile: code size bounds their number.
    max_rows = MAX_DYNAMIC_TILE_ROWS if batch is None else min(MAX_PRODUCT_TILE_ROWS, max(batch, 1))
    return min(range(1, max_rows + 1), key=lambda rows: (round(gate_cycles(rows), 6), rows))


def _cell_of(anchor: te.Tensor) -> RecurrentCell:
    cell = anchor.op.attrs["cell"]
    assert isinstance(cell, RecurrentCell)
    return cell


def _weight_of(anchor: te.Tensor) -> te.Tensor:
    assert isinstance(anchor.op, te.ExternOp)
    return anchor.op.inputs[1]
