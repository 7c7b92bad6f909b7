"""Products of few rows with a matrix that is stored transposed, bound by reading that matrix.

    out[m, n] = sum over k of a[m, k] * b[n, k]

Every element is a sum along two rows that lie in order: vectors run along k, of some columns at a
time, and nothing is copied. The sums of a vector of columns are put side by side before what
follows them is done to all at once.

    for columns n0 .. n0 + lanes:                          in parallel
      for some of them:
        for k in vectors:
          sums[m, n] += a[m, k .. k + lanes] * b[n, k .. k + lanes]
        row[m, n] = the lanes of sums[m, n] together
      out = row
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, minimum
from ekiden.kernels.cpu.streaming import Store
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq

MOST_STREAMS = 8
"""Rows of the matrix that are read side by side."""


@dataclass(frozen=True, slots=True)
class Dots:
    """One product: its sizes, where each row begins in `a`, and where the matrix begins in `b`."""

    k: PrimExpr
    columns: PrimExpr
    rows: Sequence[PrimExpr]
    origin: PrimExpr
    dtype: str = "float32"

    def streams(self, target: Target) -> int:
        """Columns summed together: their sums, and what they are made of, are in registers."""
        count = len(self.rows)
        most = min(MOST_STREAMS, (target.registers - count - 1) // count)
        lanes = target.lanes(self.dtype)
        return max(s for s in range(1, lanes + 1) if lanes % s == 0 and s <= max(1, most))


class _Columns:
    """A vector of columns being built."""

    def __init__(self, shape: Dots, a: Buffer, b: Buffer, target: Target) -> None:
        self.shape, self.a, self.b = shape, a, b
        self.lanes = target.lanes(shape.dtype)
        self.streams = shape.streams(target)
        self.begin = Var("begin")
        self.vector = dt.with_lanes(shape.dtype, self.lanes)
        count = len(shape.rows)
        self.sums = Buffer("sums", (const(count * self.streams),), self.vector, "register")
        self.row = Buffer("row", (const(count * self.lanes),), shape.dtype, "local")

    def load(self, buffer: Buffer, at: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        """A vector from element `at` on; zeros where the mask is off."""
        found = buffer[ramp(at, 1, self.lanes)].with_fields(dtype=self.vector)
        zero = broadcast(const(0.0, self.shape.dtype), self.lanes)
        return found if mask is None else if_then_else(mask, found, zero)

    def step(self, starts: Sequence[PrimExpr], k: PrimExpr, mask: PrimExpr | None) -> Stmt:
        """The sums grow by a vector of k."""
        rows = [Var(f"a{r}", self.vector) for r in range(len(self.shape.rows))]
        steps: list[Stmt] = []
        for s, start in enumerate(starts):
            value = Var(f"b{s}", self.vector)
            adds = [
                BufferStore(
                    self.sums,
                    call_intrin("fma", row, value, self.sums[at], dtype=self.vector),
                    (const(at),),
                )
                for row, at in zip(
                    rows, range(s, len(rows) * len(starts), len(starts)), strict=True
                )
            ]
            steps.append(LetStmt(value, self.load(self.b, start + k, mask), seq(*adds)))
        made = seq(*steps)
        for row, begin in zip(rows, self.shape.rows, strict=True):
            made = LetStmt(row, self.load(self.a, begin + k, mask), made)
        return made

    def some(self, group: PrimExpr) -> Stmt:
        """The sums of some columns. Those behind the last are the last once more."""
        shape, lanes = self.shape, self.lanes
        count = len(shape.rows) * self.streams
        zero = broadcast(const(0.0, shape.dtype), lanes)
        columns = [group * self.streams + s for s in range(self.streams)]
        last = shape.columns - 1
        named = [Var(f"start{s}") for s in range(self.streams)]
        at, whole = Var("at"), simplify(shape.k // lanes)
        rest = simplify(shape.k % lanes)
        mask = ramp(const(0), 1, lanes) < broadcast(rest, lanes)
        tail = self.step(named, whole * lanes, mask)
        body = seq(
            *(BufferStore(self.sums, zero, (const(n),)) for n in range(count)),
            For(at, const(0), whole, ForKind.SERIAL, self.step(named, at * lanes, None)),
            *([] if _is(rest, 0) else [IfThenElse(rest > 0, tail)]),
            *(
                BufferStore(
                    self.row,
                    VectorReduce(self.sums[r * self.streams + s], "sum", shape.dtype),
                    (columns[s] + r * lanes,),
                )
                for r in range(len(shape.rows))
                for s in range(self.streams)
            ),
        )
        for name, column in zip(named, columns, strict=True):
            line = minimum(self.begin + column, last)
            body = LetStmt(name, shape.origin + line * shape.k, body)
        return Allocate(self.sums, body)

    def body(self, store: Store) -> Stmt:
        """All of them, and what follows."""
        group, lanes = Var("group"), self.lanes
        groups = For(
            group, const(0), const(lanes // self.streams), ForKind.SERIAL, self.some(group)
        )
        mask = ramp(self.begin, 1, lanes) < broadcast(self.shape.columns, lanes)
        is_whole = _is(simplify(self.shape.columns % lanes), 0)
        stores = [
            store(
                r,
                self.begin,
                self.load(self.row, const(r * lanes), None),
                None if is_whole else mask,
            )
            for r in range(len(self.shape.rows))
        ]
        return Allocate(self.row, seq(groups, *stores))


def _is(value: PrimExpr, number: int) -> bool:
    return isinstance(value, IntImm) and value.value == number


def dot_products(
    shape: Dots, a: Buffer, b: Buffer, store: Store, target: Target, kind: ForKind
) -> Stmt:
    """The product; its vectors of columns are a loop of the given kind."""
    made, number = _Columns(shape, a, b, target), Var("columns")
    lanes = made.lanes
    count = simplify((shape.columns + (lanes - 1)) // lanes)
    return For(number, const(0), count, kind, LetStmt(made.begin, number * lanes, made.body(store)))
