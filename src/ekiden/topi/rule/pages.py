"""Attention over a cache of keys and values that lies in pages, and writing into it.

    cache    [blocks, layers, 2, groups, pages of a block * a plane]: of each layer and head the
             keys of some pages, then their values (page_planes.py says how they lie)
    tables   int32 [sequences, most pages]: which pages hold the tokens of a sequence, in order

    for tile of tokens, for heads that share keys:
      for page of the sequence:  scores = q * keys * scale             registers: rows x keys
      scores = exp(scores - max)
      for page, for key of it:   out += scores * values                registers: rows x depth

Keys lie as a register tile reads them, so that nothing is packed: each step of the depth loads
vectors of neighbouring keys and multiplies a number of each query in. The queries of heads that
share keys are rows of one tile, also those of neighbouring tokens where they are of one sequence:
decoding reads each page once, and a long prompt runs at the speed of a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    Add,
    Cast,
    Div,
    IntImm,
    Max,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.runtime.late_methods import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    Stmt,
    seq,
)
from ekiden.topi.rule.model import LINE
from ekiden.topi.rule.page_planes import Plane

LANES = 16
"""Lanes of a vector where no target is known."""
LEAST = -1e30
"""What the greatest score of a query begins with: finite, so that one without keys gives 0."""
DENSE = 6
"""Rows of a tile beyond which more save little."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What is fixed about an attention: tokens of a page, the factor of scores (None: 1 / sqrt of
    the depth), the limit to which tanh bends them (0 for none), and how many keys up to its own
    place a query sees (0 for all)."""

    page: int
    scale: float | None = None
    softcap: float = 0.0
    window: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """How it is cut: rows of a tile, and vectors of keys or of a depth."""

    rows: int = DENSE
    vectors: int = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile: `span` tokens from `first` on, some heads of each from `head` on, which have the keys
    of `group`; their positions and the last of them; their sequence, of which pages `begin` to
    `end` are seen; a buffer of scores, and one of what each row is multiplied with."""

    first: PrimExpr
    span: int
    head: PrimExpr
    group: PrimExpr
    places: tuple[PrimExpr, ...]
    sequence: PrimExpr
    begin: PrimExpr
    end: PrimExpr
    last: PrimExpr
    scores: Buffer
    totals: Buffer


def number(dim: PrimExpr) -> int:
    """A dimension that is known."""
    assert isinstance(dim, IntImm), dim
    return dim.value


def serial(var: Var, extent: PrimExpr, body: Stmt, begin: PrimExpr | None = None) -> Stmt:
    """A loop."""
    return For(var, const(0) if begin is None else begin, extent, ForKind.SERIAL, body)


class PagedAttention:
    """The statement of one attention. `inputs` are what begins with the queries [n, heads and more,
    depth], the cache, the layer [1], tables, and of each token its sequence and its position."""

    def __init__(self, pages: Pages, inputs: Sequence[Buffer], output: Buffer, lanes: int = LANES,
                 cut: Cut | None = None) -> None:  # fmt: skip
        self.pages, self.output = pages, output
        self.query, self.cache, self.layer, self.tables, self.sequences, self.positions = inputs
        self.tokens, total, depth = self.query.shape
        self.heads, self.total, self.depth = number(output.shape[1]), number(total), number(depth)
        self.groups = number(self.cache.shape[3])
        self.lanes = math.gcd(lanes, self.depth, pages.page)
        self.cut = cut or Cut()
        self.share = self.heads // self.groups
        fit = [n for n in range(1, self.share + 1) if self.share % n == 0 and n <= self.cut.rows]
        self.together = fit[-1]
        """Heads of a tile."""
        self.span = max(1, self.cut.rows // self.together)
        """Tokens of a tile."""
        self.plane = Plane(pages.page, self.depth, self.cache.dtype)
        self.stride = simplify(self.tables.shape[1] * pages.page + self.lanes)

    @property
    def most_vectors(self) -> int:
        """Of a tile of few rows: as many as there are."""
        return self.depth + self.pages.page

    # Vectors.

    def splat(self, value: PrimExpr | float) -> PrimExpr:
        """A number in every lane."""
        made = value if isinstance(value, PrimExpr) else const(value, "float32")
        return broadcast(made, self.lanes)

    def load(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """A vector of float32."""
        vector = f"{buffer.dtype}x{self.lanes}"
        found = BufferLoad(buffer, (ramp(at, 1, self.lanes),), vector)
        return found if buffer.dtype == "float32" else Cast(found, f"float32x{self.lanes}")

    def store(self, buffer: Buffer, at: PrimExpr, value: PrimExpr) -> Stmt:
        """Keep a vector."""
        return BufferStore(buffer, value, (ramp(at, 1, self.lanes),))

    def plane_of(self, page: PrimExpr, group: PrimExpr, values: int) -> PrimExpr:
        """Where the keys of a page begin, or its values."""
        layer = cast(self.layer[const(0)], "int64")
        return self.plane.start(self.cache, layer, page, group, values)

    # A tile of tokens of one sequence.

    def products(
        self,
        acc: Buffer,
        rows: int,
        vectors: int,
        steps: Callable[[Stmt], Stmt],
        scalar: Callable[[int], PrimExpr],
        column: Callable[[int], PrimExpr],
        ahead: Sequence[Stmt],
    ) -> Stmt:
        """Sums in registers over loops that `steps` puts around one step: a number of each row by
        a row of vectors; `ahead` brings near what a later step needs."""
        vector = f"float32x{self.lanes}"
        loaded = [Var(f"b{v}", vector) for v in range(vectors)]
        made: list[Stmt] = []
        for r in range(rows):
            a = Var(f"a{r}", vector)
            grown = [
                BufferStore(acc, call_intrin("fma", a, loaded[v], acc[const(n)], dtype=vector),
                            (const(n),))
                for v, n in enumerate(range(r * vectors, (r + 1) * vectors))
            ]  # fmt: skip
            made.append(LetStmt(a, self.splat(scalar(r)), seq(*grown)))
        body = seq(*ahead, *made)
        for v in reversed(range(vectors)):
            body = LetStmt(loaded[v], column(v), body)
        zero = [BufferStore(acc, self.splat(0.0), (const(n),)) for n in range(rows * vectors)]
        return seq(*zero, steps(body))

    def blocks(self, total: int, rows: int) -> list[tuple[int, int]]:
        """(first column, vectors) of the tiles that some columns are cut into: fewer rows have more
        vectors, so that no sum waits for the one before it and more of a line is read at once."""
        wanted = max(1, min(self.most_vectors, self.cut.rows * self.cut.vectors // rows))
        width = wanted * self.lanes
        return [(c, min(width, total - c) // self.lanes) for c in range(0, total, width)]

    def score(self, value: PrimExpr, key: PrimExpr, position: PrimExpr) -> PrimExpr:
        """What products become before the softmax; -inf for keys that are not seen."""
        vector = value.dtype
        scale = self.pages.scale
        factor = 1 / math.sqrt(self.depth) if scale is None else scale
        value = Mul(value, self.splat(factor), vector)
        if cap := self.pages.softcap:
            bent = call_intrin("tanh", Mul(value, self.splat(1 / cap), vector))
            value = Mul(bent, self.splat(cap), vector)
        keys = ramp(key, 1, self.lanes)
        seen = keys < broadcast(position + 1, self.lanes)
        if window := self.pages.window:
            near = broadcast(position - window, self.lanes) < keys
            seen = call_intrin("bitwise_and", seen, near, dtype=seen.dtype)
        return Select(seen, value, self.splat(-math.inf), vector)

    def attend(self, first: PrimExpr, span: int, head: PrimExpr, group: PrimExpr) -> Stmt:
        """Some tokens of one sequence, from `first` on."""
        rows, page = span * self.together, self.pages.page
        places = tuple(Var(f"place{i}", "int64") for i in range(span))
        last: PrimExpr = places[0]
        least: PrimExpr = places[0]
        for each in places[1:]:
            last, least = maximum(last, each), minimum(least, each)
        sequence, begin, end = (Var(n, "int64") for n in ("sequence", "begin", "end"))
        scores = Buffer("scores", (simplify(self.stride * rows),))
        totals = Buffer("totals", (const(rows),), scope="local")
        tile = Rows(first, span, head, group, places, sequence, begin, end, last, scores, totals)
        count = simplify((end - begin) * (page // self.lanes))

        def parts() -> Stmt:
            """One tile: scores, softmax, the weighed values and their sums."""
            return seq(
                self.scored(tile),
                self.softmax(scores, totals, rows, count),
                self.weighed(tile),
                self.value_sums(tile),
            )

        made: Stmt = Allocate(scores, Allocate(totals, self.around(tile, parts)))
        made = LetStmt(end, maximum((last + page) // page, const(0)), made)
        window = self.pages.window
        low = maximum(least - (window - 1), const(0)) // page if window else const(0, "int64")
        made = LetStmt(begin, low, made)
        made = LetStmt(sequence, cast(self.sequences[first], "int64"), made)
        for i in reversed(range(span)):
            made = LetStmt(places[i], cast(self.positions[first + i], "int64"), made)
        return made

    def row_start(self, tile: Rows, row: int, heads: int) -> PrimExpr:
        """Where a row lies among those of so many heads."""
        token, at = divmod(row, self.together)
        return simplify(((tile.first + token) * heads + tile.head + at) * self.depth)

    def page_of(self, tile: Rows, number: PrimExpr) -> PrimExpr:
        """Which page holds the tokens of its sequence from `number` * page on."""
        return cast(self.tables[tile.sequence * self.tables.shape[1] + number], "int64")

    def ahead(self, at: PrimExpr, vectors: int) -> list[Stmt]:
        """Bring the lines of some vectors of the cache near."""
        line = LINE // dt.itemsize(self.cache.dtype)
        return [Prefetch(self.cache, (at + n,), 3) for n in range(0, vectors * self.lanes, line)]

    def plane_after(self, tile: Rows, number: PrimExpr, values: int) -> PrimExpr:
        """Where the keys or values of the page after a page begin; of the last page its own."""
        following = minimum(number + 1, tile.end - 1)
        return self.plane_of(self.page_of(tile, following), tile.group, values)

    def acc(self, count: int) -> Buffer:
        """Sums in registers."""
        return Buffer("acc", (const(count),), f"float32x{self.lanes}", "register")

    def scored(self, tile: Rows) -> Stmt:
        """The scores of all keys of the pages that are seen."""
        number, base, after = Var("p"), Var("base", "int64"), Var("after", "int64")
        cut = self.blocks(self.pages.page, tile.span * self.together)
        parts = [self._score(tile, number, base, after, *each) for each in cut]
        where = self.plane_of(self.page_of(tile, number), tile.group, 0)
        body = LetStmt(after, self.plane_after(tile, number, 0), seq(*parts))
        body = LetStmt(base, where, body)
        return serial(number, tile.end - tile.begin, body, tile.begin)

    def _score(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Those of some columns of a page, while those of the page `after` it are brought near."""
        rows, page = tile.span * self.together, self.pages.page
        acc = self.acc(rows * vectors)
        ends = []
        for n in range(rows * vectors):
            r, v = divmod(n, vectors)
            at = column + v * self.lanes
            value: PrimExpr = acc[const(n)]
            if self.plane.has_scales:
                value = Mul(value, self.key_scale(tile, r, base, const(at)), acc.dtype)
            value = self.score(value, number * page + at, tile.places[r // self.together])
            to = r * self.stride + (number - tile.begin) * page + at
            ends.append(self.store(tile.scores, simplify(to), value))
        made = self.score_sums(tile, base, after, column, vectors, acc)
        return Allocate(acc, seq(made, *ends))

    def score_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """The products of a tile of queries with some keys."""
        page, k = self.pages.page, Var("k")
        ahead = self.ahead(after + k * page + column, vectors)
        return self.products(
            acc, tile.span * self.together, vectors,
            lambda body: serial(k, const(self.depth), body),
            lambda row: self.query_at(tile, row, k),
            lambda v: self.keys_at(base, k, column + v * self.lanes), ahead,
        )  # fmt: skip

    def query_at(self, tile: Rows, row: int, k: PrimExpr) -> PrimExpr:
        """A number of a query."""
        return self.query[self.row_start(tile, row, self.total) + k]

    def keys_at(self, base: PrimExpr, k: PrimExpr, column: int) -> PrimExpr:
        """A place of neighbouring keys of the plane at `base`."""
        return self.load(self.cache, base + k * self.pages.page + column)

    def key_scale(self, tile: Rows, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """What sums of a row are times, for neighbouring keys: of planes that have scales."""
        raise NotImplementedError

    def weighed(self, tile: Rows) -> Stmt:
        """What becomes of weights before they multiply values."""
        return seq()

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile with what it needs beside scores."""
        return body()

    def softmax(self, scores: Buffer, totals: Buffer, rows: int, count: PrimExpr) -> Stmt:
        """scores = exp(scores - max) in each row of a tile, totals = 1 / their sum."""
        row, i, j, zero = Var("row"), Var("i"), Var("j"), const(0)
        vector = f"float32x{self.lanes}"
        best, total = (Buffer(n, (const(1),), vector, "register") for n in ("best", "total"))
        start = row * self.stride
        top, made, whole = Var("top", "float32"), Var("made", vector), Var("whole", "float32")
        high = Max(best[zero], self.load(scores, start + i * self.lanes), vector)
        place = start + j * self.lanes
        shifted = Sub(self.load(scores, place), self.splat(top), vector)
        keep = LetStmt(made, call_intrin("exp", shifted), seq(
            self.store(scores, place, made),
            BufferStore(total, Add(total[zero], made, vector), (zero,)),
        ))  # fmt: skip
        least = Max(whole, const(1e-30, "float32"), "float32")
        weigh = BufferStore(totals, Div(const(1.0, "float32"), least, "float32"), (row,))
        second = Allocate(total, seq(
            BufferStore(total, self.splat(0.0), (zero,)),
            serial(j, count, keep),
            LetStmt(whole, VectorReduce(total[zero], "sum", "float32"), weigh),
        ))  # fmt: skip
        both = Allocate(best, seq(
            BufferStore(best, self.splat(LEAST), (zero,)),
            serial(i, count, BufferStore(best, high, (zero,))),
            LetStmt(top, VectorReduce(best[zero], "max", "float32"), second),
        ))  # fmt: skip
        return serial(row, const(rows), both)

    def value_sums(self, tile: Rows) -> Stmt:
        """The product of a tile of weights with the values."""
        rows = tile.span * self.together
        return seq(*(self.mixed(tile, *each) for each in self.blocks(self.depth, rows)))

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value of the plane at `base`."""
        return self.load(self.cache, base + s * self.depth + column)

    def mixed(self, tile: Rows, column: int, vectors: int) -> Stmt:
        """The product of a tile of rows with some columns of the values."""
        rows, page = tile.span * self.together, self.pages.page
        acc = self.acc(rows * vectors)
        number, s = Var("p"), Var("s")
        base, after = Var("base", "int64"), Var("after", "int64")

        def scalar(row: int) -> PrimExpr:
            at = row * self.stride + (number - tile.begin) * page + s
            return tile.scores[simplify(at)]

        def values(v: int) -> PrimExpr:
            return self.values_at(base, s, column + v * self.lanes)

        def steps(body: Stmt) -> Stmt:
            """A loop over the pages of a tile and in it one over the page's positions, up to the
            tile's last; where the next page lies is named ahead, so that it can be brought near.
            """
            where = self.plane_of(self.page_of(tile, number), tile.group, 1)
            here = minimum(const(page), tile.last + 1 - number * page)
            inside = LetStmt(after, self.plane_after(tile, number, 1), serial(s, here, body))
            inside = LetStmt(base, where, inside)
            return serial(number, tile.end - tile.begin, inside, tile.begin)

        ends = []
        for n in range(rows * vectors):
            r, v = divmod(n, vectors)
            value = Mul(acc[const(n)], self.splat(tile.totals[const(r)]), acc.dtype)
            to = self.row_start(tile, r, self.heads) + (column + v * self.lanes)
            ends.append(self.store(self.output, simplify(to), value))
        ahead = self.ahead(after + s * self.depth + column, vectors)
        made = self.products(acc, rows, vectors, steps, scalar, values, ahead)
        return Allocate(acc, seq(made, *ends))

    # The whole.

    def body(self) -> Stmt:
        """Tiles of tokens and heads in parallel."""
        parts = self.heads // self.together
        unit, i = Var("unit"), Var("i")
        tiles = simplify((self.tokens + (self.span - 1)) // self.span)
        first, head = Var("first", "int64"), Var("head", "int64")
        group = simplify(head // self.share)
        if self.span == 1:
            made = self.attend(first, 1, head, group)
        else:
            limit = self.tokens - 1
            is_one: PrimExpr = first + self.span < self.tokens + 1
            for n in range(1, self.span):
                next_ = self.sequences[minimum(first + n, limit)]
                is_one = logical_and(is_one, EQ(next_, self.sequences[first]))
            count = minimum(const(self.span), self.tokens - first)
            one = self.attend(first + i, 1, head, group)
            made = IfThenElse(
                is_one, self.attend(first, self.span, head, group), serial(i, count, one)
            )
        made = LetStmt(first, unit // parts * self.span, made)
        made = LetStmt(head, unit % parts * self.together, made)
        return For(unit, const(0), simplify(tiles * parts), ForKind.PARALLEL, made, {"grain": 1})


__all__ = ["DENSE", "Cut", "PagedAttention", "Pages", "Rows", "number", "serial"]
