"""Batched and single matrix products of two computed matrices, with panels packed at run time.

    out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]        either may be stored transposed

The right matrix is packed into panels as wide as a register tile, unless it already is one panel:
then every step of k reads contiguous memory, a transposition is undone, and the last vector is
padded with zeros. The first row tile of a full panel packs while it multiplies. Panels are several
vectors wide; remaining columns make panels of one vector, of which the last is stored under a mask,
so that the number of columns need not be known. Threads share the batch, or the panels: each is
multiplied as soon as it is packed, and stays in the core's cache; with too few panels, the rows.
Few rows are memory-bound, and read the matrix in place (see `skinny_gemm`, and
`emit_dot_products` where it is
transposed).

    rhs_access=streamed    streamed row by row
    rhs_access=direct      read in place, in tiles
    rhs_access=panels      packed panel by panel, each multiplied at once
    rhs_access=whole       packed as a whole, then multiplied
    rhs_access=dots        streamed row by row, one dot product per row

With one column the left matrix is streamed, and the rows of the result are its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Select, Var, const, is_const
from ekiden.kernels.cost_model import max_register_rows
from ekiden.kernels.cpu.dot_products import DotProductShape, emit_dot_products
from ekiden.kernels.cpu.skinny_gemm import SkinnyGemm, emit_skinny_gemm
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import Family
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import PanelPrefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    PrefetchFn,
    RegisterTile,
    balanced_row_tiles,
    emit_register_tile,
    stepped_row_tiles,
)
from ekiden.kernels.prim_builder import (
    declare_parameters,
    kernel_builder,
    product_of_dims,
    unflatten_row,
)
from ekiden.kernels.spaces.batch_matmul import (
    MAX_PRODUCT_TILE_ROWS,
    MAX_STREAMED_ROWS,
    default_decision,
    is_transposed,
    search_space,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Prefetch, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop
from ekiden.topi.dimensions import are_equal_dims as same_dim

PACK_PREFETCH_BY_CACHE = {"l1": (16, 3), "l2": (32, 2)}
"""Prefetch distance (steps of k) and locality hint by destination cache."""
MATMUL_CACHE_LINE_BYTES = 64
"""Bytes per cache line, and the steps of k packed together from a transposed matrix."""
MATMUL_TILE_DTYPES = ("float32", "float64")
"""Operand dtypes that register tiles multiply without conversion."""
SMALLER_TILE_ROWS = (3, 1)
"""Tile row counts below the largest, for a dynamic number of rows."""


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """Matrix operand in memory: its buffer, and the element strides of a row, a column and a batch
    item (0 if shared).
    """

    buffer: Buffer
    row_stride: PrimExpr
    column_stride: PrimExpr
    batch_stride: PrimExpr


def _matrix_operand(buffer: Buffer, transposed: bool, batch: PrimExpr | None) -> MatrixOperand:
    """Return a matrix of a product of `batch` images; without a batch its batch stride is 0."""
    rows, columns = (const(1), *buffer.shape)[-2:]  # a vector is one row
    step = const(0) if batch is None else _batch_stride(buffer, simplify(rows * columns), batch)
    return (
        MatrixOperand(buffer, const(1), columns, step)
        if transposed
        else MatrixOperand(buffer, columns, const(1), step)
    )


def _batch_stride(buffer: Buffer, image: PrimExpr, batch: PrimExpr) -> PrimExpr:
    """Return the elements between two batch items: 0 for a broadcast batch of 1, decided at run
    time where the size is symbolic.
    """
    own = buffer.shape[0]
    if is_const(own, 1):
        return const(0)
    if isinstance(own, IntImm) or same_dim(own, batch):
        return image
    # A dynamic batch may turn out to be 1 and broadcast, which only the run knows.
    return Select(own.equal(1), const(0), image, "int64")


class _MatmulKernel:
    """Builder of one matrix-product kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        tag: str,
    ) -> None:
        self.anchor = find_anchor(outputs, tag)
        self.buffers = declare_parameters(inputs, outputs)
        self.decision, self.panel_vectors = decision, decision.int_value("vectors")
        attrs = self.anchor.op.attrs
        a, b = (self.buffers[t] for t in operands_of(self.anchor))
        transpose_a = bool(attrs.get("transpose_a", False))
        transpose_b = bool(attrs.get("transpose_b", tag == "dense"))
        self.dtype, self.target = self.anchor.dtype, target
        self.lanes, self.line_elements = (
            target.lanes(self.dtype),
            MATMUL_CACHE_LINE_BYTES // dt.itemsize(self.dtype),
        )
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.is_batched = tag == "batch_matmul"
        self.leading = list(self.anchor.shape[:-1])
        self.batch = self.anchor.shape[0] if self.is_batched else const(1)
        self.rows = self.anchor.shape[1] if self.is_batched else product_of_dims(self.leading)
        self.columns = self.anchor.shape[-1]
        self.k = a.shape[-2] if transpose_a else a.shape[-1]
        self.is_transposed = is_transposed(self.anchor)
        if self.is_transposed:  # the one column lies in order, whichever way it is stored
            self.rows, self.columns = const(1), self.rows
            a, b, transpose_a, transpose_b = b, a, False, not transpose_a
        images = self.batch if self.is_batched else None
        self.a = _matrix_operand(a, transpose_a, images)
        self.b = _matrix_operand(b, transpose_b, images)
        self.transpose_b = transpose_b

    def output_indices(self, image: PrimExpr, row: PrimExpr, column: PrimExpr) -> list[PrimExpr]:
        """Return the indices of an output element."""
        if self.is_transposed:
            row, column = column, row
        if self.is_batched:
            return [image, row, column]
        return [*unflatten_row(row, self.leading, const(0))[:-1], column]

    def emit_store(
        self,
        image: PrimExpr,
        row: PrimExpr,
        column: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
    ) -> Stmt:
        """Emit the store of a vector of the result from a column on, through the epilogue."""
        flat = (image * self.rows + row) * self.columns + column
        axis = -2 if self.is_transposed else -1
        return self.epilogue.emit_store(
            self.output_indices(image, row, column), flat, value, mask, axis
        )

    # the panels

    def split_panels(self) -> tuple[PrimExpr, PrimExpr]:
        """Return the number of full panels, and of the one-vector panels after them."""
        width = self.panel_vectors * self.lanes
        full_panels = simplify(self.columns // width)
        tail_columns = self.columns - full_panels * width
        return full_panels, simplify((tail_columns + (self.lanes - 1)) // self.lanes)

    def emit_pack(self, packed: Buffer, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the packing of a panel: packed[c * K + k * width + i] = b[k, c + i]."""
        full_panels, narrow = self.split_panels()
        width = self.panel_vectors * self.lanes

        def loop_over_panels(count: PrimExpr, first: PrimExpr, vectors: int) -> Stmt:
            """Loop over panels of `vectors` vectors of columns, from column `first` on."""
            panel = Var("p")
            column = first + panel * (vectors * self.lanes)
            body = self.emit_pack_panel(packed, column * self.k, image, column, vectors)
            return For(panel, const(0), count, kind, body, {"grain": 1})

        return seq(
            loop_over_panels(full_panels, const(0), self.panel_vectors),
            loop_over_panels(narrow, full_panels * width, 1),
        )

    def emit_pack_panel(
        self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr, vectors: int
    ) -> Stmt:
        """Emit the packing packed[base + k * width + i] = b[k, column + i] of one panel, with zeros
        beyond the matrix.
        """
        # Copying line by line needs every column to exist; a narrow panel is loaded under a mask.
        if self.transpose_b and vectors == self.panel_vectors:
            return self._emit_pack_transposed(packed, base, image, column)
        k, width = Var("k"), vectors * self.lanes
        origin = image * self.b.batch_stride + column * self.b.column_stride
        steps: list[Stmt] = []
        if not self.transpose_b:
            steps = self.emit_source_prefetches(origin, k, width)
        for v in range(vectors):
            first, to = column + v * self.lanes, base + k * width + v * self.lanes
            at = image * self.b.batch_stride + k * self.b.row_stride + first * self.b.column_stride
            steps.append(
                self._emit_copy_vector(
                    packed, to, at, self.column_mask(first) if vectors == 1 else None
                )
            )
        return For(k, const(0), self.k, ForKind.SERIAL, seq(*steps))

    def emit_source_prefetches(self, origin: PrimExpr, k: PrimExpr, width: int) -> list[Stmt]:
        """Return prefetches of the elements that are packed some steps after step k."""
        steps, locality = PACK_PREFETCH_BY_CACHE[str(self.decision["pack_prefetch"])]
        at = origin + (k + steps) * self.b.row_stride
        return [
            Prefetch(self.b.buffer, (at + n,), locality)
            for n in range(0, width, self.line_elements)
        ]

    def _emit_pack_transposed(
        self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr
    ) -> Stmt:
        """Emit the packing of a full panel of a transposed matrix, one cache line of each column at
        a time; a gather needs several times as many loads.
        """
        block, i, tail_k, tail_column = (Var(n) for n in ("block", "i", "left", "rest"))
        width = self.panel_vectors * self.lanes
        origin = image * self.b.batch_stride + column * self.b.column_stride

        def copy_element(k: PrimExpr, at: Var) -> Stmt:
            value = BufferLoad(self.b.buffer, (origin + at * self.b.column_stride + k,), self.dtype)
            return BufferStore(packed, value, (base + k * width + at,))

        full_lines, size = simplify(self.k // self.line_elements), self.line_elements
        line = seq(*(copy_element(block * size + n, i) for n in range(size)))
        columns = For(i, const(0), const(width), ForKind.SERIAL, line)
        tail = For(
            tail_column,
            const(0),
            const(width),
            ForKind.SERIAL,
            copy_element(full_lines * size + tail_k, tail_column),
        )
        return seq(
            For(block, const(0), full_lines, ForKind.SERIAL, columns),
            For(tail_k, const(0), simplify(self.k - full_lines * size), ForKind.SERIAL, tail),
        )

    def _emit_copy_vector(
        self, packed: Buffer, to: PrimExpr, at: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Copy one vector of a panel."""
        vector = dt.with_lanes(self.dtype, self.lanes)
        value: PrimExpr = BufferLoad(
            self.b.buffer, (ramp(at, self.b.column_stride, self.lanes),), vector
        )
        if mask is not None:
            value = if_then_else(mask, value, broadcast(const(0.0, self.dtype), self.lanes))
        return BufferStore(packed, value, (ramp(to, 1, self.lanes),))

    def column_mask(self, first: PrimExpr) -> PrimExpr:
        """Return the mask of a vector's columns that exist in the matrix."""
        return ramp(first, 1, self.lanes) < broadcast(self.columns, self.lanes)

    # the tiles

    def emit_tile(
        self,
        source: MatrixOperand,
        image: PrimExpr,
        first: PrimExpr,
        rows: int,
        column: PrimExpr,
        vectors: int,
        ahead: PrefetchFn | None = None,
        unroll: int = 1,
    ) -> Stmt:
        """Emit a tile of rows on one panel. `source` is the packed copy, whose batch stride is 0,
        or the matrix itself.
        """
        # Only a packed narrow panel has padding columns beyond the matrix.
        masked = vectors == 1 and source.buffer is not self.b.buffer
        shape = RegisterTile(rows, vectors, self.lanes, vectors * self.lanes, self.dtype)

        def store_vector(
            i: PrimExpr, offset: PrimExpr, value: PrimExpr, _: PrimExpr | None
        ) -> Stmt:
            """Store a vector of the result through the epilogue, masked where the last panel is
            partial.
            """
            at = column + offset
            return self.emit_store(
                image, first + i, at, value, self.column_mask(at) if masked else None
            )

        # Read in place, a step of k moves by a row of the matrix; packed, by a row of the panel.
        step = source.row_stride if source.buffer is self.b.buffer else const(vectors * self.lanes)
        loops = [SumLoop(self.k, self.a.column_stride, step)]
        start = image * self.a.batch_stride
        a_rows = [start + (first + i) * self.a.row_stride for i in range(rows)]
        base = image * source.batch_stride + column * source.column_stride
        return emit_register_tile(
            shape,
            loops,
            self.a.buffer,
            a_rows,
            source.buffer,
            base,
            store_vector,
            ahead=ahead,
            unroll=unroll,
        )

    def max_tile_rows(self, vectors: int) -> int:
        """Return the maximum number of rows of a tile."""
        return (
            self.decision.int_value("rows") if vectors == self.panel_vectors else MAX_STREAMED_ROWS
        )

    def prefetch_step(self, packed: Buffer) -> tuple[PrefetchFn | None, int]:
        """Return the prefetches of a tile's packed panel, and the unroll factor of k."""
        distance, unroll = self.decision.int_value("l1_prefetch"), self.decision.int_value("unroll")
        row = self.panel_vectors * self.lanes
        plan = PanelPrefetches(
            packed, row, self.line_elements, self.k, const(0), distance, 0, unroll
        )
        return (plan.tile_prefetches(const(0), None)[1] if distance else None), unroll

    def panel_loop_body(
        self, source: MatrixOperand, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int
    ) -> Callable[[int, PrimExpr], Stmt]:
        """Return a function that emits `count` panels from column `begin` for the rows of a
        tile.
        """
        panel = Var("p")

        def run_panels(rows: int, first: PrimExpr) -> Stmt:
            """Run all panels for the rows of a tile."""
            column = simplify(begin + panel * (vectors * self.lanes))
            one = self.emit_tile(source, image, first, rows, column, vectors)
            return For(panel, const(0), count, ForKind.SERIAL, one)

        return run_panels

    def emit_row_tiles(
        self, limit: int, body: Callable[[int, PrimExpr], Stmt], kind: ForKind
    ) -> Stmt:
        """Emit all rows in tiles of at most `limit` rows, of equal sizes where the number of rows
        is known.
        """
        if isinstance(self.rows, IntImm):
            return balanced_row_tiles(self.rows, limit, body, kind)
        # Each size is a copy of the tile, so only a few; the last, 1, covers any remainder.
        sizes = [limit, *(size for size in SMALLER_TILE_ROWS if size < limit)]
        return stepped_row_tiles(self.rows, sizes, body, kind)

    def emit_product(self, source: MatrixOperand, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit all tiles of one matrix product."""
        full_panels, narrow = self.split_panels()
        loops = []
        for count, begin, vectors in (
            (full_panels, const(0), self.panel_vectors),
            (narrow, full_panels * (self.panel_vectors * self.lanes), 1),
        ):
            if isinstance(count, IntImm) and count.value == 0:
                continue
            limit = self.max_tile_rows(vectors)
            loops.append(
                self.emit_row_tiles(
                    limit, self.panel_loop_body(source, image, count, begin, vectors), kind
                )
            )
        return seq(*loops)

    def emit_batch_item(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit one matrix of the batch: pack, multiply."""
        how = self.decision["rhs_access"]
        if how in ("streamed", "dots"):
            return self.emit_few_rows(image, kind)
        if how == "direct":
            return self.emit_unpacked(image, kind)
        if how == "panels":
            return self.emit_by_panels(image, kind)
        # The last panel is padded with zeros to whole vectors, so that tiles load without masks.
        size = simplify(self.k * ((self.columns + (self.lanes - 1)) // self.lanes * self.lanes))
        packed = Buffer("packed", (size,), self.dtype)
        source = MatrixOperand(packed, const(0), self.k, const(0))
        return Allocate(
            packed, seq(self.emit_pack(packed, image, kind), self.emit_product(source, image, kind))
        )

    def emit_by_panels(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the product panel by panel: pack the panel, then multiply all rows by it."""
        full_panels, narrow = self.split_panels()
        width = self.panel_vectors * self.lanes
        return seq(
            *(
                self.emit_panel_run(image, count, begin, vectors, kind)
                for count, begin, vectors in (
                    (full_panels, const(0), self.panel_vectors),
                    (narrow, full_panels * width, 1),
                )
                if not (isinstance(count, IntImm) and count.value == 0)
            )
        )

    def emit_panel_run(
        self, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int, kind: ForKind
    ) -> Stmt:
        """Emit `count` panels from column `begin`."""
        panel, width = Var("p"), vectors * self.lanes
        column = simplify(begin + panel * width)
        packed = Buffer("packed", (simplify(self.k * width),), self.dtype)
        # Multiplying in place needs contiguous lines without a mask: full panels, not transposed.
        if self.transpose_b or vectors != self.panel_vectors:
            body = self.emit_packed_panel(packed, image, column, vectors)
        else:
            body = self.emit_panel_packed_on_first_use(packed, image, column)
        # The packed panel is allocated inside the loop, so that each thread owns one.
        return For(panel, const(0), count, kind, Allocate(packed, body), {"grain": 1})

    def emit_packed_panel(
        self, packed: Buffer, image: PrimExpr, column: PrimExpr, vectors: int
    ) -> Stmt:
        """Emit the packing of a panel, then the product of all rows with it."""
        source = MatrixOperand(packed, const(0), const(0), const(0))
        ahead, unroll = self.prefetch_step(packed) if vectors == self.panel_vectors else (None, 1)

        def emit_rows(rows: int, first: PrimExpr) -> Stmt:
            return self.emit_tile(source, image, first, rows, column, vectors, ahead, unroll)

        packing = self.emit_pack_panel(packed, const(0), image, column, vectors)
        return seq(
            packing, self.emit_row_tiles(self.max_tile_rows(vectors), emit_rows, ForKind.SERIAL)
        )

    def emit_panel_packed_on_first_use(
        self, packed: Buffer, image: PrimExpr, column: PrimExpr
    ) -> Stmt:
        """Emit a panel that the first row tile reads in place and packs for the others, so that
        memory latency hides behind arithmetic.
        """
        source = MatrixOperand(packed, const(0), const(0), const(0))
        width = self.panel_vectors * self.lanes
        origin = image * self.b.batch_stride + column
        ahead, unroll = self.prefetch_step(packed)

        def pack_line(_: PrimExpr, k: PrimExpr, column: int) -> list[Stmt]:
            """Pack the panel's line at step k of the first rows, as it is read."""
            line = origin + k * self.b.row_stride
            return [
                *self.emit_source_prefetches(origin, k, width),
                *(
                    self._emit_copy_vector(packed, k * width + n, line + n, None)
                    for n in range(0, width, self.lanes)
                ),
            ]

        def emit_rows(rows: int, first: PrimExpr) -> Stmt:
            """Read and pack in the first row tile; read the panel in all others."""
            early = self.emit_tile(
                self.b, image, first, rows, column, self.panel_vectors, pack_line
            )
            later = self.emit_tile(
                source, image, first, rows, column, self.panel_vectors, ahead, unroll
            )
            # Only the first row tile packs, so the panel is complete before another one reads it:
            # rows of a panel run on one thread.
            return IfThenElse(first.equal(0), early, later)

        return self.emit_row_tiles(
            self.max_tile_rows(self.panel_vectors), emit_rows, ForKind.SERIAL
        )

    def emit_few_rows(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit a product of few rows, which streams the matrix line by line."""
        # Each row has sums and factors of its own in the emitted code: their number is static.
        assert isinstance(self.rows, IntImm)

        store = partial(self.emit_store, image)
        rows = [image * self.a.batch_stride + self.a.row_stride * i for i in range(self.rows.value)]
        origin = image * self.b.batch_stride
        if self.decision["rhs_access"] == "dots":
            dots = DotProductShape(self.k, self.columns, rows, origin, self.dtype)
            return emit_dot_products(dots, self.a.buffer, self.b.buffer, store, self.target, kind)
        shape = SkinnyGemm(self.k, self.columns, rows, self.a.column_stride, origin, self.dtype)
        return emit_skinny_gemm(shape, self.a.buffer, self.b.buffer, store, self.target, kind)

    def emit_unpacked(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the product on the unpacked matrix, whose columns are whole vectors."""
        assert isinstance(self.columns, IntImm)
        column_blocks, begin = [], 0
        # Lanes divide the columns; otherwise `vectors` would become 0 and the loop would not end.
        while begin < self.columns.value:
            vectors = min(self.panel_vectors, (self.columns.value - begin) // self.lanes)
            body = self.panel_loop_body(self.b, image, const(1), const(begin), vectors)
            limit = min(MAX_PRODUCT_TILE_ROWS, max_register_rows(vectors, self.target))
            column_blocks.append(self.emit_row_tiles(limit, body, kind))
            begin += vectors * self.lanes
        return seq(*column_blocks)

    def body(self) -> Stmt:
        """Emit the batch in parallel; for a single matrix, its rows in parallel."""
        # A single matrix has no batch to share out: threads share its rows or panels.
        if isinstance(self.batch, IntImm) and self.batch.value == 1:
            return self.emit_batch_item(const(0), ForKind.PARALLEL)
        image = Var("image")
        return For(
            image,
            const(0),
            self.batch,
            ForKind.PARALLEL,
            self.emit_batch_item(image, ForKind.SERIAL),
            {"grain": 1},
        )


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: one float dtype throughout, and a transposed left
    operand of rank two or three.
    """
    a, b = operands_of(anchor)
    plain = (
        not anchor.op.attrs.get("transpose_a", False)
        or a.ndim == 2
        or anchor.op.tag == "batch_matmul"
    )
    return plain and {a.dtype, b.dtype} == {anchor.dtype} and anchor.dtype in MATMUL_TILE_DTYPES


def _matmul_family(tag: str) -> Family:
    return Family(
        name=tag,
        accepts=is_supported,
        search_space=search_space,
        default_decision=default_decision,
        build_unscheduled=kernel_builder(partial(_MatmulKernel, tag=tag)),
        unscheduled_reason=(
            "few rows are streamed without a tile, a transposed matrix is turned as it is "
            "packed, and rows of unknown number copy no panel on first use"
        ),
    )


FAMILIES = tuple(map(_matmul_family, ("batch_matmul", "matmul", "dense")))
"""Families of matmul and batch_matmul."""
