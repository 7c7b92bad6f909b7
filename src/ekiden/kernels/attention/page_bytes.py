"""Attention over pages of bytes, in products of whole numbers: queries are rounded too.

    query    step[row] * bytes[row]                 as `rounded_data` has it, for all targets
    scores   sums of products of a query's bytes and places of a key
    shares   exp(scores - max) * a value's scale, as whole numbers (page_shares.py)

Four bytes of one lane are neighbours along what is summed (page_planes.py). They are multiplied

    by words     four at once, where there is an instruction for it. It wants one side without a
                 sign: 128 is added to each byte of a key, and taken from the sums where these begin
    by halves    two at once, of bytes that become int16 by shifts as they are loaded, for all rows
                 of a tile: of 32 bytes and a row that is two products. By sums of two bytes, which
                 must fit int16, it is as many and a third instruction of the same units that gives
                 the signs of keys to queries: 1.3 times as long on Zen 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Select, Var, cast, const
from ekiden.kernels.attention.page_planes import TOGETHER
from ekiden.kernels.attention.page_shares import ByteShares, ShortShares
from ekiden.kernels.attention.pages import Cut, PagedAttention, Pages, Rows, number, serial
from ekiden.kernels.quantized.rounded_data import RoundedData
from ekiden.kernels.quantized.words import DOT4, MADD
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, LetStmt, Stmt, seq

SIGNS = 0x80808080 - (1 << 32)
"""What makes bytes with a sign 128 more, without one; as int32."""


class BytePages(PagedAttention):
    """One such attention; `dots`: how the target multiplies words, as few as it has."""

    key_dots: Sequence[str] = (DOT4, MADD)
    value_dots: Sequence[str] = (DOT4, MADD)
    """What would multiply keys and values, the best first."""
    zero_by_dot: Mapping[str, int] = {DOT4: 128, MADD: 0}
    """What the numbers of keys are more than what they stand for, as products take them."""
    value_zero = 0
    """The same of values."""
    value_unit = 1
    """By what values are multiplied as products take them."""
    share_bytes = 2
    """Of products of four."""
    places: Sequence[int] = (0, 2)
    """Where the two numbers of each of `key_halves` begin among all that a word holds, of each four
    of which the first and the third come first."""
    has_inner_scales = False
    """Whether scales are within the sums, as there may be several."""

    def __init__(self, pages: Pages, inputs: Sequence[Buffer], output: Buffer, lanes: int,
                 cut: Cut | None = None, dots: Sequence[str] = ()) -> None:  # fmt: skip
        super().__init__(pages, inputs, output, lanes, cut)
        self.key_dot, self.value_dot = (
            next((way for way in ways if way in dots), "")
            for ways in (self.key_dots, self.value_dots)
        )
        self.rounded = RoundedData.of(
            self.query, self.depth, self.plane.group, is_paired=self.key_dot == MADD
        )
        self.whole = dt.with_lanes("int32", self.lanes)
        self.real = dt.with_lanes("float32", self.lanes)
        self.held = self.plane.format.held
        self.shares = (ShortShares if self.value_dot in (MADD, "") else ByteShares)(self)

    def most_vectors(self, rows: int) -> int:
        """Of a tile of few rows: what is between words and sums takes registers, two of each vector
        where words come apart into halves."""
        if not self.key_dot:
            return super().most_vectors(rows)
        few = 0 if self.key_dot == DOT4 else self.cut.rows * self.cut.vectors // (rows + 2)
        return max(self.cut.vectors, few)

    @property
    def key_zero(self) -> int:
        """Of keys, by how they are multiplied."""
        return self.zero_by_dot.get(self.key_dot, 0)

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
        """Four bytes of a buffer in every lane, or two int16."""
        count = TOGETHER // dt.itemsize(buffer.dtype)
        kind = dt.with_lanes(buffer.dtype, count)
        taken = BufferLoad(buffer, (ramp(simplify(at), 1, count),), kind)
        return broadcast(call_intrin("reinterpret", taken, dtype="int32"), self.lanes)

    def number(self, value: int) -> PrimExpr:
        """In every lane."""
        return broadcast(const(value, "int32"), self.lanes)

    def halves(self, words: PrimExpr, *shifts: tuple[str, int]) -> PrimExpr:
        """The int16 of words, shifted."""
        count = 2 * self.lanes
        kind = dt.with_lanes("int16", count)
        found = call_intrin("reinterpret", words, dtype=kind)
        for way, by in shifts:
            found = call_intrin(way, found, broadcast(const(by, "int16"), count), dtype=kind)
        return call_intrin("reinterpret", found, dtype=self.whole)

    def picked(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """One of the four bytes of each lane of the cache, as floats."""
        up = broadcast(cast((TOGETHER - 1 - which) * 8, "int32"), self.lanes)
        found = call_intrin("left_shift", self.words(at), up, dtype=self.whole)
        found = call_intrin("right_shift", found, self.number(24), dtype=self.whole)
        return Cast(found, self.real)

    def taken(self, words: PrimExpr, dot: str, is_key: bool) -> list[PrimExpr]:
        """All numbers that words hold, as products take them: four of each lane, or two."""
        if dot == MADD:
            return self.as_halves(words)
        if not is_key:
            return [words]
        return [call_intrin("bitwise_xor", words, self.number(SIGNS), dtype=self.whole)]

    def as_halves(self, words: PrimExpr) -> list[PrimExpr]:
        """The even bytes as int16, and the odd ones."""
        down = "right_shift", 8
        return [self.halves(words, ("left_shift", 8), down), self.halves(words, down)]

    def first_of(self, n: int, dot: str) -> int:
        """Where what multiplies part `n` of a word begins, among as many numbers as words hold."""
        return self.places[n] if dot == MADD else n * TOGETHER

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
        scales = self.plane.scales(self.cache, base, token, self.lanes)
        return Mul(scales, self.row_scale(tile, row), self.real)

    def row_scale(self, tile: Rows, row: int) -> PrimExpr:
        """A query's step, with `factor`."""
        step = self.rounded.step[self.row_of(tile, row)]
        return self.splat(Mul(step, const(self.factor, "float32"), "float32"))

    def score_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """As floats, or by words."""
        if not self.key_dot:
            return super().score_sums(tile, base, after, column, vectors, acc)
        groups = range(self.plane.groups)
        return seq(*(self._group_sums(tile, base, after, column, vectors, acc, g) for g in groups))

    def _group_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer, group: int
    ) -> Stmt:
        """The products of places that share scales."""
        rows, page, k = tile.span * self.together, self.pages.page, Var("k")
        sums = self.sums(rows * vectors)
        body, parts = self.loaded(
            vectors, lambda v: base + (k * page + (column + v * self.lanes)) * TOGETHER,
            lambda words: self.taken(words, self.key_dot, True),
        )  # fmt: skip
        made = self.ahead_of_values(
            tile, after, k, page * TOGETHER, column * TOGETHER, vectors * TOGETHER
        )
        for r in range(rows):
            for n, loaded in enumerate(parts):
                at = self.row_start(tile, r, self.total) + k * self.held
                a = self.word(self.rounded.bytes, at + self.first_of(n, self.key_dot))
                places = {r * vectors + v: b for v, b in enumerate(loaded)}
                made.append(self.grown(sums, places, a, self.key_dot))
        starts = [self._start(tile, r, group) for r in range(rows)]
        begin = [BufferStore(sums, self.first_sums(sums, starts[n // vectors]), (const(n),))
                 for n in range(rows * vectors)]  # fmt: skip
        count = self.plane.group // self.held
        loop = serial(k, const(count), body(seq(*made)), const(group * count))
        ends = self._group_ends(base, column, vectors, acc, sums, group, starts)
        return Allocate(sums, seq(*begin, loop, *ends))

    def sums(self, count: int) -> Buffer:
        """Of products of keys, in registers."""
        return Buffer("sums", (const(count),), self.whole, "register")

    def first_sums(self, sums: Buffer, start: PrimExpr) -> PrimExpr:
        """What they begin with."""
        return start

    def last_sums(self, found: PrimExpr, start: PrimExpr) -> PrimExpr:
        """What they come to, in int32."""
        return found

    def _start(self, tile: Rows, row: int, group: int) -> PrimExpr:
        """What the sums of a group are less than those of products."""
        place = self.row_of(tile, row) * self.plane.groups + group
        total = self.rounded.total[simplify(place)] * const(-self.key_zero, "int32")
        return broadcast(total, self.lanes)

    def _group_ends(
        self, base: Var, column: int, vectors: int, acc: Buffer, sums: Buffer, group: int,
        starts: Sequence[PrimExpr],
    ) -> list[Stmt]:  # fmt: skip
        """What sums of whole numbers add to the scores."""
        made: list[Stmt] = []
        for v in range(vectors):
            scale, stores = Var("scale", self.real), list[Stmt]()
            for n in range(v, number(sums.shape[0]), vectors):
                whole = self.last_sums(sums[const(n)], starts[n // vectors])
                found: PrimExpr = Cast(whole, self.real)
                if self.has_inner_scales and group:
                    found = call_intrin("fma", found, scale, acc[const(n)], dtype=self.real)
                elif self.has_inner_scales:
                    found = Mul(found, scale, self.real)
                else:
                    assert not group, "scales are of the whole depth where they are outside"
                stores.append(BufferStore(acc, found, (const(n),)))
            each = seq(*stores)
            if self.has_inner_scales:
                at = const(column + v * self.lanes)
                value = self.plane.scales(self.cache, base, at, self.lanes, group)
                each = LetStmt(scale, value, each)
            made.append(each)
        return made

    def loaded(
        self,
        vectors: int,
        at: Callable[[int], PrimExpr],
        parts: Callable[[PrimExpr], list[PrimExpr]],
    ) -> tuple[Callable[[Stmt], Stmt], list[list[Var]]]:
        """What puts loads of neighbouring words around a body, and what it finds: for each part of
        what a word holds, vectors of them."""
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
        self, sums: Buffer, loaded: Mapping[int, Var], a: PrimExpr, dot: str, is_share: bool = False
    ) -> Stmt:
        """Sums with a few products more in each lane, of a word and what is `loaded` for each of
        them by its place; `is_share`: `a` has no sign."""
        word = Var("a", self.whole)
        made = []
        for at, b in loaded.items():
            n = const(at)
            pair = (word, b) if is_share else (b, word)
            value = call_intrin(dot, sums[n], *pair, dtype=sums.dtype)
            made.append(BufferStore(sums, value, (n,)))
        return LetStmt(word, a, seq(*made))

    # Values.

    def value_scales(
        self, tile: Rows, base: Var, number: Var, v: PrimExpr | int, group: int
    ) -> PrimExpr:
        """Those of neighbouring tokens of a page; 0 behind the last one, where memory may hold no
        number."""
        at = v * self.lanes if isinstance(v, PrimExpr) else const(v * self.lanes)
        scale = self.plane.scales(self.cache, base, at, self.lanes, group)
        seen = self.places_below(tile.last + 1 - (number * self.pages.page + at))
        return Select(seen, scale, self.splat(0.0), self.real)

    def share_place(self, tile: Rows, row: int, number: Var, v: PrimExpr | int) -> PrimExpr:
        """Where the shares of neighbouring tokens of a page lie."""
        at = row * self.stride + (number - tile.begin) * self.pages.page + v * self.lanes
        return simplify(at)

    def weighed(self, tile: Rows) -> Stmt:
        """Shares times the scales of values; products of whole numbers take them as they go."""
        if self.value_dot:
            return seq()
        rows, at, base = tile.span * self.together, Var("p"), Var("base", "int64")
        v, scale, made = Var("v"), Var("scale", self.real), []
        for r in range(rows):
            place = self.share_place(tile, r, at, v)
            value = Mul(self.load(tile.scores, place), scale, self.real)
            made.append(self.store(tile.scores, place, value))
        scales = self.value_scales(tile, base, at, v, 0)
        body: Stmt = LetStmt(scale, scales, seq(*made))
        body = serial(v, const(self.pages.page // self.lanes), body)
        body = LetStmt(base, self.plane_of(self.page_of(tile, at), tile.group, 1), body)
        return serial(at, tile.end - tile.begin, body, tile.begin)

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value."""
        at = (s // self.held * self.depth + column) * TOGETHER
        return self.picked(base + at, s % self.held)

    def value_sums(self, tile: Rows) -> Stmt:
        """As floats, or as whole numbers."""
        return self.shares.value_sums(tile) if self.value_dot else super().value_sums(tile)

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for its shares."""
        return self.shares.around(tile, body) if self.value_dot else body()


__all__ = ["BytePages"]
