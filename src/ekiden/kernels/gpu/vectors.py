"""Sums of products on devices whose threads run one after the other and compute with vectors, as
processors do: no memory of a block, no barriers, sums in registers.

    along=columns   for k: sums[i, j : j + 16] += a[i, k] * b[j : j + 16, k]
    along=depth     for k in steps of 16: sums[i, j, :] += a[i, k : k + 16] * b[j, k : k + 16]
                    out[i, j] = sum of sums[i, j, :]

The last tile of rows or columns ends with them: it begins inside of the one before, and computes
what both have once more. So nothing is read or written under a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const, is_const, minimum
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.factors import Factors, are_neighbours, factors_of
from ekiden.kernels.gpu.lanes import coordinates, first_of, lanes_of
from ekiden.kernels.gpu.parts import Group, bound, serial
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.visitor import substitute as substitute_statement

COLUMNS, DEPTH = "columns", "depth"
TILES = (12, 8, 6, 4, 3, 2, 1)
LARGE = 1024
"""Stands for an extent that only a run knows."""
LEAST_GATHERED = 4
"""Lanes that are worth being brought together one by one."""


def columns_of(factors: Factors) -> tuple[Var, ...]:
    """The axes that vectors of columns run over: the last ones, as many as elements are neighbours
    across."""
    step, columns = Var("step"), factors.columns
    for first in range(len(columns) - 1):
        if are_neighbours(factors.b, _over(factors, columns[first:], step), step):
            return columns[first:]
    return columns[-1:]


def _over(factors: Factors, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
    """Axes at the element of a number."""
    at = coordinates(number, [factors.extents[v] for v in axes])
    return dict(zip(axes, at, strict=True))


def way_of(factors: Factors, most: int) -> tuple[str, int]:
    """Along what vectors of up to so many lanes lie, and how many they have: 1 for none."""
    step, axes = Var("step"), columns_of(factors)
    columns = lanes_of(most, size_of(factors.size(axes)) if axes else 1)
    is_near = bool(axes) and are_neighbours(factors.b, _over(factors, axes, step), step)
    if is_near and columns > 1:
        return COLUMNS, columns
    last = factors.reduce.axis[-1]
    depth = lanes_of(most, size_of(last.extent) or most)
    if depth > 1 and all(are_neighbours(x, {last: step}, step) for x in (factors.a, factors.b)):
        return DEPTH, depth
    return COLUMNS, columns if columns >= LEAST_GATHERED else 1


def tile_of(target: Target, rows: int | None, columns: int | None) -> tuple[int, int]:
    """Rows and columns (or vectors of them) of a thread: as many sums as stay in registers beside
    what one step multiplies, of the shape that takes least for all of the result, if a load takes
    half of a multiply-add."""

    def fits(r: int, c: int) -> bool:
        """Whether sums and what a step multiplies fit the registers, and the tile the result."""
        fewer = (rows is None or r <= rows) and (columns is None or c <= columns)
        return fewer and r * c + c + 1 < target.registers

    def work(shape: tuple[int, int]) -> tuple[int, int]:
        """What all tiles take: two for each multiply-add and one for each load; the higher tile of
        equals.
        """
        r, c = shape
        tiles = -(-(rows or LARGE) // r) * -(-(columns or LARGE) // c)
        return tiles * (2 * r * c + r + c), -r

    return min(((r, c) for r in TILES for c in TILES if fits(r, c)), key=work, default=(1, 1))


def band_of(target: Target, rows: int, tiles: int | None, depth: int | None, dtype: str) -> int:
    """Tiles of rows that are done with some columns before the next: as many as half of the second
    cache holds the rows of, so that they come from there for all columns; 0 for all."""
    if tiles is None or depth is None:
        return 0
    most = target.l2 // 2 // max(rows * depth * dt.itemsize(dtype), 1)
    band = 1 << max(most, 1).bit_length() - 1
    return 0 if band >= tiles else band


class VectorKernel:
    """One program being built."""

    def __init__(self, group: Group, decision: Decision) -> None:
        factors = factors_of(group.anchor)
        assert factors is not None
        self.group, self.factors = group, factors
        self.rows, self.columns, self.lanes = (
            decision.number(n) for n in ("rows", "columns", "vector")
        )
        self.along, self.band = str(decision["along"]), decision.number("band")
        self.inner = self.inner_of(factors)
        self.outer = factors.columns[: len(factors.columns) - len(self.inner)]
        self.dtype = group.reduce.dtype
        self.width = self.columns * (self.lanes if self.along == COLUMNS else 1)
        self.m, self.n = factors.size(factors.rows), factors.size(self.inner)
        tiles = size_of(self.tiles_m)
        if self.band and tiles:  # of all bands the same
            self.band = -(-tiles // -(-tiles // self.band))
        known = size_of(self.n)
        if self.along == COLUMNS and (known is None or known < self.width):
            raise CompileError(
                f"decisions: 'thread_product' {decision}: {self.width} columns of a thread, of "
                f"which there are {'an unknown number' if known is None else known}"
            )
        self.block_m, self.block_n = Var("tile"), Var("part")
        self.block, self.number = Var("block"), Var("band")
        self.lines = factors.size(self.outer)
        count = self.rows * self.columns * self.lanes
        self.sums = Buffer("sums", (const(count),), self.dtype, "local")
        self.rest = Buffer("rest", (const(self.rows * self.columns),), self.dtype, "local")

    def inner_of(self, factors: Factors) -> tuple[Var, ...]:
        """The axes that tiles of columns run over."""
        return columns_of(factors) if self.along == COLUMNS else factors.columns

    def row(self, i: int) -> PrimExpr:
        """Row i of this thread; of fewer than it has, the last again."""
        size = size_of(self.m)
        at = first_of(self.block_m, self.rows, self.m) + i
        return at if size is not None and size >= self.rows else minimum(at, self.m - 1)

    def column(self, j: int) -> PrimExpr:
        """Column j of this thread, likewise."""
        size = size_of(self.n)
        at = first_of(self.block_n, self.width, self.n) + j
        return at if size is not None and size >= self.width else minimum(at, self.n - 1)

    def around(self) -> dict[Var, PrimExpr]:
        """The axes that no tile runs over."""
        f = self.factors
        batch, line = coordinates(self.block, [f.size(f.batch), self.lines])
        return _over(f, f.batch, batch) | _over(f, self.outer, line)

    def factor_a(self, i: int, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """The factor of a row at a step."""
        f = self.factors
        return self.group.element(f.a, _over(f, f.rows, self.row(i)) | self.around() | dict(k))

    def factor_b(self, column: PrimExpr, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """The factor of a column at a step."""
        f = self.factors
        return self.group.element(f.b, _over(f, self.inner, column) | self.around() | dict(k))

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """Rows, columns (or vectors of them), and the number of their sum."""
        for i in range(self.rows):
            for j in range(self.columns):
                yield i, j, i * self.columns + j

    def sum_at(self, number: int, lane: PrimExpr) -> PrimExpr:
        """The index of a lane of a sum."""
        return const(number * self.lanes) + lane

    def vector(self, lane: Var, body: Stmt) -> Stmt:
        """For all lanes at once."""
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, body)

    def added(self, number: int, lane: PrimExpr, value: PrimExpr) -> Stmt:
        """A sum gets a product."""
        at = (self.sum_at(number, lane),)
        return BufferStore(self.sums, BufferLoad(self.sums, at, self.dtype) + value, at)

    def start(self) -> Stmt:
        """All sums are 0."""
        zeros: list[Stmt] = []
        for _, _, number in self.pairs():
            lane = Var("lane")
            store = BufferStore(self.sums, const(0, self.dtype), (self.sum_at(number, lane),))
            zeros.append(self.vector(lane, store))
        return seq(*zeros)

    def step_of_columns(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """Vectors of columns with elements of rows."""
        lane = Var("lane")
        first = self.column(0) + lane
        b = [self.factor_b(first + j * self.lanes, k) for j in range(self.columns)]
        return self.vector(lane, self.products(lane, b, k))

    def step_of_depth(self, k: Mapping[Var, PrimExpr], axis: Var) -> Stmt:
        """Vectors of columns with those of rows."""
        lane = Var("lane")
        at = dict(k) | {axis: k[axis] + lane}
        b = [self.factor_b(self.column(j), at) for j in range(self.columns)]
        return self.vector(lane, self.products(lane, b, at))

    def products(self, lane: Var, b: Sequence[PrimExpr], k: Mapping[Var, PrimExpr]) -> Stmt:
        """All sums get a product: registers hold what columns have, and of rows one at a time."""
        names = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        parts: list[Stmt] = []
        for i in range(self.rows):
            value = self.factor_a(i, k)
            a = Var(f"a{i}", value.dtype)
            sums = [self.added(i * self.columns + j, lane, a * y) for j, y in enumerate(names)]
            parts.append(LetStmt(a, value, seq(*sums)))
        return _lets(zip(names, b, strict=True), seq(*parts))

    def step_of_rest(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """What no vector has of the depth."""
        stores: list[Stmt] = []
        for i, j, number in self.pairs():
            at = (const(number),)
            value = self.factor_a(i, k) * self.factor_b(self.column(j), k)
            old = BufferLoad(self.rest, at, self.dtype)
            stores.append(BufferStore(self.rest, old + value, at))
        return seq(*stores)

    def over_steps(self) -> Stmt:
        """All products."""
        axes = self.group.reduce.axis
        k: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        last = axes[-1]
        if self.along == COLUMNS:
            body = self.step_of_columns(k)
            outside = list(axes)
        else:
            block = Var(last.name)
            whole = simplify(last.extent // self.lanes)
            at = k | {last: block * self.lanes}
            body = serial(block, whole, self.step_of_depth(at, last))
            step = Var(last.name)
            left = simplify(last.extent - whole * self.lanes)
            rest = self.step_of_rest(k | {last: whole * self.lanes + step})
            if size_of(left) != 0:
                body = seq(body, serial(step, left, rest))
            outside = list(axes[:-1])
        for r in reversed(outside):
            var = k[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body

    def finish(self) -> Stmt:
        """What follows the sums, and the stores."""
        stores: list[Stmt] = []
        for i, j, number in self.pairs():
            if self.along == COLUMNS:
                lane = Var("lane")
                value = BufferLoad(self.sums, (self.sum_at(number, lane),), self.dtype)
                column = self.column(0) + j * self.lanes + lane
                stores.append(self.vector(lane, self.result(i, column, value)))
            else:
                at = BufferLoad(self.rest, (const(number),), self.dtype)
                stores.append(self.result(i, self.column(j), at))
        return seq(*stores)

    def result(self, i: int, column: PrimExpr, value: PrimExpr) -> Stmt:
        """An element of the output."""
        anchor, f = self.group.anchor.op, self.factors
        assert isinstance(anchor, ComputeOp)
        at = _over(f, f.rows, self.row(i)) | _over(f, self.inner, column) | self.around()
        return self.group.store([at[a.var] for a in anchor.axis], value)

    def joined(self) -> Stmt:
        """The lanes of every sum become one number."""
        stores: list[Stmt] = []
        for _, _, number in self.pairs():
            index = ramp(self.sum_at(number, const(0)), 1, self.lanes)
            lanes = BufferLoad(self.sums, (index,), f"{self.dtype}x{self.lanes}")
            at = (const(number),)
            total = VectorReduce(lanes, "sum", self.dtype)
            old = BufferLoad(self.rest, at, self.dtype)
            stores.append(BufferStore(self.rest, old + total, at))
        return seq(*stores)

    def build(self, name: str) -> PrimFunc:
        """The program."""
        parts = [self.start(), self.over_steps()]
        kept = [self.sums]
        if self.along == DEPTH:
            zero = const(0, self.dtype)
            count = self.rows * self.columns
            parts.insert(0, seq(*(BufferStore(self.rest, zero, (const(n),)) for n in range(count))))
            parts.append(self.joined())
            kept.append(self.rest)
        place = Var("place")
        body = self.in_tile(place, allocated(seq(*parts, self.finish()), kept))
        return self.launched(body, name, place)

    @property
    def tiles_m(self) -> PrimExpr:
        """Tiles of rows."""
        return simplify((self.m + (self.rows - 1)) // self.rows)

    def in_tile(self, place: Var, body: Stmt) -> Stmt:
        """What is done with a tile, for that at a place of the band, if there is one."""
        if not self.band:
            return substitute_statement(body, {self.block_m: place})
        exact = is_const(simplify(self.tiles_m % self.band), 0)
        guarded = body if exact else IfThenElse(self.block_m < self.tiles_m, body)
        return substitute_statement(guarded, {self.block_m: self.number * self.band + place})

    def launched(self, body: Stmt, name: str, place: Var | None = None) -> PrimFunc:
        """What one thread does, by all threads; those at all places of a band after each other."""
        tiles_n = simplify((self.n + (self.width - 1)) // self.width)
        bands: PrimExpr = const(1)
        if self.band:
            bands = simplify((self.tiles_m + (self.band - 1)) // self.band)
        around = Var("around")
        at = {self.block: around // bands, self.number: around % bands}
        body = bound(Var("thread"), 1, "threadIdx.x", substitute_statement(body, at))
        outside = simplify(self.factors.size(self.factors.batch) * self.lines * bands)
        if place is not None:
            body = bound(place, self.band or self.tiles_m, "blockIdx.x", body)
        body = bound(self.block_n, tiles_n, "blockIdx.y", body)
        return self.group.function(bound(around, outside, "blockIdx.z", body), name)


def _lets(named: Iterable[tuple[Var, PrimExpr]], body: Stmt) -> Stmt:
    for var, value in reversed(list(named)):
        body = LetStmt(var, value, body)
    return body
