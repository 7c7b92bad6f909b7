"""Sums of products on devices whose threads run one after the other and compute with vectors, of
so many rows that copying what columns read pays: a thread has some columns and a band of rows.

    for a part of k:
      panel[k, :] = b[j : j + 16, k]                       once, whatever columns take to read
      for tiles of rows: for k: sums[i, :] += a[i, k] * panel[k, :]

A panel lies as it is read, vector behind vector, and stays in the first cache wherever its elements
came from. Between two parts of k the thread's memory keeps the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const, minimum
from ekiden.kernels.cpu.loops import product
from ekiden.kernels.decision import Decision, Fixed
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.factors import Factors, distance_in
from ekiden.kernels.gpu.lanes import lanes_of
from ekiden.kernels.gpu.parts import Group, serial
from ekiden.kernels.gpu.vectors import COLUMNS, DEPTH, LARGE, VectorKernel, tile_of, way_of
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.reducer import ReduceAxis
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, PrimFunc, Stmt, seq
from ekiden.tir.visitor import substitute

PANELS = (1024, 512, 256, 128, 64, 32, 16)
TILES, LEAST_TILES = (64, 32, 16, 8), 8
"""Of rows, that a thread takes with one panel."""
SHARES = 4
"""Threads for each unit of a device, so that all have work until the end."""
Steps: TypeAlias = Callable[[Mapping[Var, PrimExpr], PrimExpr], Stmt]
"""(a step of k, its number in the part) -> what is done there."""


def axes_of(factors: Factors) -> list[ReduceAxis]:
    """What is summed over, as elements of rows follow one another in memory."""
    return sorted(factors.reduce.axis, key=lambda r: -distance_in(factors.a, r))


def split_of(axes: Sequence[ReduceAxis], steps: int) -> tuple[int, int]:
    """The axis of which a part of so many steps at most has some values, with all of those behind
    it, and how many: of all parts the same if they can."""
    inner = 1
    for at in reversed(range(len(axes))):
        size = size_of(axes[at].extent)
        if at == 0 or size is None or size * inner > steps:
            most = max(1, steps // inner)
            parts = -(-(size or 1) // most)
            return at, most if size is None else max(1, -(-size // parts))
        inner *= size
    return 0, 1


def panel_of(target: Target, factors: Factors, plain: Fixed, most: int) -> Fixed | None:
    """What a kernel with panels decides; None where `plain`, one without, takes less."""
    m, n = size_of(factors.size(factors.rows)), size_of(factors.size(factors.columns))
    lanes = lanes_of(most, n if factors.columns else 1)
    if n is None or lanes == 1:
        return None
    rows, columns = tile_of(target, m, n // lanes)
    width = columns * lanes
    steps = _largest(PANELS, target.l1 // (dt.itemsize(factors.b.dtype) * width))
    most_tiles = _largest(TILES, target.l1 // (dt.itemsize(factors.reduce.dtype) * rows * width))
    if steps is None or most_tiles is None:
        return None
    made: Fixed = {
        "rows": rows,
        "columns": columns,
        "vector": lanes,
        "along": COLUMNS,
        "panel": steps,
    }
    tiles = -(-(m or LARGE) // rows)
    if not _is_less(target, factors, made, plain, tiles, -(-tiles // most_tiles)):
        return None
    band = most_tiles
    shares = (size_of(simplify(factors.size(factors.batch))) or 1) * -(-n // width)
    while band > LEAST_TILES and shares * -(-tiles // band) < SHARES * target.cores:
        band //= 2
    return {**plain, **made, "band": band}


def _largest(values: Sequence[int], most: int) -> int | None:
    return next((n for n in values if n <= most), None)


def _is_less(
    target: Target, factors: Factors, made: Fixed, plain: Fixed, tiles: int, bands: int
) -> bool:
    """Whether panels take less than going without. Of both this is what a step of k takes for a
    vector of columns and all rows, in halves of a multiply-add: a load or store is one, an element
    that is brought by itself or chosen by a condition two; a load from behind the first cache is
    two."""
    rows, columns, lanes = (int(made[name]) for name in ("rows", "columns", "vector"))
    depth = size_of(factors.depth) or LARGE
    is_near = isinstance(factors.b, ProducerLoad) and way_of(factors, lanes) == (COLUMNS, lanes)
    brought = 1 if is_near else 2 * lanes
    each = tiles * (2 * rows + rows / columns)
    if plain["along"] == DEPTH:
        joined = 4 * math.log2(lanes) * lanes / depth
        loads = 1 / int(plain["rows"]) + 1 / int(plain["columns"])
        alone = tiles * rows * (2 + loads + joined)
    else:
        is_far = depth * columns * lanes * dt.itemsize(factors.b.dtype) > target.l1 // 2
        alone = each + tiles * (brought + int(is_near and is_far))
    return each + tiles + bands * (brought + 1) < alone


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
        at, self.most = split_of(axes, decision.number("panel"))
        self.before, self.split, self.behind = axes[:at], axes[at], axes[at + 1 :]
        self.around_part: dict[Var, PrimExpr] = {r: Var(r.name) for r in self.before}
        self.part, self.tile = Var("part"), Var("tile")
        steps = simplify(product([const(self.most), *(r.extent for r in self.behind)]))
        self.panel = Buffer("panel", (steps * self.width,), self.factors.b.dtype, "local")
        self.is_whole = not self.before and size_of(self.split.extent) == self.most
        self.count = self.rows * self.columns * self.lanes
        self.kept = Buffer("kept", (const(self.band * self.count),), self.dtype, "local")

    def inner_of(self, factors: Factors) -> tuple[Var, ...]:
        """All of them: where elements lie matters once."""
        return factors.columns

    def steps_of_part(self, make: Steps) -> Stmt:
        """For all steps of a part."""
        step = Var("step")
        first = self.part * self.most
        k = {**self.around_part, self.split: first + step}
        number: PrimExpr = step
        for r in self.behind:
            k[r] = Var(r.name)
            number = number * r.extent + k[r]
        body = make(k, number)
        for r in reversed(self.behind):
            var = k[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        left = minimum(self.split.extent - first, self.most)
        return serial(step, self.most if self.is_whole else left, body)

    def copied(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """The elements of all columns at a step."""
        stores: list[Stmt] = []
        for j in range(self.columns):
            lane = Var("lane")
            at = const(j * self.lanes) + lane
            value = self.factor_b(self.column(0) + at, k)
            store = BufferStore(self.panel, value, (number * self.width + at,))
            stores.append(self.vector(lane, store))
        return seq(*stores)

    def added_up(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """Their products with the elements of rows."""
        lane = Var("lane")
        places = [number * self.width + j * self.lanes + lane for j in range(self.columns)]
        b = [BufferLoad(self.panel, (at,), self.panel.dtype) for at in places]
        return self.vector(lane, self.products(lane, b, k))

    def moved(self, to: Buffer, source: Buffer) -> Stmt:
        """The sums of the tile between registers and the memory of the thread."""
        begin = {self.sums: const(0), self.kept: self.tile * self.count}
        stores: list[Stmt] = []
        for at in range(0, self.count, self.lanes):
            lane = Var("lane")
            value = BufferLoad(source, (begin[source] + at + lane,), self.dtype)
            stores.append(self.vector(lane, BufferStore(to, value, (begin[to] + at + lane,))))
        return seq(*stores)

    def in_band(self, *parts: Stmt) -> Stmt:
        """For all tiles of the band."""
        tile = Var("tile")
        return serial(
            tile, self.band, self.in_tile(tile, substitute(seq(*parts), {self.tile: tile}))
        )

    def build(self, name: str) -> PrimFunc:
        """The program."""
        sums = self.steps_of_part(self.added_up)
        copies = self.steps_of_part(self.copied)
        own = [self.panel, self.sums]
        if self.is_whole:
            body = seq(copies, self.in_band(self.start(), sums, self.finish()))
            body = substitute(body, {self.part: const(0)})
        else:
            own.append(self.kept)
            load, save = self.moved(self.sums, self.kept), self.moved(self.kept, self.sums)
            parts = seq(copies, self.in_band(load, sums, save))
            count = (self.split.extent + (self.most - 1)) // self.most
            parts = serial(self.part, simplify(count), parts)
            for r in reversed(self.before):
                var = self.around_part[r]
                assert isinstance(var, Var)
                parts = serial(var, r.extent, parts)
            body = seq(self.in_band(self.start(), save), parts, self.in_band(load, self.finish()))
        return self.launched(allocated(body, own), name)
