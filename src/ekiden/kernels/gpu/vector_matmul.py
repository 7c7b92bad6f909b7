"""Contractions on targets whose threads run serially with vector units: accumulators in registers,
no shared memory or barriers.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const, is_const, minimum
from ekiden.kernels.decision import Decision, Overrides
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.contraction_factors import (
    ContractionFactors,
    is_unit_stride,
    match_contraction,
    stride_bound,
)
from ekiden.kernels.gpu.launch import ReductionGroup, reduction_loops, serial_loop, thread_loop
from ekiden.kernels.gpu.vector_access import lanes_fitting, tile_start, unravel_index
from ekiden.kernels.prim_builder import product_of_dims, wrap_in_lets
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.te.reducer import ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.visitor import substitute

ALONG_COLUMNS, ALONG_DEPTH = "columns", "depth"
VECTOR_TILE_SIZES = (12, 8, 6, 4, 3, 2, 1)
ASSUMED_EXTENT = 1024
"""Assumed value of a dynamic extent."""
MIN_GATHERED_LANES = 4
"""Minimum lanes from which gathering elements one by one pays."""


def contiguous_column_axes(factors: ContractionFactors) -> tuple[Var, ...]:
    """Return the trailing column axes along which elements are contiguous."""
    step, columns = Var("step"), factors.columns
    for first in range(len(columns) - 1):
        if is_unit_stride(factors.b, factors.axis_values(columns[first:], step), step):
            return columns[first:]
    return columns[-1:]


def choose_vector_axis(factors: ContractionFactors, max_lanes_: int) -> tuple[str, int]:
    """Return the vectorised axis kind and its lanes, at most `max_lanes_`; 1 lane for no
    vectors.
    """
    step, axes = Var("step"), contiguous_column_axes(factors)
    columns = lanes_fitting(max_lanes_, known_extent(factors.num_elements(axes)) if axes else 1)
    is_near = bool(axes) and is_unit_stride(factors.b, factors.axis_values(axes, step), step)
    if is_near and columns > 1:
        return ALONG_COLUMNS, columns
    last = factors.reduce_axes.axis[-1]
    depth = lanes_fitting(max_lanes_, known_extent(last.extent) or max_lanes_)
    if depth > 1 and all(is_unit_stride(x, {last: step}, step) for x in (factors.a, factors.b)):
        return ALONG_DEPTH, depth
    return ALONG_COLUMNS, columns if columns >= MIN_GATHERED_LANES else 1


def choose_tile(target: Target, rows: int | None, columns: int | None) -> tuple[int, int]:
    """Return the register tile (rows, columns or vectors of columns) with the least work whose
    accumulators and operands fit the registers.
    """

    def fits_registers(r: int, c: int) -> bool:
        """Return whether accumulators and operands fit the registers, and the tile fits the
        result.
        """
        # Besides the sums, c vectors of columns and one element of a row are live.
        fewer = (rows is None or r <= rows) and (columns is None or c <= columns)
        return fewer and r * c + c + 1 < target.registers

    def estimate_work(shape: tuple[int, int]) -> tuple[int, int]:
        """Return the cost of all tiles, two per multiply-add and one per load; ties prefer more
        rows.
        """
        r, c = shape
        tiles = -(-(rows or ASSUMED_EXTENT) // r) * -(-(columns or ASSUMED_EXTENT) // c)
        # Partial tiles count as whole ones: they compute all their sums, and store some.
        return tiles * (2 * r * c + r + c), -r

    return min(
        ((r, c) for r in VECTOR_TILE_SIZES for c in VECTOR_TILE_SIZES if fits_registers(r, c)),
        key=estimate_work,
        default=(1, 1),
    )


def choose_band(target: Target, rows: int, tiles: int | None, depth: int | None, dtype: str) -> int:
    """Return the number of row tiles per band, whose rows fit half of L2; 0 for all."""
    if tiles is None or depth is None:
        return 0
    max_tiles = target.l2 // 2 // max(rows * depth * dt.itemsize(dtype), 1)
    band = 1 << max(max_tiles, 1).bit_length() - 1
    return 0 if band >= tiles else band


class VectorMatmulKernel:
    """Builder of one vectorised contraction kernel."""

    def __init__(self, group: ReductionGroup, decision: Decision) -> None:
        factors = match_contraction(group.anchor)
        assert factors is not None
        self.group, self.factors = group, factors
        self.rows, self.columns, self.lanes = (
            decision.int_value(n) for n in ("rows", "columns", "vector")
        )
        self.vector_direction, self.band = str(decision["along"]), decision.int_value("band")
        self.tiled_axes = self.tiled_column_axes(factors)
        self.untiled_axes = factors.columns[: len(factors.columns) - len(self.tiled_axes)]
        self.dtype = group.reduce.dtype
        self.width = self.columns * (self.lanes if self.vector_direction == ALONG_COLUMNS else 1)
        self.m, self.n = factors.num_elements(factors.rows), factors.num_elements(self.tiled_axes)
        tiles = known_extent(self.num_row_tiles)
        if self.band and tiles:  # of all bands the same
            self.band = -(-tiles // -(-tiles // self.band))
        num_columns = known_extent(self.n)
        # The last tile must begin inside of the result: it needs as many columns as it is wide.
        if self.vector_direction == ALONG_COLUMNS and (
            num_columns is None or num_columns < self.width
        ):
            raise CompileError(
                f"decisions: 'thread_product' {decision}: {self.width} columns of a thread, of "
                f"which there are {'an unknown number' if num_columns is None else num_columns}"
            )
        self.block_m, self.block_n = Var("tile"), Var("part")
        self.block, self.number = Var("block"), Var("band")
        self.lines = factors.num_elements(self.untiled_axes)
        count = self.rows * self.columns * self.lanes
        self.sums = Buffer("sums", (const(count),), self.dtype, "local")
        self.remainder_sums = Buffer(
            "rest", (const(self.rows * self.columns),), self.dtype, "local"
        )

    def tiled_column_axes(self, factors: ContractionFactors) -> tuple[Var, ...]:
        """Return the column axes that tiles run over."""
        return (
            contiguous_column_axes(factors)
            if self.vector_direction == ALONG_COLUMNS
            else factors.columns
        )

    def row_index(self, i: int) -> PrimExpr:
        """Return row i of this thread, clamped to the last row."""
        size = known_extent(self.m)
        position = tile_start(self.block_m, self.rows, self.m) + i
        return position if size is not None and size >= self.rows else minimum(position, self.m - 1)

    def column_index(self, j: int) -> PrimExpr:
        """Return column j of this thread, clamped to the last column."""
        size = known_extent(self.n)
        position = tile_start(self.block_n, self.width, self.n) + j
        return (
            position if size is not None and size >= self.width else minimum(position, self.n - 1)
        )

    def outer_axis_values(self) -> dict[Var, PrimExpr]:
        """Return the values of the axes that tiles do not cover."""
        f = self.factors
        batch, line = unravel_index(self.block, [f.num_elements(f.batch), self.lines])
        return f.axis_values(f.batch, batch) | f.axis_values(self.untiled_axes, line)

    def factor_a(self, i: int, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Return the element of factor `a` at a row and values of k."""
        f = self.factors
        return self.group.lower_at(
            f.a, f.axis_values(f.rows, self.row_index(i)) | self.outer_axis_values() | dict(k)
        )

    def factor_b(self, column: PrimExpr, k: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Return the element of factor `b` at a column and values of k."""
        f = self.factors
        return self.group.lower_at(
            f.b, f.axis_values(self.tiled_axes, column) | self.outer_axis_values() | dict(k)
        )

    def sum_indices(self) -> Iterator[tuple[int, int, int]]:
        """Yield the row, the column (or vector of columns) and the index of each accumulator."""
        for i in range(self.rows):
            for j in range(self.columns):
                yield i, j, i * self.columns + j

    def sum_at(self, number: int, lane: PrimExpr) -> PrimExpr:
        """Return the index of one lane of an accumulator."""
        return const(number * self.lanes) + lane

    def lane_loop(self, lane: Var, body: Stmt) -> Stmt:
        """Return a vectorised loop over all lanes."""
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, body)

    def emit_accumulate(self, number: int, lane: PrimExpr, value: PrimExpr) -> Stmt:
        """Emit the addition of a product to an accumulator."""
        indices = (self.sum_at(number, lane),)
        return BufferStore(self.sums, BufferLoad(self.sums, indices, self.dtype) + value, indices)

    def emit_prologue(self) -> Stmt:
        """Emit the zero initialisation of the accumulators."""
        zeros: list[Stmt] = []
        for _, _, number in self.sum_indices():
            lane = Var("lane")
            store = BufferStore(self.sums, const(0, self.dtype), (self.sum_at(number, lane),))
            zeros.append(self.lane_loop(lane, store))
        return seq(*zeros)

    def emit_column_step(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """Emit a step of k with vectors of columns times row scalars."""
        lane = Var("lane")
        first = self.column_index(0) + lane
        b = [self.factor_b(first + j * self.lanes, k) for j in range(self.columns)]
        return self.lane_loop(lane, self.emit_products(lane, b, k))

    def emit_depth_step(self, k: Mapping[Var, PrimExpr], axis: Var) -> Stmt:
        """Emit a step of k with vectors along k of both rows and columns."""
        lane = Var("lane")
        indices = dict(k) | {axis: k[axis] + lane}
        b = [self.factor_b(self.column_index(j), indices) for j in range(self.columns)]
        return self.lane_loop(lane, self.emit_products(lane, b, indices))

    def emit_products(self, lane: Var, b: Sequence[PrimExpr], k: Mapping[Var, PrimExpr]) -> Stmt:
        """Emit the multiply-adds of all accumulators: column operands stay in registers, row
        operands are read one at a time.
        """
        names = [Var(f"b{j}", e.dtype) for j, e in enumerate(b)]
        rows_of_sums: list[Stmt] = []
        for i in range(self.rows):
            value = self.factor_a(i, k)
            a = Var(f"a{i}", value.dtype)
            sums = [
                self.emit_accumulate(i * self.columns + j, lane, a * y) for j, y in enumerate(names)
            ]
            rows_of_sums.append(LetStmt(a, value, seq(*sums)))
        return wrap_in_lets([*zip(names, b, strict=True)], seq(*rows_of_sums))

    def emit_remainder_step(self, k: Mapping[Var, PrimExpr]) -> Stmt:
        """Emit the scalar products of the remainder of k after the last full vector."""
        stores: list[Stmt] = []
        for i, j, number in self.sum_indices():
            indices = (const(number),)
            value = self.factor_a(i, k) * self.factor_b(self.column_index(j), k)
            old = BufferLoad(self.remainder_sums, indices, self.dtype)
            stores.append(BufferStore(self.remainder_sums, old + value, indices))
        return seq(*stores)

    def emit_k_nest(self) -> Stmt:
        """Emit the loops over k."""
        axes = self.group.reduce.axis
        k: dict[Var, PrimExpr] = {r: Var(r.name) for r in axes}
        last = axes[-1]
        if self.vector_direction == ALONG_COLUMNS:
            body = self.emit_column_step(k)
            outside = list(axes)
        else:
            block = Var(last.name)
            num_vectors = simplify(last.extent // self.lanes)
            position = k | {last: block * self.lanes}
            body = serial_loop(block, num_vectors, self.emit_depth_step(position, last))
            step = Var(last.name)
            remainder = simplify(last.extent - num_vectors * self.lanes)
            scalar_step = self.emit_remainder_step(k | {last: num_vectors * self.lanes + step})
            if known_extent(remainder) != 0:
                body = seq(body, serial_loop(step, remainder, scalar_step))
            outside = list(axes[:-1])
        return reduction_loops(outside, k, body)

    def emit_results(self) -> Stmt:
        """Emit the epilogue and the stores."""
        stores: list[Stmt] = []
        for i, j, number in self.sum_indices():
            if self.vector_direction == ALONG_COLUMNS:
                lane = Var("lane")
                value = BufferLoad(self.sums, (self.sum_at(number, lane),), self.dtype)
                column = self.column_index(0) + j * self.lanes + lane
                stores.append(self.lane_loop(lane, self.emit_result(i, column, value)))
            else:
                position = BufferLoad(self.remainder_sums, (const(number),), self.dtype)
                stores.append(self.emit_result(i, self.column_index(j), position))
        return seq(*stores)

    def emit_result(self, i: int, column: PrimExpr, value: PrimExpr) -> Stmt:
        """Emit the store of an element of the output."""
        anchor, f = self.group.anchor.op, self.factors
        assert isinstance(anchor, ComputeOp)
        position = (
            f.axis_values(f.rows, self.row_index(i))
            | f.axis_values(self.tiled_axes, column)
            | self.outer_axis_values()
        )
        return self.group.emit_store([position[a.var] for a in anchor.axis], value)

    def emit_lane_reduction(self) -> Stmt:
        """Emit the horizontal sum of every accumulator."""
        stores: list[Stmt] = []
        for _, _, number in self.sum_indices():
            # Lanes are summed once, after all of k: a horizontal sum takes several instructions.
            index = ramp(self.sum_at(number, const(0)), 1, self.lanes)
            lanes = BufferLoad(self.sums, (index,), f"{self.dtype}x{self.lanes}")
            indices = (const(number),)
            total = VectorReduce(lanes, "sum", self.dtype)
            old = BufferLoad(self.remainder_sums, indices, self.dtype)
            stores.append(BufferStore(self.remainder_sums, old + total, indices))
        return seq(*stores)

    def build(self, name: str) -> PrimFunc:
        """Build the PrimFunc."""
        phases = [self.emit_prologue(), self.emit_k_nest()]
        local_buffers = [self.sums]
        if self.vector_direction == ALONG_DEPTH:
            zero = const(0, self.dtype)
            count = self.rows * self.columns
            phases.insert(
                0, seq(*(BufferStore(self.remainder_sums, zero, (const(n),)) for n in range(count)))
            )
            phases.append(self.emit_lane_reduction())
            local_buffers.append(self.remainder_sums)
        tile_index = Var("place")
        body = self.guard_tile(
            tile_index, wrap_in_allocations(seq(*phases, self.emit_results()), local_buffers)
        )
        return self.emit_launch(body, name, tile_index)

    @property
    def num_row_tiles(self) -> PrimExpr:
        """Return the number of row tiles."""
        return simplify((self.m + (self.rows - 1)) // self.rows)

    def guard_tile(self, tile_index: Var, body: Stmt) -> Stmt:
        """Guard a tile of the band that may not exist."""
        if not self.band:
            return substitute(body, {self.block_m: tile_index})
        exact = is_const(simplify(self.num_row_tiles % self.band), 0)
        guarded = body if exact else IfThenElse(self.block_m < self.num_row_tiles, body)
        return substitute(guarded, {self.block_m: self.number * self.band + tile_index})

    def emit_launch(self, body: Stmt, name: str, tile_index: Var | None = None) -> PrimFunc:
        """Emit the launch of a thread's body; the tiles of a band run consecutively."""
        tiles_n = simplify((self.n + (self.width - 1)) // self.width)
        bands: PrimExpr = const(1)
        if self.band:
            bands = simplify((self.num_row_tiles + (self.band - 1)) // self.band)
        around = Var("around")
        indices = {self.block: around // bands, self.number: around % bands}
        body = thread_loop(Var("thread"), 1, "threadIdx.x", substitute(body, indices))
        outside = simplify(self.factors.num_elements(self.factors.batch) * self.lines * bands)
        if tile_index is not None:
            body = thread_loop(tile_index, self.band or self.num_row_tiles, "blockIdx.x", body)
        body = thread_loop(self.block_n, tiles_n, "blockIdx.y", body)
        return self.group.create_prim_func(thread_loop(around, outside, "blockIdx.z", body), name)


PANEL_STEPS = (1024, 512, 256, 128, 64, 32, 16)
PANEL_BAND_TILES, MIN_PANEL_TILES = (64, 32, 16, 8), 8
"""Default and minimum row tiles that a thread multiplies by one panel."""
MIN_THREADS_PER_CORE = 4
"""Minimum threads per compute unit, which balances the load."""
Steps: TypeAlias = Callable[[Mapping[Var, PrimExpr], PrimExpr], Stmt]
"""Function (step of k, its index in the chunk) -> statement."""


def ordered_reduce_axes(factors: ContractionFactors) -> list[ReduceAxis]:
    """Return the reduction axes in the memory order of the row factor."""
    return sorted(factors.reduce_axes.axis, key=lambda r: -stride_bound(factors.a, r))


def split_k_axis(axes: Sequence[ReduceAxis], steps: int) -> tuple[int, int]:
    """Return the reduction axis that chunks split, and its values per chunk of at most `steps`
    iterations.

    Axes behind it are complete in a chunk. All chunks have the same number of values if they can.
    """
    inner = 1
    for position in reversed(range(len(axes))):
        size = known_extent(axes[position].extent)
        if position == 0 or size is None or size * inner > steps:
            limit = max(1, steps // inner)
            # Equal chunks: a short last one would pay the traffic of sums for little work.
            num_chunks = -(-(size or 1) // limit)
            return position, limit if size is None else max(1, -(-size // num_chunks))
        inner *= size
    return 0, 1


def choose_panel(
    target: Target, factors: ContractionFactors, plain: Overrides, max_vector: int
) -> Overrides | None:
    """Return the decision of a kernel with packed panels; None where the unpacked `plain` one is
    estimated faster.

    Args:
        target: The device.
        factors: The sum of products.
        plain: The decision without panels.
        max_vector: The most lanes of a vector.
    """
    m, n = (
        known_extent(factors.num_elements(factors.rows)),
        known_extent(factors.num_elements(factors.columns)),
    )
    lanes = lanes_fitting(max_vector, n if factors.columns else 1)
    if n is None or lanes == 1:
        return None
    rows, columns = choose_tile(target, m, n // lanes)
    width = columns * lanes
    steps = _largest_up_to(PANEL_STEPS, target.l1 // (dt.itemsize(factors.b.dtype) * width))
    most_tiles = _largest_up_to(
        PANEL_BAND_TILES, target.l1 // (dt.itemsize(factors.reduce_axes.dtype) * rows * width)
    )
    if steps is None or most_tiles is None:
        return None
    values: Overrides = {
        "rows": rows,
        "columns": columns,
        "vector": lanes,
        "along": ALONG_COLUMNS,
        "panel": steps,
    }
    tiles = -(-(m or ASSUMED_EXTENT) // rows)
    if not _are_panels_cheaper(target, factors, values, plain, tiles, -(-tiles // most_tiles)):
        return None
    band = most_tiles
    num_threads = (known_extent(simplify(factors.num_elements(factors.batch))) or 1) * -(
        -n // width
    )
    # Shorter bands copy panels more often, but give threads to all units.
    while (
        band > MIN_PANEL_TILES
        and num_threads * -(-tiles // band) < MIN_THREADS_PER_CORE * target.cores
    ):
        band //= 2
    return {**plain, **values, "band": band}


def _largest_up_to(values: Sequence[int], limit: int) -> int | None:
    return next((n for n in values if n <= limit), None)


def _are_panels_cheaper(
    target: Target,
    factors: ContractionFactors,
    packed_panels: Overrides,
    plain: Overrides,
    tiles: int,
    bands: int,
) -> bool:
    """Return whether the estimated cost with packed panels is lower than without.

    Costs are those of an iteration of k for a vector of columns and all rows, in halves of a
    multiply-add: a load or store is one, an element that is loaded by itself or chosen by a
    condition two; a load from behind the first cache is two.

    Args:
        target: The device.
        factors: The sum of products.
        packed_panels: The decision with panels.
        plain: The decision without.
        tiles: Tiles of rows.
        bands: Bands of tiles.
    """
    rows, columns, lanes = (int(packed_panels[name]) for name in ("rows", "columns", "vector"))
    depth = known_extent(factors.reduction_size) or ASSUMED_EXTENT
    is_near = isinstance(factors.b, ProducerLoad) and choose_vector_axis(factors, lanes) == (
        ALONG_COLUMNS,
        lanes,
    )
    # Distant elements are inserted lane by lane: a load and an insertion for each.
    load_cost = 1 if is_near else 2 * lanes
    tile_cost = tiles * (2 * rows + rows / columns)
    if plain["along"] == ALONG_DEPTH:
        lane_sum_cost = 4 * math.log2(lanes) * lanes / depth
        loads = 1 / int(plain["rows"]) + 1 / int(plain["columns"])
        plain_cost = tiles * rows * (2 + loads + lane_sum_cost)
    else:
        is_far = depth * columns * lanes * dt.itemsize(factors.b.dtype) > target.l1 // 2
        plain_cost = tile_cost + tiles * (load_cost + int(is_near and is_far))
    return tile_cost + tiles + bands * (load_cost + 1) < plain_cost


class PackedPanelKernel(VectorMatmulKernel):
    """Builder of a contraction kernel that packs panels of columns."""

    def __init__(self, group: ReductionGroup, decision: Decision) -> None:
        super().__init__(group, decision)
        if self.vector_direction != ALONG_COLUMNS or not self.band:
            raise CompileError(
                f"decisions: 'thread_product' {decision}: 'panel' goes with along={ALONG_COLUMNS} "
                "and a 'band' that is not 0"
            )
        axes = ordered_reduce_axes(self.factors)
        position, self.max_chunk_steps = split_k_axis(axes, decision.int_value("panel"))
        self.axes_before_split, self.split_axis, self.axes_after_split = (
            axes[:position],
            axes[position],
            axes[position + 1 :],
        )
        self.outer_vars: dict[Var, PrimExpr] = {r: Var(r.name) for r in self.axes_before_split}
        self.chunk_index, self.tile = Var("part"), Var("tile")
        steps = simplify(
            product_of_dims(
                [const(self.max_chunk_steps), *(r.extent for r in self.axes_after_split)]
            )
        )
        self.panel = Buffer("panel", (steps * self.width,), self.factors.b.dtype, "local")
        self.is_whole = (
            not self.axes_before_split
            and known_extent(self.split_axis.extent) == self.max_chunk_steps
        )
        self.tile_elements = self.rows * self.columns * self.lanes
        self.band_sums = Buffer(
            "kept", (const(self.band * self.tile_elements),), self.dtype, "local"
        )

    def tiled_column_axes(self, factors: ContractionFactors) -> tuple[Var, ...]:
        """Return all column axes: packing makes them contiguous."""
        return factors.columns

    def emit_chunk_loop(self, make: Steps) -> Stmt:
        """Emit `make` for all iterations of a chunk."""
        step = Var("step")
        first = self.chunk_index * self.max_chunk_steps
        k = {**self.outer_vars, self.split_axis: first + step}
        number: PrimExpr = step
        for r in self.axes_after_split:
            k[r] = Var(r.name)
            number = number * r.extent + k[r]
        body = reduction_loops(self.axes_after_split, k, make(k, number))
        remaining = minimum(self.split_axis.extent - first, self.max_chunk_steps)
        return serial_loop(step, self.max_chunk_steps if self.is_whole else remaining, body)

    def emit_copy_columns(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """Emit the packing of one row of the panel: all columns at one step of k."""
        stores: list[Stmt] = []
        for j in range(self.columns):
            lane = Var("lane")
            position = const(j * self.lanes) + lane
            value = self.factor_b(self.column_index(0) + position, k)
            store = BufferStore(self.panel, value, (number * self.width + position,))
            stores.append(self.lane_loop(lane, store))
        return seq(*stores)

    def emit_panel_step(self, k: Mapping[Var, PrimExpr], number: PrimExpr) -> Stmt:
        """Emit the multiply-adds of a panel row with the row operands."""
        lane = Var("lane")
        panel_indices = [number * self.width + j * self.lanes + lane for j in range(self.columns)]
        b = [BufferLoad(self.panel, (position,), self.panel.dtype) for position in panel_indices]
        return self.lane_loop(lane, self.emit_products(lane, b, k))

    def emit_copy_accumulators(self, to: Buffer, source: Buffer) -> Stmt:
        """Emit the copy of the tile's accumulators between registers and thread-local memory."""
        begin = {self.sums: const(0), self.band_sums: self.tile * self.tile_elements}
        stores: list[Stmt] = []
        for position in range(0, self.tile_elements, self.lanes):
            lane = Var("lane")
            value = BufferLoad(source, (begin[source] + position + lane,), self.dtype)
            stores.append(
                self.lane_loop(lane, BufferStore(to, value, (begin[to] + position + lane,)))
            )
        return seq(*stores)

    def emit_band_loop(self, *stmts: Stmt) -> Stmt:
        """Emit statements for all tiles of the band."""
        tile = Var("tile")
        return serial_loop(
            tile, self.band, self.guard_tile(tile, substitute(seq(*stmts), {self.tile: tile}))
        )

    def build(self, name: str) -> PrimFunc:
        """Build the PrimFunc."""
        sums = self.emit_chunk_loop(self.emit_panel_step)
        copies = self.emit_chunk_loop(self.emit_copy_columns)
        local_buffers = [self.panel, self.sums]
        # With a single chunk, sums stay in registers from start to finish.
        if self.is_whole:
            body = seq(copies, self.emit_band_loop(self.emit_prologue(), sums, self.emit_results()))
            body = substitute(body, {self.chunk_index: const(0)})
        else:
            local_buffers.append(self.band_sums)
            load, save = (
                self.emit_copy_accumulators(self.sums, self.band_sums),
                self.emit_copy_accumulators(self.band_sums, self.sums),
            )
            chunks = seq(copies, self.emit_band_loop(load, sums, save))
            count = (self.split_axis.extent + (self.max_chunk_steps - 1)) // self.max_chunk_steps
            chunks = serial_loop(self.chunk_index, simplify(count), chunks)
            chunks = reduction_loops(self.axes_before_split, self.outer_vars, chunks)
            body = seq(
                self.emit_band_loop(self.emit_prologue(), save),
                chunks,
                self.emit_band_loop(load, self.emit_results()),
            )
        return self.emit_launch(wrap_in_allocations(body, local_buffers), name)
