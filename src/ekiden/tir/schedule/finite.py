"""Whether all of some numbers are finite, asked in vectors: what steps that leave out zeros do, as
0 times a number that is not is no zero.

    strange[lane] = 0                                  for each place of a row
    strange[lane] |= not isfinite(value[row, lane])    for each row
    any_strange = max over strange
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.arith import Analyzer
from ekiden.ir.prim import Intrinsic, Not, PrimExpr, Var, cast, const, is_const, maximum
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.schedule.program import serial
from ekiden.tir.stmt import Allocate, BufferStore, ForKind, Stmt
from ekiden.tir.visitor import sequence

FIRST = (const(0),)


class Marks:
    """A mark for each place of a row, set by a number that is not finite in any row."""

    def __init__(self, name: str, dtype: str, extent: PrimExpr, lanes: int) -> None:
        self.name, self.dtype, self.extent, self.lanes = name, dtype, extent, lanes
        self.strange = Buffer("strange", (extent,), "int32")
        self.any = Buffer("any_strange", (const(1),), "int32")

    @property
    def flag(self) -> PrimExpr:
        """Above 0 where one is not finite, once they are gathered."""
        return BufferLoad(self.any, FIRST, "int32")

    def row(self, body: Callable[[PrimExpr], Stmt], lanes: int = 0) -> Stmt:
        """A statement for each place of a row, in vectors and the rest."""
        lanes, extent = lanes or self.lanes, self.extent
        whole = Analyzer().simplify(extent // lanes)
        rest = Analyzer().simplify(extent % lanes)
        outer, lane, tail = (Var(self.name, self.dtype) for _ in range(3))
        if lanes == 1:
            return serial(outer, extent, body(outer))
        vector = serial(lane, const(lanes), body(outer * lanes + lane))
        made = serial(outer, whole, vector.with_fields(kind=ForKind.VECTORIZED))
        if is_const(rest, 0):
            return made
        return sequence(made, serial(tail, rest, body(whole * lanes + tail)))

    def cleared(self) -> Stmt:
        """All marks."""
        return self.row(lambda at: BufferStore(self.strange, const(0, "int32"), (at,)))

    def marked(self, at: PrimExpr, value: PrimExpr) -> Stmt:
        """The mark of a place, which stays once it is set."""
        is_strange = cast(Not(Intrinsic("isfinite", (value,), "bool")), "int32")
        before = BufferLoad(self.strange, (at,), "int32")
        return BufferStore(self.strange, maximum(before, is_strange), (at,))

    def gathered(self) -> Stmt:
        """All marks in one."""

        def seen(at: PrimExpr) -> Stmt:
            load = BufferLoad(self.strange, (at,), "int32")
            return BufferStore(self.any, maximum(self.flag, load), FIRST)

        return sequence(BufferStore(self.any, const(0, "int32"), FIRST), self.row(seen, 1))

    def within(self, body: Stmt) -> Stmt:
        """A statement that the marks are kept for, and not what they were gathered in."""
        return Allocate(self.strange, body)


__all__ = ["Marks"]
