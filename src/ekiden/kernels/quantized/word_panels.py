"""Schedule and search space of products with panels of packed words; shared by the block-quantised
and int4 kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden import te
from ekiden.ir.prim import IntImm
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.micro_kernels.panel_tiles import NARROW_TILE_VECTORS
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_TILE_ROWS
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.scheduled_kernel import KernelSpec, row_loop
from ekiden.kernels.spaces.batch_matmul import MAX_PRODUCT_TILE_ROWS
from ekiden.target import Target
from ekiden.tir.tensor_intrin.micro import MicroKernel

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule


def schedule_word_panels(
    sch: Schedule,
    kernel: KernelSpec,
    panel_width: int,
    micro_kernel: MicroKernel,
    sizes: Mapping[str, int],
    inner: Sequence[str] = (),
) -> None:
    """Schedule a product with panels of words: panels in parallel, tiles of rows inside, inner sums
    where the result's read them.

    Args:
        sch: The schedule; the block of the results has the anchor's name.
        kernel: The kernel.
        panel_width: Columns of a panel.
        micro_kernel: The micro-kernel of a tile.
        sizes: Its options beside lanes, panel and rows.
        inner: The blocks of inner sums.
    """
    decision, result = kernel.decision, sch.get_block(kernel.anchor.op.name)
    epilogues = sch.get_consumers(result)
    *leading, columns, group = sch.get_loops(result)
    rows = sch.fuse(*leading) if len(leading) > 1 else row_loop(sch, result, leading)
    max_rows = decision.int_value("rows")
    if not isinstance(product_of_dims(kernel.anchor.shape[:-1]), IntImm):
        max_rows = min(max_rows, MAX_DYNAMIC_TILE_ROWS)
    tile, row = sch.split(rows, [None, max_rows], tail="balanced")
    panel, column = sch.split(columns, [None, panel_width], tail="short")
    sch.reorder(panel, tile, row, column, group)
    for sums in inner:
        sch.compute_at(sums, group)
    for epilogue in epilogues:
        sch.reverse_compute_at(epilogue, column)
    sch.parallel(panel, 1)
    options = {
        "lanes": kernel.target.lanes("float32"),
        "panel": panel_width,
        "wide_rows": decision.int_value("wide_rows"),
        "narrow_vectors": NARROW_TILE_VECTORS,
    }
    sch.tensorize(row, micro_kernel.call(**{**options, **sizes}))


def anchor_operands(anchor: te.Tensor) -> tuple[te.Tensor, ...]:
    """Return the operands of an anchor."""
    operands = anchor.op.attrs["inputs"]
    assert isinstance(operands, tuple)
    return operands


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space."""
    rows = descending_range(MAX_PRODUCT_TILE_ROWS)
    return (
        Knob("rows", rows, "rows of a tile"),
        Knob("wide_rows", (*rows, 0), "rows up to which a tile has all columns of a panel"),
    )


def rows_in_registers(target: Target, fixed: Overrides, panel: int, spare: int) -> Decision:
    """Return the number of rows whose integer and float accumulators fit the registers, with all
    columns of a panel and with two vectors.

    Args:
        target: The processor.
        fixed: The overrides.
        panel: Columns of a panel.
        spare: Registers for other values.
    """
    vectors = panel // target.lanes("float32")
    # Factor 2: every result takes an int32 sum and a float32 accumulator.
    wide = max(1, (target.registers - spare) // (2 * vectors))
    rows = max(wide, wide * vectors // NARROW_TILE_VECTORS)
    return Decision.from_mapping(
        {"rows": fixed.get("rows", rows), "wide_rows": fixed.get("wide_rows", wide)}
    )


__all__ = [
    "anchor_operands",
    "rows_in_registers",
    "schedule_word_panels",
    "search_space",
]
