"""Matrix products of two computed matrices, or batches of them.

    out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]        either may be stored transposed

The right matrix is copied into panels first, as wide as a register tile, unless it already is one
panel: that makes every step of k read neighbouring memory, undoes a transposition, and pads the
last vector with zeros. The copy costs about 1 / M of the product. Panels are four vectors wide;
columns left over make panels of one vector, of which the last is stored under a mask, so that the
number of columns need not be known. Threads share out the batch, or the rows where there is no
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, Stmt, seq
from ekiden.topi.rule.dense import make_buffers, product
from ekiden.topi.rule.epilogue import Epilogue, find_anchor, operands_of
from ekiden.topi.rule.tiles import KLoop, Tile, balanced_rows, compute_tile, max_rows, stepped_rows

WIDE = 4
"""Vectors of a whole panel."""
NARROW_ROWS = 8
"""Rows of a tile one vector wide: enough to hide the latency of a multiply-add."""
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


def _operand(buffer: Buffer, transposed: bool, batched: bool) -> Operand:
    rows, columns = (const(1), *buffer.shape)[-2:]  # a vector is one row
    shared = not batched or (isinstance(buffer.shape[0], IntImm) and buffer.shape[0].value == 1)
    step = const(0) if shared else simplify(rows * columns)
    return (
        Operand(buffer, const(1), columns, step)
        if transposed
        else Operand(buffer, columns, const(1), step)
    )


class _Product:
    """One kernel being built."""

    def __init__(
        self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, tag: str
    ) -> None:
        self.anchor = find_anchor(outputs, tag)
        self.buffers = make_buffers(inputs, outputs)
        attrs = self.anchor.op.attrs
        a, b = (self.buffers[t] for t in operands_of(self.anchor))
        transpose_a = bool(attrs.get("transpose_a", False))
        transpose_b = bool(attrs.get("transpose_b", tag == "dense"))
        self.lanes, self.target = target.lanes("float32"), target
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.batched = tag == "batch_matmul"
        self.leading = list(self.anchor.shape[:-1])
        self.batch = self.anchor.shape[0] if self.batched else const(1)
        self.rows = self.anchor.shape[1] if self.batched else product(self.leading)
        self.columns = self.anchor.shape[-1]
        self.k = a.shape[-2] if transpose_a else a.shape[-1]
        self.a = _operand(a, transpose_a, self.batched)
        self.b = _operand(b, transpose_b, self.batched)
        self.transpose_b = transpose_b

    def indices(self, image: PrimExpr, row: PrimExpr) -> list[PrimExpr]:
        """All indices of the output but the last."""
        if self.batched:
            return [image, row]
        found: list[PrimExpr] = []
        for dim in reversed(self.leading[1:]):
            found.append(row % dim)
            row = row // dim
        return [row, *reversed(found)] if self.leading else []

    # the panels

    def is_direct(self) -> bool:
        """Whether the right matrix is read where it lies: one panel of whole vectors, or too few
        rows to pay for a copy."""
        if (
            self.transpose_b
            or not isinstance(self.columns, IntImm)
            or self.columns.value % self.lanes
        ):
            return False
        few = isinstance(self.rows, IntImm) and self.rows.value < NARROW_ROWS
        return few or self.columns.value <= WIDE * self.lanes

    def split(self) -> tuple[PrimExpr, PrimExpr]:
        """(whole panels, panels of one vector after them)."""
        width = WIDE * self.lanes
        whole = simplify(self.columns // width)
        rest = self.columns - whole * width
        return whole, simplify((rest + (self.lanes - 1)) // self.lanes)

    def pack(self, packed: Buffer, image: PrimExpr, kind: ForKind) -> Stmt:
        """packed[c * K + k * width + i] = b[k, c + i] for the panel that begins at column c."""
        whole, narrow = self.split()
        width = WIDE * self.lanes

        def panels(count: PrimExpr, first: PrimExpr, vectors: int) -> Stmt:
            panel, k = Var("p"), Var("k")
            column = first + panel * (vectors * self.lanes)
            steps = [
                self._copy(packed, image, column, k, v, vectors, vectors == 1)
                for v in range(vectors)
            ]
            body = For(k, const(0), self.k, ForKind.SERIAL, seq(*steps))
            return For(panel, const(0), count, kind, body, {"grain": 1})

        return seq(panels(whole, const(0), WIDE), panels(narrow, whole * width, 1))

    def _copy(
        self,
        packed: Buffer,
        image: PrimExpr,
        column: PrimExpr,
        k: PrimExpr,
        v: int,
        vectors: int,
        masked: bool,
    ) -> Stmt:
        """One vector of a panel; columns beyond the matrix become zeros."""
        vector = f"float32x{self.lanes}"
        first = column + v * self.lanes
        at = image * self.b.batch + k * self.b.row + first * self.b.column
        value: PrimExpr = BufferLoad(self.b.buffer, (ramp(at, self.b.column, self.lanes),), vector)
        if masked:
            value = if_then_else(
                self.mask(first), value, broadcast(const(0.0, "float32"), self.lanes)
            )
        to = column * self.k + k * (vectors * self.lanes) + v * self.lanes
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
    ) -> Stmt:
        """A tile of rows on one panel. `source` is the copy, whose batch step is 0, or the matrix
        itself."""
        masked = vectors == 1 and source.buffer is not self.b.buffer
        shape = Tile(rows, vectors, self.lanes, vectors * self.lanes)

        def store(i: PrimExpr, offset: PrimExpr, value: PrimExpr, _: PrimExpr | None) -> Stmt:
            row, at = first + i, column + offset
            flat = (image * self.rows + row) * self.columns + at
            return self.epilogue.store(
                [*self.indices(image, row), at], flat, value, self.mask(at) if masked else None
            )

        step = source.row if source.buffer is self.b.buffer else const(vectors * self.lanes)
        loops = [KLoop(self.k, self.a.column, step)]
        start = image * self.a.batch
        a_rows = [start + (first + i) * self.a.row for i in range(rows)]
        base = image * source.batch + column * source.column
        return compute_tile(shape, loops, self.a.buffer, a_rows, source.buffer, base, store)

    def panels(
        self, source: Operand, image: PrimExpr, count: PrimExpr, begin: PrimExpr, vectors: int
    ) -> Callable[[int, PrimExpr], Stmt]:
        """The body of a row tile: `count` panels from column `begin`."""
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
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
            (whole, const(0), WIDE),
            (narrow, whole * (WIDE * self.lanes), 1),
        ):
            if isinstance(count, IntImm) and count.value == 0:
                continue
            limit = max_rows(WIDE, self.target) if vectors == WIDE else NARROW_ROWS
            parts.append(
                self.row_tiles(limit, self.panels(source, image, count, begin, vectors), kind)
            )
        return seq(*parts)

    def one(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """One matrix of the batch: pack, multiply."""
        if self.is_direct():
            return self.direct(image, kind)
        size = simplify(self.k * ((self.columns + (self.lanes - 1)) // self.lanes * self.lanes))
        packed = Buffer("packed", (size,))
        source = Operand(packed, const(0), self.k, const(0))
        return Allocate(
            packed, seq(self.pack(packed, image, kind), self.product(source, image, kind))
        )

    def direct(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Multiply by the matrix as it lies; its columns are whole vectors."""
        assert isinstance(self.columns, IntImm)
        parts, begin = [], 0
        while begin < self.columns.value:
            vectors = min(WIDE, (self.columns.value - begin) // self.lanes)
            body = self.panels(self.b, image, const(1), const(begin), vectors)
            parts.append(self.row_tiles(max_rows(vectors, self.target), body, kind))
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


def accepts(anchor: te.Tensor) -> bool:
    """Whether the rule covers a product: float32 throughout; a transposed left operand has two or
    three dimensions."""
    a, b = operands_of(anchor)
    plain = (
        not anchor.op.attrs.get("transpose_a", False)
        or a.ndim == 2
        or anchor.op.tag == "batch_matmul"
    )
    return plain and {a.dtype, b.dtype, anchor.dtype} == {"float32"}


def _rule(tag: str) -> Callable[[list[te.Tensor], list[te.Tensor], Target, str], PrimFunc]:
    def build(
        inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
    ) -> PrimFunc:
        kernel = _Product(inputs, outputs, target, tag)
        attrs = {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
        return PrimFunc((*kernel.buffers.values(),), kernel.body(), attrs)

    return build


batch_matmul, matmul, dense = _rule("batch_matmul"), _rule("matmul"), _rule("dense")
"""The rules for products of computed matrices, by tag."""
