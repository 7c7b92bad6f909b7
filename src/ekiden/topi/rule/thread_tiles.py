"""Tiles of sums of products: each thread of a block has some rows and columns, and reads what it
multiplies by itself or from memory of the block, where all bring their share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, const, logical_and, minimum
from ekiden.runtime.late_methods import dataclass
from ekiden.te.prim_func import allocated
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import BARRIER
from ekiden.topi.rule.decision import Decision
from ekiden.topi.rule.loops import product
from ekiden.topi.rule.thread_factors import are_neighbours, factors_of
from ekiden.topi.rule.thread_lanes import coordinates
from ekiden.topi.rule.thread_parts import Group, bound, serial


@dataclass(frozen=True, slots=True)
class Share:
    """A factor in memory of the block: `tile` rows or columns by the steps of a block of k.

    by_steps: whether steps are neighbours there, as they are in the memory that it comes from, else
    rows or columns; pitch: how far apart what is no neighbour lies.
    """

    buffer: Buffer
    value: PrimExpr
    axes: Sequence[Var]
    tile: int
    pitch: int
    by_steps: bool

    def at(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """Where an element is."""
        if self.by_steps:
            return number * self.pitch + step
        return step * self.pitch + number

    def load(self, number: PrimExpr, step: PrimExpr) -> PrimExpr:
        """The element."""
        return BufferLoad(self.buffer, (self.at(number, step),), self.value.dtype)


class TileKernel:
    """One program being built."""

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
        count = const(self.rows * self.columns)
        self.sums = Buffer("sums", (count,), self.dtype, "local")
        self.thread = Var("thread")
        self.block_m, self.block_n, self.block_z = Var("tile"), Var("part"), Var("batch")

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
        """The same in the tile of the block."""
        return self.thread // self.lanes + i * self.lines

    def column(self, j: int) -> PrimExpr:
        """Column j of this thread."""
        return self.block_n * self.tile_n + self.own_column(j)

    def own_column(self, j: int) -> PrimExpr:
        """The same in the tile of the block."""
        return self.thread % self.lanes + j * self.lanes

    def places(self, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
        """Axes at the element of a number."""
        at = coordinates(number, [self.factors.extents[v] for v in axes]) if axes else []
        return dict(zip(axes, at, strict=True))

    def factor(self, value: PrimExpr, axes: Sequence[Var], number: PrimExpr, k: object) -> PrimExpr:
        """A factor at an element of its axes and a step."""
        assert isinstance(k, dict)
        at = self.places(axes, number) | self.places(self.factors.batch, self.block_z) | k
        return self.group.element(value, at)

    def start(self) -> Stmt:
        """All sums are 0."""
        count = self.rows * self.columns
        zero = const(0, self.dtype)
        return seq(*(BufferStore(self.sums, zero, (const(i),)) for i in range(count)))

    def step(self, a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Stmt:
        """Every sum gets its product."""
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
        """Each thread reads what it needs; beyond the last row and column the last again."""
        axes = self.group.reduce.axis
        names: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        f = self.factors
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

    def share(self, name: str, value: PrimExpr, axes: Sequence[Var], tile: int) -> Share:
        """The memory of the block for a factor."""
        by_steps = self.lies_by_steps(value)
        pitch = self.depth + self.gap if by_steps else tile + self.gap // 8 * 8
        count = (tile if by_steps else self.depth) * pitch
        buffer = Buffer(name, (const(count),), value.dtype, "shared")
        return Share(buffer, value, axes, tile, pitch, by_steps)

    def lies_by_steps(self, factor: PrimExpr) -> bool:
        """Whether steps are neighbours in the memory that a factor comes from."""
        step = Var("step")
        return are_neighbours(factor, {self.group.reduce.axis[-1]: step}, step)

    def bring(self, share: Share, block: Var, first: PrimExpr, most: PrimExpr) -> Stmt:
        """Every thread brings its part of a block of k; 0 stands for what there is not."""
        reduced = self.group.reduce.axis
        extents = [r.extent for r in reduced]
        turn, count = Var("turn"), self.depth * share.tile
        at = turn * self.threads + self.thread
        if share.by_steps:
            step, number = at % self.depth, at // self.depth
        else:
            step, number = at // share.tile, at % share.tile
        k, place = block * self.depth + step, first + number
        steps = dict(zip(reduced, coordinates(k, extents), strict=True))
        inside = logical_and(k < simplify(product(extents)), place < most)
        read = self.factor(share.value, share.axes, place, steps)
        value = if_then_else(inside, read, const(0, share.value.dtype))
        store = BufferStore(share.buffer, value, (share.at(number, step),))
        guarded = store if count % self.threads == 0 else IfThenElse(at < count, store)
        return serial(turn, -(-count // self.threads), guarded)

    def blocks(self, steps: Callable[[Share, Share], Stmt]) -> tuple[Stmt, list[Buffer]]:
        """What is done with each block of k that is in memory of the block, and that memory."""
        f, block = self.factors, Var("block")
        left = self.share("left", self.kept(f.a), f.rows, self.tile_m)
        right = self.share("right", self.kept(f.b), f.columns, self.tile_n)
        body = seq(
            self.bring(left, block, self.block_m * self.tile_m, self.m),
            self.bring(right, block, self.block_n * self.tile_n, self.n),
            BARRIER,
            steps(left, right),
            BARRIER,
        )
        total = simplify(product([r.extent for r in self.group.reduce.axis]))
        count = simplify((total + (self.depth - 1)) // self.depth)
        return serial(block, count, body), [left.buffer, right.buffer]

    def kept(self, factor: PrimExpr) -> PrimExpr:
        """What memory of the block has of a factor."""
        return factor

    def steps(self, left: Share, right: Share) -> Stmt:
        """The products of a block of k."""
        step = Var("step")
        a = [left.load(self.own_row(i), step) for i in range(self.rows)]
        b = [right.load(self.own_column(j), step) for j in range(self.columns)]
        return serial(step, self.depth, self.step(a, b))

    def finish(self) -> Stmt:
        """What follows the sums, and the stores."""
        f, anchor = self.factors, self.group.anchor.op
        assert isinstance(anchor, ComputeOp)
        stores: list[Stmt] = []
        for i in range(self.rows):
            for j in range(self.columns):
                at = self.places(f.rows, self.row(i)) | self.places(f.columns, self.column(j))
                at |= self.places(f.batch, self.block_z)
                value = BufferLoad(self.sums, (const(i * self.columns + j),), self.dtype)
                store = self.group.store([at[a.var] for a in anchor.axis], value)
                inside = logical_and(self.row(i) < self.m, self.column(j) < self.n)
                stores.append(IfThenElse(inside, store))
        return seq(*stores)

    def build(self, name: str, shared: bool) -> PrimFunc:
        """The program."""
        sums, kept = self.blocks(self.steps) if shared else (self.alone(), [])
        body = allocated(seq(self.start(), sums, self.finish()), [self.sums])
        return self.launched(body, kept, name)

    def launched(self, body: Stmt, kept: Sequence[Buffer], name: str) -> PrimFunc:
        """What a thread does, by all threads; `kept` is memory of the block."""
        tiles_m = simplify((self.m + (self.tile_m - 1)) // self.tile_m)
        tiles_n = simplify((self.n + (self.tile_n - 1)) // self.tile_n)
        body = bound(self.thread, self.threads, "threadIdx.x", body)
        body = allocated(body, kept)  # outside of threads: they have it together
        body = bound(self.block_n, tiles_n, "blockIdx.x", body)
        body = bound(self.block_m, tiles_m, "blockIdx.y", body)
        body = bound(self.block_z, self.factors.size(self.factors.batch), "blockIdx.z", body)
        return self.group.function(body, name)


__all__ = ["Share", "TileKernel"]
