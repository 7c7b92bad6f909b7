"""What an attention over some keys alone comes to, and how two such parts become one.

    part of a row   sums of shares * values [depth], the greatest score, the sum of shares;
                    shares are exp(score - greatest)
    of two parts    the greater greatest score; sums of each times exp(its greatest - that)
    result          sums of shares * values / sum of shares

After Dao and others, "Flash-Decoding for long-context inference" (2023). Parts are merged in their
order and each by the same instructions, so a result does not depend on who computed them.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Div, Max, Mul, PrimExpr, Sub, Var, const
from ekiden.kernels.attention.row_values import power_at_most_one
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, LetStmt, Stmt, seq

LEAST = -1e30
"""What the greatest score of a row begins with: finite, so that one without keys gives 0."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How the part of a row lies in a buffer of float32: `size` numbers, whole vectors of `lanes`.
    Each lane has a sum of shares of its own, and all have the greatest score."""

    depth: int
    lanes: int

    @property
    def size(self) -> int:
        """Of a row."""
        return self.depth + 2 * self.lanes

    @property
    def top(self) -> int:
        """Where the greatest score lies."""
        return self.depth

    @property
    def total(self) -> int:
        """Where the sums of shares lie."""
        return self.depth + self.lanes

    @property
    def vector(self) -> str:
        """The dtype of a vector."""
        return f"float32x{self.lanes}"

    def load(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """A vector."""
        return BufferLoad(buffer, (ramp(at, 1, self.lanes),), self.vector)

    def store(self, buffer: Buffer, at: PrimExpr, value: PrimExpr) -> Stmt:
        """Keep a vector."""
        return BufferStore(buffer, value, (ramp(at, 1, self.lanes),))

    def _vectors(self, size: int, body: Stmt, var: Var) -> Stmt:
        return For(var, const(0), const(size // self.lanes), ForKind.SERIAL, body)

    def begun(self, into: Buffer, rows: int) -> Stmt:
        """Rows that have seen no key."""
        row, v = Var("row"), Var("v")
        at = row * self.size
        zero, least = (broadcast(const(x, "float32"), self.lanes) for x in (0.0, LEAST))
        each = seq(
            self._vectors(self.size, self.store(into, at + v * self.lanes, zero), v),
            self.store(into, at + self.top, least),
        )
        return For(row, const(0), const(rows), ForKind.SERIAL, each)

    def copied(self, into: Buffer, place: PrimExpr, part: Buffer, rows: int) -> Stmt:
        """Parts of some rows, kept from `place` on."""
        v = Var("v")
        found = self.load(part, v * self.lanes)
        return self._vectors(rows * self.size, self.store(into, place + v * self.lanes, found), v)

    def merged(self, into: Buffer, part: Buffer, place: PrimExpr, rows: int) -> Stmt:
        """Each of the rows with its part, of those from `place` on."""
        row, v = Var("row"), Var("v")
        own, other, top = (Var(n, self.vector) for n in ("own", "other", "top"))
        at, origin = row * self.size, place + row * self.size

        def grown(where: PrimExpr | int) -> Stmt:
            """A vector of sums of both."""
            more = Mul(self.load(part, origin + where), other, self.vector)
            both = call_intrin(
                "fma", self.load(into, at + where), own, more, dtype=self.vector
            )  # fmt: skip
            return self.store(into, at + where, both)

        made = seq(
            self.store(into, at + self.top, top),
            grown(self.total),
            self._vectors(self.depth, grown(v * self.lanes), v),
        )
        first, second = (self.load(x, y + self.top) for x, y in ((into, at), (part, origin)))
        made = LetStmt(other, power_at_most_one(Sub(second, top, self.vector)), made)
        made = LetStmt(own, power_at_most_one(Sub(first, top, self.vector)), made)
        made = LetStmt(top, Max(first, second, self.vector), made)
        return For(row, const(0), const(rows), ForKind.SERIAL, made)

    def ended(self, output: Buffer, to: PrimExpr, row: Var, found: Buffer, rows: int) -> Stmt:
        """The results of rows, each at `to`."""
        v, whole, share = Var("v"), Var("whole", "float32"), Var("share", "float32")
        at = row * self.size
        value = Mul(
            self.load(found, at + v * self.lanes), broadcast(share, self.lanes), self.vector
        )
        made = self._vectors(self.depth, self.store(output, to + v * self.lanes, value), v)
        least = Max(whole, const(1e-30, "float32"), "float32")
        made = LetStmt(share, Div(const(1.0, "float32"), least, "float32"), made)
        total = VectorReduce(self.load(found, at + self.total), "sum", "float32")
        return For(row, const(0), const(rows), ForKind.SERIAL, LetStmt(whole, total, made))


__all__ = ["LEAST", "Parts"]
