"""Sums of products on devices whose threads run one after the other and compute with vectors, as
processors do: no shared memory, no barriers, sums in registers.

    along=columns   for k: sums[i, j : j + 16] += a[i, k] * b[j : j + 16, k]
    along=depth     for k in steps of 16: sums[i, j, :] += a[i, k : k + 16] * b[j, k : k + 16]
                    out[i, j] = sum of sums[i, j, :]

The last tile of rows or columns ends with them: it begins inside of the one before, and computes
the elements of both once more. So nothing is read or written under a condition.

With so many rows that copying what columns read pays, a thread has some columns and a band of rows:

    for a chunk of k:
      panel[k, :] = b[j : j + 16, k]                       once, whatever columns take to read
      for tiles of rows: for k: sums[i, :] += a[i, k] * panel[k, :]

A panel is stored in the order of reading, vector behind vector, and stays in the first cache
wherever its elements came from. Between two chunks of k the thread's memory keeps the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const, is_const, minimum
from ekiden.kernels.decision import Decision, Fixed
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.factors import Factors, are_neighbours, distance_in, factors_of
from ekiden.kernels.gpu.launch import Group, bound, serial
from ekiden.kernels.gpu.vector_access import coordinates, lanes_of, tile_start
from ekiden.kernels.prim_builder import product
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.reducer import ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.visitor import substitute

COLUMNS, DEPTH = "columns", "depth"
TILE_SIZES = (12, 8, 6, 4, 3, 2, 1)
UNKNOWN_EXTENT = 1024
"""Stands for an extent that only a run knows."""
MIN_GATHERED_LANES = 4
"""Lanes that are worth being brought together one by one."""


def columns_of(factors: Factors) -> tuple[Var, ...]:
    """Return the axes that vectors of columns run over: the last ones across which elements are
    neighbours.
    """
    step, columns = Var("step"), factors.columns
    for first in range(len(columns) - 1):
        if are_neighbours(factors.b, _axis_values(factors, columns[first:], step), step):
            return columns[first:]
    return columns[-1:]


def _axis_values(factors: Factors, axes: Sequence[Var], number: PrimExpr) -> dict[Var, PrimExpr]:
    """Axes at the element of a number."""
    at = coordinates(number, [factors.extents[v] for v in axes])
    return dict(zip(axes, at, strict=True))


def vector_axis(factors: Factors, max_lanes_: int) -> tuple[str, int]:
    """Along what vectors of up to so many lanes lie, and how many they have: 1 for none."""
    step, axes = Var("step"), columns_of(factors)
    columns = lanes_of(max_lanes_, size_of(factors.size(axes)) if axes else 1)
    is_near = bool(axes) and are_neighbours(factors.b, _axis_values(factors, axes, step), step)
    if is_near and columns > 1:
        return COLUMNS, columns
    last = factors.reduce.axis[-1]
    depth = lanes_of(max_lanes_, size_of(last.extent) or max_lanes_)
    if depth > 1 and all(are_neighbours(x, {last: step}, step) for x in (factors.a, factors.b)):
        return DEPTH, depth
    return COLUMNS, columns if columns >= MIN_GATHERED_LANES else 1


def tile_of(target: Target, rows: int | None, columns: int | None) -> tuple[int, int]:
    """Rows and columns (or vectors of them) of a thread: as many sums as stay in registers beside
    what one step multiplies, of the shape that takes least for all of the result, if a load takes
    half of a multiply-add."""

    def fits(r: int, c: int) -> bool:
        """Return whether sums and what an iteration multiplies fit the registers, and the tile the
        result.
        """
        # Besides the sums, c vectors of columns and one element of a row are live.
        fewer = (rows is None or r <= rows) and (columns is None or c <= columns)
        return fewer and r * c + c + 1 < target.registers

    def work(shape: tuple[int, int]) -> tuple[int, int]:
        """Return the work of all tiles: two for each multiply-add and one for each load; the higher
        tile of equals.
        """
        r, c = shape
        tiles = -(-(rows or UNKNOWN_EXTENT) // r) * -(-(columns or UNKNOWN_EXTENT) // c)
        return tiles * (2 * r * c + r + c), -r

    return min(
        ((r, c) for r in TILE_SIZES for c in TILE_SIZES if fits(r, c)), key=work, default=(1, 1)
    )


def band_of(target: Target, rows: int, tiles: int | None, depth: int | None, dtype: str) -> int:
    """Tiles of rows that are done with some columns before the next: as many as half of the second
    cache holds the rows of, so that they come from there for all columns; 0 for all."""
    if tiles is None or depth is None:
        return 0
    max_tiles = target.l2 // 2 // max(rows * depth * dt.itemsize(dtype), 1)
    band = 1 << max(max_tiles, 1).bit_length() - 1
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
        num_columns = size_of(self.n)
        # The last tile must begin inside of the result: it needs as many columns as it is wide.
        if self.along == COLUMNS and (num_columns is None or num_columns < self.width):
            raise CompileError(
                f"decisions: 'thread_product' {decision}: {self.width} columns of a thread, of "
                f"which there are {'an unknown number' if num_columns is None else num_columns}"
            )
        self.block_m, self.block_n = Var("tile"), Var("part")
        self.block, self.number = Var("block"), Var("band")
        self.lines = factors.size(self.outer)
        count = self.rows * self.columns * self.lanes
        self.sums = Buffer("sums", (const(count),), self.dtype, "local")
        self.rest = Buffer("rest", (const(self.rows * self.columns),), self.dtype, "local")

    def inner_of(self, factors: Factors) -> tuple[Var, ...]:
        """Return the axes that tiles of columns run over."""
        return columns_of(factors) if self.along == COLUMNS else factors.columns

    def row(self, i: int) -> PrimExpr:
        """Row i of this thread; of fewer than it has, the last again."""
        size = size_of(self.m)
        at = tile_start(self.block_m, self.rows, self.m) + i
        return at if size is not None and size >= self.rows else minimum(at, self.m - 1)

    def column(self, j: int) -> PrimExpr:
        """Column j of this thread, likewise."""
        size = size_of(self.n)
        at = tile_start(self.block_n, self.width, self.n) + j
        return at if size is not None and size >= self.width else minimum(at, self.n - 1)

    def around(self) -> dict[Var, PrimExpr]:
        """Return values of the axes that no tile runs over."""
        f = self.factors
        batch, line = coordinates(self.block, [f.size(f.batch), self.lines])
        return _axis_values(f, f.batch, batch) | _axis_values(f, self.outer, line)

    def factor_a(self, i: int, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Return the factor of a row at values of k."""
        f = self.factors
        return self.group.element(
            f.a, _axis_values(f, f.rows, self.row(i)) | self.around() | dict(k)
        )

    def factor_b(self, column: PrimExpr, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Return the factor of a column at values of k."""
        f = self.factors
        return self.group.element(
            f.b, _axis_values(f, self.inner, column) | self.around() | dict(k)
        )

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """Rows, columns (or vectors of them), and the number of their sum."""
        for i in range(self.rows):
            for j in range(self.columns):
                yield i, j, i * self.columns + j

    def sum_at(self, number: int, lane: PrimExpr) -> PrimExpr:
        """Return the index of a lane of a sum."""
        return const(number * self.lanes) + lane

    def vector(self, lane: Var, body: Stmt) -> Stmt:
        """Return a loop over all lanes at once."""
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, body)

    def added(self, number: int, lane: PrimExpr, value: PrimExpr) -> Stmt:
        """Add a product to a sum."""
        at = (self.sum_at(number, lane),)
        return BufferStore(self.sums, BufferLoad(self.sums, at, self.dtype) + value, at)

    def start(self) -> Stmt:
        """Set all sums to 0."""
        zeros: list[Stmt] = []
        for _, _, number in self.pairs():
            lane = Var("lane")
            store = BufferStore(self.sums, const(0, self.dtype), (self.sum_at(number, lane),))
            zeros.append(self.vector(lane, store))
        return seq(*zeros)

    def column_step(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """Vectors of columns with elements of rows."""
        lane = Var("lane")
        first = self.column(0) + lane
        b = [self.factor_b(first + j * self.lanes, k) for j in range(self.columns)]
        return self.vector(lane, self.products(lane, b, k))

    def depth_step(self, k: Mapping[Var, PrimExpr], axis: Var) -> Stmt:
        """Vectors of columns with those of rows."""
        lane = Var("lane")
        at = dict(k) | {axis: k[axis] + lane}
        b = [self.factor_b(self.column(j), at) for j in range(self.columns)]
        return self.vector(lane, self.products(lane, b, at))

    def products(self, lane: Var, b: Sequence[PrimExpr], k: Mapping[Var, PrimExpr]) -> Stmt:
        """Add products to all sums: registers hold the elements of columns, and those of rows one
        at a time.
        """
        names = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        rows_of_sums: list[Stmt] = []
        for i in range(self.rows):
            value = self.factor_a(i, k)
            a = Var(f"a{i}", value.dtype)
            sums = [self.added(i * self.columns + j, lane, a * y) for j, y in enumerate(names)]
            rows_of_sums.append(LetStmt(a, value, seq(*sums)))
        return _lets(zip(names, b, strict=True), seq(*rows_of_sums))

    def remainder_step(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """Add the products of the remainder of the depth, which no vector covers."""
        stores: list[Stmt] = []
        for i, j, number in self.pairs():
            at = (const(number),)
            value = self.factor_a(i, k) * self.factor_b(self.column(j), k)
            old = BufferLoad(self.rest, at, self.dtype)
            stores.append(BufferStore(self.rest, old + value, at))
        return seq(*stores)

    def k_nest(self) -> Stmt:
        """Return the loops of all products."""
        axes = self.group.reduce.axis
        k: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        last = axes[-1]
        if self.along == COLUMNS:
            body = self.column_step(k)
            outside = list(axes)
        else:
            block = Var(last.name)
            num_vectors = simplify(last.extent // self.lanes)
            at = k | {last: block * self.lanes}
            body = serial(block, num_vectors, self.depth_step(at, last))
            step = Var(last.name)
            remainder = simplify(last.extent - num_vectors * self.lanes)
            scalar_step = self.remainder_step(k | {last: num_vectors * self.lanes + step})
            if size_of(remainder) != 0:
                body = seq(body, serial(step, remainder, scalar_step))
            outside = list(axes[:-1])
        for r in reversed(outside):
            var = k[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body

    def finish(self) -> Stmt:
        """Apply what follows the sums, and store."""
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
        """Store an element of the output."""
        anchor, f = self.group.anchor.op, self.factors
        assert isinstance(anchor, ComputeOp)
        at = (
            _axis_values(f, f.rows, self.row(i))
            | _axis_values(f, self.inner, column)
            | self.around()
        )
        return self.group.store([at[a.var] for a in anchor.axis], value)

    def joined(self) -> Stmt:
        """Reduce the lanes of every sum to one number."""
        stores: list[Stmt] = []
        for _, _, number in self.pairs():
            # Lanes are summed once, after all of k: a horizontal sum takes several instructions.
            index = ramp(self.sum_at(number, const(0)), 1, self.lanes)
            lanes = BufferLoad(self.sums, (index,), f"{self.dtype}x{self.lanes}")
            at = (const(number),)
            total = VectorReduce(lanes, "sum", self.dtype)
            old = BufferLoad(self.rest, at, self.dtype)
            stores.append(BufferStore(self.rest, old + total, at))
        return seq(*stores)

    def build(self, name: str) -> PrimFunc:
        """Build the program."""
        phases = [self.start(), self.k_nest()]
        local_buffers = [self.sums]
        if self.along == DEPTH:
            zero = const(0, self.dtype)
            count = self.rows * self.columns
            phases.insert(
                0, seq(*(BufferStore(self.rest, zero, (const(n),)) for n in range(count)))
            )
            phases.append(self.joined())
            local_buffers.append(self.rest)
        tile_index = Var("place")
        body = self.in_tile(tile_index, allocated(seq(*phases, self.finish()), local_buffers))
        return self.launched(body, name, tile_index)

    @property
    def tiles_m(self) -> PrimExpr:
        """Tiles of rows."""
        return simplify((self.m + (self.rows - 1)) // self.rows)

    def in_tile(self, tile_index: Var, body: Stmt) -> Stmt:
        """Return the body for a tile of the band, if that exists."""
        if not self.band:
            return substitute(body, {self.block_m: tile_index})
        exact = is_const(simplify(self.tiles_m % self.band), 0)
        guarded = body if exact else IfThenElse(self.block_m < self.tiles_m, body)
        return substitute(guarded, {self.block_m: self.number * self.band + tile_index})

    def launched(self, body: Stmt, name: str, tile_index: Var | None = None) -> PrimFunc:
        """Launch the body of one thread for all threads; those of a band after each other."""
        tiles_n = simplify((self.n + (self.width - 1)) // self.width)
        bands: PrimExpr = const(1)
        if self.band:
            bands = simplify((self.tiles_m + (self.band - 1)) // self.band)
        around = Var("around")
        at = {self.block: around // bands, self.number: around % bands}
        body = bound(Var("thread"), 1, "threadIdx.x", substitute(body, at))
        outside = simplify(self.factors.size(self.factors.batch) * self.lines * bands)
        if tile_index is not None:
            body = bound(tile_index, self.band or self.tiles_m, "blockIdx.x", body)
        body = bound(self.block_n, tiles_n, "blockIdx.y", body)
        return self.group.function(bound(around, outside, "blockIdx.z", body), name)


def _lets(named: Iterable[tuple[Var, PrimExpr]], body: Stmt) -> Stmt:
    for var, value in reversed(list(named)):
        body = LetStmt(var, value, body)
    return body


PANELS = (1024, 512, 256, 128, 64, 32, 16)
PANEL_TILES, MIN_PANEL_TILES = (64, 32, 16, 8), 8
"""Of rows, that a thread takes with one panel."""
THREADS_PER_CORE = 4
"""Threads for each unit of a device, so that all have work until the end."""
Steps: TypeAlias = Callable[[Mapping[Var, PrimExpr], PrimExpr], Stmt]
"""(a step of k, its number in the part) -> what is done there."""


def axes_of(factors: Factors) -> list[ReduceAxis]:
    """Return the axes of the sum, in the order in which elements of rows follow one another in
    memory.
    """
    return sorted(factors.reduce.axis, key=lambda r: -distance_in(factors.a, r))


def split_axis(axes: Sequence[ReduceAxis], steps: int) -> tuple[int, int]:
    """Return the axis that chunks of at most `steps` iterations split, and its values per chunk.

    Axes behind it are complete in a chunk. All chunks have the same number of values if they can.
    """
    inner = 1
    for at in reversed(range(len(axes))):
        size = size_of(axes[at].extent)
        if at == 0 or size is None or size * inner > steps:
            limit = max(1, steps // inner)
            # Equal chunks: a short last one would pay the traffic of sums for little work.
            num_chunks = -(-(size or 1) // limit)
            return at, limit if size is None else max(1, -(-size // num_chunks))
        inner *= size
    return 0, 1


def panel_of(target: Target, factors: Factors, plain: Fixed, max_vector: int) -> Fixed | None:
    """Return the decision of a kernel with panels; None where `plain`, one without, is cheaper.

    Args:
        target: The device.
        factors: The sum of products.
        plain: The decision without panels.
        most: The most lanes of a vector.
    """
    m, n = size_of(factors.size(factors.rows)), size_of(factors.size(factors.columns))
    lanes = lanes_of(max_vector, n if factors.columns else 1)
    if n is None or lanes == 1:
        return None
    rows, columns = tile_of(target, m, n // lanes)
    width = columns * lanes
    steps = _largest(PANELS, target.l1 // (dt.itemsize(factors.b.dtype) * width))
    most_tiles = _largest(
        PANEL_TILES, target.l1 // (dt.itemsize(factors.reduce.dtype) * rows * width)
    )
    if steps is None or most_tiles is None:
        return None
    values: Fixed = {
        "rows": rows,
        "columns": columns,
        "vector": lanes,
        "along": COLUMNS,
        "panel": steps,
    }
    tiles = -(-(m or UNKNOWN_EXTENT) // rows)
    if not _is_cheaper(target, factors, values, plain, tiles, -(-tiles // most_tiles)):
        return None
    band = most_tiles
    num_threads = (size_of(simplify(factors.size(factors.batch))) or 1) * -(-n // width)
    # Shorter bands copy panels more often, but give threads to all units.
    while (
        band > MIN_PANEL_TILES and num_threads * -(-tiles // band) < THREADS_PER_CORE * target.cores
    ):
        band //= 2
    return {**plain, **values, "band": band}


def _largest(values: Sequence[int], limit: int) -> int | None:
    return next((n for n in values if n <= limit), None)


def _is_cheaper(
    target: Target, factors: Factors, paneled: Fixed, plain: Fixed, tiles: int, bands: int
) -> bool:
    """Return whether panels are cheaper than no panels.

    Costs are those of an iteration of k for a vector of columns and all rows, in halves of a
    multiply-add: a load or store is one, an element that is loaded by itself or chosen by a
    condition two; a load from behind the first cache is two.

    Args:
        target: The device.
        factors: The sum of products.
        made: The decision with panels.
        plain: The decision without.
        tiles: Tiles of rows.
        bands: Bands of tiles.
    """
    rows, columns, lanes = (int(paneled[name]) for name in ("rows", "columns", "vector"))
    depth = size_of(factors.depth) or UNKNOWN_EXTENT
    is_near = isinstance(factors.b, ProducerLoad) and vector_axis(factors, lanes) == (
        COLUMNS,
        lanes,
    )
    load_cost = 1 if is_near else 2 * lanes
    tile_cost = tiles * (2 * rows + rows / columns)
    if plain["along"] == DEPTH:
        lane_sum_cost = 4 * math.log2(lanes) * lanes / depth
        loads = 1 / int(plain["rows"]) + 1 / int(plain["columns"])
        plain_cost = tiles * rows * (2 + loads + lane_sum_cost)
    else:
        is_far = depth * columns * lanes * dt.itemsize(factors.b.dtype) > target.l1 // 2
        plain_cost = tile_cost + tiles * (load_cost + int(is_near and is_far))
    return tile_cost + tiles + bands * (load_cost + 1) < plain_cost


class PanelKernel(VectorKernel):
    """One program being built."""

    def __init__(self, group: Group, decision: Decision) -> None:
        super().__init__(group, decision)
        if self.along != COLUMNS or not self.band:
            raise CompileError(
                f"decisions: 'thread_product' {decision}: 'panel' goes with along={COLUMNS} and a "
                "'band' that is not 0"
            )
        axes = axes_of(self.factors)
        at, self.most = split_axis(axes, decision.number("panel"))
        self.before, self.split, self.behind = axes[:at], axes[at], axes[at + 1 :]
        self.outer_vars: dict[Var, PrimExpr] = {r: Var(r.name) for r in self.before}
        self.part, self.tile = Var("part"), Var("tile")
        steps = simplify(product([const(self.most), *(r.extent for r in self.behind)]))
        self.panel = Buffer("panel", (steps * self.width,), self.factors.b.dtype, "local")
        self.is_whole = not self.before and size_of(self.split.extent) == self.most
        self.count = self.rows * self.columns * self.lanes
        self.kept = Buffer("kept", (const(self.band * self.count),), self.dtype, "local")

    def inner_of(self, factors: Factors) -> tuple[Var, ...]:
        """Return all column axes: the distance between elements matters once, in the copy."""
        return factors.columns

    def for_chunk(self, make: Steps) -> Stmt:
        """Run `make` for all iterations of a chunk."""
        step = Var("step")
        first = self.part * self.most
        k = {**self.outer_vars, self.split: first + step}
        number: PrimExpr = step
        for r in self.behind:
            k[r] = Var(r.name)
            number = number * r.extent + k[r]
        body = make(k, number)
        for r in reversed(self.behind):
            var = k[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        remaining = minimum(self.split.extent - first, self.most)
        return serial(step, self.most if self.is_whole else remaining, body)

    def copied(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """Copy the elements of all columns at one iteration to the panel."""
        stores: list[Stmt] = []
        for j in range(self.columns):
            lane = Var("lane")
            at = const(j * self.lanes) + lane
            value = self.factor_b(self.column(0) + at, k)
            store = BufferStore(self.panel, value, (number * self.width + at,))
            stores.append(self.vector(lane, store))
        return seq(*stores)

    def accumulate_step(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """Add the products of a panel's row with the elements of rows."""
        lane = Var("lane")
        panel_indices = [number * self.width + j * self.lanes + lane for j in range(self.columns)]
        b = [BufferLoad(self.panel, (at,), self.panel.dtype) for at in panel_indices]
        return self.vector(lane, self.products(lane, b, k))

    def moved(self, to: Buffer, source: Buffer) -> Stmt:
        """Move the sums of the tile between registers and the memory of the thread."""
        begin = {self.sums: const(0), self.kept: self.tile * self.count}
        stores: list[Stmt] = []
        for at in range(0, self.count, self.lanes):
            lane = Var("lane")
            value = BufferLoad(source, (begin[source] + at + lane,), self.dtype)
            stores.append(self.vector(lane, BufferStore(to, value, (begin[to] + at + lane,))))
        return seq(*stores)

    def for_band(self, *stmts: Stmt) -> Stmt:
        """Run statements for all tiles of the band."""
        tile = Var("tile")
        return serial(
            tile, self.band, self.in_tile(tile, substitute(seq(*stmts), {self.tile: tile}))
        )

    def build(self, name: str) -> PrimFunc:
        """Build the program."""
        sums = self.for_chunk(self.accumulate_step)
        copies = self.for_chunk(self.copied)
        local_buffers = [self.panel, self.sums]
        # With a single chunk, sums stay in registers from start to finish.
        if self.is_whole:
            body = seq(copies, self.for_band(self.start(), sums, self.finish()))
            body = substitute(body, {self.part: const(0)})
        else:
            local_buffers.append(self.kept)
            load, save = self.moved(self.sums, self.kept), self.moved(self.kept, self.sums)
            chunks = seq(copies, self.for_band(load, sums, save))
            count = (self.split.extent + (self.most - 1)) // self.most
            chunks = serial(self.part, simplify(count), chunks)
            for r in reversed(self.before):
                var = self.outer_vars[r]
                assert isinstance(var, Var)
                chunks = serial(var, r.extent, chunks)
            body = seq(
                self.for_band(self.start(), save), chunks, self.for_band(load, self.finish())
            )
        return self.launched(allocated(body, local_buffers), name)
