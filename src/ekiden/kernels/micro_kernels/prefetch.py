"""Software prefetches of register tiles: the panel row needed some steps later into L1, the next
panel into L2.

    own      the row of the panel that is needed `row_distance` steps of k later, into L1
    spread   a line of the next panel every few steps, into L2, from the first tiles of rows
"""

from __future__ import annotations

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.micro_kernels.register_tiles import PrefetchFn
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Prefetch, Stmt


@dataclass(frozen=True, slots=True)
class PanelPrefetches:
    """Prefetches of the tiles on a panel: distance into L1, and number of tiles that share
    prefetching the next panel into L2.
    """

    buffer: Buffer
    row_elements: int
    line_elements: int
    steps: PrimExpr
    next_panel_offset: PrimExpr
    row_distance: int
    num_spread_tiles: int
    unroll: int

    def emit_l1_prefetch(self, origin: PrimExpr, k: PrimExpr) -> list[Stmt]:
        """Emit the prefetch into L1 of the panel row needed `row_distance` steps later."""
        at = origin + (k + self.row_distance) * self.row_elements
        rows = range(0, self.row_elements if self.row_distance else 0, self.line_elements)
        return [Prefetch(self.buffer, (at + n,), 3) for n in rows]

    def tile_prefetches(
        self, base: PrimExpr, number: PrimExpr | None
    ) -> tuple[list[tuple[Var, PrimExpr]], PrefetchFn]:
        """Return the prefetches of one tile.

        Args:
            base: The panel.
            number: The tile among those on the panel; None where the next tile has another panel.

        Returns:
            The names to bind around the tile, and what its iterations prefetch.
        """
        # Without its number, a tile cannot know which share of the next panel is its own.
        if number is None or not self.num_spread_tiles:
            return [], lambda origin, k, unrolled_index: self.emit_l1_prefetch(origin, k)
        lines_per_step = -(-self.row_elements // (self.line_elements * self.num_spread_tiles))
        steps_per_line = max(1, self.num_spread_tiles * self.line_elements // self.row_elements)
        begin, step = Var("begin"), Var("step")
        begun = number * simplify(
            self.steps // steps_per_line * (lines_per_step * self.line_elements)
        )
        # behind the first tiles the same line again and again, which is there
        is_early = number < self.num_spread_tiles
        lets = [
            (begin, base + if_then_else(is_early, self.next_panel_offset + begun, const(0))),
            (step, if_then_else(is_early, const(self.line_elements), const(0))),
        ]

        def emit_panel_prefetches(origin: PrimExpr, k: PrimExpr, unrolled_index: int) -> list[Stmt]:
            """Emit prefetches of near rows into L1, and of lines of the next panel into L2
            (locality 2).

            Lines of the next panel are spread evenly over the first tiles' iterations.
            """
            prefetches = self.emit_l1_prefetch(origin, k)
            # A line spans `steps_per_line` steps of k; if the unroll factor is no multiple of that,
            # the unrolled index does not tell where lines begin, so every step prefetches.
            if unrolled_index % steps_per_line == 0 or self.unroll % steps_per_line:
                step_number = simplify((origin - base) // self.row_elements + k)
                at = simplify(step_number // steps_per_line) * lines_per_step
                prefetches += [
                    Prefetch(self.buffer, (begin + (at + n) * step,), 2)
                    for n in range(lines_per_step)
                ]
            return prefetches

        return lets, emit_panel_prefetches


__all__ = ["PanelPrefetches"]
