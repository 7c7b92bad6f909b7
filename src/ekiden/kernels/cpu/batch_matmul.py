"""Matrix products of two computed matrices, or batches of them.

    out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]        either may be stored transposed

The right matrix is packed into panels as wide as a register tile, unless it already is one panel:
then every step of k reads contiguous memory, a transposition is undone, and the last vector is
padded with zeros. The first row tile of a full panel packs while it multiplies. Panels are several
vectors wide; remaining columns make panels of one vector, of which the last is stored under a mask,
so that the number of columns need not be known. Threads share the batch, or the panels: each is
multiplied as soon as it is packed, and stays in the core's cache; with too few panels, the rows.
Few rows are memory-bound, and read the matrix in place (see `skinny_gemm`, and `dot_products` where
it is transposed).

    how=streamed    line by line            how=panels      a panel is copied, then multiplied
    how=direct      as it lies, in tiles    how=whole       the matrix is copied, then multiplied
    how=dots        line by line, each of which makes an element

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
from ekiden.kernels.cost_model import most_rows
from ekiden.kernels.cpu.dot_products import DotProductShape, dot_products
from ekiden.kernels.cpu.skinny_gemm import SkinnyProduct, skinny_product
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import Family
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import Prefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    KLoop,
    PrefetchStep,
    Tile,
    balanced_rows,
    compute_tile,
    stepped_rows,
)
from ekiden.kernels.prim_builder import make_buffers, product, tiled_builder, unflatten
from ekiden.kernels.spaces.product import MAX_TILE_ROWS, NARROW_ROWS, default, is_transposed, space
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Prefetch, Stmt, seq
from ekiden.topi.dimensions import equal as same_dim

PACK_PREFETCH = {"first": (16, 3), "second": (32, 2)}
"""The cache that a matrix is brought to before it is copied -> steps of k ahead, and how a prefetch
says it: those of a second-level cache have further to go, and more lines stay there."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line; as many steps of k are copied together of a transposed matrix."""
TILE_DTYPES = ("float32", "float64")
"""Types of products that register tiles compute as they are."""
SMALLER_TILE_ROWS = (3, 1)
"""Row counts below the largest, where the number of rows is not known."""


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """A matrix in memory: strides in elements of a row, a column, and a batch item (0 if
    shared).
    """

    buffer: Buffer
    row: PrimExpr
    column: PrimExpr
    batch: PrimExpr


def _operand(buffer: Buffer, transposed: bool, batch: PrimExpr | None) -> MatrixOperand:
    """Return a matrix of a product of `batch` images; without a batch its batch stride is 0."""
    rows, columns = (const(1), *buffer.shape)[-2:]  # a vector is one row
    step = const(0) if batch is None else _image_stride(buffer, simplify(rows * columns), batch)
    return (
        MatrixOperand(buffer, const(1), columns, step)
        if transposed
        else MatrixOperand(buffer, columns, const(1), step)
    )


def _image_stride(buffer: Buffer, image: PrimExpr, batch: PrimExpr) -> PrimExpr:
    """Return the elements between two batch items: 0 for a broadcast batch of 1, which may be known
    at run time only.
    """
    own = buffer.shape[0]
    if is_const(own, 1):
        return const(0)
    if isinstance(own, IntImm) or same_dim(own, batch):
        return image
    return Select(own.equal(1), const(0), image, "int64")


class _MatmulKernel:
    """The builder of one matrix product kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        tag: str,
    ) -> None:
        self.anchor = find_anchor(outputs, tag)
        self.buffers = make_buffers(inputs, outputs)
        self.decision, self.wide = decision, decision.number("vectors")
        attrs = self.anchor.op.attrs
        a, b = (self.buffers[t] for t in operands_of(self.anchor))
        transpose_a = bool(attrs.get("transpose_a", False))
        transpose_b = bool(attrs.get("transpose_b", tag == "dense"))
        self.dtype, self.target = self.anchor.dtype, target
        self.lanes, self.line = (
            target.lanes(self.dtype),
            CACHE_LINE_BYTES // dt.itemsize(self.dtype),
        )
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.batched = tag == "batch_matmul"
        self.leading = list(self.anchor.shape[:-1])
        self.batch = self.anchor.shape[0] if self.batched else const(1)
        self.rows = self.anchor.shape[1] if self.batched else product(self.leading)
        self.columns = self.anchor.shape[-1]
        self.k = a.shape[-2] if transpose_a else a.shape[-1]
        self.turned = is_transposed(self.anchor)
        if self.turned:  # the one column lies in order, whichever way it is stored
            self.rows, self.columns = const(1), self.rows
            a, b, transpose_a, transpose_b = b, a, False, not transpose_a
        images = self.batch if self.batched else None
        self.a = _operand(a, transpose_a, images)
        self.b = _operand(b, transpose_b, images)
        self.transpose_b = transpose_b

    def indices(self, image: PrimExpr, row: PrimExpr, column: PrimExpr) -> list[PrimExpr]:
        """Return the indices of an output element."""
        if self.turned:
            row, column = column, row
        if self.batched:
            return [image, row, column]
        return [*unflatten(row, self.leading, const(0))[:-1], column]

    def store(
        self,
        image: PrimExpr,
        row: PrimExpr,
        column: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
    ) -> Stmt:
        """Store a vector of the result, from a column on, through the epilogue."""
        flat = (image * self.rows + row) * self.columns + column
        axis = -2 if self.turned else -1
        return self.epilogue.store(self.indices(image, row, column), flat, value, mask, axis)

    # the panels

    def split(self) -> tuple[PrimExpr, PrimExpr]:
        """Return (full panels, panels of one vector after them)."""
        width = self.wide * self.lanes
        full_panels = simplify(self.columns // width)
        tail_columns = self.columns - full_panels * width
        return full_panels, simplify((tail_columns + (self.lanes - 1)) // self.lanes)

    def pack(self, packed: Buffer, image: PrimExpr, kind: ForKind) -> Stmt:
        """Pack packed[c * K + k * width + i] = b[k, c + i] for the panel that begins at
        column c.
        """
        full_panels, narrow = self.split()
        width = self.wide * self.lanes

        def panels(count: PrimExpr, first: PrimExpr, vectors: int) -> Stmt:
            """Loop over panels of that many vectors of columns, from column `first` on."""
            panel = Var("p")
            column = first + panel * (vectors * self.lanes)
            body = self.pack_panel(packed, column * self.k, image, column, vectors)
            return For(panel, const(0), count, kind, body, {"grain": 1})

        return seq(panels(full_panels, const(0), self.wide), panels(narrow, full_panels * width, 1))

    def pack_panel(
        self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr, vectors: int
    ) -> Stmt:
        """Pack packed[base + k * width + i] = b[k, column + i] for one panel, with zeros beyond the
        matrix.
        """
        if self.transpose_b and vectors == self.wide:
            return self._pack_transposed(packed, base, image, column)
        k, width = Var("k"), vectors * self.lanes
        origin = image * self.b.batch + column * self.b.column
        steps: list[Stmt] = []
        if not self.transpose_b:
            steps = self.prefetch_source(origin, k, width)
        for v in range(vectors):
            first, to = column + v * self.lanes, base + k * width + v * self.lanes
            at = image * self.b.batch + k * self.b.row + first * self.b.column
            steps.append(
                self._copy_vector(packed, to, at, self.mask(first) if vectors == 1 else None)
            )
        return For(k, const(0), self.k, ForKind.SERIAL, seq(*steps))

    def prefetch_source(self, origin: PrimExpr, k: PrimExpr, width: int) -> list[Stmt]:
        """Return prefetches of what is packed some steps after step k."""
        steps, locality = PACK_PREFETCH[str(self.decision["ahead"])]
        at = origin + (k + steps) * self.b.row
        return [Prefetch(self.b.buffer, (at + n,), locality) for n in range(0, width, self.line)]

    def _pack_transposed(
        self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr
    ) -> Stmt:
        """Pack a full panel of a transposed matrix, one cache line of each column after the other:
        a gather costs several times as many loads.
        """
        block, i, tail_k, tail_column = (Var(n) for n in ("block", "i", "left", "rest"))
        width = self.wide * self.lanes
        origin = image * self.b.batch + column * self.b.column

        def copy_element(k: PrimExpr, at: Var) -> Stmt:
            value = BufferLoad(self.b.buffer, (origin + at * self.b.column + k,), self.dtype)
            return BufferStore(packed, value, (base + k * width + at,))

        full_lines, size = simplify(self.k // self.line), self.line
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

    def _copy_vector(
        self, packed: Buffer, to: PrimExpr, at: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Copy one vector of a panel."""
        vector = dt.with_lanes(self.dtype, self.lanes)
        value: PrimExpr = BufferLoad(self.b.buffer, (ramp(at, self.b.column, self.lanes),), vector)
        if mask is not None:
            value = if_then_else(mask, value, broadcast(const(0.0, self.dtype), self.lanes))
        return BufferStore(packed, value, (ramp(to, 1, self.lanes),))

    def mask(self, first: PrimExpr) -> PrimExpr:
        """Return the mask of a vector's existing columns."""
        return ramp(first, 1, self.lanes) < broadcast(self.columns, self.lanes)

    # the tiles

    def tile(
        self,
        source: MatrixOperand,
        image: PrimExpr,
        first: PrimExpr,
        rows: int,
        column: PrimExpr,
        vectors: int,
        ahead: PrefetchStep | None = None,
        unroll: int = 1,
    ) -> Stmt:
        """Return a tile of rows on one panel. `source` is the packed copy, whose batch stride is 0,
        or the matrix itself.
        """
        masked = vectors == 1 and source.buffer is not self.b.buffer
        shape = Tile(rows, vectors, self.lanes, vectors * self.lanes, self.dtype)

        def store(i: PrimExpr, offset: PrimExpr, value: PrimExpr, _: PrimExpr | None) -> Stmt:
            """Store a vector of the result through the epilogue, masked where the last panel is
            partial.
            """
            at = column + offset
            return self.store(image, first + i, at, value, self.mask(at) if masked else None)

        step = source.row if source.buffer is self.b.buffer else const(vectors * self.lanes)
        loops = [KLoop(self.k, self.a.column, step)]
        start = image * self.a.batch
        a_rows = [start + (first + i) * self.a.row for i in range(rows)]
        base = image * source.batch + column * source.column
        return compute_tile(
            shape,
            loops,
            self.a.buffer,
            a_rows,
            source.buffer,
            base,
            store,
            ahead=ahead,
            unroll=unroll,
        )

    def limit(self, vectors: int) -> int:
        """Return the maximal rows of a tile."""
        return self.decision.number("rows") if vectors == self.wide else NARROW_ROWS

    def near(self, packed: Buffer) -> tuple[PrefetchStep | None, int]:
        """Return the prefetches of a packed full panel for a tile, and its unroll factor."""
        own, unroll = self.decision.number("own"), self.decision.number("unroll")
        row = self.wide * self.lanes
        plan = Prefetches(packed, row, self.line, self.k, const(0), own, 0, unroll)
        return (plan.of(const(0), None)[1] if own else None), unroll

    def panels(
        self, source: MatrixOperand, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int
    ) -> Callable[[int, PrimExpr], Stmt]:
        """Return the body of a row tile: `count` panels from column `begin`."""
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
            """Run all panels for the rows of a tile."""
            column = simplify(begin + panel * (vectors * self.lanes))
            one = self.tile(source, image, first, rows, column, vectors)
            return For(panel, const(0), count, ForKind.SERIAL, one)

        return body

    def row_tiles(self, limit: int, body: Callable[[int, PrimExpr], Stmt], kind: ForKind) -> Stmt:
        """Return all rows in tiles of at most `limit`; balanced where the rows are known."""
        if isinstance(self.rows, IntImm):
            return balanced_rows(self.rows, limit, body, kind)
        sizes = [limit, *(size for size in SMALLER_TILE_ROWS if size < limit)]
        return stepped_rows(self.rows, sizes, body, kind)

    def product(self, source: MatrixOperand, image: PrimExpr, kind: ForKind) -> Stmt:
        """Return all tiles of one matrix."""
        full_panels, narrow = self.split()
        loops = []
        for count, begin, vectors in (
            (full_panels, const(0), self.wide),
            (narrow, full_panels * (self.wide * self.lanes), 1),
        ):
            if isinstance(count, IntImm) and count.value == 0:
                continue
            limit = self.limit(vectors)
            loops.append(
                self.row_tiles(limit, self.panels(source, image, count, begin, vectors), kind)
            )
        return seq(*loops)

    def one(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Return one matrix of the batch: pack, multiply."""
        how = self.decision["how"]
        if how in ("streamed", "dots"):
            return self.of_few_rows(image, kind)
        if how == "direct":
            return self.direct(image, kind)
        if how == "panels":
            return self.by_panels(image, kind)
        size = simplify(self.k * ((self.columns + (self.lanes - 1)) // self.lanes * self.lanes))
        packed = Buffer("packed", (size,), self.dtype)
        source = MatrixOperand(packed, const(0), self.k, const(0))
        return Allocate(
            packed, seq(self.pack(packed, image, kind), self.product(source, image, kind))
        )

    def by_panels(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Pack each panel, then multiply all rows by it."""
        full_panels, narrow = self.split()
        width = self.wide * self.lanes
        return seq(
            *(
                self.panel_run(image, count, begin, vectors, kind)
                for count, begin, vectors in (
                    (full_panels, const(0), self.wide),
                    (narrow, full_panels * width, 1),
                )
                if not (isinstance(count, IntImm) and count.value == 0)
            )
        )

    def panel_run(
        self, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int, kind: ForKind
    ) -> Stmt:
        """Return `count` panels from column `begin`."""
        panel, width = Var("p"), vectors * self.lanes
        column = simplify(begin + panel * width)
        packed = Buffer("packed", (simplify(self.k * width),), self.dtype)
        if self.transpose_b or vectors != self.wide:
            body = self.copied_panel(packed, image, column, vectors)
        else:
            body = self.read_panel(packed, image, column)
        return For(panel, const(0), count, kind, Allocate(packed, body), {"grain": 1})

    def copied_panel(self, packed: Buffer, image: PrimExpr, column: PrimExpr, vectors: int) -> Stmt:
        """Pack a panel, then multiply all rows by it."""
        source = MatrixOperand(packed, const(0), const(0), const(0))
        ahead, unroll = self.near(packed) if vectors == self.wide else (None, 1)

        def body(rows: int, first: PrimExpr) -> Stmt:
            return self.tile(source, image, first, rows, column, vectors, ahead, unroll)

        packing = self.pack_panel(packed, const(0), image, column, vectors)
        return seq(packing, self.row_tiles(self.limit(vectors), body, ForKind.SERIAL))

    def read_panel(self, packed: Buffer, image: PrimExpr, column: PrimExpr) -> Stmt:
        """Let a panel's first row tile read the matrix in place and pack it for the others: memory
        latency hides behind multiplying.
        """
        source = MatrixOperand(packed, const(0), const(0), const(0))
        width = self.wide * self.lanes
        origin = image * self.b.batch + column
        ahead, unroll = self.near(packed)

        def copy(_: PrimExpr, k: PrimExpr, column: int) -> list[Stmt]:
            """Pack the panel's line at step k of the first rows, as it is read."""
            line = origin + k * self.b.row
            return [
                *self.prefetch_source(origin, k, width),
                *(
                    self._copy_vector(packed, k * width + n, line + n, None)
                    for n in range(0, width, self.lanes)
                ),
            ]

        def body(rows: int, first: PrimExpr) -> Stmt:
            """Read and pack in the first row tile; read the panel in all others."""
            early = self.tile(self.b, image, first, rows, column, self.wide, copy)
            later = self.tile(source, image, first, rows, column, self.wide, ahead, unroll)
            return IfThenElse(first.equal(0), early, later)

        return self.row_tiles(self.limit(self.wide), body, ForKind.SERIAL)

    def of_few_rows(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Stream the matrix line by line for few rows."""
        assert isinstance(self.rows, IntImm)

        def store(row: int, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """Store a vector of the result through the epilogue."""
            return self.store(image, const(row), column, value, mask)

        rows = [image * self.a.batch + self.a.row * i for i in range(self.rows.value)]
        origin = image * self.b.batch
        if self.decision["how"] == "dots":
            dots = DotProductShape(self.k, self.columns, rows, origin, self.dtype)
            return dot_products(dots, self.a.buffer, self.b.buffer, store, self.target, kind)
        shape = SkinnyProduct(self.k, self.columns, rows, self.a.column, origin, self.dtype)
        return skinny_product(shape, self.a.buffer, self.b.buffer, store, self.target, kind)

    def direct(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Multiply by the matrix in place; its columns are whole vectors."""
        assert isinstance(self.columns, IntImm)
        column_blocks, begin = [], 0
        while begin < self.columns.value:
            vectors = min(self.wide, (self.columns.value - begin) // self.lanes)
            body = self.panels(self.b, image, const(1), const(begin), vectors)
            limit = min(MAX_TILE_ROWS, most_rows(vectors, self.target))
            column_blocks.append(self.row_tiles(limit, body, kind))
            begin += vectors * self.lanes
        return seq(*column_blocks)

    def body(self) -> Stmt:
        """Run the batch in parallel; a single matrix by rows in parallel."""
        if isinstance(self.batch, IntImm) and self.batch.value == 1:
            return self.one(const(0), ForKind.PARALLEL)
        image = Var("image")
        return For(
            image,
            const(0),
            self.batch,
            ForKind.PARALLEL,
            self.one(image, ForKind.SERIAL),
            {"grain": 1},
        )


def accepts(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the rule covers a product: one float dtype throughout; a transposed left
    operand has two or three dimensions.
    """
    a, b = operands_of(anchor)
    plain = (
        not anchor.op.attrs.get("transpose_a", False)
        or a.ndim == 2
        or anchor.op.tag == "batch_matmul"
    )
    return plain and {a.dtype, b.dtype} == {anchor.dtype} and anchor.dtype in TILE_DTYPES


def _family(tag: str) -> Family:
    return Family(
        name=tag,
        accepts=accepts,
        space=space,
        default=default,
        build=tiled_builder(partial(_MatmulKernel, tag=tag)),
        why="the first tile of a panel copies it while it computes: a copy is a block before",
    )


FAMILIES = tuple(map(_family, ("batch_matmul", "matmul", "dense")))
"""Products of computed matrices."""
