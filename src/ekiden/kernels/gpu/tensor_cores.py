"""Contractions on tensor cores (WMMA): a warp multiplies 16 x 16 fragments in one instruction.

    for blocks of k: all threads bring their share of both factors into memory of the block, in the
        type that they have; barrier; for each square of k: load squares, multiply-add; barrier
    sums to memory of the block; barrier; each thread makes results of some

A block has `lines` x `lanes` warps, each `rows` x `columns` squares of sums. What ends inside of a
square is 0 in memory of the block, so any sizes are served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, PrimExpr, StringImm, Var, const, logical_and
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.contraction_factors import ContractionFactors
from ekiden.kernels.gpu.launch import ReductionGroup, serial_loop
from ekiden.kernels.gpu.shared_tile import SharedTile
from ekiden.kernels.gpu.tiled_matmul import TiledMatmulKernel
from ekiden.kernels.gpu.vector_access import vector_loop
from ekiden.target import Target
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Evaluate, IfThenElse, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC

FRAGMENT_SIDE = 16
"""Rows and columns of a fragment."""
TENSOR_WARP_SIZE = 32
"""Threads that hold a fragment together."""
FACTOR_DTYPES: Mapping[str, str] = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "uint8": "int32",
}
"""Accumulator dtype by factor dtype."""
TENSOR_CORES_FEATURE = "tensor_cores"
SUMS_PITCH_PADDING = 4
"""Padding elements per row of accumulators in shared memory."""
(
    DEFAULT_FRAGMENT_ROWS,
    DEFAULT_FRAGMENT_COLUMNS,
    DEFAULT_WARP_ROWS,
    DEFAULT_WARP_COLUMNS,
    DEFAULT_TENSOR_DEPTH,
) = 2, 2, 2, 2, 32
"""Squares of a warp and warps of a block: 64 x 64 sums, of which 4 warps have 16 each thread, and a
block of k takes 10 KB for both factors of two bytes, which are half as deep as those of one."""
FRAGMENT_LINE_BYTES = 16
"""Bytes that an instruction loads per fragment line."""


def stored_factor(factor: PrimExpr) -> PrimExpr | None:
    """Return a factor in its dtype in memory if tensor cores multiply that dtype, else None."""
    if isinstance(factor, Cast) and FACTOR_DTYPES.get(factor.value.dtype) == factor.dtype:
        return factor.value
    return None


def can_multiply(factors: ContractionFactors, target: Target) -> bool:
    """Return whether a target's tensor cores multiply these factors."""
    stored = [stored_factor(factors.a), stored_factor(factors.b)]
    a, b = stored
    return (
        a is not None and b is not None and a.dtype == b.dtype and target.has(TENSOR_CORES_FEATURE)
    )


def tensor_core_decision(
    factors: ContractionFactors, target: Target, fixed: Overrides
) -> Decision | None:
    """Return the tensor-core decision, where they exist and fragments are at least half filled.

    Args:
        factors: The sum of products.
        target: The device.
        fixed: The overrides.

    Returns:
        None elsewhere, or where an override asks for another kind of kernel.
    """
    tensor = fixed.get("tensor", 1)
    of_others = {"rows", "columns", "lanes", "lines", "depth", "dot"} & fixed.keys()
    if not tensor or fixed.get("vector", 1) != 1 or not fixed.get("shared", 1):
        return None
    if of_others and "tensor" not in fixed:
        return None
    if not can_multiply(factors, target):
        return None
    m, n = (known_extent(factors.num_elements(axes)) for axes in (factors.rows, factors.columns))
    is_small = any(size is not None and size < FRAGMENT_SIDE // 2 for size in (m, n))
    if is_small and "tensor" not in fixed:
        return None
    lines, rows = _split_fragments(m, DEFAULT_WARP_ROWS, DEFAULT_FRAGMENT_ROWS)
    lanes, columns = _split_fragments(n, DEFAULT_WARP_COLUMNS, DEFAULT_FRAGMENT_COLUMNS)
    stored = stored_factor(factors.a)
    # Bytes per line stay the same for every type.
    depth = (
        DEFAULT_TENSOR_DEPTH
        if stored is None
        else DEFAULT_TENSOR_DEPTH * 2 // dt.itemsize(stored.dtype)
    )
    values: dict[str, int | str] = {
        "rows": rows, "columns": columns, "lanes": lanes, "lines": lines, "depth": depth,
        "shared": 1, "vector": 1, "along": "columns", "tensor": 1, "dot": 0, "band": 0, "panel": 0,
    }  # fmt: skip
    decision = TensorCoreKernel.complete_decision(factors, target, values | dict(fixed))
    has_room = TensorCoreKernel.shared_bytes(factors, decision) <= target.block_memory
    return decision if has_room or "tensor" in fixed else None


def _split_fragments(size: int | None, warps: int, squares: int) -> tuple[int, int]:
    """Return the warps along an axis and the fragments of each, limited by the axis."""
    available = warps * squares if size is None else -(-size // FRAGMENT_SIDE)
    while warps * squares >= 2 * available and warps * squares > 1:
        warps, squares = (warps, squares // 2) if squares > 1 else (warps // 2, squares)
    return warps, squares


class TensorCoreKernel(TiledMatmulKernel):
    """Builder of one tensor-core kernel; the rows and columns of a warp are fragments."""

    fragment_side = FRAGMENT_SIDE
    threads_per_lane = TENSOR_WARP_SIZE
    pitch_padding = FRAGMENT_LINE_BYTES // 2
    """Padding between lines, so that the lines of a fragment are in different banks."""

    def __init__(self, group: ReductionGroup, decision: Decision) -> None:
        super().__init__(group, decision)
        squares = self.rows * self.columns
        dtype = self.stored_value(self.factors.a).dtype
        self.pitch_padding = FRAGMENT_LINE_BYTES // dt.itemsize(dtype)
        self.pitch = self.tile_n + SUMS_PITCH_PADDING
        self.a = _fragment_buffer("a", self.rows, dtype, "matrix_a")
        self.b = _fragment_buffer("b", self.columns, dtype, "matrix_b")
        self.sums = _fragment_buffer("sums", squares, self.dtype, "accumulator")
        size = const(self.tile_m * self.pitch)
        self.shared_sums = Buffer("totals", (size,), self.dtype, "shared")

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.lanes * self.lines * TENSOR_WARP_SIZE

    @property
    def tile_m(self) -> int:
        """Return the rows of a block's tile."""
        return self.rows * self.lines * FRAGMENT_SIDE

    @property
    def tile_n(self) -> int:
        """Return the columns of a block's tile."""
        return self.columns * self.lanes * FRAGMENT_SIDE

    def access_widths(self) -> tuple[int, int]:
        """Return the widths of wide accesses: 1 for rows, the columns of one store for columns."""
        return 1, self.store_width(math.gcd(self.max_access_width, FRAGMENT_SIDE))

    def line_pitch(self, line: int, read: int) -> int:
        """Return the padded pitch of lines of k in shared memory."""
        return line + self.pitch_padding

    @staticmethod
    def extra_shared_bytes(tile_m: int, tile_n: int) -> int:
        """Return the shared-memory bytes of the accumulators in the epilogue."""
        return tile_m * (tile_n + SUMS_PITCH_PADDING) * 4

    @staticmethod
    def stored_value(factor: PrimExpr) -> PrimExpr:
        """Return a factor in its dtype in memory."""
        stored = stored_factor(factor)
        assert stored is not None, factor
        return stored

    def tile_row(self, i: int) -> PrimExpr:
        """Return the first row of a fragment of this thread's warp."""
        return (self.thread // TENSOR_WARP_SIZE // self.lanes * self.rows + i) * FRAGMENT_SIDE

    def tile_column(self, j: int) -> PrimExpr:
        """Return the first column of a fragment of this thread's warp."""
        return (self.thread // TENSOR_WARP_SIZE % self.lanes * self.columns + j) * FRAGMENT_SIDE

    def emit_prologue(self) -> Stmt:
        """Emit the zero fill of all accumulator fragments."""
        zero = const(0, self.dtype)
        squares = range(self.rows * self.columns)
        return seq(*(_fragment_call("tvm_fill_fragment", self.sums, n, zero) for n in squares))

    def emit_steps(self, rows_share: SharedTile, columns_share: SharedTile) -> Stmt:
        """Emit the fragment products of one block of k."""
        stmts: list[Stmt] = []
        for first in range(0, self.depth, FRAGMENT_SIDE):
            for i in range(self.rows):
                stmts.append(
                    _emit_load_fragment(self.a, i, rows_share, self.tile_row(i), const(first), True)
                )
            for j in range(self.columns):
                stmts.append(
                    _emit_load_fragment(
                        self.b, j, columns_share, self.tile_column(j), const(first), False
                    )
                )
            stmts += [self.emit_mma(i, j) for i in range(self.rows) for j in range(self.columns)]
        return seq(*stmts)

    def emit_mma(self, i: int, j: int) -> Stmt:
        """Emit the product of two fragments, added to an accumulator fragment."""
        total, number = BufferAddress(self.sums), const(i * self.columns + j)
        a, b = BufferAddress(self.a, access="r"), BufferAddress(self.b, access="r")
        args = (total, number, a, const(i), b, const(j), total, number)
        return Evaluate(call_intrin("tvm_mma_sync", *args, dtype="handle"))

    def emit_results(self) -> Stmt:
        """Emit the epilogue and the store of the results, coalesced across threads."""
        stored: list[Stmt] = []
        for i in range(self.rows):
            for j in range(self.columns):
                position = self.tile_row(i) * self.pitch + self.tile_column(j)
                address = BufferAddress(self.shared_sums, (position,), access="w")
                number, row = i * self.columns + j, StringImm("row_major")
                target_args = (address, const(self.pitch), row)
                stored.append(
                    _fragment_call(
                        "tvm_store_matrix_sync", self.sums, number, *target_args, access="r"
                    )
                )
        round_index, lane = Var("turn"), Var("lane")
        position = round_index * self.threads + self.thread
        line, count = (
            self.tile_n // self.adjacent_columns,
            self.tile_m * self.tile_n // self.adjacent_columns,
        )
        store = self.emit_result(position // line, position % line * self.adjacent_columns, lane)
        store = store if count % self.threads == 0 else IfThenElse(position < count, store)
        # The layout of fragments in registers is opaque: results go through shared memory.
        return seq(
            *stored, STORAGE_SYNC, serial_loop(round_index, -(-count // self.threads), store)
        )

    def emit_result(self, row: PrimExpr, column: PrimExpr, lane: Var) -> Stmt:
        """Emit the store of one result or of contiguous ones."""
        f, anchor = self.factors, self.group.anchor.op
        assert isinstance(anchor, ComputeOp)
        by: PrimExpr = lane if self.adjacent_columns > 1 else const(0)
        m, n = self.block_m * self.tile_m + row, self.block_n * self.tile_n + column
        position = f.axis_values(f.rows, m) | f.axis_values(f.columns, n + by)
        position |= f.axis_values(f.batch, self.block_z)
        value = BufferLoad(self.shared_sums, (row * self.pitch + column + by,), self.dtype)
        store = self.group.emit_store([position[a.var] for a in anchor.axis], value)
        store = (
            vector_loop(lane, self.adjacent_columns, store) if self.adjacent_columns > 1 else store
        )
        return IfThenElse(logical_and(m < self.m, n < self.n), store)

    def build(self, name: str, shared: bool = True) -> PrimFunc:
        """Build the PrimFunc."""
        sums, shared_buffers = self.emit_k_blocks(self.emit_steps)
        body = seq(self.emit_prologue(), sums, self.emit_results())
        return self.emit_launch(
            wrap_in_allocations(body, [self.a, self.b, self.sums]),
            [*shared_buffers, self.shared_sums],
            name,
        )


def _fragment_buffer(name: str, count: int, dtype: str, kind: str) -> Buffer:
    return Buffer(name, (const(count * FRAGMENT_SIDE * FRAGMENT_SIDE),), dtype, f"wmma.{kind}")


def _fragment_call(
    op: str, buffer: Buffer, number: int, *operands: PrimExpr, access: str = "w"
) -> Stmt:
    sides: Sequence[PrimExpr] = [const(FRAGMENT_SIDE)] * 3
    args = (BufferAddress(buffer, access=access), *sides, const(number), *operands)
    return Evaluate(call_intrin(op, *args, dtype="handle"))


def _emit_load_fragment(
    buffer: Buffer,
    number: int,
    shared_tile: SharedTile,
    first: PrimExpr,
    step: PrimExpr,
    is_a: bool,
) -> Stmt:
    """Emit the load of a fragment from shared memory, row- or column-major depending on whether k
    is contiguous.
    """
    by_rows = shared_tile.is_k_contiguous if is_a else not shared_tile.is_k_contiguous
    layout = StringImm("row_major" if by_rows else "col_major")
    address = BufferAddress(
        shared_tile.buffer, (shared_tile.element_index(first, step),), access="r"
    )
    return _fragment_call(
        "tvm_load_matrix_sync", buffer, number, address, const(shared_tile.pitch), layout
    )


__all__ = [
    "FACTOR_DTYPES",
    "TENSOR_CORES_FEATURE",
    "TensorCoreKernel",
    "can_multiply",
    "tensor_core_decision",
]
