"""Partial softmax results of attention over a chunk of keys, and their merge (flash decoding).

    part of a row   sums of shares * values [depth], the greatest score, the sum of shares;
                    shares are exp(score - greatest)
    of two parts    the greater greatest score; sums of each times exp(its greatest - that)
    result          sums of shares * values / sum of shares

After Dao and others, "Flash-Decoding for long-context inference" (2023). Parts are merged in order
and by the same instructions, so a result does not depend on the thread that computed them.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Div, Max, Mul, PrimExpr, Sub, Var, const
from ekiden.kernels.attention.row_values import power_at_most_one
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, LetStmt, Stmt, seq

INITIAL_MAX_SCORE = -1e30
"""What the greatest score of a row begins with: finite, so that one without keys gives 0."""


@dataclass(frozen=True, slots=True)
class PartialSoftmax:
    """The layout of a row's partial result in a float32 buffer: `size` numbers, whole vectors of
    `lanes`. Each lane has its own sum of probabilities, and all have the maximum score.
    """

    depth: int
    lanes: int

    @property
    def size(self) -> int:
        """Return the elements of a row."""
        return self.depth + 2 * self.lanes

    @property
    def top(self) -> int:
        """Return the offset of the maximum score."""
        return self.depth

    @property
    def total(self) -> int:
        """Return the offset of the sums of probabilities."""
        return self.depth + self.lanes

    @property
    def vector(self) -> str:
        """Return the dtype of a vector."""
        return f"float32x{self.lanes}"

    def load(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """Load a vector."""
        return BufferLoad(buffer, (ramp(at, 1, self.lanes),), self.vector)

    def store(self, buffer: Buffer, at: PrimExpr, value: PrimExpr) -> Stmt:
        """Store a vector."""
        return BufferStore(buffer, value, (ramp(at, 1, self.lanes),))

    def _vectors(self, size: int, body: Stmt, var: Var) -> Stmt:
        return For(var, const(0), const(size // self.lanes), ForKind.SERIAL, body)

    def begun(self, into: Buffer, rows: int) -> Stmt:
        """Emit the initialisation of rows that have seen no key."""
        row, v = Var("row"), Var("v")
        at = row * self.size
        zero, lowest = (
            broadcast(const(x, "float32"), self.lanes) for x in (0.0, INITIAL_MAX_SCORE)
        )
        row_init = seq(
            self._vectors(self.size, self.store(into, at + v * self.lanes, zero), v),
            self.store(into, at + self.top, lowest),
        )
        return For(row, const(0), const(rows), ForKind.SERIAL, row_init)

    def copied(self, into: Buffer, offset: PrimExpr, source: Buffer, rows: int) -> Stmt:
        """Emit the copy of some rows' partial results to `into` at `offset`."""
        v = Var("v")
        loaded = self.load(source, v * self.lanes)
        return self._vectors(rows * self.size, self.store(into, offset + v * self.lanes, loaded), v)

    def merged(self, into: Buffer, source: Buffer, offset: PrimExpr, rows: int) -> Stmt:
        """Emit the merge of each row with its partial result in `source` from `offset` on."""
        row, v = Var("row"), Var("v")
        own_scale, other_scale, top = (Var(n, self.vector) for n in ("own", "other", "top"))
        at, origin = row * self.size, offset + row * self.size

        def grown(where: PrimExpr | int) -> Stmt:
            """Rescale both partial sums to the common maximum and add them, a vector at a time."""
            more = Mul(self.load(source, origin + where), other_scale, self.vector)
            both = call_intrin(
                "fma", self.load(into, at + where), own_scale, more, dtype=self.vector
            )  # fmt: skip
            return self.store(into, at + where, both)

        body = seq(
            self.store(into, at + self.top, top),
            grown(self.total),
            self._vectors(self.depth, grown(v * self.lanes), v),
        )
        first, second = (self.load(x, y + self.top) for x, y in ((into, at), (source, origin)))
        body = LetStmt(other_scale, power_at_most_one(Sub(second, top, self.vector)), body)
        body = LetStmt(own_scale, power_at_most_one(Sub(first, top, self.vector)), body)
        # Online softmax (Milakov and Gimelshein 2018): both factors exp(max - new max) are at most
        # 1, so that rescaling cannot overflow.
        body = LetStmt(top, Max(first, second, self.vector), body)
        return For(row, const(0), const(rows), ForKind.SERIAL, body)

    def ended(self, output: Buffer, to: PrimExpr, row: Var, partial: Buffer, rows: int) -> Stmt:
        """Emit the division of rows by their sums, and the store of each row at `to`."""
        v, total_sum, reciprocal = Var("v"), Var("whole", "float32"), Var("share", "float32")
        at = row * self.size
        value = Mul(
            self.load(partial, at + v * self.lanes), broadcast(reciprocal, self.lanes), self.vector
        )
        body = self._vectors(self.depth, self.store(output, to + v * self.lanes, value), v)
        # A row without keys has sum 0: its result is 0, not NaN.
        divisor = Max(total_sum, const(1e-30, "float32"), "float32")
        body = LetStmt(reciprocal, Div(const(1.0, "float32"), divisor, "float32"), body)
        total = VectorReduce(self.load(partial, at + self.total), "sum", "float32")
        return For(row, const(0), const(rows), ForKind.SERIAL, LetStmt(total_sum, total, body))


__all__ = ["INITIAL_MAX_SCORE", "PartialSoftmax"]
