"""Attention over pages of bytes, in products of bytes: queries are rounded too.

    query    step[row] * bytes[row]                 as `rounded_data` has it, for all targets
    scores   sums of four products at once of a query's bytes and four places of a key
    shares   exp(scores - max) * a value's scale, of each page in 65,535 steps of its greatest: two
             bytes, of which each multiplies four tokens at once

Four bytes of one lane are neighbours along what is summed (page_planes.py). Keys have a sign and
the instruction wants one side without: 128 is added to each, and taken from the sums where these
begin. Steps of a page keep what many small shares add up to: of a whole text in 255 steps those
below a thousandth of the greatest would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Add, Cast, Div, Max, Mul, PrimExpr, Select, Var, cast, const, minimum
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, LetStmt, Stmt, seq
from ekiden.topi.rule.page_planes import TOGETHER
from ekiden.topi.rule.pages import Cut, PagedAttention, Pages, Rows, serial
from ekiden.topi.rule.rounded_data import LEAST, RoundedData
from ekiden.topi.rule.words import DOT4

STEPS = 65535.0
"""Of the greatest share of a page."""
SIGNS = 0x80808080 - (1 << 32)
"""What makes bytes with a sign 128 more, without one; as int32."""
ZERO = const(0)


class BytePages(PagedAttention):
    """One such attention; with `dot` products of bytes are an instruction of the target."""

    def __init__(self, pages: Pages, inputs: Sequence[Buffer], output: Buffer, lanes: int,
                 cut: Cut | None = None, dot: bool = False) -> None:  # fmt: skip
        super().__init__(pages, inputs, output, lanes, cut)
        self.dot = dot
        self.rounded = RoundedData.of(self.query, self.depth, self.depth)
        self.whole = dt.with_lanes("int32", self.lanes)
        self.real = dt.with_lanes("float32", self.lanes)
        self.shares = Buffer("shares", (ZERO,), "uint8")
        self.factors = Buffer("factors", (ZERO,))

    def body(self) -> Stmt:
        """Queries are rounded first."""
        rows = simplify(self.tokens * self.total)
        return self.rounded.around(rows, self.lanes, super().body())

    # Vectors.

    def words(self, at: PrimExpr) -> PrimExpr:
        """Of the cache: four bytes of each lane."""
        size = TOGETHER * self.lanes
        raw = BufferLoad(self.cache, (ramp(at, 1, size),), dt.with_lanes("int8", size))
        return call_intrin("reinterpret", raw, dtype=self.whole)

    def word(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """Four bytes of a buffer in every lane."""
        kind = dt.with_lanes(buffer.dtype, TOGETHER)
        taken = BufferLoad(buffer, (ramp(simplify(at), 1, TOGETHER),), kind)
        return broadcast(call_intrin("reinterpret", taken, dtype="int32"), self.lanes)

    def number(self, value: int) -> PrimExpr:
        """In every lane."""
        return broadcast(const(value, "int32"), self.lanes)

    def picked(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """One of the four bytes of each lane of the cache, as floats."""
        up = broadcast(cast((TOGETHER - 1 - which) * 8, "int32"), self.lanes)
        found = call_intrin("left_shift", self.words(at), up, dtype=self.whole)
        found = call_intrin("right_shift", found, self.number(24), dtype=self.whole)
        return Cast(found, self.real)

    def row_of(self, tile: Rows, row: int) -> PrimExpr:
        """A row of the tile among all rows of the queries."""
        token, at = divmod(row, self.together)
        return simplify((tile.first + token) * self.total + tile.head + at)

    # Scores.

    def query_at(self, tile: Rows, row: int, k: PrimExpr) -> PrimExpr:
        """A number of a query, in its steps."""
        place = self.row_start(tile, row, self.total) + k
        return Cast(self.rounded.bytes[simplify(place)], "float32")

    def keys_at(self, base: PrimExpr, k: PrimExpr, column: PrimExpr | int) -> PrimExpr:
        """A place of neighbouring keys."""
        at = (k // TOGETHER * self.pages.page + column) * TOGETHER
        return self.picked(base + at, k % TOGETHER)

    def key_scale(self, tile: Rows, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """What products of bytes are times."""
        step = self.splat(self.rounded.step[self.row_of(tile, row)])
        return Mul(self.plane.scales(self.cache, base, token, self.lanes), step, self.real)

    def score_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """As floats, or by words."""
        if not self.dot:
            return super().score_sums(tile, base, after, column, vectors, acc)
        rows, page, k = tile.span * self.together, self.pages.page, Var("k")
        sums = Buffer("sums", (const(rows * vectors),), self.whole, "register")
        loaded = [Var(f"b{v}", self.whole) for v in range(vectors)]
        made: list[Stmt] = [*self.ahead(after + (k * page + column) * TOGETHER, vectors * TOGETHER)]
        for r in range(rows):
            at = self.row_start(tile, r, self.total) + k * TOGETHER
            made.append(self.grown(sums, r, self.word(self.rounded.bytes, at), loaded, False))
        body = seq(*made)
        for v in reversed(range(vectors)):
            at = base + (k * page + (column + v * self.lanes)) * TOGETHER
            word = call_intrin("bitwise_xor", self.words(at), self.number(SIGNS), dtype=self.whole)
            body = LetStmt(loaded[v], word, body)
        begin: list[Stmt] = []
        for n in range(rows * vectors):
            total = self.rounded.total[self.row_of(tile, n // vectors)] * const(-128, "int32")
            begin.append(BufferStore(sums, broadcast(total, self.lanes), (const(n),)))
        ends = [
            BufferStore(acc, Cast(sums[const(n)], self.real), (const(n),))
            for n in range(rows * vectors)
        ]
        loop = serial(k, const(self.depth // TOGETHER), body)
        return Allocate(sums, seq(*begin, loop, *ends))

    def grown(
        self, sums: Buffer, row: int, a: PrimExpr, loaded: Sequence[Var], is_share: bool
    ) -> Stmt:
        """The sums of a row with four products more in each lane; `is_share`: `a` has no sign."""
        word = Var(f"a{row}", self.whole)
        made = []
        for v, b in enumerate(loaded):
            n = const(row * len(loaded) + v)
            pair = (word, b) if is_share else (b, word)
            value = call_intrin(DOT4, sums[n], *pair, dtype=self.whole)
            made.append(BufferStore(sums, value, (n,)))
        return LetStmt(word, a, seq(*made))

    # Values.

    def weighed(self, tile: Rows) -> Stmt:
        """Shares times the scales of values; words take them page by page."""
        if self.dot:
            return seq()
        rows, number, base = tile.span * self.together, Var("p"), Var("base", "int64")
        made = [self._scaled(tile, r, number, base, None) for r in range(rows)]
        body = LetStmt(base, self.plane_of(self.page_of(tile, number), tile.group, 1), seq(*made))
        return serial(number, tile.end - tile.begin, body, tile.begin)

    def _scaled(self, tile: Rows, row: int, number: Var, base: Var, most: Buffer | None) -> Stmt:
        """The shares of a page times the scales of its values, and the greatest of each lane."""
        page, v = self.pages.page, Var("v")
        share, scaled = Var("share", self.real), Var("scaled", self.real)
        at = simplify(row * self.stride + (number - tile.begin) * page + v * self.lanes)
        scale = self.plane.scales(self.cache, base, v * self.lanes, self.lanes)
        seen = self.splat(0.0) < share  # what lies behind the last token may be no number
        product = Select(seen, Mul(share, scale, self.real), self.splat(0.0), self.real)
        kept = [self.store(tile.scores, at, scaled)]
        if most is not None:
            kept.append(BufferStore(most, Max(most[ZERO], scaled, self.real), (ZERO,)))
        made = LetStmt(scaled, product, seq(*kept))
        return serial(
            v, const(page // self.lanes), LetStmt(share, self.load(tile.scores, at), made)
        )

    def _shared(self, tile: Rows, row: int, number: Var, base: Var) -> Stmt:
        """The same in steps of the page's greatest, as bytes."""
        page, u = self.pages.page, Var("u")
        most = Buffer("most", (const(1),), self.real, "register")
        top, finer, whole = Var("top", "float32"), Var("finer", "float32"), Var("whole", self.whole)
        at = simplify(row * self.stride + (number - tile.begin) * page + u * self.lanes)
        scaled = Mul(self.load(tile.scores, at), self.splat(finer), self.real)
        near = call_intrin("round", scaled, dtype=self.real)
        upper = call_intrin("right_shift", whole, self.number(8), dtype=self.whole)
        parts = [
            self.store(self.shares, self.share_at(2 * row + part, u * self.lanes),
                       Cast(value, dt.with_lanes("uint8", self.lanes)))
            for part, value in enumerate((upper, whole))
        ]  # fmt: skip
        made: Stmt = serial(
            u, const(page // self.lanes), LetStmt(whole, Cast(near, self.whole), seq(*parts))
        )
        factor = Mul(top, const(1 / STEPS, "float32"), "float32")
        made = seq(BufferStore(self.factors, factor, (const(row),)), made)
        bound = Max(top, const(LEAST * STEPS, "float32"), "float32")
        made = LetStmt(finer, Div(const(STEPS, "float32"), bound, "float32"), made)
        made = LetStmt(top, VectorReduce(most[ZERO], "max", "float32"), made)
        zero = BufferStore(most, self.splat(0.0), (ZERO,))
        return Allocate(most, seq(zero, self._scaled(tile, row, number, base, most), made))

    def share_at(self, line: int, token: PrimExpr) -> PrimExpr:
        """Where bytes of shares of a page lie: the upper ones of a row, then its lower ones."""
        return simplify(token + line * self.pages.page)

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value."""
        at = (s // TOGETHER * self.depth + column) * TOGETHER
        return self.picked(base + at, s % TOGETHER)

    def value_sums(self, tile: Rows) -> Stmt:
        """As floats, or by words: sums of a page become floats, and these are added up."""
        if not self.dot:
            return super().value_sums(tile)
        rows, number = tile.span * self.together, Var("p")
        sums = Buffer("sums_of_values", (const(rows * self.depth),))
        base, after = Var("base", "int64"), Var("after", "int64")
        ahead = self.ahead(after + self.plane.numbers, self.pages.page * 2 // self.lanes)
        shares = [self._shared(tile, r, number, base) for r in range(rows)]
        blocks = self.blocks(self.depth, 2 * rows)
        parts = [self._page_sums(tile, number, base, after, sums, *each) for each in blocks]
        where = self.plane_of(self.page_of(tile, number), tile.group, 1)
        body = seq(*ahead, *shares, *parts)
        body = LetStmt(base, where, LetStmt(after, self.plane_after(tile, number, 1), body))
        n = Var("n")
        zero = serial(n, const(rows * self.depth // self.lanes),
                      self.store(sums, n * self.lanes, self.splat(0.0)))  # fmt: skip
        pages = serial(number, tile.end - tile.begin, body, tile.begin)
        ends = [self._ended(tile, r, sums) for r in range(rows)]
        return Allocate(sums, seq(zero, pages, *ends))

    def _ended(self, tile: Rows, row: int, sums: Buffer) -> Stmt:
        """The result of a row."""
        v = Var("v")
        value = Mul(
            self.load(sums, row * self.depth + v * self.lanes),
            self.splat(tile.totals[const(row)]), self.real,
        )  # fmt: skip
        to = simplify(self.row_start(tile, row, self.heads) + v * self.lanes)
        return serial(v, const(self.depth // self.lanes), self.store(self.output, to, value))

    def _page_sums(
        self, tile: Rows, number: Var, base: Var, after: Var, sums: Buffer, column: int,
        vectors: int,
    ) -> Stmt:  # fmt: skip
        rows, page, s = tile.span * self.together, self.pages.page, Var("s")
        acc = Buffer("acc", (const(2 * rows * vectors),), self.whole, "register")
        loaded = [Var(f"b{v}", self.whole) for v in range(vectors)]
        made: list[Stmt] = [
            *self.ahead(after + (s * self.depth + column) * TOGETHER, vectors * TOGETHER)
        ]
        for n in range(2 * rows):
            word = self.word(self.shares, self.share_at(n, s * TOGETHER))
            made.append(self.grown(acc, n, word, loaded, True))
        body = seq(*made)
        for v in reversed(range(vectors)):
            at = base + (s * self.depth + (column + v * self.lanes)) * TOGETHER
            body = LetStmt(loaded[v], self.words(at), body)
        here = minimum(const(page), tile.last + 1 - number * page)
        loop = serial(s, (here + (TOGETHER - 1)) // TOGETHER, body)
        zero = [BufferStore(acc, self.number(0), (const(n),)) for n in range(2 * rows * vectors)]
        ends = []
        for r in range(rows):
            factor = self.splat(self.factors[const(r)])
            for v in range(vectors):
                upper, lower = (acc[const((2 * r + n) * vectors + v)] for n in range(2))
                whole = Add(
                    call_intrin("left_shift", upper, self.number(8), dtype=self.whole), lower,
                    self.whole,
                )  # fmt: skip
                to = const(r * self.depth + column + v * self.lanes)
                grown = call_intrin(
                    "fma", Cast(whole, self.real), factor, self.load(sums, to), dtype=self.real
                )
                ends.append(self.store(sums, to, grown))
        return Allocate(acc, seq(*zero, loop, *ends))

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for the shares of a page."""
        if not self.dot:
            return body()
        rows = tile.span * self.together
        self.shares = Buffer("shares", (const(2 * rows * self.pages.page),), "uint8", "local")
        self.factors = Buffer("factors", (const(rows),), scope="local")
        return Allocate(self.shares, Allocate(self.factors, body()))


__all__ = ["BytePages"]
