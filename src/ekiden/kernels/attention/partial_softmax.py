"""Partial softmax results of attention over a chunk of keys, and their merge (flash decoding).

    partial result  e = exp(score - maximum) of its keys: sum(e * value) [depth], maximum, sum(e)
    merge of a, b   maximum = max(a.maximum, b.maximum); sums of both, each first multiplied by
                    exp(its maximum - maximum)
    result          sum(e * value) / sum(e)

After Dao and others, "Flash-Decoding for long-context inference" (2023). Parts are merged in order
and by the same instructions, so a result does not depend on the thread that computed them.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Div, Max, Mul, PrimExpr, Sub, Var, const
from ekiden.kernels.attention.softmax_bounds import exp_of_nonpositive
from ekiden.kernels.micro_kernels.vector_memory import VectorMemory
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, VectorReduce, broadcast
from ekiden.tir.stmt import For, ForKind, LetStmt, Stmt, seq

INITIAL_MAX_SCORE = -1e30
"""Initial running maximum: finite, so that rows without visible keys yield 0 and not NaN."""


@dataclass(frozen=True, slots=True)
class PartialSoftmax(VectorMemory):
    """Layout of a row's partial softmax (weighted sums, maximum and sum of exponentials) in a
    float32 buffer, padded to whole vectors. Each lane has its own sum of exponentials, and all
    have the maximum score.
    """

    depth: int
    lanes: int

    @property
    def row_elements(self) -> int:
        """Return the number of elements of a row's partial result."""
        return self.depth + 2 * self.lanes

    @property
    def max_offset(self) -> int:
        """Return the offset of the maximum score."""
        return self.depth

    @property
    def sums_offset(self) -> int:
        """Return the offset of the sum of exponentials."""
        return self.depth + self.lanes

    @property
    def vector_dtype(self) -> str:
        """Return the dtype of a vector."""
        return f"float32x{self.lanes}"

    def _emit_vector_loop(self, size: int, body: Stmt, var: Var) -> Stmt:
        return For(var, const(0), const(size // self.lanes), ForKind.SERIAL, body)

    def emit_initialize(
        self, into: Buffer, rows: int, sink: Callable[[Var], PrimExpr] | None = None
    ) -> Stmt:
        """Emit the initialisation of rows: maximum INITIAL_MAX_SCORE, all sums 0; or those of a row
        that has one key already, of the score `sink(row)` and the value 0 (attention sink).
        """
        row, v = Var("row"), Var("v")
        position = row * self.row_elements
        # Not -inf: merging two rows without keys would compute -inf - -inf, which is NaN.
        zero, lowest = (
            broadcast(const(x, "float32"), self.lanes) for x in (0.0, INITIAL_MAX_SCORE)
        )
        row_init = seq(
            self._emit_vector_loop(
                self.row_elements, self.store(into, position + v * self.lanes, zero), v
            ),
            self.store(into, position + self.max_offset, lowest),
        )
        if sink is not None:
            # Every lane has its share of the sink's exponential, 1: lanes are a power of two.
            share = broadcast(const(1.0 / self.lanes, "float32"), self.lanes)
            row_init = seq(
                row_init,
                self.store(into, position + self.max_offset, broadcast(sink(row), self.lanes)),
                self.store(into, position + self.sums_offset, share),
            )
        return For(row, const(0), const(rows), ForKind.SERIAL, row_init)

    def emit_copy(self, into: Buffer, offset: PrimExpr, source: Buffer, rows: int) -> Stmt:
        """Emit the copy of some rows' partial results to `into` at `offset`."""
        v = Var("v")
        loaded = self.load(source, v * self.lanes)
        return self._emit_vector_loop(
            rows * self.row_elements, self.store(into, offset + v * self.lanes, loaded), v
        )

    def emit_merge(self, into: Buffer, source: Buffer, offset: PrimExpr, rows: int) -> Stmt:
        """Emit the merge of each row with its partial result in `source` from `offset` on."""
        row, v = Var("row"), Var("v")
        own_scale, other_scale, top = (Var(n, self.vector_dtype) for n in ("own", "other", "top"))
        position, origin = row * self.row_elements, offset + row * self.row_elements

        def rescale_and_add(where: PrimExpr | int) -> Stmt:
            """Rescale both partial sums to the common maximum and add them, a vector at a time."""
            more = Mul(self.load(source, origin + where), other_scale, self.vector_dtype)
            both = call_intrin(
                "fma", self.load(into, position + where), own_scale, more, dtype=self.vector_dtype
            )  # fmt: skip
            return self.store(into, position + where, both)

        body = seq(
            self.store(into, position + self.max_offset, top),
            rescale_and_add(self.sums_offset),
            self._emit_vector_loop(self.depth, rescale_and_add(v * self.lanes), v),
        )
        first, second = (
            self.load(x, y + self.max_offset) for x, y in ((into, position), (source, origin))
        )
        body = LetStmt(other_scale, exp_of_nonpositive(Sub(second, top, self.vector_dtype)), body)
        body = LetStmt(own_scale, exp_of_nonpositive(Sub(first, top, self.vector_dtype)), body)
        # Online softmax (Milakov and Gimelshein 2018): both factors exp(max - new max) are at most
        # 1, so that rescaling cannot overflow.
        body = LetStmt(top, Max(first, second, self.vector_dtype), body)
        return For(row, const(0), const(rows), ForKind.SERIAL, body)

    def emit_normalize(
        self, output: Buffer, to: PrimExpr, row: Var, partial: Buffer, rows: int
    ) -> Stmt:
        """Emit the division of each row's weighted sums by its sum of exponentials, stored at
        `to`.
        """
        v, total_sum, reciprocal = Var("v"), Var("whole", "float32"), Var("share", "float32")
        position = row * self.row_elements
        value = Mul(
            self.load(partial, position + v * self.lanes),
            broadcast(reciprocal, self.lanes),
            self.vector_dtype,
        )
        body = self._emit_vector_loop(self.depth, self.store(output, to + v * self.lanes, value), v)
        # A row without keys has sum 0: its result is 0, not NaN.
        divisor = Max(total_sum, const(1e-30, "float32"), "float32")
        body = LetStmt(reciprocal, Div(const(1.0, "float32"), divisor, "float32"), body)
        total = VectorReduce(self.load(partial, position + self.sums_offset), "sum", "float32")
        return For(row, const(0), const(rows), ForKind.SERIAL, LetStmt(total_sum, total, body))


__all__ = ["INITIAL_MAX_SCORE", "PartialSoftmax"]
