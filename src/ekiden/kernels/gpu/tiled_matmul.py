"""Tiled contractions on GPUs: each thread computes a register tile, from operands staged in shared
memory.

    buffers=1   for blocks of k: load; wait; multiply; wait
    buffers=2   read the first block; write it to one buffer; wait
                for blocks of k: read the next block to registers; multiply this one;
                                 write the next to the other buffer; wait

A thread loads several neighbours at a time, where they are one access (`vector_access`), and
likewise reads neighbours of k, or of columns, in shared memory as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, logical_and, minimum
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.contraction_factors import (
    ContractionFactors,
    is_unit_stride,
    match_contraction,
)
from ekiden.kernels.gpu.launch import (
    ReductionGroup,
    reduction_loops,
    serial_loop,
    thread_loop,
    unrolled_loop,
)
from ekiden.kernels.gpu.shared_tile import RegisterOperands, SharedTile
from ekiden.kernels.gpu.vector_access import (
    access_width,
    max_access_width,
    read_width,
    unravel_index,
    vector_loop,
)
from ekiden.kernels.prim_builder import product_of_dims, wrap_in_lets
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC

MAX_STAGED_REGISTER_BYTES = 128
"""Maximum register bytes that a thread uses to stage the next block of k. Blocks of few threads
would hold much more, and spill.
"""


@dataclass(frozen=True, slots=True)
class TileExtent:
    """First row or column of a block's tile, and the extent of the whole axis."""

    first: PrimExpr
    extent: PrimExpr


StoreValue: TypeAlias = Callable[[PrimExpr, PrimExpr], Stmt]
"""Function (lane, value) -> store statement."""


class TiledMatmulKernel:
    """Builder of one tiled contraction kernel."""

    fragment_side = 1
    """Rows and columns per unit of the tile knobs: 1, or the side of a fragment."""
    threads_per_lane = 1
    """Threads per unit of `lanes` and `lines`: 1, or a warp."""
    elements_per_step = 1
    """Elements of k per step: 1, or the bytes of a word."""
    pitch_padding = 1
    """Padding elements between lines in shared memory, which avoids bank conflicts."""

    def __init__(self, group: ReductionGroup, decision: Decision) -> None:
        factors = match_contraction(group.anchor)
        assert factors is not None
        self.group, self.factors = group, factors
        self.rows, self.columns, self.lanes, self.lines, self.depth = (
            decision.int_value(n) for n in ("rows", "columns", "lanes", "lines", "depth")
        )
        self.m, self.n = factors.num_elements(factors.rows), factors.num_elements(factors.columns)
        self.dtype = group.reduce.dtype
        self.max_access_width, self.buffers = (
            int(decision.get(n, 1)) for n in ("access_width", "buffers")
        )
        self.uses_shared_memory = bool(decision.int_value("shared"))
        widths = self.access_widths() if self.max_access_width > 1 else (1, 1)
        self.adjacent_rows, self.adjacent_columns = widths
        count = const(self.rows * self.columns)
        self.sums = Buffer("sums", (count,), self.dtype, "local")
        self.thread = Var("thread")
        self.block_m, self.block_n, self.block_z = Var("tile"), Var("part"), Var("batch")

    @classmethod
    def complete_decision(
        cls, factors: ContractionFactors, target: Target, values: Overrides
    ) -> Decision:
        """Add the knobs of shared memory to a decision.

        Neighbours are accessed as one where the target's threads can. There are two buffers where
        threads run together, there is more than a block of k, and a block has the room.

        Args:
            factors: The sum of products.
            target: The device.
            values: The values of the other knobs, and overrides.
        """
        completed = {"access_width": 1, "buffers": 1, **values}
        if not values["shared"] or target.thread_warp_size == 1:
            return Decision.from_mapping(completed)
        if "access_width" not in values:
            completed["access_width"] = cls.max_access_width_of(target, factors)
        depth = known_extent(factors.reduction_size)
        # A single block of k has no next one to load meanwhile.
        if "buffers" not in values and (
            depth is None or depth > int(completed["depth"]) * cls.elements_per_step
        ):
            decision = Decision.from_mapping(completed | {"buffers": 2})
            # Held blocks must stay in registers: spills would cost more than a barrier saves.
            has_room = cls.shared_bytes(factors, decision) <= target.block_memory
            completed["buffers"] = (
                2
                if has_room
                and cls.staged_register_bytes(factors, decision) <= MAX_STAGED_REGISTER_BYTES
                else 1
            )
        return Decision.from_mapping(completed)

    @classmethod
    def max_access_width_of(cls, target: Target, factors: ContractionFactors) -> int:
        """Return the maximum number of adjacent elements that a thread accesses at once in both
        factors.
        """
        return max_access_width(
            target, cls.stored_value(factors.a).dtype, cls.stored_value(factors.b).dtype
        )

    @classmethod
    def shared_bytes(cls, factors: ContractionFactors, decision: Decision) -> int:
        """Return an upper bound of a kernel's shared-memory bytes."""
        rows, columns, lines, lanes, depth, buffers = (
            decision.int_value(n) for n in ("rows", "columns", "lines", "lanes", "depth", "buffers")
        )
        size = 0
        for factor, tile in ((factors.a, rows * lines), (factors.b, columns * lanes)):
            tile *= cls.fragment_side
            # Layouts are chosen later: this bounds the padding of either.
            padding = max(cls.pitch_padding, decision.int_value("access_width"))
            room = tile * depth + max(tile, depth) * padding
            size += room * dt.itemsize(cls.stored_value(factor).dtype)
        return buffers * size + cls.extra_shared_bytes(
            rows * lines * cls.fragment_side, columns * lanes * cls.fragment_side
        )

    @classmethod
    def staged_register_bytes(cls, factors: ContractionFactors, decision: Decision) -> int:
        """Return the register bytes in which a thread stages its part of the next block of k."""
        rows, columns, lines, lanes, depth = (
            decision.int_value(n) for n in ("rows", "columns", "lines", "lanes", "depth")
        )
        factor_tiles = ((factors.a, rows * lines), (factors.b, columns * lanes))
        size = sum(
            tile * dt.itemsize(cls.stored_value(factor).dtype) for factor, tile in factor_tiles
        )
        return -(-size * cls.fragment_side * depth // (lines * lanes * cls.threads_per_lane))

    @staticmethod
    def extra_shared_bytes(tile_m: int, tile_n: int) -> int:
        """Return the shared-memory bytes besides the factors."""
        return 0

    def validate(self, target: Target) -> Self:
        """Raise CompileError if the kernel exceeds the target's limits; return the kernel.

        Raises:
            CompileError: For what the target does not have, or not enough of.
        """
        if not self.uses_shared_memory and (self.max_access_width > 1 or self.buffers > 1):
            raise CompileError("near and buffers are about memory of the block, of shared=1")
        if self.max_access_width > (max_width := self.max_access_width_of(target, self.factors)):
            dtypes = [
                self.stored_value(factor).dtype for factor in (self.factors.a, self.factors.b)
            ]
            raise CompileError(
                f"threads of target {str(target)!r} access at most {max_width} neighbours of "
                f"{' and '.join(dict.fromkeys(dtypes))} as one"
            )
        size = self.extra_shared_bytes(self.tile_m, self.tile_n) if self.uses_shared_memory else 0
        for tile in self.create_shared_tiles() if self.uses_shared_memory else ():
            (count,) = tile.buffer.shape
            assert isinstance(count, IntImm)
            size += count.value * dt.itemsize(tile.value.dtype) * self.buffers
        if size > target.block_memory:
            raise CompileError(
                f"a block takes {size} bytes of memory, of which target {str(target)!r} has "
                f"{target.block_memory}"
            )
        return self

    def access_widths(self) -> tuple[int, int]:
        """Return the number of adjacent rows and columns that a thread reads from shared memory,
        and for columns writes, in one access.
        """
        f = self.factors
        rows = 1 if self.is_k_contiguous(f.a) else math.gcd(self.max_access_width, self.rows)
        columns = 1 if self.is_k_contiguous(f.b) else math.gcd(self.max_access_width, self.columns)
        return rows, self.store_width(columns)

    def store_width(self, limit: int) -> int:
        """Return the number of result columns written in one access."""
        f, output = self.factors, self.group.output
        if limit == 1 or dt.is_byte_stored(output.dtype) or output.dtype == "bool":
            return 1
        anchor = self.group.anchor.op
        assert isinstance(anchor, ComputeOp)
        extents = [f.extents[v] for v in f.columns]
        access = (output.shape, [a.var for a in anchor.axis])
        return access_width([access], f.columns, extents, limit)

    def is_k_contiguous(self, factor: PrimExpr) -> bool:
        """Return whether consecutive k are adjacent in a factor's memory."""
        step = Var("step")
        return is_unit_stride(factor, {self.group.reduce.axis[-1]: step}, step)

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.lanes * self.lines

    @property
    def tile_m(self) -> int:
        """Return the rows of a block's tile."""
        return self.rows * self.lines

    @property
    def tile_n(self) -> int:
        """Return the columns of a block's tile."""
        return self.columns * self.lanes

    def global_row(self, i: int) -> PrimExpr:
        """Return row i of this thread in the result."""
        return self.block_m * self.tile_m + self.tile_row(i)

    def tile_row(self, i: int) -> PrimExpr:
        """Return row i of this thread in the tile of the block."""
        contiguous_count = self.adjacent_rows
        thread_row = self.thread // self.lanes * contiguous_count + i % contiguous_count
        return thread_row + i // contiguous_count * (self.lines * contiguous_count)

    def global_column(self, j: int) -> PrimExpr:
        """Return column j of this thread in the result."""
        return self.block_n * self.tile_n + self.tile_column(j)

    def tile_column(self, j: int) -> PrimExpr:
        """Return column j of this thread in the tile of the block."""
        thread_column = self.thread % self.lanes * self.adjacent_columns + j % self.adjacent_columns
        return thread_column + j // self.adjacent_columns * (self.lanes * self.adjacent_columns)

    def factor_at(
        self, value: PrimExpr, axes: Sequence[Var], number: PrimExpr, k: object
    ) -> PrimExpr:
        """Return a factor at a flat index of its axes and values of k."""
        assert isinstance(k, dict)
        position = (
            self.factors.axis_values(axes, number)
            | self.factors.axis_values(self.factors.batch, self.block_z)
            | k
        )
        return self.group.lower_at(value, position)

    def emit_prologue(self) -> Stmt:
        """Emit the zero initialisation of the accumulators."""
        count = self.rows * self.columns
        zero = const(0, self.dtype)
        return seq(*(BufferStore(self.sums, zero, (const(i),)) for i in range(count)))

    def emit_step(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Emit the multiply-adds of one step of k."""
        names_a = [Var(f"a{i}", e.dtype) for i, e in enumerate(a)]
        names_b = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        products = [
            self.emit_product(i * self.columns + j, x, y)
            for i, x in enumerate(names_a)
            for j, y in enumerate(names_b)
        ]
        lets = [*zip(names_a, a, strict=True), *zip(names_b, b, strict=True)]
        return wrap_in_lets(lets, seq(*products))

    def emit_product(self, number: int, x: PrimExpr, y: PrimExpr) -> Stmt:
        """Emit the product of two elements, added to an accumulator."""
        indices = (const(number),)
        return BufferStore(self.sums, BufferLoad(self.sums, indices, self.dtype) + x * y, indices)

    def emit_unshared_nest(self) -> Stmt:
        """Emit a loop nest in which each thread reads global memory; indices past the last row and
        column are clamped.
        """
        axes = self.group.reduce.axis
        names: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        f = self.factors
        # Clamped reads are always valid; only the stores need a guard.
        rows = [minimum(self.global_row(i), self.m - 1) for i in range(self.rows)]
        columns = [minimum(self.global_column(j), self.n - 1) for j in range(self.columns)]
        a = [self.factor_at(f.a, f.rows, position, names) for position in rows]
        b = [self.factor_at(f.b, f.columns, position, names) for position in columns]
        return reduction_loops(axes, names, self.emit_step(a, b))

    def create_shared_tile(
        self, name: str, value: PrimExpr, axes: Sequence[Var], tile: int, contiguous_count: int = 1
    ) -> SharedTile:
        """Create the shared-memory tile of a factor.

        Args:
            name: The name of the buffer.
            value: The factor.
            axes: Its rows or columns.
            tile: Rows or columns of a block.
            contiguous_count: Neighbouring rows or columns that a thread reads as one.
        """
        reduced, by_steps = self.group.reduce.axis, self.is_k_contiguous(value)
        line = self.depth if by_steps else tile
        axis_extents = {v: self.factors.extents[v] for v in axes}
        contiguous_axes = {r.var: r.extent for r in reduced} if by_steps else axis_extents
        variables, extents = list(contiguous_axes), list(contiguous_axes.values())
        near = read_width(value, variables, extents, math.gcd(self.max_access_width, line))
        read = math.gcd(self.max_access_width, self.depth) if by_steps else contiguous_count
        # Padded lines: without the gap, threads that read one column would hit the same
        # shared-memory bank.
        pitch = self.line_pitch(line, read) if by_steps else tile + self.pitch_padding // 8 * 8
        count = (tile if by_steps else self.depth) * pitch
        buffer = Buffer(name, (const(count),), value.dtype, "shared")
        return SharedTile(buffer, value, axes, tile, pitch, by_steps, near, read)

    def line_pitch(self, line: int, read: int) -> int:
        """Return the padded pitch of lines of k in shared memory.

        Threads that read the same k of different lines read different banks, if what they read as
        one does not begin at an even multiple of it.
        """
        return line + self.pitch_padding if read == 1 else line + read * (line // read % 2 == 0)

    def element_of_round(
        self, tile: SharedTile, round_index: PrimExpr
    ) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Return the flat index, the first k, and the row or column of the element that a thread
        loads in a round.
        """
        position = round_index * self.threads + self.thread
        if tile.is_k_contiguous:
            line = self.depth // tile.load_width
            return position, position % line * tile.load_width, position // line
        line = tile.num_lines // tile.load_width
        return position, position // line, position % line * tile.load_width

    def num_load_rounds(self, tile: SharedTile) -> int:
        """Return the number of loads per thread and block of k."""
        return -(-self.depth * tile.num_lines // (tile.load_width * self.threads))

    def guard_round(self, tile: SharedTile, at: PrimExpr, body: Stmt) -> Stmt:
        """Guard the body of a round in which some threads have no element."""
        count = self.depth * tile.num_lines // tile.load_width
        return body if count % self.threads == 0 else IfThenElse(at < count, body)

    def emit_read_round(
        self, tile: SharedTile, round_index: PrimExpr, block: PrimExpr, side: TileExtent,
        put: StoreValue,
    ) -> Stmt:  # fmt: skip
        """Emit a round's global load, passed to `put`; elements outside the factor are 0."""
        reduced = self.group.reduce.axis
        extents, lane = [r.extent for r in reduced], Var("lane")
        position, step, number = self.element_of_round(tile, round_index)
        k, line_index = block * self.depth + step, side.first + number
        # Zeros behind the end add nothing to the sums, so the products need no guard.
        inside = logical_and(k < simplify(product_of_dims(extents)), line_index < side.extent)
        by = lane if tile.load_width > 1 else const(0)
        k, line_index = (k + by, line_index) if tile.is_k_contiguous else (k, line_index + by)
        steps = dict(zip(reduced, unravel_index(k, extents), strict=True))
        value, zero = (
            self.factor_at(tile.value, tile.axes, line_index, steps),
            const(0, tile.value.dtype),
        )
        if tile.load_width == 1:
            return self.guard_round(tile, position, put(by, if_then_else(inside, value, zero)))
        sides = [vector_loop(lane, tile.load_width, put(lane, v)) for v in (value, zero)]
        return self.guard_round(tile, position, IfThenElse(inside, *sides))

    def emit_load_block(
        self, tile: SharedTile, block: PrimExpr, first: PrimExpr, extent: PrimExpr
    ) -> Stmt:
        """Emit the cooperative load of a block of k into shared memory."""
        round_index, side = Var("turn"), TileExtent(first, extent)
        _, step, number = self.element_of_round(tile, round_index)

        def store_shared(lane: PrimExpr, value: PrimExpr) -> Stmt:
            """Store a vector straight into shared memory."""
            return BufferStore(tile.buffer, value, (tile.element_index(number, step) + lane,))

        if tile.load_width == 1:
            return serial_loop(
                round_index,
                self.num_load_rounds(tile),
                self.emit_read_round(tile, round_index, block, side, store_shared),
            )
        # A wide global access fills registers first; the store to shared memory may have another
        # width.
        name, shape = f"{tile.buffer.name}_held", (const(tile.load_width),)
        staging = Buffer(name, shape, tile.value.dtype, "local")

        def store_register(lane: PrimExpr, value: PrimExpr) -> Stmt:
            """Store a vector into the registers of this round."""
            return BufferStore(staging, value, (lane,))

        # one statement writes memory of the block: between two, threads would wait for each other
        read = self.emit_read_round(tile, round_index, block, side, store_register)
        body = seq(read, self.emit_store_round(tile, round_index, staging, const(0)))
        return serial_loop(
            round_index,
            self.num_load_rounds(tile),
            wrap_in_allocations(body, [staging]),
        )

    def staging_registers(self, tile: SharedTile) -> Buffer:
        """Return the registers that stage a thread's part of a block of k."""
        count = const(self.num_load_rounds(tile) * tile.load_width)
        return Buffer(f"{tile.buffer.name}_held", (count,), tile.value.dtype, "local")

    def emit_prefetch_block(
        self, tile: SharedTile, staging: Buffer, block: PrimExpr, side: TileExtent
    ) -> Stmt:
        """Emit the global loads of a block of k into each thread's staging registers."""
        round_index = Var("turn")

        def store_register(lane: PrimExpr, value: PrimExpr) -> Stmt:
            """Store a vector into the registers, at the place of its round."""
            return BufferStore(staging, value, (round_index * tile.load_width + lane,))

        return unrolled_loop(
            round_index,
            self.num_load_rounds(tile),
            self.emit_read_round(tile, round_index, block, side, store_register),
        )

    def emit_store_block(self, tile: SharedTile, staging: Buffer) -> Stmt:
        """Emit the store of a staged block of k to shared memory."""
        round_index = Var("turn")
        body = self.emit_store_round(tile, round_index, staging, round_index * tile.load_width)
        return unrolled_loop(round_index, self.num_load_rounds(tile), body)

    def emit_store_round(
        self,
        tile: SharedTile,
        round_index: PrimExpr,
        staging: Buffer,
        first: PrimExpr,
    ) -> Stmt:
        """Emit the store of one round's staged registers to shared memory."""
        position, step, number = self.element_of_round(tile, round_index)
        lane = Var("lane")
        by: PrimExpr = lane if tile.load_width > 1 else const(0)
        value = BufferLoad(staging, (first + by,), tile.value.dtype)
        body: Stmt = BufferStore(tile.buffer, value, (tile.element_index(number, step) + by,))
        body = vector_loop(lane, tile.load_width, body) if tile.load_width > 1 else body
        return self.guard_round(tile, position, body)

    def tile_extents(self) -> tuple[TileExtent, TileExtent]:
        """Return the first row and column of a block's tiles, with the extents of their axes."""
        return (
            TileExtent(self.block_m * self.tile_m, self.m),
            TileExtent(self.block_n * self.tile_n, self.n),
        )

    def create_shared_tiles(self, ends: str = "") -> tuple[SharedTile, SharedTile]:
        """Create the shared-memory tiles of both factors."""
        f = self.factors
        left, right = self.stored_value(f.a), self.stored_value(f.b)
        columns = (f.columns, self.tile_n, self.adjacent_columns)
        return (
            self.create_shared_tile(f"left{ends}", left, f.rows, self.tile_m, self.adjacent_rows),
            self.create_shared_tile(f"right{ends}", right, *columns),
        )

    def emit_k_blocks(
        self, steps: Callable[[SharedTile, SharedTile], Stmt]
    ) -> tuple[Stmt, list[Buffer]]:
        """Emit `steps` for each block of k in shared memory; return also its tiles."""
        total = simplify(product_of_dims([r.extent for r in self.group.reduce.axis]))
        count = simplify((total + (self.depth - 1)) // self.depth)
        if self.buffers == 2:
            return self.emit_double_buffered(steps, count)
        block, (left_tile, right_tile), (rows, columns) = (
            Var("block"),
            self.create_shared_tiles(),
            self.tile_extents(),
        )
        # The second barrier keeps a block in place until the slowest thread has multiplied it.
        body = seq(
            self.emit_load_block(left_tile, block, rows.first, rows.extent),
            self.emit_load_block(right_tile, block, columns.first, columns.extent),
            STORAGE_SYNC,
            steps(left_tile, right_tile),
            STORAGE_SYNC,
        )
        return serial_loop(block, count, body), [left_tile.buffer, right_tile.buffer]

    def emit_double_buffered(
        self, steps: Callable[[SharedTile, SharedTile], Stmt], count: PrimExpr
    ) -> tuple[Stmt, list[Buffer]]:
        """Emit `steps` with double-buffered tiles: the next block is loaded while the current one
        is read.
        """
        # Twice the shared memory buys one barrier per block instead of two.
        halves = self.create_shared_tiles(), self.create_shared_tiles("_next")
        staging = [self.staging_registers(s) for s in halves[0]]

        def apply_to_both(do: Callable[[SharedTile, Buffer, TileExtent], Stmt], half: int) -> Stmt:
            """Apply a step to the tiles of both operands, in one half of the buffers."""
            return seq(*map(do, halves[half], staging, self.tile_extents()))

        def fetch_block(block: PrimExpr) -> Stmt:
            """Fetch a block of both operands from global memory into registers."""
            return apply_to_both(lambda s, h, side: self.emit_prefetch_block(s, h, block, side), 0)

        def put_block(half: int) -> Stmt:
            """Put the fetched block into a half of the shared tiles."""
            return apply_to_both(lambda s, h, side: self.emit_store_block(s, h), half)

        def emit_block(block: PrimExpr, half: int) -> Stmt:
            """Emit the products of one block of k and the load of the next."""
            # Loads are issued before the products and stored behind them, which hides their
            # latency.
            is_next = block + 1 < count
            return seq(
                IfThenElse(is_next, fetch_block(block + 1)),
                steps(*halves[half]),
                IfThenElse(is_next, put_block(1 - half)),
                STORAGE_SYNC,
            )

        pair = Var("pair")
        body = seq(
            emit_block(pair * 2, 0), IfThenElse(pair * 2 + 1 < count, emit_block(pair * 2 + 1, 1))
        )
        pairs = serial_loop(pair, simplify((count + 1) // 2), body)
        pipeline = seq(fetch_block(const(0)), put_block(0), STORAGE_SYNC, pairs)
        return wrap_in_allocations(pipeline, staging), [s.buffer for half in halves for s in half]

    @staticmethod
    def stored_value(factor: PrimExpr) -> PrimExpr:
        """Return a factor in the form that shared memory holds."""
        return factor

    def emit_steps(self, left_tile: SharedTile, right_tile: SharedTile) -> Stmt:
        """Emit the multiply-adds of one block of k."""
        unit = max(s.read_width if s.is_k_contiguous else 1 for s in (left_tile, right_tile))
        step = Var("step")
        first = step * unit if unit > 1 else step
        registers = [
            self.operand_registers(s, n)
            for s, n in ((left_tile, self.rows), (right_tile, self.columns))
        ]
        a, b = (
            RegisterOperands(left_tile, [self.tile_row(i) for i in range(self.rows)], registers[0]),
            RegisterOperands(
                right_tile, [self.tile_column(j) for j in range(self.columns)], registers[1]
            ),
        )
        stmts: list[Stmt] = []
        for n in range(unit):
            stmts += [*a.emit_loads(first, n), *b.emit_loads(first, n)]
            stmts.append(self.emit_step(a.values(first, n), b.values(first, n)))
        register_buffers = [buffer for buffer in registers if buffer is not None]
        return serial_loop(
            step, self.depth // unit, wrap_in_allocations(seq(*stmts), register_buffers)
        )

    def operand_registers(self, tile: SharedTile, lines: int) -> Buffer | None:
        """Return the registers of wide operand reads, or None for scalar reads."""
        if tile.read_width == 1:
            return None
        count = lines * tile.read_width if tile.is_k_contiguous else lines
        return Buffer(f"{tile.buffer.name}_read", (const(count),), tile.value.dtype, "local")

    def emit_results(self) -> Stmt:
        """Emit the epilogue and the stores of the accumulators."""
        stores: list[Stmt] = []
        for i in range(self.rows):
            for j in range(0, self.columns, self.adjacent_columns):
                stores.append(self.emit_result_columns(i, j))
        return seq(*stores)

    def emit_result_columns(self, i: int, j: int) -> Stmt:
        """Emit one store of adjacent result columns from j on."""
        f, anchor, lane = self.factors, self.group.anchor.op, Var("lane")
        assert isinstance(anchor, ComputeOp)
        by: PrimExpr = lane if self.adjacent_columns > 1 else const(0)
        position = self.factors.axis_values(f.rows, self.global_row(i)) | self.factors.axis_values(
            f.columns, self.global_column(j) + by
        )
        position |= self.factors.axis_values(f.batch, self.block_z)
        value = BufferLoad(self.sums, (const(i * self.columns + j) + by,), self.dtype)
        store = self.group.emit_store([position[a.var] for a in anchor.axis], value)
        if self.adjacent_columns > 1:
            store = vector_loop(lane, self.adjacent_columns, store)
        # Widths of stores divide the number of columns: the first column decides for all of them.
        inside = logical_and(self.global_row(i) < self.m, self.global_column(j) < self.n)
        return IfThenElse(inside, store)

    def build(self, name: str, shared: bool) -> PrimFunc:
        """Build the PrimFunc."""
        sums, shared_buffers = (
            self.emit_k_blocks(self.emit_steps) if shared else (self.emit_unshared_nest(), [])
        )
        body = seq(self.emit_prologue(), sums, self.emit_results())
        body = wrap_in_allocations(body, [self.sums])
        return self.emit_launch(body, shared_buffers, name)

    def emit_launch(self, body: Stmt, shared_buffers: Sequence[Buffer], name: str) -> PrimFunc:
        """Emit the launch of a thread's body over all blocks and threads."""
        tiles_m = simplify((self.m + (self.tile_m - 1)) // self.tile_m)
        tiles_n = simplify((self.n + (self.tile_n - 1)) // self.tile_n)
        body = thread_loop(self.thread, self.threads, "threadIdx.x", body)
        body = wrap_in_allocations(
            body, shared_buffers
        )  # outside of threads: they have it together
        body = thread_loop(self.block_n, tiles_n, "blockIdx.x", body)
        body = thread_loop(self.block_m, tiles_m, "blockIdx.y", body)
        body = thread_loop(
            self.block_z, self.factors.num_elements(self.factors.batch), "blockIdx.z", body
        )
        return self.group.create_prim_func(body, name)


__all__ = ["SharedTile", "TiledMatmulKernel"]
