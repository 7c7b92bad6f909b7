"""Attention over pages of bytes, in products of bytes: queries are rounded too.

    query    step[row] * bytes[row]                 as `rounded_data` has it, for all targets
    scores   sums of four products at once of a query's bytes and four places of a key
    shares   exp(scores - max) * a value's scale, of each page in steps of its greatest, 65,535 of
             them (16,383) or 255: two bytes or one, of which each multiplies four tokens at once

Four bytes of one lane are neighbours along what is summed (page_planes.py). Keys have a sign and
the instruction wants one side without: 128 is added to each, and taken from the sums where these
begin. Where sums of two products must fit int16 (words.py), keys lend their signs to the queries
instead, and the bytes of shares have seven bits. Steps of a page keep what many small shares add up
to: of a whole text in 255 steps those below a thousandth of the greatest would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    Add,
    Cast,
    Div,
    Max,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    minimum,
)
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, LetStmt, Stmt, seq
from ekiden.topi.rule.page_planes import TOGETHER
from ekiden.topi.rule.pages import Cut, PagedAttention, Pages, Rows, number, serial
from ekiden.topi.rule.rounded_data import LEAST, RoundedData
from ekiden.topi.rule.words import DOT4, SIGNED_DOT

SIGNS = 0x80808080 - (1 << 32)
"""What makes bytes with a sign 128 more, without one; as int32."""
NEAREST = 1.5 * (1 << 23)
"""What is added to a float below 2**22 so that its last bits are the nearest whole number."""
ADDED = int(np.float32(NEAREST).view(np.int32))
"""That, in bits."""
ZERO = const(0)


class BytePages(PagedAttention):
    """One such attention; `dot`: the target's instruction for products of bytes, if it has one."""

    value_zero = 0
    """What the levels of values are more than the numbers that they stand for, as products of bytes
    take them."""
    share_bytes = 2
    has_inner_scales = False
    """Whether scales are within the sums, as there may be several."""

    def __init__(self, pages: Pages, inputs: Sequence[Buffer], output: Buffer, lanes: int,
                 cut: Cut | None = None, dot: str = "") -> None:  # fmt: skip
        super().__init__(pages, inputs, output, lanes, cut)
        self.dot = dot
        self.rounded = RoundedData.of(self.query, self.depth, self.plane.group)
        self.whole = dt.with_lanes("int32", self.lanes)
        self.real = dt.with_lanes("float32", self.lanes)
        self.shares = Buffer("shares", (ZERO,), "uint8")
        self.factors = Buffer("factors", (ZERO,))
        self.bases = Buffer("bases", (ZERO,), "int32")
        self.held = self.plane.format.held

    @property
    def most_vectors(self) -> int:
        """Of a tile of few rows: what is between words and sums takes registers."""
        return self.cut.vectors if self.dot else super().most_vectors

    @property
    def key_zero(self) -> int:
        """The same of keys."""
        return 128 if self.dot == DOT4 else 0

    @property
    def key_dot(self) -> str:
        """What multiplies keys by queries."""
        return DOT4 if self.dot == DOT4 else SIGNED_DOT

    @property
    def share_bits(self) -> int:
        """Of a byte of a share."""
        return 8 if self.dot == DOT4 else 7

    @property
    def steps(self) -> float:
        """Of the greatest share of a page."""
        return float((1 << self.share_bits * self.share_bytes) - 1)

    def body(self) -> Stmt:
        """Queries are rounded first."""
        rows = simplify(self.tokens * self.total)
        return self.rounded.around(rows, self.lanes, super().body())

    # Vectors.

    def words(self, at: PrimExpr) -> PrimExpr:
        """Of the cache: four bytes of each lane."""
        size = TOGETHER * self.lanes
        kind = dt.with_lanes(self.cache.dtype, size)
        raw = BufferLoad(self.cache, (ramp(at, 1, size),), kind)
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

    def key_parts(self, words: PrimExpr) -> list[PrimExpr]:
        """Four numbers of a key in each lane, as products take them, of all that words hold."""
        if not self.key_zero:
            return [words]
        return [call_intrin("bitwise_xor", words, self.number(SIGNS), dtype=self.whole)]

    def value_parts(self, words: PrimExpr) -> list[PrimExpr]:
        """Four numbers of values in each lane, with or without a sign."""
        return [words]

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
        at = (k // self.held * self.pages.page + column) * TOGETHER
        return self.picked(base + at, k % self.held)

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
        groups = range(self.plane.groups)
        return seq(*(self._group_sums(tile, base, after, column, vectors, acc, g) for g in groups))

    def _group_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer, group: int
    ) -> Stmt:
        """The products of places that share scales."""
        rows, page, k = tile.span * self.together, self.pages.page, Var("k")
        sums = Buffer("sums", (const(rows * vectors),), self.whole, "register")
        body, parts = self._loaded(
            vectors, lambda v: base + (k * page + (column + v * self.lanes)) * TOGETHER,
            self.key_parts,
        )  # fmt: skip
        made: list[Stmt] = [*self.ahead(after + (k * page + column) * TOGETHER, vectors * TOGETHER)]
        for r in range(rows):
            for n, loaded in enumerate(parts):
                at = self.row_start(tile, r, self.total) + k * self.held + n * TOGETHER
                made.append(self.grown(sums, r, self.word(self.rounded.bytes, at), loaded, False))
        begin: list[Stmt] = []
        for n in range(rows * vectors):
            place = self.row_of(tile, n // vectors) * self.plane.groups + group
            total = self.rounded.total[simplify(place)] * const(-self.key_zero, "int32")
            begin.append(BufferStore(sums, broadcast(total, self.lanes), (const(n),)))
        count = self.plane.group // self.held
        loop = serial(k, const(count), body(seq(*made)), const(group * count))
        return Allocate(
            sums, seq(*begin, loop, *self._group_ends(base, column, vectors, acc, sums, group))
        )

    def _group_ends(
        self, base: Var, column: int, vectors: int, acc: Buffer, sums: Buffer, group: int
    ) -> list[Stmt]:
        """What sums of whole numbers add to the scores."""
        made: list[Stmt] = []
        for v in range(vectors):
            scale, stores = Var("scale", self.real), list[Stmt]()
            for n in range(v, number(sums.shape[0]), vectors):
                found: PrimExpr = Cast(sums[const(n)], self.real)
                if self.has_inner_scales:
                    found = Mul(found, scale, self.real)
                if group:
                    found = Add(acc[const(n)], found, self.real)
                stores.append(BufferStore(acc, found, (const(n),)))
            each = seq(*stores)
            if self.has_inner_scales:
                at = const(column + v * self.lanes)
                value = self.plane.scales(self.cache, base, at, self.lanes, group)
                each = LetStmt(scale, value, each)
            made.append(each)
        return made

    def _loaded(
        self,
        vectors: int,
        at: Callable[[int], PrimExpr],
        parts: Callable[[PrimExpr], list[PrimExpr]],
    ) -> tuple[Callable[[Stmt], Stmt], list[list[Var]]]:
        """What puts loads of neighbouring words around a body, and what it finds: for each four
        numbers that a word holds, vectors of them."""
        words = [Var(f"w{v}", self.whole) for v in range(vectors)]
        values = [parts(word) for word in words]
        found = [[Var(f"b{n}_{v}", self.whole) for v in range(vectors)]
                 for n in range(len(values[0]))]  # fmt: skip

        def around(body: Stmt) -> Stmt:
            """The body inside its loads: a word, then the numbers that are taken out of it."""
            for v in reversed(range(vectors)):
                for n, value in enumerate(values[v]):
                    body = LetStmt(found[n][v], value, body)
                body = LetStmt(words[v], self.words(at(v)), body)
            return body

        return around, found

    def grown(
        self, sums: Buffer, row: int, a: PrimExpr, loaded: Sequence[Var], is_share: bool
    ) -> Stmt:
        """The sums of a row with four products more in each lane; `is_share`: `a` has no sign."""
        word = Var(f"a{row}", self.whole)
        made = []
        for v, b in enumerate(loaded):
            n = const(row * len(loaded) + v)
            way, pair = (self.dot, (word, b)) if is_share else (self.key_dot, (b, word))
            value = call_intrin(way, sums[n], *pair, dtype=self.whole)
            made.append(BufferStore(sums, value, (n,)))
        return LetStmt(word, a, seq(*made))

    # Values.

    def weighed(self, tile: Rows) -> Stmt:
        """Shares times the scales of values; words take them page by page."""
        if self.dot:
            return seq()
        rows, at, base = tile.span * self.together, Var("p"), Var("base", "int64")
        made = []
        for r in range(rows):
            v = Var("v")
            value = self._scaled(tile, r, 0, at, base, v)
            each = self.store(tile.scores, self._share(tile, r, at, v), value)
            made.append(serial(v, const(self.pages.page // self.lanes), each))
        body = LetStmt(base, self.plane_of(self.page_of(tile, at), tile.group, 1), seq(*made))
        return serial(at, tile.end - tile.begin, body, tile.begin)

    def _share(self, tile: Rows, row: int, number: Var, v: PrimExpr) -> PrimExpr:
        """Where the shares of neighbouring tokens of a page lie."""
        at = row * self.stride + (number - tile.begin) * self.pages.page + v * self.lanes
        return simplify(at)

    def _scaled(
        self, tile: Rows, row: int, group: int, number: Var, base: Var, v: PrimExpr
    ) -> PrimExpr:
        """Those shares times the scales of values; what lies behind the last token may be no
        number."""
        share = self.load(tile.scores, self._share(tile, row, number, v))
        scale = self.plane.scales(self.cache, base, v * self.lanes, self.lanes, group)
        seen = self.splat(0.0) < share
        return Select(seen, Mul(share, scale, self.real), self.splat(0.0), self.real)

    def _shared(self, tile: Rows, row: int, group: int, number: Var, base: Var) -> Stmt:
        """The same in steps of the page's greatest, as bytes."""
        line = row * self.plane.groups + group
        count = self.pages.page // self.lanes
        scaled = [Var(f"scaled{u}", self.real) for u in range(count)]
        levels = [Var(f"levels{u}", self.whole) for u in range(count)]
        top, finer = Var("top", "float32"), Var("finer", "float32")
        factor = Mul(top, const(1 / self.steps, "float32"), "float32")
        made = seq(
            BufferStore(self.factors, factor, (const(line),)),
            *(each for u in range(count) for each in self._bytes_of(levels[u], line, u)),
        )
        if self.value_zero:
            every: PrimExpr = levels[0]
            for level in levels[1:]:
                every = Add(every, level, self.whole)
            total = VectorReduce(every, "sum", "int32") * const(-self.value_zero, "int32")
            made = seq(made, BufferStore(self.bases, total, (const(line),)))
        for level, value in zip(levels, scaled, strict=True):
            near = call_intrin(
                "fma", value, self.splat(finer), self.splat(NEAREST), dtype=self.real
            )
            whole = call_intrin("reinterpret", near, dtype=self.whole)
            made = LetStmt(level, Sub(whole, self.number(ADDED), self.whole), made)
        bound = Max(top, const(LEAST * self.steps, "float32"), "float32")
        made = LetStmt(finer, Div(const(self.steps, "float32"), bound, "float32"), made)
        bits = [call_intrin("reinterpret", value, dtype=self.whole) for value in scaled]
        most: PrimExpr = bits[0]
        for each in bits[1:]:
            most = Max(most, each, self.whole)
        largest = VectorReduce(most, "max", "int32")  # none is below 0: in the order of their bits
        made = LetStmt(top, call_intrin("reinterpret", largest, dtype="float32"), made)
        for u, value in enumerate(scaled):
            made = LetStmt(value, self._scaled(tile, row, group, number, base, const(u)), made)
        return made

    def _bytes_of(self, level: Var, line: int, u: int) -> list[Stmt]:
        """A vector of shares, byte by byte."""
        made: list[Stmt] = []
        for part in range(self.share_bytes):
            by = self.number(self.share_bits * (self.share_bytes - 1 - part))
            value = call_intrin("right_shift", level, by, dtype=self.whole)
            if self.share_bits < 8:
                mask = self.number((1 << self.share_bits) - 1)
                value = call_intrin("bitwise_and", value, mask, dtype=self.whole)
            at = self.share_at(self.share_bytes * line + part, const(u * self.lanes))
            byte = Cast(value, dt.with_lanes("uint8", self.lanes))
            made.append(self.store(self.shares, at, byte))
        return made

    def share_at(self, line: int, token: PrimExpr) -> PrimExpr:
        """Where bytes of shares of a page lie: the upper ones of a row, then its lower ones."""
        return simplify(token + line * self.pages.page)

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value."""
        at = (s // self.held * self.depth + column) * TOGETHER
        return self.picked(base + at, s % self.held)

    def value_sums(self, tile: Rows) -> Stmt:
        """As floats, or by words: sums of a page become floats, and these are added up."""
        if not self.dot:
            return super().value_sums(tile)
        rows, number = tile.span * self.together, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        ahead = self.ahead(
            after + self.plane.numbers, (self.plane.size - self.plane.numbers) // self.lanes
        )
        groups = range(self.plane.groups)
        shares = [self._shared(tile, r, g, number, base) for r in range(rows) for g in groups]
        size = self.plane.group
        blocks = [
            (g * size + c, v) for g in groups for c, v in self.blocks(size, self.share_bytes * rows)
        ]
        parts = [self._page_sums(tile, number, base, after, *each) for each in blocks]
        where = self.plane_of(self.page_of(tile, number), tile.group, 1)
        body = seq(*ahead, *shares, *parts)
        body = LetStmt(base, where, LetStmt(after, self.plane_after(tile, number, 1), body))
        v, row = Var("v"), Var("row")
        zero = self.store(tile.part, row * self.parts.size + v * self.lanes, self.splat(0.0))
        zero = serial(row, const(rows), serial(v, const(self.depth // self.lanes), zero))
        return seq(zero, serial(number, tile.end - tile.begin, body, tile.begin))

    def _page_sums(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Those of some columns, whose numbers share scales."""
        rows, page, s = tile.span * self.together, self.pages.page, Var("s")
        count = self.share_bytes * rows
        lines = [r * self.plane.groups + column // self.plane.group for r in range(rows)]
        acc = Buffer("acc", (const(count * vectors),), self.whole, "register")
        body, parts = self._loaded(
            vectors, lambda v: base + (s * self.depth + (column + v * self.lanes)) * TOGETHER,
            self.value_parts,
        )  # fmt: skip
        made: list[Stmt] = [
            *self.ahead(after + (s * self.depth + column) * TOGETHER, vectors * TOGETHER)
        ]
        for n in range(count):
            line = self.share_bytes * lines[n // self.share_bytes] + n % self.share_bytes
            for part, loaded in enumerate(parts):
                at = self.share_at(line, s * self.held + part * TOGETHER)
                made.append(self.grown(acc, n, self.word(self.shares, at), loaded, True))
        here = minimum(const(page), tile.last + 1 - number * page)
        loop = serial(s, (here + (self.held - 1)) // self.held, body(seq(*made)))
        zero = [BufferStore(acc, self.number(0), (const(n),)) for n in range(count * vectors)]
        ends = [
            self._page_end(acc, tile.part, n, lines[n // vectors], vectors,
                           n // vectors * self.parts.size + column + n % vectors * self.lanes)
            for n in range(rows * vectors)
        ]  # fmt: skip
        return Allocate(acc, seq(*zero, loop, *ends))

    def _page_end(
        self, acc: Buffer, sums: Buffer, n: int, line: int, vectors: int, to: int
    ) -> Stmt:
        """A vector of a page's sums as floats, added up at `to`."""
        row, v = divmod(n, vectors)
        first = self.share_bytes * row
        whole: PrimExpr = acc[const(first * vectors + v)]
        for lower in range(first + 1, first + self.share_bytes):
            upper = call_intrin("left_shift", whole, self.number(self.share_bits), dtype=self.whole)
            whole = Add(upper, acc[const(lower * vectors + v)], self.whole)
        if self.value_zero:
            whole = Add(whole, broadcast(self.bases[const(line)], self.lanes), self.whole)
        factor = self.splat(self.factors[const(line)])
        known = self.load(sums, const(to))
        grown = call_intrin("fma", Cast(whole, self.real), factor, known, dtype=self.real)
        return self.store(sums, const(to), grown)

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for the shares of a page."""
        if not self.dot:
            return body()
        lines = tile.span * self.together * self.plane.groups
        size = const(self.share_bytes * lines * self.pages.page)
        self.shares = Buffer("shares", (size,), "uint8", "local")
        self.factors = Buffer("factors", (const(lines),), scope="local")
        self.bases = Buffer("bases", (const(lines),), "int32", "local")
        return Allocate(self.shares, Allocate(self.factors, Allocate(self.bases, body())))


__all__ = ["BytePages"]
