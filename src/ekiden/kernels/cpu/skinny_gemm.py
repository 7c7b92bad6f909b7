"""Matrix products of few rows with a row-major matrix, bound by memory bandwidth.

    out[m, n] = sum over k of a[m, k] * b[k, n]

A run of columns is summed in a small buffer while lines of `b` stream by, several at a time: each
is read from beginning to end, as the prefetchers of processors like it; the sums are loaded and
stored once for all of them.

    for columns n0 .. n0 + run:                            in parallel
      sums = 0
      for k, `depth` lines at a time:
        for n in vectors of the run:
          sums[m, n] += a[m, k] * b[k, n] + a[m, k + 1] * b[k + 1, n] + ...
      out = sums
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, minimum
from ekiden.kernels.micro_kernels.vector_memory import load_vector
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    Stmt,
    seq,
)
from ekiden.tir.tensor_intrin.micro import StoreVector

MAX_LINES_PER_STEP = 8
"""Maximum matrix rows read per step."""
SKINNY_SPARE_REGISTERS = 8
"""Registers not available for row elements."""
RUN_CACHE_DIVISOR = 3
"""L1 size over the maximum size of a run's sums."""
MIN_RUN_COLUMNS = 256
"""Columns below which a run is not split among threads."""


@dataclass(frozen=True, slots=True)
class SkinnyGemm:
    """Shape of a skinny product: its sizes, the offset of each row in `a`, the stride within a row,
    and the offset of the matrix in `b`.
    """

    k: PrimExpr
    columns: PrimExpr
    row_offsets: Sequence[PrimExpr]
    a_step: PrimExpr
    matrix_offset: PrimExpr
    dtype: str = "float32"

    def matrix_rows_per_step(self, target: Target) -> int:
        """Return the number of matrix rows read at a time: their multipliers fit the registers."""
        return max(
            1,
            min(
                MAX_LINES_PER_STEP,
                (target.registers - SKINNY_SPARE_REGISTERS) // len(self.row_offsets),
            ),
        )

    def columns_per_run(self, target: Target) -> int:
        """Return the number of columns summed together: each thread's share, limited by the
        cache.
        """
        lanes = target.lanes(self.dtype)
        max_columns = (
            target.l1 // (dt.itemsize(self.dtype) * RUN_CACHE_DIVISOR) // len(self.row_offsets)
        )
        if isinstance(self.columns, IntImm):
            thread_columns = -(-self.columns.value // target.cores)
            max_columns = min(max_columns, max(thread_columns, MIN_RUN_COLUMNS))
        return -(-max_columns // lanes) * lanes


class _ColumnRun:
    """Builder of one run of columns."""

    def __init__(self, shape: SkinnyGemm, a: Buffer, b: Buffer, target: Target) -> None:
        self.shape, self.a, self.b, self.target = shape, a, b, target
        self.dtype = shape.dtype
        self.lanes = target.lanes(self.dtype)
        self.max_columns = shape.columns_per_run(target)
        self.first_column = Var("begin")
        self.remaining_columns = Var("left")
        count = const(self.max_columns * len(shape.row_offsets))
        self.sums = Buffer("sums", (count,), self.dtype, "local")
        self.vector = dt.with_lanes(self.dtype, self.lanes)

    def emit_vectors(self, make: Callable[[PrimExpr, PrimExpr | None], Stmt]) -> Stmt:
        """Emit `make(first column in the run, mask)` for all vectors; the last may be masked."""
        at, full_vectors = Var("v"), self.remaining_columns // self.lanes
        loop = For(at, const(0), full_vectors, ForKind.SERIAL, make(at * self.lanes, None))
        # Runs are whole vectors: only the last has a tail, and none if lanes divide the columns.
        if isinstance(self.shape.columns, IntImm) and self.shape.columns.value % self.lanes == 0:
            return loop
        tail_width = self.remaining_columns % self.lanes
        mask = ramp(const(0), 1, self.lanes) < broadcast(tail_width, self.lanes)
        return seq(loop, IfThenElse(tail_width > 0, make(full_vectors * self.lanes, mask)))

    def sums_index(self, row: int, column: PrimExpr) -> PrimExpr:
        """Return the index of the sums of a vector of columns."""
        return ramp(column + row * self.max_columns, 1, self.lanes)

    def emit_clear(self, column: PrimExpr, _: PrimExpr | None) -> Stmt:
        """Emit the zero initialisation of the sums of a column vector."""
        zero = broadcast(const(0.0, self.dtype), self.lanes)
        rows = range(len(self.shape.row_offsets))
        return seq(*(BufferStore(self.sums, zero, (self.sums_index(r, column),)) for r in rows))

    def emit_row_block(self, k: PrimExpr, depth: int) -> Stmt:
        """Emit the addition of `depth` matrix rows, from row k on, to the sums."""
        rows = range(len(self.shape.row_offsets))
        factors = [[Var(f"a{r}_{d}", self.vector) for d in range(depth)] for r in rows]

        def accumulate_rows(column: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """Add `depth` matrix rows to the sums of one column vector, loaded and stored once."""
            values = [Var(f"b{d}", self.vector) for d in range(depth)]
            steps: list[Stmt] = []
            for r in rows:
                # The sums are in L1, not in registers: they are loaded and stored once per `depth`
                # lines, which amortises that traffic.
                at = self.sums_index(r, column)
                total: PrimExpr = self.sums[at].with_fields(dtype=self.vector)
                for factor, value in zip(factors[r], values, strict=True):
                    total = call_intrin("fma", factor, value, total, dtype=self.vector)
                steps.append(BufferStore(self.sums, total, (at,)))
            body = seq(*self.emit_prefetches(k + depth, column, depth), *steps)
            line = self.shape.matrix_offset + k * self.shape.columns
            start = line + self.first_column + column
            for d in reversed(range(depth)):
                body = LetStmt(
                    values[d],
                    load_vector(self.b, start + d * self.shape.columns, self.lanes, mask),
                    body,
                )
            return body

        stmt = self.emit_vectors(accumulate_rows)
        for r in rows:
            for d in range(depth):
                at = self.shape.row_offsets[r] + (k + d) * self.shape.a_step
                stmt = LetStmt(factors[r][d], broadcast(self.a[at], self.lanes), stmt)
        return stmt

    def emit_prefetches(self, k: PrimExpr, column: PrimExpr, depth: int) -> list[Stmt]:
        """Emit prefetches of the next matrix rows into L2, at the same columns.

        In L1, lines at a distance of a power of two drive each other out (4096 columns: 15 to 27
        GB/s, where reading alone has 34).
        """
        start = self.shape.matrix_offset + self.first_column + column
        return [Prefetch(self.b, (start + (k + d) * self.shape.columns,), 2) for d in range(depth)]

    def emit_run(self, store: StoreVector) -> Stmt:
        """Emit the initialisation, the sum over all matrix rows, and the store of a run."""
        depth, block, tail_line = (
            self.shape.matrix_rows_per_step(self.target),
            Var("block"),
            Var("rest"),
        )
        num_blocks = simplify(self.shape.k // depth)
        num_tail_lines = simplify(self.shape.k - num_blocks * depth)

        def store_sums(column: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """Store the sums of a vector of columns to the result."""
            values = [
                self.sums[self.sums_index(r, column)].with_fields(dtype=self.vector)
                for r in range(len(self.shape.row_offsets))
            ]
            return seq(
                *(
                    store(const(r), self.first_column + column, v, mask)
                    for r, v in enumerate(values)
                )
            )

        return seq(
            self.emit_vectors(self.emit_clear),
            For(
                block,
                const(0),
                num_blocks,
                ForKind.SERIAL,
                self.emit_row_block(block * depth, depth),
            ),
            For(
                tail_line,
                const(0),
                num_tail_lines,
                ForKind.SERIAL,
                self.emit_row_block(num_blocks * depth + tail_line, 1),
            ),
            self.emit_vectors(store_sums),
        )


def emit_skinny_gemm(
    shape: SkinnyGemm, a: Buffer, b: Buffer, store: StoreVector, target: Target, kind: ForKind
) -> Stmt:
    """Emit the product, in a loop of the given kind over runs of columns.

    Args:
        shape: The sizes and strides of the operands.
        a: The few rows.
        b: The matrix.
        store: Stores a vector of results.
        target: The processor.
        kind: Whether runs of columns are parallel or serial.
    """
    run, number = _ColumnRun(shape, a, b, target), Var("run")
    # The sums are allocated inside the loop over runs, so that each thread owns its own.
    run_body = Allocate(run.sums, run.emit_run(store))
    extent = minimum(const(run.max_columns), shape.columns - number * run.max_columns)
    bound = LetStmt(
        run.first_column, number * run.max_columns, LetStmt(run.remaining_columns, extent, run_body)
    )
    count = simplify((shape.columns + (run.max_columns - 1)) // run.max_columns)
    return For(number, const(0), count, kind, bound, {"grain": 1})
