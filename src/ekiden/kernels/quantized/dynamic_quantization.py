"""Dynamic quantisation of data to int8 blocks, before a kernel multiplies them.

    step[row, block]   = largest magnitude of the block / 127
    bytes[row, k]      = data[row, k] / step, to the nearest whole number
    total[row, group]  = sum of the bytes of a group

With `is_paired`, the bytes are int16, and of each four the first and the third come first
(int8_dot.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Add, Cast, Div, IntImm, Max, Mul, PrimExpr, Var, const
from ekiden.kernels.quantized.int8_dot import to_pair_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, Stmt, seq

MAX_INT8_LEVEL = 127.0
"""Quantised magnitude of a block's largest element."""
SYMMETRIC_INT8_FACT = "symmetric_int8"
"""Annotation of blocks whose int8 data are from -127 on, as quantisation makes them."""
MIN_MAGNITUDE = float(np.finfo(np.float32).tiny)
"""Lower bound of a block's magnitude, which keeps its reciprocal finite."""
MIN_QUANTIZED_ELEMENTS_PER_THREAD = 1 << 13
"""Elements per thread below which quantisation is not parallelised."""


@dataclass(frozen=True, slots=True)
class DynamicQuantization:
    """Buffers of dynamically quantised data: a step per `block_size` and a sum per `group_size`
    elements of a row.
    """

    data: Buffer
    block_size: int
    group_size: int
    bytes: Buffer
    step: Buffer
    group_sums: Buffer

    @staticmethod
    def create(
        data: Buffer, block: int, group: int, is_paired: bool = False
    ) -> DynamicQuantization:
        """Create the buffers for data whose last axis is a multiple of the block."""
        leading, depth = data.shape[:-1], data.shape[-1]
        assert isinstance(depth, IntImm)
        steps, totals = (const(depth.value // size) for size in (block, group))
        return DynamicQuantization(
            data,
            block,
            group,
            Buffer("bytes", data.shape, "int16" if is_paired else "int8"),
            Buffer("step", (*leading, steps), "float32"),
            Buffer("total", (*leading, totals), "int32"),
        )

    def emit_before(self, rows: PrimExpr, lanes: int, body: Stmt) -> Stmt:
        """Emit the quantisation of the data followed by the body, in which its results live."""
        stmt = seq(self.emit(rows, lanes), body)
        for buffer in (self.group_sums, self.step, self.bytes):
            stmt = Allocate(buffer, stmt)
        return stmt

    def emit(self, rows: PrimExpr, lanes: int) -> Stmt:
        """Emit the quantisation of the data, rows in parallel."""
        depth = self.data.shape[-1]
        assert isinstance(depth, IntImm)
        row, n = Var("row"), Var("n")
        blocks = depth.value // self.block_size
        quantizer = _BlockQuantizer(self, row, simplify(row * blocks + n), lanes)
        inside = For(n, const(0), const(blocks), ForKind.SERIAL, quantizer.emit_block())
        # Short rows are grouped: quantising one takes less time than waking a thread.
        grain = max(1, MIN_QUANTIZED_ELEMENTS_PER_THREAD // max(1, depth.value))
        return For(row, const(0), rows, ForKind.PARALLEL, inside, {"grain": grain})


class _BlockQuantizer:
    """Builder of the quantisation of one block of a row."""

    def __init__(self, to: DynamicQuantization, row: Var, number: PrimExpr, lanes: int) -> None:
        self.destination, self.row, self.block_index, self.lanes = to, row, number, lanes
        self.float_vector_dtype, self.int_vector_dtype = (
            dt.with_lanes("float32", lanes),
            dt.with_lanes("int32", lanes),
        )
        count = to.block_size // lanes
        self.values = [Var(f"x{i}", self.float_vector_dtype) for i in range(count)]
        self.quantized_vars = [Var(f"q{i}", self.int_vector_dtype) for i in range(count)]

    def emit_block(self) -> Stmt:
        """Emit the maximum magnitude of a block, its step, and its quantised values."""
        magnitude, inverse_step, step = (Var(n, "float32") for n in ("most", "finer", "step"))
        stmt = seq(
            BufferStore(self.destination.step, step, (self.block_index,)), *self.emit_stores()
        )
        for var, value in zip(reversed(self.quantized_vars), reversed(self.values), strict=True):
            scaled = Mul(value, broadcast(inverse_step, self.lanes), self.float_vector_dtype)
            rounded = call_intrin("round", scaled, dtype=self.float_vector_dtype)
            stmt = LetStmt(var, Cast(rounded, self.int_vector_dtype), stmt)
        # A block of zeros would divide by 0; the smallest normal number keeps the inverse finite.
        bound = Max(magnitude, const(MIN_MAGNITUDE, "float32"), "float32")
        stmt = LetStmt(inverse_step, Div(const(MAX_INT8_LEVEL, "float32"), bound, "float32"), stmt)
        # The step uses the magnitude before clamping: a block of zeros has step 0 and stays 0.
        stmt = LetStmt(step, Mul(magnitude, const(1 / MAX_INT8_LEVEL, "float32"), "float32"), stmt)
        magnitudes = [
            call_intrin("abs", value, dtype=self.float_vector_dtype) for value in self.values
        ]
        largest = magnitudes[0]
        for candidate in magnitudes[1:]:
            largest = Max(largest, candidate, self.float_vector_dtype)
        stmt = LetStmt(magnitude, VectorReduce(largest, "max", "float32"), stmt)
        for i, value in reversed([*enumerate(self.values)]):
            at = ramp(
                self.block_index * self.destination.block_size + i * self.lanes, 1, self.lanes
            )
            stmt = LetStmt(
                value, self.destination.data[at].with_fields(dtype=self.float_vector_dtype), stmt
            )
        return stmt

    def emit_stores(self) -> list[Stmt]:
        """Emit the stores of the quantised bytes and of the group sums."""
        stmts: list[Stmt] = []
        for i, value in enumerate(self.quantized_vars):
            at = ramp(
                self.block_index * self.destination.block_size + i * self.lanes, 1, self.lanes
            )
            is_paired = self.destination.bytes.dtype == "int16"
            level = (
                to_pair_order(value)
                if is_paired
                else Cast(value, dt.with_lanes("int8", self.lanes))
            )
            stmts.append(BufferStore(self.destination.bytes, level, (at,)))
        size = self.destination.group_size // self.lanes
        groups = self.destination.block_size // self.destination.group_size
        for group in range(groups):
            # Sums are taken from int32 registers, before the bytes lose their upper bits.
            total = _sum_lanes(
                self.quantized_vars[group * size : (group + 1) * size], self.int_vector_dtype
            )
            total_index = self.block_index * groups + group
            group_total = VectorReduce(total, "sum", "int32")
            stmts.append(BufferStore(self.destination.group_sums, group_total, (total_index,)))
        return stmts


def _sum_lanes(vectors: Sequence[PrimExpr], dtype: str) -> PrimExpr:
    total = vectors[0]
    for vector in vectors[1:]:
        total = Add(total, vector, dtype)
    return total


__all__ = ["SYMMETRIC_INT8_FACT", "DynamicQuantization"]
