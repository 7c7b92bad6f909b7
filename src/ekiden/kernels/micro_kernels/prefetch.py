"""What a tile brings near while it multiplies: the processor's own queue of instructions is too
short to hide a second-level cache, and does not look beyond a panel.

    own      the row of the panel that is needed `own` steps of k later, to the first-level cache
    spread   a line of the next panel every few steps, to the second, from the first tiles of rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.micro_kernels.register_tiles import Ahead
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import LetStmt, Prefetch, Stmt

Lets: TypeAlias = list[tuple[Var, PrimExpr]]
"""Names, and what they are."""


@dataclass(frozen=True, slots=True)
class Prefetches:
    """Of tiles over `steps` steps of k on panels whose rows are `row` elements, `line` of which
    are a cache line; the next panel begins `following` elements behind one."""

    buffer: Buffer
    row: int
    line: int
    steps: PrimExpr
    following: PrimExpr
    own: int
    spread: int
    unroll: int

    def near(self, origin: PrimExpr, k: PrimExpr) -> list[Stmt]:
        """The row `own` steps later, where step 0 reads the one at `origin`."""
        at = origin + (k + self.own) * self.row
        rows = range(0, self.row if self.own else 0, self.line)
        return [Prefetch(self.buffer, (at + n,), 3) for n in rows]

    def of(
        self, base: PrimExpr, number: PrimExpr | None
    ) -> tuple[list[tuple[Var, PrimExpr]], Ahead]:
        """(names to bind around the tile, what its steps bring near) for tile `number` of those on
        the panel at `base`; none where the next tile has another panel."""
        if number is None or not self.spread:
            return [], lambda origin, k, place: self.near(origin, k)
        each = -(-self.row // (self.line * self.spread))
        apart = max(1, self.spread * self.line // self.row)
        begin, step = Var("begin"), Var("step")
        begun = number * simplify(self.steps // apart * (each * self.line))
        # behind the first tiles the same line again and again, which is there
        is_early = number < self.spread
        lets = [
            (begin, base + if_then_else(is_early, self.following + begun, const(0))),
            (step, if_then_else(is_early, const(self.line), const(0))),
        ]

        def ahead(origin: PrimExpr, k: PrimExpr, place: int) -> list[Stmt]:
            """For step k on the panel from `origin`: near rows to the first cache, and lines of the
            next panel to the second one (locality 2), spread evenly over the first tiles' steps.
            """
            made = self.near(origin, k)
            if place % apart == 0 or self.unroll % apart:
                step_number = simplify((origin - base) // self.row + k)
                at = simplify(step_number // apart) * each
                made += [Prefetch(self.buffer, (begin + (at + n) * step,), 2) for n in range(each)]
            return made

        return lets, ahead


def bound(lets: Sequence[tuple[Var, PrimExpr]], body: Stmt) -> Stmt:
    """A statement within names."""
    for name, value in reversed(lets):
        body = LetStmt(name, value, body)
    return body


__all__ = ["Lets", "Prefetches", "bound"]
