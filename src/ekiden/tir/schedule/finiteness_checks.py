"""Vectorised finiteness checks, for primitives that omit products with zero: 0 times inf or NaN is
not 0.

    strange[lane] = 0                                  for each place of a row
    strange[lane] |= not isfinite(value[row, lane])    for each row
    any_strange = max over strange
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.arith import Analyzer
from ekiden.ir.prim import Intrinsic, Not, PrimExpr, Var, cast, const, is_const, maximum
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.schedule.program import serial_loop
from ekiden.tir.stmt import Allocate, BufferStore, ForKind, Stmt
from ekiden.tir.visitor import flatten_seq

ZERO_INDEX = (const(0),)


class NonFiniteFlags:
    """Per-column flags that a non-finite number in any row sets."""

    def __init__(self, name: str, dtype: str, extent: PrimExpr, lanes: int) -> None:
        self.name, self.dtype, self.extent, self.lanes = name, dtype, extent, lanes
        self.column_flags = Buffer("strange", (extent,), "int32")
        self.any_flag = Buffer("any_strange", (const(1),), "int32")

    @property
    def combined_flag(self) -> PrimExpr:
        """Return the combined flag: above 0 where a value is not finite, once gathered."""
        return BufferLoad(self.any_flag, ZERO_INDEX, "int32")

    def emit_row_loop(self, body: Callable[[PrimExpr], Stmt], lanes: int = 0) -> Stmt:
        """Emit a loop over the columns of a row: vectors, then a scalar tail."""
        lanes, extent = lanes or self.lanes, self.extent
        vector_count = Analyzer().simplify(extent // lanes)
        tail_count = Analyzer().simplify(extent % lanes)
        outer, lane, tail = (Var(self.name, self.dtype) for _ in range(3))
        if lanes == 1:
            return serial_loop(outer, extent, body(outer))
        vector = serial_loop(lane, const(lanes), body(outer * lanes + lane))
        main_loop = serial_loop(outer, vector_count, vector.with_fields(kind=ForKind.VECTORIZED))
        if is_const(tail_count, 0):
            return main_loop
        return flatten_seq(
            main_loop, serial_loop(tail, tail_count, body(vector_count * lanes + tail))
        )

    def emit_clear(self) -> Stmt:
        """Emit the statement that clears all flags."""
        return self.emit_row_loop(
            lambda at: BufferStore(self.column_flags, const(0, "int32"), (at,))
        )

    def emit_mark(self, column: PrimExpr, value: PrimExpr) -> Stmt:
        """Emit the statement that sets a column's flag if a value is not finite; a set flag stays
        set.
        """
        is_strange = cast(Not(Intrinsic("isfinite", (value,), "bool")), "int32")
        before = BufferLoad(self.column_flags, (column,), "int32")
        return BufferStore(self.column_flags, maximum(before, is_strange), (column,))

    def emit_combine(self) -> Stmt:
        """Emit the loop that combines the flags of all columns into one."""

        def combine_column(column: PrimExpr) -> Stmt:
            """Merge a column's flag into the combined flag."""
            load = BufferLoad(self.column_flags, (column,), "int32")
            return BufferStore(self.any_flag, maximum(self.combined_flag, load), ZERO_INDEX)

        return flatten_seq(
            BufferStore(self.any_flag, const(0, "int32"), ZERO_INDEX),
            self.emit_row_loop(combine_column, 1),
        )

    def allocate_around(self, body: Stmt) -> Stmt:
        """Allocate the per-column flags around a statement; the combined flag is allocated
        elsewhere.
        """
        return Allocate(self.column_flags, body)


__all__ = ["NonFiniteFlags"]
