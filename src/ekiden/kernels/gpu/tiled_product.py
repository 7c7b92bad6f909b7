"""Tiles of sums of products: each thread of a block has some rows and columns, and reads what it
multiplies by itself or from shared memory, which all threads fill together.

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
from ekiden.kernels.decision import Decision, Fixed
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.factors import Factors, are_neighbours, factors_of
from ekiden.kernels.gpu.launch import Group, bound, serial, unrolled
from ekiden.kernels.gpu.vector_access import (
    access_width,
    coordinates,
    max_access_width,
    read_width,
    vector_loop,
)
from ekiden.kernels.prim_builder import product
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import BARRIER

MAX_HELD_BYTES = 128
"""Bytes of the next block of k that a thread may hold: 32 registers, beside the sums and what it
multiplies. Blocks of few threads would hold much more, and spill."""


@dataclass(frozen=True, slots=True)
class SharedTile:
    """Factor in shared memory: `tile` rows or columns by the depth of a block of k.

    Along k, elements are neighbours in shared memory if they are in the memory that they come from;
    else rows or columns are. Other elements are a pitch apart. The last two fields are the
    neighbours that a thread loads as one, and those that it reads from shared memory as one.
    """

    buffer: Buffer
    value: PrimExpr
    axes: Sequence[Var]
    tile: int
    pitch: int
    by_steps: bool
    near: int = 1
    read: int = 1

    def at(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """Return the index of an element."""
        if self.by_steps:
            return number * self.pitch + step
        return step * self.pitch + number

    def load(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """Load an element."""
        return BufferLoad(self.buffer, (self.at(number, step),), self.value.dtype)


@dataclass(frozen=True, slots=True)
class TileSide:
    """Where the rows or columns of a block begin, and where there are no more."""

    first: PrimExpr
    most: PrimExpr


Put: TypeAlias = Callable[[PrimExpr, PrimExpr], Stmt]
"""Puts a value somewhere, for a lane."""


@dataclass(frozen=True, slots=True)
class RegisterLines:
    """The rows or columns of a thread, of a factor in memory of the block, and the registers for
    what it reads as one."""

    share: SharedTile
    numbers: Sequence[PrimExpr]
    kept: Buffer | None

    def loaded(self, first: PrimExpr, step: int) -> list[Stmt]:
        """Return the loads that an iteration needs, of what earlier iterations have not loaded."""
        share, lane, loads = self.share, Var("lane"), []
        if self.kept is None or (share.by_steps and step % share.read):
            return []
        lines = (
            range(len(self.numbers)) if share.by_steps else range(0, len(self.numbers), share.read)
        )
        for n in lines:
            at = share.at(self.numbers[n], first + step) + lane
            value = BufferLoad(share.buffer, (at,), share.value.dtype)
            to = const(n * share.read if share.by_steps else n) + lane
            loads.append(vector_loop(lane, share.read, BufferStore(self.kept, value, (to,))))
        return loads

    def values(self, first: PrimExpr, step: int) -> list[PrimExpr]:
        """Return the values of an iteration."""
        share = self.share
        if self.kept is None:
            return [share.load(number, first + step) for number in self.numbers]
        stride = share.read if share.by_steps else 1
        at = [
            n * stride + (step % stride if share.by_steps else 0) for n in range(len(self.numbers))
        ]
        return [BufferLoad(self.kept, (const(n),), share.value.dtype) for n in at]


class TileKernel:
    """One program being built."""

    side = 1
    """Rows and columns of what rows, columns, lanes and lines count."""
    threads_each = 1
    """Threads of what lanes and lines count."""
    steps_each = 1
    """Steps of k of what depth counts."""
    gap = 1
    """Elements between lines of steps in memory of the block: then threads that read the same step
    of different lines read different banks."""

    def __init__(self, group: Group, decision: Decision) -> None:
        factors = factors_of(group.anchor)
        assert factors is not None
        self.group, self.factors = group, factors
        self.rows, self.columns, self.lanes, self.lines, self.depth = (
            decision.number(n) for n in ("rows", "columns", "lanes", "lines", "depth")
        )
        self.m, self.n = factors.size(factors.rows), factors.size(factors.columns)
        self.dtype = group.reduce.dtype
        self.near, self.buffers = (int(decision.get(n, 1)) for n in ("near", "buffers"))
        self.shared = bool(decision.number("shared"))
        self.adjacent_rows, self.beside = self.neighbours() if self.near > 1 else (1, 1)
        count = const(self.rows * self.columns)
        self.sums = Buffer("sums", (count,), self.dtype, "local")
        self.thread = Var("thread")
        self.block_m, self.block_n, self.block_z = Var("tile"), Var("part"), Var("batch")

    @classmethod
    def with_memory(cls, factors: Factors, target: Target, values: Fixed) -> Decision:
        """Complete a decision by knobs of shared memory.

        Neighbours are accessed as one where the target's threads can. There are two buffers where
        threads run together, there is more than a block of k, and a block has the room.

        Args:
            factors: The sum of products.
            target: The device.
            found: The values of the other knobs, and overrides.
        """
        completed = {"near": 1, "buffers": 1, **values}
        if not values["shared"] or target.thread_warp_size == 1:
            return Decision.of(completed)
        if "near" not in values:
            completed["near"] = cls.max_access_width(target, factors)
        depth = size_of(factors.depth)
        if "buffers" not in values and (
            depth is None or depth > int(completed["depth"]) * cls.steps_each
        ):
            decision = Decision.of(completed | {"buffers": 2})
            # Held blocks must stay in registers: spills would cost more than a barrier saves.
            has_room = cls.shared_bytes(factors, decision) <= target.block_memory
            completed["buffers"] = (
                2 if has_room and cls.held_bytes(factors, decision) <= MAX_HELD_BYTES else 1
            )
        return Decision.of(completed)

    @classmethod
    def max_access_width(cls, target: Target, factors: Factors) -> int:
        """Neighbours of both factors that threads access as one, at most."""
        return max_access_width(target, cls.kept(factors.a).dtype, cls.kept(factors.b).dtype)

    @classmethod
    def shared_bytes(cls, factors: Factors, decision: Decision) -> int:
        """Bytes of memory of a block that a kernel takes, at most."""
        rows, columns, lines, lanes, depth, buffers = (
            decision.number(n) for n in ("rows", "columns", "lines", "lanes", "depth", "buffers")
        )
        size = 0
        for factor, tile in ((factors.a, rows * lines), (factors.b, columns * lanes)):
            tile *= cls.side
            room = tile * depth + max(tile, depth) * max(cls.gap, decision.number("near"))
            size += room * dt.itemsize(cls.kept(factor).dtype)
        return buffers * size + cls.beyond(rows * lines * cls.side, columns * lanes * cls.side)

    @classmethod
    def held_bytes(cls, factors: Factors, decision: Decision) -> int:
        """Bytes of registers in which a thread holds what it brings of a block of k."""
        rows, columns, lines, lanes, depth = (
            decision.number(n) for n in ("rows", "columns", "lines", "lanes", "depth")
        )
        factor_tiles = ((factors.a, rows * lines), (factors.b, columns * lanes))
        size = sum(tile * dt.itemsize(cls.kept(factor).dtype) for factor, tile in factor_tiles)
        return -(-size * cls.side * depth // (lines * lanes * cls.threads_each))

    @staticmethod
    def beyond(tile_m: int, tile_n: int) -> int:
        """Bytes of a block beside its factors."""
        return 0

    def checked(self, target: Target) -> Self:
        """Check the kernel against a target, and return it.

        Raises:
            CompileError: For what the target does not have, or not enough of.
        """
        if not self.shared and (self.near > 1 or self.buffers > 1):
            raise CompileError("near and buffers are about memory of the block, of shared=1")
        if self.near > (max_width := self.max_access_width(target, self.factors)):
            dtypes = [self.kept(factor).dtype for factor in (self.factors.a, self.factors.b)]
            raise CompileError(
                f"threads of target {str(target)!r} access at most {max_width} neighbours of "
                f"{' and '.join(dict.fromkeys(dtypes))} as one"
            )
        size = self.beyond(self.tile_m, self.tile_n) if self.shared else 0
        for share in self.shares() if self.shared else ():
            (count,) = share.buffer.shape
            assert isinstance(count, IntImm)
            size += count.value * dt.itemsize(share.value.dtype) * self.buffers
        if size > target.block_memory:
            raise CompileError(
                f"a block takes {size} bytes of memory, of which target {str(target)!r} has "
                f"{target.block_memory}"
            )
        return self

    def neighbours(self) -> tuple[int, int]:
        """Rows and columns of a thread that lie beside each other: what it reads as one of memory
        of the block, and of columns writes as one too, else neighbouring threads write them."""
        f = self.factors
        rows = 1 if self.lies_by_steps(f.a) else math.gcd(self.near, self.rows)
        columns = 1 if self.lies_by_steps(f.b) else math.gcd(self.near, self.columns)
        return rows, self.written(columns)

    def written(self, limit: int) -> int:
        """Columns of the result that are written as one."""
        f, output = self.factors, self.group.output
        if limit == 1 or dt.is_small(output.dtype) or output.dtype == "bool":
            return 1
        anchor = self.group.anchor.op
        assert isinstance(anchor, ComputeOp)
        extents = [f.extents[v] for v in f.columns]
        access = (output.shape, [a.var for a in anchor.axis])
        return access_width([access], f.columns, extents, limit)

    def lies_by_steps(self, factor: PrimExpr) -> bool:
        """Return whether consecutive k are neighbours in the memory that a factor comes from."""
        step = Var("step")
        return are_neighbours(factor, {self.group.reduce.axis[-1]: step}, step)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.lines

    @property
    def tile_m(self) -> int:
        """Rows of a block."""
        return self.rows * self.lines

    @property
    def tile_n(self) -> int:
        """Columns of a block."""
        return self.columns * self.lanes

    def row(self, i: int) -> PrimExpr:
        """Row i of this thread."""
        return self.block_m * self.tile_m + self.own_row(i)

    def own_row(self, i: int) -> PrimExpr:
        """Return row i of this thread in the tile of the block."""
        beside = self.adjacent_rows
        own = self.thread // self.lanes * beside + i % beside
        return own + i // beside * (self.lines * beside)

    def column(self, j: int) -> PrimExpr:
        """Column j of this thread."""
        return self.block_n * self.tile_n + self.own_column(j)

    def own_column(self, j: int) -> PrimExpr:
        """Return column j of this thread in the tile of the block."""
        own = self.thread % self.lanes * self.beside + j % self.beside
        return own + j // self.beside * (self.lanes * self.beside)

    def places(self, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
        """Axes at the element of a number."""
        at = coordinates(number, [self.factors.extents[v] for v in axes]) if axes else []
        return dict(zip(axes, at, strict=True))

    def factor(self, value: PrimExpr, axes: Sequence[Var], number: PrimExpr, k: object) -> PrimExpr:
        """Return a factor at an element of its axes and values of k."""
        assert isinstance(k, dict)
        at = self.places(axes, number) | self.places(self.factors.batch, self.block_z) | k
        return self.group.element(value, at)

    def start(self) -> Stmt:
        """Set all sums to 0."""
        count = self.rows * self.columns
        zero = const(0, self.dtype)
        return seq(*(BufferStore(self.sums, zero, (const(i),)) for i in range(count)))

    def step(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Add its product to every sum."""
        names_a = [Var(f"a{i}", e.dtype) for i, e in enumerate(a)]
        names_b = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        stores: list[Stmt] = []
        for i, x in enumerate(names_a):
            for j, y in enumerate(names_b):
                at = (const(i * self.columns + j),)
                stores.append(
                    BufferStore(self.sums, BufferLoad(self.sums, at, self.dtype) + x * y, at)
                )
        body = seq(*stores)
        for name, value in reversed([*zip(names_a, a, strict=True), *zip(names_b, b, strict=True)]):
            body = LetStmt(name, value, body)
        return body

    def alone(self) -> Stmt:
        """Return the nest in which each thread reads what it needs; beyond the last row and column,
        the last again.
        """
        axes = self.group.reduce.axis
        names: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        f = self.factors
        # Clamped reads are always valid; only the stores need a guard.
        rows = [minimum(self.row(i), self.m - 1) for i in range(self.rows)]
        columns = [minimum(self.column(j), self.n - 1) for j in range(self.columns)]
        a = [self.factor(f.a, f.rows, at, names) for at in rows]
        b = [self.factor(f.b, f.columns, at, names) for at in columns]
        body = self.step(a, b)
        for r in reversed(axes):
            var = names[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body

    def share(
        self, name: str, value: PrimExpr, axes: Sequence[Var], tile: int, beside: int = 1
    ) -> SharedTile:
        """Return the shared memory for a factor.

        Args:
            name: The name of the buffer.
            value: The factor.
            axes: Its rows or columns.
            tile: Rows or columns of a block.
            beside: Neighbouring rows or columns that a thread reads as one.
        """
        reduced, by_steps = self.group.reduce.axis, self.lies_by_steps(value)
        line = self.depth if by_steps else tile
        own = {v: self.factors.extents[v] for v in axes}
        contiguous_axes = {r.var: r.extent for r in reduced} if by_steps else own
        near = read_width(
            value, list(contiguous_axes), list(contiguous_axes.values()), math.gcd(self.near, line)
        )
        read = math.gcd(self.near, self.depth) if by_steps else beside
        pitch = self.pitch_of(line, read) if by_steps else tile + self.gap // 8 * 8
        count = (tile if by_steps else self.depth) * pitch
        buffer = Buffer(name, (const(count),), value.dtype, "shared")
        return SharedTile(buffer, value, axes, tile, pitch, by_steps, near, read)

    def pitch_of(self, line: int, read: int) -> int:
        """Return the pitch of lines of k.

        Threads that read the same k of different lines read different banks, if what they read as
        one does not begin at an even multiple of it.
        """
        return line + self.gap if read == 1 else line + read * (line // read % 2 == 0)

    def element(
        self, share: SharedTile, round_index: PrimExpr
    ) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Return what a thread loads in a round: its number among all, the first k, and the row or
        column.
        """
        at = round_index * self.threads + self.thread
        if share.by_steps:
            line = self.depth // share.near
            return at, at % line * share.near, at // line
        line = share.tile // share.near
        return at, at // line, at % line * share.near

    def turns(self, share: SharedTile) -> int:
        """Return the number of loads of a thread per block of k."""
        return -(-self.depth * share.tile // (share.near * self.threads))

    def guarded(self, share: SharedTile, at: PrimExpr, body: Stmt) -> Stmt:
        """Guard the body of a round in which not all threads may have an element."""
        count = self.depth * share.tile // share.near
        return body if count % self.threads == 0 else IfThenElse(at < count, body)

    def read(
        self, share: SharedTile, round_index: PrimExpr, block: PrimExpr, side: TileSide, put: Put
    ) -> Stmt:
        """Read what a thread brings in a turn, and put it somewhere; 0 stands for what there is
        not."""
        reduced = self.group.reduce.axis
        extents, lane = [r.extent for r in reduced], Var("lane")
        at, step, number = self.element(share, round_index)
        k, line_index = block * self.depth + step, side.first + number
        # Zeros behind the end add nothing to the sums, so the products need no guard.
        inside = logical_and(k < simplify(product(extents)), line_index < side.most)
        by = lane if share.near > 1 else const(0)
        k, line_index = (k + by, line_index) if share.by_steps else (k, line_index + by)
        steps = dict(zip(reduced, coordinates(k, extents), strict=True))
        value, zero = (
            self.factor(share.value, share.axes, line_index, steps),
            const(0, share.value.dtype),
        )
        if share.near == 1:
            return self.guarded(share, at, put(by, if_then_else(inside, value, zero)))
        sides = [vector_loop(lane, share.near, put(lane, v)) for v in (value, zero)]
        return self.guarded(share, at, IfThenElse(inside, *sides))

    def bring(self, share: SharedTile, block: PrimExpr, first: PrimExpr, extent: PrimExpr) -> Stmt:
        """Load a block of k to shared memory by all threads."""
        round_index, side = Var("turn"), TileSide(first, extent)
        _, step, number = self.element(share, round_index)

        def direct(lane: PrimExpr, value: PrimExpr) -> Stmt:
            return BufferStore(share.buffer, value, (share.at(number, step) + lane,))

        if share.near == 1:
            return serial(
                round_index, self.turns(share), self.read(share, round_index, block, side, direct)
            )
        held = Buffer(f"{share.buffer.name}_held", (const(share.near),), share.value.dtype, "local")

        def hold(lane: PrimExpr, value: PrimExpr) -> Stmt:
            return BufferStore(held, value, (lane,))

        # one statement writes memory of the block: between two, threads would wait for each other
        read = self.read(share, round_index, block, side, hold)
        body = seq(read, self.placed(share, round_index, held, const(0)))
        return serial(round_index, self.turns(share), allocated(body, [held]))

    def held(self, share: SharedTile) -> Buffer:
        """Return the registers for what a thread loads of a block of k."""
        count = const(self.turns(share) * share.near)
        return Buffer(f"{share.buffer.name}_held", (count,), share.value.dtype, "local")

    def fetch(self, share: SharedTile, held: Buffer, block: PrimExpr, side: TileSide) -> Stmt:
        """Load a block of k to registers of each thread."""
        round_index = Var("turn")

        def put(lane: PrimExpr, value: PrimExpr) -> Stmt:
            return BufferStore(held, value, (round_index * share.near + lane,))

        return unrolled(
            round_index, self.turns(share), self.read(share, round_index, block, side, put)
        )

    def put(self, share: SharedTile, held: Buffer) -> Stmt:
        """Store a block of k from registers to shared memory."""
        round_index = Var("turn")
        body = self.placed(share, round_index, held, round_index * share.near)
        return unrolled(round_index, self.turns(share), body)

    def placed(
        self, share: SharedTile, round_index: PrimExpr, held: Buffer, first: PrimExpr
    ) -> Stmt:
        """Store what a thread has loaded in a round, in registers from `first` on, to shared
        memory.
        """
        at, step, number = self.element(share, round_index)
        lane = Var("lane")
        by: PrimExpr = lane if share.near > 1 else const(0)
        value = BufferLoad(held, (first + by,), share.value.dtype)
        body: Stmt = BufferStore(share.buffer, value, (share.at(number, step) + by,))
        body = vector_loop(lane, share.near, body) if share.near > 1 else body
        return self.guarded(share, at, body)

    def sides(self) -> tuple[TileSide, TileSide]:
        """Return the beginnings of a block's tiles, and the extents of rows and columns."""
        return (
            TileSide(self.block_m * self.tile_m, self.m),
            TileSide(self.block_n * self.tile_n, self.n),
        )

    def shares(self, ends: str = "") -> tuple[SharedTile, SharedTile]:
        """Return the shared memory for both factors."""
        f = self.factors
        return (
            self.share(f"left{ends}", self.kept(f.a), f.rows, self.tile_m, self.adjacent_rows),
            self.share(f"right{ends}", self.kept(f.b), f.columns, self.tile_n, self.beside),
        )

    def blocks(self, steps: Callable[[SharedTile, SharedTile], Stmt]) -> tuple[Stmt, list[Buffer]]:
        """Run `steps` for each block of k in shared memory, and return that memory too."""
        total = simplify(product([r.extent for r in self.group.reduce.axis]))
        count = simplify((total + (self.depth - 1)) // self.depth)
        if self.buffers == 2:
            return self.double_buffered(steps, count)
        block, (left_tile, right_tile), (rows, columns) = Var("block"), self.shares(), self.sides()
        body = seq(
            self.bring(left_tile, block, rows.first, rows.most),
            self.bring(right_tile, block, columns.first, columns.most),
            BARRIER,
            steps(left_tile, right_tile),
            BARRIER,
        )
        return serial(block, count, body), [left_tile.buffer, right_tile.buffer]

    def double_buffered(
        self, steps: Callable[[SharedTile, SharedTile], Stmt], count: PrimExpr
    ) -> tuple[Stmt, list[Buffer]]:
        """Run `steps` with two buffers of each factor: while one is read, the next block
        is loaded.
        """
        halves = self.shares(), self.shares("_next")
        held = [self.held(s) for s in halves[0]]

        def for_both(do: Callable[[SharedTile, Buffer, TileSide], Stmt], half: int) -> Stmt:
            return seq(*map(do, halves[half], held, self.sides()))

        def fetch(block: PrimExpr) -> Stmt:
            return for_both(lambda s, h, side: self.fetch(s, h, block, side), 0)

        def put(half: int) -> Stmt:
            return for_both(lambda s, h, side: self.put(s, h), half)

        def run_block(block: PrimExpr, half: int) -> Stmt:
            """Multiply one block of k, and load the next one meanwhile."""
            # Loads are issued before the products and stored behind them, which hides their
            # latency.
            is_next = block + 1 < count
            return seq(
                IfThenElse(is_next, fetch(block + 1)),
                steps(*halves[half]),
                IfThenElse(is_next, put(1 - half)),
                BARRIER,
            )

        pair = Var("pair")
        body = seq(
            run_block(pair * 2, 0), IfThenElse(pair * 2 + 1 < count, run_block(pair * 2 + 1, 1))
        )
        pairs = serial(pair, simplify((count + 1) // 2), body)
        pipeline = seq(fetch(const(0)), put(0), BARRIER, pairs)
        return allocated(pipeline, held), [s.buffer for half in halves for s in half]

    @staticmethod
    def kept(factor: PrimExpr) -> PrimExpr:
        """Return the form of a factor in shared memory."""
        return factor

    def steps(self, left_tile: SharedTile, right_tile: SharedTile) -> Stmt:
        """Return the products of a block of k."""
        unit = max(s.read if s.by_steps else 1 for s in (left_tile, right_tile))
        step = Var("step")
        first = step * unit if unit > 1 else step
        registers = [
            self.registers(s, n) for s, n in ((left_tile, self.rows), (right_tile, self.columns))
        ]
        a, b = (
            RegisterLines(left_tile, [self.own_row(i) for i in range(self.rows)], registers[0]),
            RegisterLines(
                right_tile, [self.own_column(j) for j in range(self.columns)], registers[1]
            ),
        )
        stmts: list[Stmt] = []
        for n in range(unit):
            stmts += [*a.loaded(first, n), *b.loaded(first, n)]
            stmts.append(self.step(a.values(first, n), b.values(first, n)))
        own = [buffer for buffer in registers if buffer is not None]
        return serial(step, self.depth // unit, allocated(seq(*stmts), own))

    def registers(self, share: SharedTile, lines: int) -> Buffer | None:
        """Return the registers for neighbours that a thread reads as one; None if it reads single
        elements.
        """
        if share.read == 1:
            return None
        count = lines * share.read if share.by_steps else lines
        return Buffer(f"{share.buffer.name}_read", (const(count),), share.value.dtype, "local")

    def finish(self) -> Stmt:
        """Apply what follows the sums, and store."""
        stores: list[Stmt] = []
        for i in range(self.rows):
            for j in range(0, self.columns, self.beside):
                stores.append(self.ended(i, j))
        return seq(*stores)

    def ended(self, i: int, j: int) -> Stmt:
        """Store the columns from j on that are written as one."""
        f, anchor, lane = self.factors, self.group.anchor.op, Var("lane")
        assert isinstance(anchor, ComputeOp)
        by: PrimExpr = lane if self.beside > 1 else const(0)
        at = self.places(f.rows, self.row(i)) | self.places(f.columns, self.column(j) + by)
        at |= self.places(f.batch, self.block_z)
        value = BufferLoad(self.sums, (const(i * self.columns + j) + by,), self.dtype)
        store = self.group.store([at[a.var] for a in anchor.axis], value)
        store = vector_loop(lane, self.beside, store) if self.beside > 1 else store
        inside = logical_and(self.row(i) < self.m, self.column(j) < self.n)
        return IfThenElse(inside, store)

    def build(self, name: str, shared: bool) -> PrimFunc:
        """Build the program."""
        sums, shared_buffers = self.blocks(self.steps) if shared else (self.alone(), [])
        body = allocated(seq(self.start(), sums, self.finish()), [self.sums])
        return self.launched(body, shared_buffers, name)

    def launched(self, body: Stmt, shared_buffers: Sequence[Buffer], name: str) -> PrimFunc:
        """Launch the body of a thread for all threads."""
        tiles_m = simplify((self.m + (self.tile_m - 1)) // self.tile_m)
        tiles_n = simplify((self.n + (self.tile_n - 1)) // self.tile_n)
        body = bound(self.thread, self.threads, "threadIdx.x", body)
        body = allocated(body, shared_buffers)  # outside of threads: they have it together
        body = bound(self.block_n, tiles_n, "blockIdx.x", body)
        body = bound(self.block_m, tiles_m, "blockIdx.y", body)
        body = bound(self.block_z, self.factors.size(self.factors.batch), "blockIdx.z", body)
        return self.group.function(body, name)


__all__ = ["SharedTile", "TileKernel"]
