"""Matrix products of two computed matrices, or batches of them.

    out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]        either may be stored transposed

The right matrix is copied into panels, as wide as a register tile, unless it already is one panel:
that makes every step of k read neighbouring memory, undoes a transposition, and pads the last
vector with zeros. The first row tile of a whole panel makes the copy while it multiplies. Panels
are some vectors wide; columns left over make panels of one vector, of which the last is stored
under a mask, so that the number of columns need not be known. Threads share out the batch, or the
panels: each is multiplied as soon as it is copied, and stays in the core's cache; with too few
panels, the rows. Few rows are bound by memory, and read the matrix as it lies (see `streaming`, and
`dot_products` where it is transposed).

    how=streamed    line by line            how=panels      a panel is copied, then multiplied
    how=direct      as it lies, in tiles    how=whole       the matrix is copied, then multiplied
    how=dots        line by line, each of which makes an element

With one column it is the left matrix that is read, and the rows of the result are its columns.
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
from ekiden.kernels.cpu.dot_products import Dots, dot_products
from ekiden.kernels.cpu.streaming import Streamed, streamed_product
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import Family
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import Prefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    Ahead,
    KLoop,
    Tile,
    balanced_rows,
    compute_tile,
    stepped_rows,
)
from ekiden.kernels.prim_builder import make_buffers, product, tiled_builder, unflatten
from ekiden.kernels.spaces.product import MOST_ROWS, NARROW_ROWS, default, is_turned, space
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Prefetch, Stmt, seq
from ekiden.topi.shape import equal as same_dim

AHEAD = {"first": (16, 3), "second": (32, 2)}
"""The cache that a matrix is brought to before it is copied -> steps of k ahead, and how a prefetch
says it: those of a second-level cache have further to go, and more lines stay there."""
LINE = 64
"""Bytes of a cache line; as many steps of k are copied together of a transposed matrix."""
FLOATS = ("float32", "float64")
"""Types of products that register tiles compute as they are."""
STEPS = (3, 1)
"""Row counts below the largest, where the number of rows is not known."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in memory: strides in elements of a row, a column, and the next of the batch (0 if
    it is shared)."""

    buffer: Buffer
    row: PrimExpr
    column: PrimExpr
    batch: PrimExpr


def _operand(buffer: Buffer, transposed: bool, batch: PrimExpr | None) -> Operand:
    """Return a matrix of a product of `batch` images; None where there is no batch."""
    rows, columns = (const(1), *buffer.shape)[-2:]  # a vector is one row
    step = const(0) if batch is None else _image_stride(buffer, simplify(rows * columns), batch)
    return (
        Operand(buffer, const(1), columns, step)
        if transposed
        else Operand(buffer, columns, const(1), step)
    )


def _image_stride(buffer: Buffer, image: PrimExpr, batch: PrimExpr) -> PrimExpr:
    """Return the elements between two images: 0 for a batch of 1, which perhaps the run alone
    knows.
    """
    own = buffer.shape[0]
    if is_const(own, 1):
        return const(0)
    if isinstance(own, IntImm) or same_dim(own, batch):
        return image
    return Select(own.equal(1), const(0), image, "int64")


class _Product:
    """One kernel being built."""

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
        self.lanes, self.line = target.lanes(self.dtype), LINE // dt.itemsize(self.dtype)
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.batched = tag == "batch_matmul"
        self.leading = list(self.anchor.shape[:-1])
        self.batch = self.anchor.shape[0] if self.batched else const(1)
        self.rows = self.anchor.shape[1] if self.batched else product(self.leading)
        self.columns = self.anchor.shape[-1]
        self.k = a.shape[-2] if transpose_a else a.shape[-1]
        self.turned = is_turned(self.anchor)
        if self.turned:  # the one column lies in order, whichever way it is stored
            self.rows, self.columns = const(1), self.rows
            a, b, transpose_a, transpose_b = b, a, False, not transpose_a
        images = self.batch if self.batched else None
        self.a = _operand(a, transpose_a, images)
        self.b = _operand(b, transpose_b, images)
        self.transpose_b = transpose_b

    def indices(self, image: PrimExpr, row: PrimExpr, column: PrimExpr) -> list[PrimExpr]:
        """The indices of an element of the output."""
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
        """A vector of the result, from a column on, through the epilogue."""
        flat = (image * self.rows + row) * self.columns + column
        axis = -2 if self.turned else -1
        return self.epilogue.store(self.indices(image, row, column), flat, value, mask, axis)

    # the panels

    def split(self) -> tuple[PrimExpr, PrimExpr]:
        """(whole panels, panels of one vector after them)."""
        width = self.wide * self.lanes
        whole = simplify(self.columns // width)
        rest = self.columns - whole * width
        return whole, simplify((rest + (self.lanes - 1)) // self.lanes)

    def pack(self, packed: Buffer, image: PrimExpr, kind: ForKind) -> Stmt:
        """packed[c * K + k * width + i] = b[k, c + i] for the panel that begins at column c."""
        whole, narrow = self.split()
        width = self.wide * self.lanes

        def panels(count: PrimExpr, first: PrimExpr, vectors: int) -> Stmt:
            """A loop over panels of so many vectors of columns, from column `first` on."""
            panel = Var("p")
            column = first + panel * (vectors * self.lanes)
            body = self.pack_panel(packed, column * self.k, image, column, vectors)
            return For(panel, const(0), count, kind, body, {"grain": 1})

        return seq(panels(whole, const(0), self.wide), panels(narrow, whole * width, 1))

    def pack_panel(
        self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr, vectors: int
    ) -> Stmt:
        """packed[base + k * width + i] = b[k, column + i] for one panel; columns beyond the matrix
        become zeros.
        """
        if self.transpose_b and vectors == self.wide:
            return self._turned(packed, base, image, column)
        k, width = Var("k"), vectors * self.lanes
        origin = image * self.b.batch + column * self.b.column
        steps: list[Stmt] = []
        if not self.transpose_b:
            steps = self.brought(origin, k, width)
        for v in range(vectors):
            first, to = column + v * self.lanes, base + k * width + v * self.lanes
            at = image * self.b.batch + k * self.b.row + first * self.b.column
            steps.append(self._copy(packed, to, at, self.mask(first) if vectors == 1 else None))
        return For(k, const(0), self.k, ForKind.SERIAL, seq(*steps))

    def brought(self, origin: PrimExpr, k: PrimExpr, width: int) -> list[Stmt]:
        """What brings near what is copied some steps after step k."""
        steps, locality = AHEAD[str(self.decision["ahead"])]
        at = origin + (k + steps) * self.b.row
        return [Prefetch(self.b.buffer, (at + n,), locality) for n in range(0, width, self.line)]

    def _turned(self, packed: Buffer, base: PrimExpr, image: PrimExpr, column: PrimExpr) -> Stmt:
        """A whole panel of a transposed matrix, a cache line of each column after the other: a
        gather costs several times as many loads.
        """
        block, i, left, rest = (Var(n) for n in ("block", "i", "left", "rest"))
        width = self.wide * self.lanes
        origin = image * self.b.batch + column * self.b.column

        def one(k: PrimExpr, at: Var) -> Stmt:
            value = BufferLoad(self.b.buffer, (origin + at * self.b.column + k,), self.dtype)
            return BufferStore(packed, value, (base + k * width + at,))

        whole, size = simplify(self.k // self.line), self.line
        line = seq(*(one(block * size + n, i) for n in range(size)))
        columns = For(i, const(0), const(width), ForKind.SERIAL, line)
        tail = For(rest, const(0), const(width), ForKind.SERIAL, one(whole * size + left, rest))
        return seq(
            For(block, const(0), whole, ForKind.SERIAL, columns),
            For(left, const(0), simplify(self.k - whole * size), ForKind.SERIAL, tail),
        )

    def _copy(self, packed: Buffer, to: PrimExpr, at: PrimExpr, mask: PrimExpr | None) -> Stmt:
        """One vector of a panel."""
        vector = dt.with_lanes(self.dtype, self.lanes)
        value: PrimExpr = BufferLoad(self.b.buffer, (ramp(at, self.b.column, self.lanes),), vector)
        if mask is not None:
            value = if_then_else(mask, value, broadcast(const(0.0, self.dtype), self.lanes))
        return BufferStore(packed, value, (ramp(to, 1, self.lanes),))

    def mask(self, first: PrimExpr) -> PrimExpr:
        """The lanes of a vector of columns that exist."""
        return ramp(first, 1, self.lanes) < broadcast(self.columns, self.lanes)

    # the tiles

    def tile(
        self,
        source: Operand,
        image: PrimExpr,
        first: PrimExpr,
        rows: int,
        column: PrimExpr,
        vectors: int,
        ahead: Ahead | None = None,
        unroll: int = 1,
    ) -> Stmt:
        """A tile of rows on one panel. `source` is the copy, whose batch step is 0, or the matrix
        itself."""
        masked = vectors == 1 and source.buffer is not self.b.buffer
        shape = Tile(rows, vectors, self.lanes, vectors * self.lanes, self.dtype)

        def store(i: PrimExpr, offset: PrimExpr, value: PrimExpr, _: PrimExpr | None) -> Stmt:
            """A vector of the result through the epilogue; masked where the last panel is not
            whole.
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
        """Most rows of a tile."""
        return self.decision.number("rows") if vectors == self.wide else NARROW_ROWS

    def near(self, packed: Buffer) -> tuple[Ahead | None, int]:
        """What a tile brings near of a whole panel that is copied, and how many of its steps stand
        one after the other."""
        own, unroll = self.decision.number("own"), self.decision.number("unroll")
        row = self.wide * self.lanes
        plan = Prefetches(packed, row, self.line, self.k, const(0), own, 0, unroll)
        return (plan.of(const(0), None)[1] if own else None), unroll

    def panels(
        self, source: Operand, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int
    ) -> Callable[[int, PrimExpr], Stmt]:
        """The body of a row tile: `count` panels from column `begin`."""
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
            """For the rows of a tile all panels one after the other."""
            column = simplify(begin + panel * (vectors * self.lanes))
            one = self.tile(source, image, first, rows, column, vectors)
            return For(panel, const(0), count, ForKind.SERIAL, one)

        return body

    def row_tiles(self, limit: int, body: Callable[[int, PrimExpr], Stmt], kind: ForKind) -> Stmt:
        """All rows in tiles of at most `limit`; balanced where the rows are known."""
        if isinstance(self.rows, IntImm):
            return balanced_rows(self.rows, limit, body, kind)
        sizes = [limit, *(size for size in STEPS if size < limit)]
        return stepped_rows(self.rows, sizes, body, kind)

    def product(self, source: Operand, image: PrimExpr, kind: ForKind) -> Stmt:
        """All tiles of one matrix."""
        whole, narrow = self.split()
        parts = []
        for count, begin, vectors in (
            (whole, const(0), self.wide),
            (narrow, whole * (self.wide * self.lanes), 1),
        ):
            if isinstance(count, IntImm) and count.value == 0:
                continue
            limit = self.limit(vectors)
            parts.append(
                self.row_tiles(limit, self.panels(source, image, count, begin, vectors), kind)
            )
        return seq(*parts)

    def one(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """One matrix of the batch: pack, multiply."""
        how = self.decision["how"]
        if how in ("streamed", "dots"):
            return self.of_few_rows(image, kind)
        if how == "direct":
            return self.direct(image, kind)
        if how == "panels":
            return self.by_panels(image, kind)
        size = simplify(self.k * ((self.columns + (self.lanes - 1)) // self.lanes * self.lanes))
        packed = Buffer("packed", (size,), self.dtype)
        source = Operand(packed, const(0), self.k, const(0))
        return Allocate(
            packed, seq(self.pack(packed, image, kind), self.product(source, image, kind))
        )

    def by_panels(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Each panel is copied, and then all rows are multiplied by it."""
        whole, narrow = self.split()
        width = self.wide * self.lanes
        return seq(
            *(
                self.panel_run(image, count, begin, vectors, kind)
                for count, begin, vectors in (
                    (whole, const(0), self.wide),
                    (narrow, whole * width, 1),
                )
                if not (isinstance(count, IntImm) and count.value == 0)
            )
        )

    def panel_run(
        self, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int, kind: ForKind
    ) -> Stmt:
        """`count` panels from column `begin`."""
        panel, width = Var("p"), vectors * self.lanes
        column = simplify(begin + panel * width)
        packed = Buffer("packed", (simplify(self.k * width),), self.dtype)
        if self.transpose_b or vectors != self.wide:
            body = self.copied_panel(packed, image, column, vectors)
        else:
            body = self.read_panel(packed, image, column)
        return For(panel, const(0), count, kind, Allocate(packed, body), {"grain": 1})

    def copied_panel(self, packed: Buffer, image: PrimExpr, column: PrimExpr, vectors: int) -> Stmt:
        """A panel is copied, then all rows are multiplied by it."""
        source = Operand(packed, const(0), const(0), const(0))
        ahead, unroll = self.near(packed) if vectors == self.wide else (None, 1)

        def body(rows: int, first: PrimExpr) -> Stmt:
            return self.tile(source, image, first, rows, column, vectors, ahead, unroll)

        made = self.pack_panel(packed, const(0), image, column, vectors)
        return seq(made, self.row_tiles(self.limit(vectors), body, ForKind.SERIAL))

    def read_panel(self, packed: Buffer, image: PrimExpr, column: PrimExpr) -> Stmt:
        """A panel whose first row tile reads the matrix as it lies, and copies it for the others:
        waiting for memory hides behind multiplying.
        """
        source = Operand(packed, const(0), const(0), const(0))
        width = self.wide * self.lanes
        origin = image * self.b.batch + column
        ahead, unroll = self.near(packed)

        def copy(_: PrimExpr, k: PrimExpr, place: int) -> list[Stmt]:
            """At step k of the first rows: the panel's line is copied as it is read, so that rows
            below find it packed.
            """
            line = origin + k * self.b.row
            return [
                *self.brought(origin, k, width),
                *(
                    self._copy(packed, k * width + n, line + n, None)
                    for n in range(0, width, self.lanes)
                ),
            ]

        def body(rows: int, first: PrimExpr) -> Stmt:
            """The first rows read what is not packed and pack it; all others read the panel."""
            early = self.tile(self.b, image, first, rows, column, self.wide, copy)
            later = self.tile(source, image, first, rows, column, self.wide, ahead, unroll)
            return IfThenElse(first.equal(0), early, later)

        return self.row_tiles(self.limit(self.wide), body, ForKind.SERIAL)

    def of_few_rows(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """The matrix is read line by line."""
        assert isinstance(self.rows, IntImm)

        def store(row: int, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """A vector of the result through the epilogue, for products of few rows."""
            return self.store(image, const(row), column, value, mask)

        rows = [image * self.a.batch + self.a.row * i for i in range(self.rows.value)]
        origin = image * self.b.batch
        if self.decision["how"] == "dots":
            dots = Dots(self.k, self.columns, rows, origin, self.dtype)
            return dot_products(dots, self.a.buffer, self.b.buffer, store, self.target, kind)
        shape = Streamed(self.k, self.columns, rows, self.a.column, origin, self.dtype)
        return streamed_product(shape, self.a.buffer, self.b.buffer, store, self.target, kind)

    def direct(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Multiply by the matrix as it lies; its columns are whole vectors."""
        assert isinstance(self.columns, IntImm)
        parts, begin = [], 0
        while begin < self.columns.value:
            vectors = min(self.wide, (self.columns.value - begin) // self.lanes)
            body = self.panels(self.b, image, const(1), const(begin), vectors)
            limit = min(MOST_ROWS, most_rows(vectors, self.target))
            parts.append(self.row_tiles(limit, body, kind))
            begin += vectors * self.lanes
        return seq(*parts)

    def body(self) -> Stmt:
        """The batch in parallel; a single matrix by rows in parallel."""
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
    """Whether the rule covers a product: of one type of floats throughout; a transposed left
    operand has two or three dimensions."""
    a, b = operands_of(anchor)
    plain = (
        not anchor.op.attrs.get("transpose_a", False)
        or a.ndim == 2
        or anchor.op.tag == "batch_matmul"
    )
    return plain and {a.dtype, b.dtype} == {anchor.dtype} and anchor.dtype in FLOATS


def _family(tag: str) -> Family:
    return Family(
        name=tag,
        accepts=accepts,
        space=space,
        default=default,
        build=tiled_builder(partial(_Product, tag=tag)),
        why="the first tile of a panel copies it while it computes: a copy is a block before",
    )


FAMILIES = tuple(map(_family, ("batch_matmul", "matmul", "dense")))
"""Products of computed matrices."""
