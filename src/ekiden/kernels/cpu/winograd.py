"""3x3 convolutions by the Winograd algorithm (see topi/nn/winograd.py).

Blocks of tiles, so that what is between the steps stays in the second-level cache:

    spread    patches of the data -> V[e][tile][c]      e: the (m + 2)^2 places of a patch
    multiply  M[e] = V[e] x weight[e]                   register tiles
    gather    M -> output tiles and what follows them

A whole block is one step of a parallel loop; with fewer blocks than would keep the threads busy,
each of the three steps is a parallel loop of its own. Rows of V and M are as long as they need to
be plus one vector: else neighbouring places would share a set of the first-level cache. Where
blocks do not divide the tiles, the last block ends with the register tile that has the last tile,
which is repeated to fill it and stored once. A patch that reaches over the border is put together
first, with zeros outside.

Bytes become int16 in V, two channels of which are a word, and int32 in M; what brings their sums
back into range follows as any other operator does.

A maximum over windows of 2x2 that follows is taken before anything is stored: windows lie within
tiles. (VGG-19, 224x224x64: 16 MB less to write and to read.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    LT,
    Add,
    IntImm,
    Max,
    Mul,
    PrimExpr,
    Sub,
    Var,
    cast,
    const,
    fold_binary,
    is_const,
    logical_and,
    minimum,
)
from ekiden.kernels.cost_model import CACHE_LINE_BYTES as CACHE_LINE_BYTES
from ekiden.kernels.cost_model import choose_panel_width, max_register_rows, panel_width_knob
from ekiden.kernels.cpu.dense import MAX_NARROW_TILE_ROWS
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import RANGE_EPILOGUE, Family
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import PanelPrefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    WIDENED_DTYPE,
    RegisterTile,
    balanced_row_tiles,
    column_mask,
    emit_register_tile,
)
from ekiden.kernels.micro_kernels.vector_memory import load_vector
from ekiden.kernels.prim_builder import declare_parameters, kernel_builder, wrap_in_lets
from ekiden.kernels.spaces.winograd import (
    INT8_ARITHMETIC,
    default_decision,
    element_arithmetic,
    search_space,
)
from ekiden.target import Target
from ekiden.te.inline import input_tensors
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop
from ekiden.topi.nn.winograd import WINOGRAD_TAPS, fills_vectors, transform_matrices

WINOGRAD_CONV_TAG = "winograd_conv2d"
MIN_BLOCKS_PER_CORE = 2
"""Blocks per core above which whole blocks run in parallel."""


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a convolution: known channels, vectors of them, float32 or
    bytes. Relay asks the same before it transforms weights: transformed weights have no other
    kernel.
    """
    data, weight = operands_of(anchor)
    if not all(isinstance(d, IntImm) for d in (data.shape[3], *weight.shape, anchor.shape[3])):
        return False
    depth, channels = _constant_dims((data.shape[3], anchor.shape[3]))
    is_known = anchor.dtype == "float32" or (data.dtype, weight.dtype) == ("uint8", WIDENED_DTYPE)
    return is_known and fills_vectors(depth, channels, target.lanes("float32"))


def producer_of_fused_pool(outputs: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Return the tensor that a fused 2x2 maximum pooling reads, else `outputs` unchanged."""
    output = outputs[0]
    if output.is_part:
        (output,) = input_tensors(output)
    sources = input_tensors(output)
    if len(outputs) != 1 or output.op.name != "max_pool" or len(sources) != 1:
        return list(outputs)
    assert isinstance(output.op, te.ComputeOp)
    n, y, x, c = (a.var for a in output.op.axis)
    offsets = {
        tuple(simplify(i - j) for i, j in zip(e.indices, (n, y * 2, x * 2, c), strict=True))
        for e in te.tensor_loads(output.op)
    }
    # An index that is not constant becomes None, which matches no window.
    taps = {tuple(map(const_int_or_none, offset)) for offset in offsets}
    sides = [const_int_or_none(d) for d in sources[0].shape[1:3]]
    is_even = all(d is not None and d % 2 == 0 for d in sides)
    return (
        sources if is_even and taps == {(0, i, j, 0) for i in (0, 1) for j in (0, 1)} else [output]
    )


def const_int_or_none(expr: PrimExpr) -> int | None:
    """Return the value of an integer constant, or None."""
    return expr.value if isinstance(expr, IntImm) else None


def _constant_dims(dims: Sequence[PrimExpr]) -> tuple[int, ...]:
    constants = tuple(d.value for d in dims if isinstance(d, IntImm))
    assert len(constants) == len(dims)
    return constants


class _LinearTransform:
    """One-dimensional Winograd transform: linear combinations of vectors by a constant matrix."""

    def __init__(self, matrix: np.ndarray, lanes: int, dtype: str = "float32") -> None:
        self.matrix, self.lanes, self.dtype = matrix, lanes, dtype
        self.vector = dt.with_lanes(dtype, lanes)

    def broadcast_weight(self, value: float) -> PrimExpr:
        number = float(value) if dt.is_float(self.dtype) else int(value)
        return broadcast(const(number, self.dtype), self.lanes)

    def linear_combination(
        self, weights: Sequence[float], vectors: Sequence[PrimExpr]
    ) -> PrimExpr | None:
        """Return the weighted sum of vectors; None if all weights are 0."""
        total: PrimExpr | None = None
        # Weights of 1 and -1 come first, so that the sum begins without a product.
        for weight, vector in sorted(
            zip(weights, vectors, strict=True), key=lambda p: abs(p[0]) != 1
        ):
            if weight == 0:
                continue
            if total is None:
                total = (
                    vector
                    if weight == 1
                    else fold_binary(Mul, vector, self.broadcast_weight(weight))
                )
            elif abs(weight) == 1:
                total = fold_binary(Add if weight > 0 else Sub, total, vector)
            elif dt.is_float(self.dtype):
                total = call_intrin(
                    "fma", vector, self.broadcast_weight(weight), total, dtype=self.vector
                )
            else:
                scaled = fold_binary(Mul, vector, self.broadcast_weight(abs(weight)))
                total = fold_binary(Add if weight > 0 else Sub, total, scaled)
        return total

    def transform(
        self, vectors: Sequence[PrimExpr]
    ) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
        """Return let-bindings of shared sums, and the combinations of `vectors`. Opposite points
        share their even and odd sums, whether they are rows of the matrix or columns.
        """
        rows, columns = self.matrix.shape
        return (
            self._transform_by_row_pairs(vectors)
            if rows == columns
            else self._transform_by_column_pairs(vectors)
        )

    def _transform_by_row_pairs(
        self, vectors: Sequence[PrimExpr]
    ) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
        lets: list[tuple[Var, PrimExpr]] = []
        results: list[PrimExpr] = []
        last = len(self.matrix) - 1
        for k in (0, *range(1, last, 2), last):
            row = self.matrix[k]
            if k in (0, last):
                edge_result = self.linear_combination(row, vectors)
                assert edge_result is not None
                results.append(edge_result)
                continue
            next_row = self.matrix[k + 1]
            # Points k and k + 1 are opposite: their rows differ in sign at odd powers alone.
            pair = [
                self.linear_combination(half, vectors)
                for half in ((row + next_row) / 2, (row - next_row) / 2)
            ]
            even, odd = Var("even", self.vector), Var("odd", self.vector)
            for name, value in zip((even, odd), pair, strict=True):
                assert value is not None
                lets.append((name, value))
            results += [fold_binary(Add, even, odd), fold_binary(Sub, even, odd)]
        return lets, results

    def _transform_by_column_pairs(
        self, vectors: Sequence[PrimExpr]
    ) -> tuple[list[tuple[Var, PrimExpr]], list[PrimExpr]]:
        lets: list[tuple[Var, PrimExpr]] = []
        # Opposite interpolation points share sum and difference of two vectors, which nearly halves
        # the multiplications.
        matrix, values = self.matrix.copy(), list(vectors)
        for k in range(1, len(values) - 1, 2):
            total, difference = Var("both", self.vector), Var("apart", self.vector)
            lets.append((total, fold_binary(Add, vectors[k], vectors[k + 1])))
            lets.append((difference, fold_binary(Sub, vectors[k], vectors[k + 1])))
            even, odd = (matrix[:, k] + matrix[:, k + 1]) / 2, (matrix[:, k] - matrix[:, k + 1]) / 2
            matrix[:, k], matrix[:, k + 1] = even, odd
            values[k], values[k + 1] = total, difference
        results = [self.linear_combination(row, values) for row in matrix]
        return lets, [result for result in results if result is not None]


class _WinogradKernel:
    """Builder of one Winograd convolution kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        self.decision = decision
        self.anchor = find_anchor(outputs, WINOGRAD_CONV_TAG)
        self.buffers = declare_parameters(inputs, outputs)
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        attrs = self.anchor.op.attrs
        self.tile_side = int(str(attrs["m"]))
        self.patch_side = self.tile_side + WINOGRAD_TAPS - 1
        self.patch_points = self.patch_side**2
        self.n, self.height, self.width, channels = self.anchor.shape
        (self.channels,) = _constant_dims((channels,))
        (self.depth,) = _constant_dims(data.shape[3:])
        self.panels, self.steps, self.panel = _constant_dims(weight.shape)[1:4]
        kind = element_arithmetic(self.anchor)
        self.elements_per_step = kind.elements_per_step
        up = self.tile_side - 1
        self.tiles_per_column = simplify((self.height + up) // self.tile_side)
        self.tiles_per_row = simplify((self.width + up) // self.tile_side)
        self.tiles = simplify(self.n * self.tiles_per_column * self.tiles_per_row)
        self.block = decision.int_value("block")
        self.count = simplify((self.tiles + (self.block - 1)) // self.block)
        self.is_even = is_const(simplify(self.tiles % self.block), 0)
        self.lanes, self.target = target.lanes("float32"), target
        (result,) = producer_of_fused_pool(outputs)
        self.is_pooled = result is not outputs[0]  # or a part of that
        target_of = {**self.buffers, result: self.buffers[outputs[0]]}
        self.epilogue = Epilogue(self.anchor, result, target_of)
        a, b, _ = transform_matrices(self.tile_side, is_integer=kind is INT8_ARITHMETIC)
        self.spread_lanes = target.lanes(kind.dtype)
        """Data channels transformed at once."""
        self.data_transform = _LinearTransform(b, self.spread_lanes, kind.dtype)
        self.output_transform = _LinearTransform(a, self.lanes, self.anchor.dtype)
        self.pitch = -(-self.depth // self.spread_lanes) * self.spread_lanes
        """Elements between the channels of consecutive tiles in V."""
        # One vector more than needed: planes a power of two apart would map to the same cache sets.
        self.v_plane = self.block * self.pitch + self.spread_lanes
        self.columns = -(-self.channels // self.lanes) * self.lanes
        self.m_plane = self.block * self.columns + self.lanes
        self.v = Buffer("v", (const(self.patch_points * self.v_plane),), kind.dtype)
        self.products = Buffer(
            "products", (const(self.patch_points * self.m_plane),), self.anchor.dtype
        )
        padding = attrs["padding"]
        assert isinstance(padding, tuple)
        self.top, self.left = int(padding[0]), int(padding[1])

    def tiles_in_block(self, first: PrimExpr, more: int = 0) -> PrimExpr:
        """Return the number of tiles of the block that begins with tile `first`, and `more` where
        the block has places for them.
        """
        if self.is_even:
            return const(self.block)
        return simplify(minimum(const(self.block), self.tiles - first + more))

    def is_patch_in_bounds(self, line: PrimExpr, column: PrimExpr) -> PrimExpr:
        """Return whether the patch at a position is completely inside the data; a constant where
        all are.
        """
        _, height, width, _ = self.data.shape
        reach = [
            (line, self.top, self.tiles_per_column, height),
            (column, self.left, self.tiles_per_row, width),
        ]
        condition: PrimExpr = const(True, "bool")
        for at, before, tiles, extent in reach:
            # Conditions that hold for every tile stay out of the loop.
            if before:
                condition = logical_and(condition, at >= 0)
            if not is_const(
                simplify(tiles * self.tile_side + (WINOGRAD_TAPS - 1 - before) - extent), 0
            ):
                condition = logical_and(condition, at <= extent - self.patch_side)
        return condition

    def emit_patch_copy(
        self,
        to: Buffer,
        corner: tuple[PrimExpr, PrimExpr],
        pixel: PrimExpr,
        mask: PrimExpr | None,
    ) -> Stmt:
        """Emit the zero-padded copy of one channel vector of a patch."""
        _, height, width, _ = self.data.shape
        i, j = Var("i"), Var("j")
        line, column = corner[0] + i, corner[1] + j
        test = logical_and(line >= 0, line < height)
        test = logical_and(test, logical_and(column >= 0, column < width))
        lanes = self.spread_lanes
        stage_index = (ramp((i * self.patch_side + j) * lanes, 1, lanes),)
        load = load_vector(self.data, pixel + (i * width + j) * self.depth, lanes, mask)
        zero = broadcast(const(0, to.dtype), lanes)
        copy_pixel = IfThenElse(
            test, BufferStore(to, load, stage_index), BufferStore(to, zero, stage_index)
        )
        inner = For(j, const(0), const(self.patch_side), ForKind.SERIAL, copy_pixel)
        return For(i, const(0), const(self.patch_side), ForKind.SERIAL, inner)

    def tile_coordinates(self, tile: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Return (image, line, column) of the first output pixel of a tile."""
        # The last register tile has places for more tiles: they repeat the last one and are not
        # stored.
        if not self.is_even:
            tile = minimum(tile, self.tiles - 1)
        area = self.tiles_per_column * self.tiles_per_row
        down = tile % area // self.tiles_per_row
        return tile // area, down * self.tile_side, tile % self.tiles_per_row * self.tile_side

    def emit_transform(
        self, transform: _LinearTransform, vectors: list[PrimExpr], to: Buffer, at: list[PrimExpr]
    ) -> Stmt:
        """Transform vectors and store the results."""
        names = [Var("part", transform.vector) for _ in vectors]
        lets, results = transform.transform(names)
        stores = [
            BufferStore(to, value, (ramp(offset, 1, transform.lanes),))
            for value, offset in zip(results, at, strict=True)
        ]
        return wrap_in_lets([*zip(names, vectors, strict=True), *lets], seq(*stores))

    def emit_data_transform(self, first: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the input transform V = B' d B of a block of tiles."""
        tile, group = Var("tile"), Var("group")
        n, y, x = self.tile_coordinates(first + tile)
        corner = line, column = Var("line"), Var("column")
        pixel = Var("pixel")
        full_groups, tail_width = divmod(self.depth, self.spread_lanes)
        stmts: list[Stmt] = []
        if full_groups:
            body = self.emit_data_transform_group(tile, corner, pixel, group, None)
            stmts.append(For(group, const(0), const(full_groups), ForKind.SERIAL, body))
        if tail_width:
            mask = column_mask(tail_width, self.spread_lanes)
            stmts.append(
                self.emit_data_transform_group(tile, corner, pixel, const(full_groups), mask)
            )
        _, height, width, _ = self.data.shape
        start = ((n * height + line) * width + column) * self.depth
        lets = [(line, y - self.top), (column, x - self.left), (pixel, start)]
        # Register tiles read as many whose first one exists.
        narrow = MAX_NARROW_TILE_ROWS if self.channels % self.panel else 0
        count = self.tiles_in_block(first, max(self.decision.int_value("rows"), narrow) - 1)
        return For(tile, const(0), count, kind, wrap_in_lets(lets, seq(*stmts)), {"grain": 2})

    def emit_data_transform_group(
        self,
        tile: PrimExpr,
        corner: tuple[PrimExpr, PrimExpr],
        pixel: PrimExpr,
        group: PrimExpr,
        mask: PrimExpr | None,
    ) -> Stmt:
        """Transform one vector of channels of a patch."""
        i, size, width = Var("i"), self.patch_side, self.data.shape[2]
        lanes = self.spread_lanes
        stage = Buffer("stage", (const(self.patch_points * lanes),), self.v.dtype, "local")
        # Private to the tile: threads transform tiles in parallel.
        patch = Buffer("patch", (const(self.patch_points * lanes),), self.data.dtype, "local")
        offset = pixel + group * lanes
        row = simplify(width * self.depth)
        near = self.emit_data_transform_columns(self.data, offset, row, self.depth, stage, mask)
        far = self.emit_data_transform_columns(patch, const(0), const(size * lanes), lanes, stage)
        fill = self.emit_patch_copy(patch, corner, offset, mask)
        inside = self.is_patch_in_bounds(*corner)
        # Only patches over the border are copied first: inside, columns are read as they lie.
        columns = near if is_const(inside, 1) else IfThenElse(inside, near, seq(fill, far))
        staged = [load_vector(stage, (i * size + c) * lanes, lanes) for c in range(size)]
        base = tile * self.pitch + group * lanes
        out = [(i * size + c) * self.v_plane + base for c in range(size)]
        transform = self.emit_transform(self.data_transform, staged, self.v, out)
        rows = For(i, const(0), const(size), ForKind.SERIAL, transform)
        return Allocate(patch, Allocate(stage, seq(columns, rows)))

    def emit_data_transform_columns(
        self,
        source: Buffer,
        start: PrimExpr,
        row: PrimExpr,
        step: int,
        to: Buffer,
        mask: PrimExpr | None = None,
    ) -> Stmt:
        """Emit the column transforms of a patch; `row` and `step` are the strides of lines and
        pixels.
        """
        j, size = Var("j"), self.patch_side
        lanes = self.spread_lanes
        columns = [
            load_vector(source, start + row * r + j * step, lanes, mask) for r in range(size)
        ]
        loads = [cast(column, self.data_transform.vector) for column in columns]
        stage_offsets = [(j + r * size) * lanes for r in range(size)]
        transform = self.emit_transform(self.data_transform, loads, to, stage_offsets)
        return For(j, const(0), const(size), ForKind.SERIAL, transform)

    def emit_products(self, first: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the products M = U V of a block: one matrix product per position of a transformed
        tile.
        """
        full_panels, tail_columns = divmod(self.channels, self.panel)
        stmts: list[Stmt] = []
        tiles = self.tiles_in_block(first)
        if full_panels:
            stmts.append(self.emit_panel_products(full_panels, 0, self.panel, tiles, kind))
        if tail_columns:
            stmts.append(self.emit_panel_products(1, full_panels, tail_columns, tiles, kind))
        return seq(*stmts)

    def emit_panel_products(
        self, count: int, first_panel: int, valid: int, tiles_in_block: PrimExpr, kind: ForKind
    ) -> Stmt:
        """Emit the products of a block with some panels of the transformed weights."""
        step = Var("step")
        # Positions outside, panels inside: the transformed data of a position stay in L1 for all of
        # its panels.
        e, panel = step // count, step % count + first_panel
        vectors = -(-valid // self.lanes)
        row = self.panel * self.elements_per_step
        loops = [SumLoop(const(self.steps), const(self.elements_per_step), const(row))]
        base, source, to = Var("base"), Var("source"), Var("to")
        l1_prefetch, unroll = (
            self.decision.int_value("l1_prefetch"),
            self.decision.int_value("unroll"),
        )
        steps = const(self.steps)
        line = CACHE_LINE_BYTES // dt.itemsize(self.weight.dtype)
        prefetch = PanelPrefetches(self.weight, row, line, steps, const(0), l1_prefetch, 0, unroll)
        ahead = prefetch.tile_prefetches(base, None)[1] if l1_prefetch else None
        max_rows = max_register_rows(vectors, self.target, element_arithmetic(self.anchor).dtype)
        is_whole = vectors * self.lanes >= self.panel
        limit = self.decision.int_value("rows") if is_whole else min(MAX_NARROW_TILE_ROWS, max_rows)

        def emit_row_tile(rows: int, first: PrimExpr) -> Stmt:
            """Emit the products of some tiles' transformed data with a panel at position (u, v)."""

            def store_product(
                i: PrimExpr, at: PrimExpr, value: PrimExpr, _: PrimExpr | None
            ) -> Stmt:
                """Store a vector of the transformed products."""
                offset = to + (first + i) * self.columns + at
                return BufferStore(self.products, value, (ramp(offset, 1, self.lanes),))

            valid = vectors * self.lanes
            shape = RegisterTile(rows, vectors, self.lanes, valid, self.anchor.dtype)
            a_rows = [source + (first + i) * self.pitch for i in range(rows)]
            product = emit_register_tile(
                shape,
                loops,
                self.v,
                a_rows,
                self.weight,
                base,
                store_product,
                False,
                ahead,
                prefetch.unroll,
            )
            is_full = is_const(tiles_in_block, self.block) or is_const(first, 0)
            return product if is_full else IfThenElse(first < tiles_in_block, product)

        tiles = balanced_row_tiles(const(self.block), limit, emit_row_tile)
        lets = [
            (base, (e * self.panels + panel) * (self.steps * row)),
            (source, e * self.v_plane),
            (to, e * self.m_plane + panel * self.panel),
        ]
        every = const(count * self.patch_points)
        return For(step, const(0), every, kind, wrap_in_lets(lets, tiles), {"grain": 1})

    def emit_output_transform(self, first: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the output transform Y = A' M A of a block of tiles, and their epilogue."""
        tile, group = Var("tile"), Var("group")
        corner = n, y, x = Var("n"), Var("y"), Var("x")
        full_groups, tail_width = divmod(self.channels, self.lanes)
        stmts: list[Stmt] = []
        if full_groups:
            body = self.emit_output_transform_group(tile, corner, group, None)
            stmts.append(For(group, const(0), const(full_groups), ForKind.SERIAL, body))
        if tail_width:
            mask = column_mask(tail_width, self.lanes)
            stmts.append(self.emit_output_transform_group(tile, corner, const(full_groups), mask))
        corner_lets = list(zip((n, y, x), self.tile_coordinates(first + tile), strict=True))
        body = wrap_in_lets(corner_lets, seq(*stmts))
        if not self.is_even:
            body = IfThenElse(fold_binary(LT, first + tile, self.tiles), body)
        return For(tile, const(0), const(self.block), kind, body, {"grain": 2})

    def emit_output_transform_group(
        self, tile: PrimExpr, corner: tuple[Var, Var, Var], group: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Transform one vector of channels of an output tile."""
        (n, y, x), m, size = corner, self.tile_side, self.patch_side
        i, j = Var("i"), Var("j")
        stage = Buffer("stage", (const(m * size * self.lanes),), self.anchor.dtype, "local")
        base = tile * self.columns + group * self.lanes
        loads = [
            load_vector(self.products, (r * size + j) * self.m_plane + base, self.lanes)
            for r in range(size)
        ]
        stage_offsets = [(j + r * size) * self.lanes for r in range(m)]
        column = self.emit_transform(self.output_transform, loads, stage, stage_offsets)
        columns = For(j, const(0), const(size), ForKind.SERIAL, column)
        staged = [load_vector(stage, (i * size + c) * self.lanes, self.lanes) for c in range(size)]
        names = [Var("part", self.output_transform.vector) for _ in staged]
        lets, results = self.output_transform.transform(names)
        lets_held = [*zip(names, staged, strict=True), *lets]
        # The maximum comes before the store, so four pixels become one in registers.
        if self.is_pooled:
            rows = self.emit_pooled_rows((n, y, x), group, i, (lets_held, results), mask)
            return Allocate(stage, seq(columns, rows))
        stores = [self.emit_pixel((n, y + i, x + c), group, v, mask) for c, v in enumerate(results)]
        line = wrap_in_lets(lets_held, seq(*stores))
        if not is_const(simplify(self.height % m), 0):
            line = IfThenElse(fold_binary(LT, y + i, self.height), line)
        rows = For(i, const(0), const(m), ForKind.SERIAL, line)
        return Allocate(stage, seq(columns, rows))

    def emit_pixel(
        self,
        at: tuple[PrimExpr, PrimExpr, PrimExpr],
        group: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
    ) -> Stmt:
        """Emit the epilogue and the store of a vector of one output pixel, if it is inside the
        image.
        """
        (n, y, x), channel = at, group * self.lanes
        flat = ((n * self.height + y) * self.width + x) * self.channels + channel
        stored = self.epilogue.emit_store([n, y, x, channel], flat, value, mask)
        return self.guard_column(x, stored)

    def guard_column(self, x: PrimExpr, stored: Stmt) -> Stmt:
        """Return a statement guarded by whether its column is inside the image."""
        if is_const(simplify(self.width % self.tile_side), 0):
            return stored
        return IfThenElse(fold_binary(LT, x, self.width), stored)

    def emit_pooled_rows(
        self,
        corner: tuple[PrimExpr, PrimExpr, PrimExpr],
        group: PrimExpr,
        i: Var,
        line: tuple[Sequence[tuple[Var, PrimExpr]], Sequence[PrimExpr]],
        mask: PrimExpr | None,
    ) -> Stmt:
        """Emit the fused 2x2 maximum pooling of two lines of a tile, and the stores.

        Args:
            corner: The image, line and column of the tile's first pixel.
            group: The vector of channels.
            i: The line of the tile.
            line: The names and the values by which line `i` is computed.
            mask: The valid channels, or None for all.
        """
        (n, y, x), m, channel = corner, self.tile_side, group * self.lanes
        held, line_values = line
        dtype = self.epilogue.output.dtype
        vector = dt.with_lanes(dtype, self.lanes)
        upper = Buffer("upper", (const(m // 2 * self.lanes),), dtype, "local")
        wide = [Var("pair", vector) for _ in range(m // 2)]
        ends = [
            self.epilogue.apply([n, y + i, x + c, channel], v, mask)
            for c, v in enumerate(line_values)
        ]
        pairs = [fold_binary(Max, a, b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
        height, width = simplify(self.height // 2), simplify(self.width // 2)
        first, second = [], []
        for k, pair in enumerate(wide):
            offset = ramp(const(k * self.lanes), 1, self.lanes)
            first.append(BufferStore(upper, pair, (offset,)))
            above = load_vector(upper, const(k * self.lanes), self.lanes)
            at = (n * height + (y + i) // 2) * width + x // 2 + k
            both = fold_binary(Max, above, pair)
            stored = self.epilogue.emit_raw_store(at * self.channels + channel, channel, both, mask)
            second.append(self.guard_column(x + 2 * k, stored))
        # Even lines wait in `upper` for the odd line below them.
        half = IfThenElse(fold_binary(EQ, i % 2, const(0)), seq(*first), seq(*second))
        body = wrap_in_lets([*held, *zip(wide, pairs, strict=True)], half)
        if not is_const(simplify(self.height % m), 0):
            body = IfThenElse(fold_binary(LT, y + i, self.height), body)
        return Allocate(upper, For(i, const(0), const(m), ForKind.SERIAL, body))

    def body(self) -> Stmt:
        """Emit the loop over all blocks of tiles."""
        is_static = isinstance(self.count, IntImm)
        # With few blocks, threads share the iterations of each phase instead of whole blocks.
        is_parallel = (
            not is_static
            or _constant_dims((self.count,))[0] >= MIN_BLOCKS_PER_CORE * self.target.cores
        )
        kinds = ForKind.PARALLEL, ForKind.SERIAL
        outer, inner = kinds if is_parallel else kinds[::-1]
        block = Var("block")
        first = block * self.block
        steps = seq(
            self.emit_data_transform(first, inner),
            self.emit_products(first, inner),
            self.emit_output_transform(first, inner),
        )
        # Allocated inside the loop over blocks: where blocks run in parallel, each has its own.
        block_body = Allocate(self.v, Allocate(self.products, steps))
        return For(block, const(0), self.count, outer, block_body, {"grain": 1})


FAMILY = Family(
    name=WINOGRAD_CONV_TAG,
    accepts=is_supported,
    search_space=search_space,
    default_decision=default_decision,
    build_unscheduled=kernel_builder(_WinogradKernel),
    unscheduled_reason="borders skip terms of the transforms, which share a nest with the products",
    anchored_outputs=producer_of_fused_pool,
    default_panel_width=choose_panel_width,
    panel_width_knob=panel_width_knob,
    special_epilogues=("pairs_max", RANGE_EPILOGUE),
    writes_strided_rows=True,
)
