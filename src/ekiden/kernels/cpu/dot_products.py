"""Matrix products of few rows with a transposed matrix, bound by memory bandwidth.

    out[m, n] = sum over k of a[m, k] * b[n, k]

Every element is a dot product of two contiguous rows: vectors run along k, for several columns at a
time, and nothing is packed. The sums of a vector of columns are gathered before the epilogue is
applied to all at once.

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
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, minimum
from ekiden.kernels.micro_kernels.vector_memory import load_vector
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.tir.tensor_intrin.micro import StoreVector

MAX_COLUMN_STREAMS = 8
"""Maximum matrix rows that are read concurrently."""


@dataclass(frozen=True, slots=True)
class DotProductShape:
    """Shape of a product: its sizes, and the offsets of the rows in `a` and of the matrix in
    `b`.
    """

    k: PrimExpr
    columns: PrimExpr
    row_offsets: Sequence[PrimExpr]
    matrix_offset: PrimExpr
    dtype: str = "float32"

    def num_streams(self, target: Target) -> int:
        """Return the number of columns accumulated together: their accumulators and operands fit
        the registers.
        """
        count = len(self.row_offsets)
        limit = min(MAX_COLUMN_STREAMS, (target.registers - count - 1) // count)
        lanes = target.lanes(self.dtype)
        # A divisor of the lanes, so that groups fill a vector of columns exactly.
        return max(s for s in range(1, lanes + 1) if lanes % s == 0 and s <= max(1, limit))


class _ColumnVector:
    """Builder of one vector of result columns."""

    def __init__(self, shape: DotProductShape, a: Buffer, b: Buffer, target: Target) -> None:
        self.shape, self.a, self.b = shape, a, b
        self.lanes = target.lanes(shape.dtype)
        self.num_streams = shape.num_streams(target)
        self.first_column = Var("begin")
        self.vector = dt.with_lanes(shape.dtype, self.lanes)
        count = len(shape.row_offsets)
        self.sums = Buffer("sums", (const(count * self.num_streams),), self.vector, "register")
        self.row = Buffer("row", (const(count * self.lanes),), shape.dtype, "local")

    def accumulate_step(
        self, starts: Sequence[PrimExpr], k: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Emit the products of one vector of k, added to the accumulators."""
        rows = [Var(f"a{r}", self.vector) for r in range(len(self.shape.row_offsets))]
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
            steps.append(
                LetStmt(value, load_vector(self.b, start + k, self.lanes, mask), seq(*adds))
            )
        stmt = seq(*steps)
        for row, begin in zip(rows, self.shape.row_offsets, strict=True):
            stmt = LetStmt(row, load_vector(self.a, begin + k, self.lanes, mask), stmt)
        return stmt

    def emit_columns(self, group: PrimExpr) -> Stmt:
        """Emit the sums of a group of columns; indices past the last column repeat it."""
        shape, lanes = self.shape, self.lanes
        count = len(shape.row_offsets) * self.num_streams
        zero = broadcast(const(0.0, shape.dtype), lanes)
        columns = [group * self.num_streams + s for s in range(self.num_streams)]
        last = shape.columns - 1
        named = [Var(f"start{s}") for s in range(self.num_streams)]
        at, full_vectors = Var("at"), simplify(shape.k // lanes)
        tail_lanes = simplify(shape.k % lanes)
        mask = ramp(const(0), 1, lanes) < broadcast(tail_lanes, lanes)
        tail = self.accumulate_step(named, full_vectors * lanes, mask)
        body = seq(
            *(BufferStore(self.sums, zero, (const(n),)) for n in range(count)),
            For(
                at,
                const(0),
                full_vectors,
                ForKind.SERIAL,
                self.accumulate_step(named, at * lanes, None),
            ),
            *([] if _is_constant(tail_lanes, 0) else [IfThenElse(tail_lanes > 0, tail)]),
            *(
                BufferStore(
                    self.row,
                    VectorReduce(self.sums[r * self.num_streams + s], "sum", shape.dtype),
                    (columns[s] + r * lanes,),
                )
                for r in range(len(shape.row_offsets))
                for s in range(self.num_streams)
            ),
        )
        for name, column in zip(named, columns, strict=True):
            # Clamped: columns behind the last repeat it, and the store's mask drops them.
            line = minimum(self.first_column + column, last)
            body = LetStmt(name, shape.matrix_offset + line * shape.k, body)
        return Allocate(self.sums, body)

    def emit_vector(self, store: StoreVector) -> Stmt:
        """Emit the sums of all columns of the vector, and their epilogue."""
        group, lanes = Var("group"), self.lanes
        groups = For(
            group,
            const(0),
            const(lanes // self.num_streams),
            ForKind.SERIAL,
            self.emit_columns(group),
        )
        mask = ramp(self.first_column, 1, lanes) < broadcast(self.shape.columns, lanes)
        is_whole = _is_constant(simplify(self.shape.columns % lanes), 0)
        stores = [
            store(
                const(r),
                self.first_column,
                load_vector(self.row, const(r * lanes), lanes),
                None if is_whole else mask,
            )
            for r in range(len(self.shape.row_offsets))
        ]
        # Allocated inside the loop over columns, so that each thread owns one.
        return Allocate(self.row, seq(groups, *stores))


def _is_constant(value: PrimExpr, number: int) -> bool:
    """Return whether a value is the constant `number`."""
    return isinstance(value, IntImm) and value.value == number


def emit_dot_products(
    shape: DotProductShape, a: Buffer, b: Buffer, store: StoreVector, target: Target, kind: ForKind
) -> Stmt:
    """Emit the product as dot products, in a loop of the given kind over vectors of columns."""
    columns, number = _ColumnVector(shape, a, b, target), Var("columns")
    lanes = columns.lanes
    count = simplify((shape.columns + (lanes - 1)) // lanes)
    return For(
        number,
        const(0),
        count,
        kind,
        LetStmt(columns.first_column, number * lanes, columns.emit_vector(store)),
    )
