"""Attention over a cache of keys and values that lies in pages, and writing into it.

    cache    [blocks, layers, 2, groups, pages of a block * a plane]: of each layer and head the
             keys of some pages, then their values (page_planes.py says how they lie)
    tables   int32 [sequences, most pages]: which pages hold the tokens of a sequence, in order

    for tile of tokens, for heads that share keys, for chunk of the sequence:
      for page of the chunk:     scores = q * keys * scale             registers: rows x keys
      scores = exp(scores - max)
      for page, for key of it:   sums += scores * values               registers: rows x depth
      sums, max and the sum of scores are merged with those of the chunks before (page_parts.py)

Keys lie as a register tile reads them, so that nothing is packed: each step of the depth loads
vectors of neighbouring keys and multiplies a number of each query in. The queries of heads that
share keys are rows of one tile, also those of neighbouring tokens where they are of one sequence:
decoding reads each page once, and a long prompt runs at the speed of a product.

Chunks begin at multiples of their size, so that what a token becomes depends on its sequence alone.
Where there are few tiles, as of one token, threads share the chunks of each, and then these are
merged in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, shuffle
from ekiden.ir.prim import (
    EQ,
    Add,
    Cast,
    IntImm,
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
from ekiden.kernels.attention.page_parts import LEAST, Parts
from ekiden.kernels.attention.page_planes import Plane
from ekiden.kernels.attention.row_values import power_at_most_one
from ekiden.kernels.cost_model import LINE
from ekiden.runtime.lazy_dataclass import dataclass
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

LANES = 16
"""Lanes of a vector where no target is known."""
DENSE = 6
"""Rows of a tile beyond which more save little."""
KEYS = 256
"""Of a chunk: merging a row's part is the work of one key or two."""
FEW = 8
"""Tiles below which threads share the chunks of each, where no target is known."""
CHAINS = 4
"""Vectors of powers that are made in turns: a chain of steps alone waits for each of them."""
LATE = 2
"""Lines that are brought near beside the power of a vector."""
GRAIN = 1 << 13
"""Numbers of parts from which a thread of its own is worth having."""


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
    """How it is cut: rows of a tile, vectors of keys or of a depth, keys of a chunk, and below how
    many tiles threads share the chunks of each."""

    rows: int = DENSE
    vectors: int = 4
    keys: int = KEYS
    few: int = FEW


@dataclass(frozen=True, slots=True)
class Rows:
    """A tile: `span` tokens from `first` on, some heads of each from `head` on, which have the keys
    of `group`; their positions and the last of them; their sequence, of which pages `begin` to
    `end` are seen, of the tile or of a chunk, and `start` to `stop` of the tile; which row of its
    unit is its first; a buffer of scores, and one of the part that a chunk comes to."""

    first: PrimExpr
    span: int
    head: PrimExpr
    group: PrimExpr
    places: tuple[PrimExpr, ...]
    sequence: PrimExpr
    begin: PrimExpr
    end: PrimExpr
    start: PrimExpr
    stop: PrimExpr
    last: PrimExpr
    slot: PrimExpr
    scores: Buffer
    part: Buffer


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
        self.chunk = max(1, self.cut.keys // pages.page)
        """Pages of a chunk."""
        self.stride = const(self.chunk * pages.page + self.lanes)
        self.parts = Parts(self.depth, self.lanes)

    def most_vectors(self, rows: int) -> int:
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

    def plane_of(self, page: PrimExpr, group: PrimExpr, values: PrimExpr | int) -> PrimExpr:
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
        taken = [Var(f"a{r}", vector) for r in range(rows)]
        loaded = [Var(f"b{v}", vector) for v in range(vectors)]

        def grown(r: int, v: int) -> Stmt:
            """The sum of a row and a vector with one product more."""
            n = const(r * vectors + v)
            value = call_intrin("fma", taken[r], loaded[v], acc[n], dtype=vector)
            return BufferStore(acc, value, (n,))

        def given(r: int, inside: Stmt) -> Stmt:
            return LetStmt(taken[r], self.splat(scalar(r)), inside)

        def found(v: int, inside: Stmt) -> Stmt:
            return LetStmt(loaded[v], column(v), inside)

        # those of which there are fewer are kept, the others come one by one: with the sums they
        # fill the registers, and a sum that has none waits for memory in every step
        if rows < vectors:
            made = [found(v, seq(*(grown(r, v) for r in range(rows)))) for v in range(vectors)]
            body = seq(*ahead, *made)
            for r in reversed(range(rows)):
                body = given(r, body)
        else:
            made = [given(r, seq(*(grown(r, v) for v in range(vectors)))) for r in range(rows)]
            body = seq(*ahead, *made)
            for v in reversed(range(vectors)):
                body = found(v, body)
        zero = [BufferStore(acc, self.splat(0.0), (const(n),)) for n in range(rows * vectors)]
        return seq(*zero, steps(body))

    def blocks(self, total: int, rows: int) -> list[tuple[int, int]]:
        """(first column, vectors) of the tiles that some columns are cut into: fewer rows have more
        vectors, so that no sum waits for the one before it and more of a line is read at once."""
        wanted = max(1, min(self.most_vectors(rows), self.cut.rows * self.cut.vectors // rows))
        width = wanted * self.lanes
        return [(c, min(width, total - c) // self.lanes) for c in range(0, total, width)]

    @property
    def factor(self) -> float:
        """By which products become scores."""
        scale = self.pages.scale
        return 1 / math.sqrt(self.depth) if scale is None else scale

    def score(self, value: PrimExpr, key: PrimExpr, position: PrimExpr) -> PrimExpr:
        """What products become before the softmax, once they are times `factor`; -inf for keys that
        are not seen."""
        vector = value.dtype
        if cap := self.pages.softcap:
            bent = call_intrin("tanh", Mul(value, self.splat(1 / cap), vector))
            value = Mul(bent, self.splat(cap), vector)
        seen = self.places_below(position + 1 - key)
        if window := self.pages.window:
            last_unseen = cast(position - window - key, "int32")
            lanes = ramp(const(0, "int32"), const(1, "int32"), self.lanes)
            near = broadcast(last_unseen, self.lanes) < lanes
            seen = call_intrin("bitwise_and", seen, near, dtype=seen.dtype)
        return Select(seen, value, self.splat(-math.inf), vector)

    def places_below(self, count: PrimExpr) -> PrimExpr:
        """Which lanes are the first so many; as int32, of which a vector has one a lane."""
        lanes = ramp(const(0, "int32"), const(1, "int32"), self.lanes)
        return lanes < broadcast(cast(count, "int32"), self.lanes)

    def tile(
        self, first: PrimExpr, span: int, head: PrimExpr, slot: PrimExpr,
        body: Callable[[Rows], Stmt],
    ) -> Stmt:  # fmt: skip
        """A body for some tokens of one sequence, from `first` on."""
        rows = span * self.together
        places = tuple(Var(f"place{i}", "int64") for i in range(span))
        sequence, begin, end = (Var(n, "int64") for n in ("sequence", "begin", "end"))
        least, last = _ends(places)
        scores = Buffer("scores", (simplify(self.stride * rows),))
        part = Buffer("part", (const(rows * self.parts.size),))
        group = simplify(head // self.share)
        tile = Rows(
            first,
            span,
            head,
            group,
            places,
            sequence,
            begin,
            end,
            begin,
            end,
            last,
            slot,
            scores,
            part,
        )
        low, high = self.seen(least, last)
        made = LetStmt(begin, low, LetStmt(end, high, body(tile)))
        made = LetStmt(sequence, cast(self.sequences[first], "int64"), made)
        for i in reversed(range(span)):
            made = LetStmt(places[i], cast(self.positions[first + i], "int64"), made)
        return made

    def seen(self, least: PrimExpr, last: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The first page that tokens see, of these positions, and that behind the last one."""
        page, window = self.pages.page, self.pages.window
        low = maximum(least - (window - 1), const(0)) // page if window else const(0, "int64")
        return low, maximum((last + page) // page, const(0))

    def chunks(self, begin: PrimExpr, end: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The chunks in which some pages lie: the first, and that behind the last one."""
        return begin // self.chunk, (end + (self.chunk - 1)) // self.chunk

    def row_start(self, tile: Rows, row: int, heads: int) -> PrimExpr:
        """Where a row lies among those of so many heads."""
        token, at = divmod(row, self.together)
        return simplify(((tile.first + token) * heads + tile.head + at) * self.depth)

    def page_of(self, tile: Rows, number: PrimExpr) -> PrimExpr:
        """Which page holds the tokens of its sequence from `number` * page on."""
        return cast(self.tables[tile.sequence * self.tables.shape[1] + number], "int64")

    def ahead(self, at: PrimExpr, vectors: int) -> list[Stmt]:
        """Bring the lines of some vectors of the cache near: into L2, as the keys and values of a
        chunk are more than L1 (int8 from memory, Zen 3: 87 to 94 us for 96 to 122)."""
        line = LINE // dt.itemsize(self.cache.dtype)
        return [Prefetch(self.cache, (at + n,), 2) for n in range(0, vectors * self.lanes, line)]

    def late(self, rows: int) -> int:
        """How many lines at the end of a page's values, scales among them, are brought near by the
        softmax of a tile of so many rows: some for each vector of shares."""
        line = LINE // dt.itemsize(self.cache.dtype)
        vectors = rows * (self.pages.page // self.lanes)
        return min(LATE * vectors, -(-self.plane.size // line))

    def ahead_of_values(
        self, tile: Rows, after: Var, k: PrimExpr, row: int, column: int, vectors: int
    ) -> list[Stmt]:
        """Bring near what is at step k of the values of a page, which begin at `after`, if it is
        not brought later; of steps of `row` elements and columns of so many vectors."""
        line = LINE // dt.itemsize(self.cache.dtype)
        early = max(0, self.plane.size - self.late(tile.span * self.together) * line)
        made = self.ahead(after + k * row + column, vectors)
        return [IfThenElse(k < -(-early // row), seq(*made))] if early else []

    def plane_after(self, tile: Rows, number: PrimExpr, values: int) -> PrimExpr:
        """Where what is read as long after the keys or values of a page as a chunk takes begins:
        its values, and the keys of the chunk behind, or where there is none of the next unit."""
        if not values:
            return self.plane_of(self.page_of(tile, number), tile.group, 1)
        head, behind = tile.head + self.together, number + self.chunk
        is_over, is_last = behind >= tile.stop, head >= const(self.heads)
        token = self.sequences[minimum(tile.first + tile.span, self.tokens - 1)]
        sequence = Select(is_last, cast(token, "int64"), tile.sequence, "int64")
        group = Select(is_last, const(0, "int64"), cast(head // self.share, "int64"), "int64")
        page = Select(is_over, tile.start + (number - tile.begin), behind, "int64")
        row = Select(is_over, sequence, tile.sequence, "int64") * self.tables.shape[1]
        return self.plane_of(
            cast(self.tables[row + page], "int64"),
            Select(is_over, group, cast(tile.group, "int64"), "int64"), 0,
        )  # fmt: skip

    def acc(self, count: int) -> Buffer:
        """Sums in registers."""
        return Buffer("acc", (const(count),), f"float32x{self.lanes}", "register")

    def scored(self, tile: Rows) -> Stmt:
        """The scores of all keys of the pages that are seen, and of each row the greatest of every
        lane, which its part holds."""
        row = Var("row")
        top = row * self.parts.size + self.parts.top
        least = self.store(tile.part, top, self.splat(LEAST))
        begin = serial(row, const(tile.span * self.together), least)
        number, base, after = Var("p"), Var("base", "int64"), Var("after", "int64")
        cut = self.blocks(self.pages.page, tile.span * self.together)
        parts = [self._score(tile, number, base, after, *each) for each in cut]
        where = self.plane_of(self.page_of(tile, number), tile.group, 0)
        body = LetStmt(after, self.plane_after(tile, number, 0), seq(*parts))
        body = LetStmt(base, where, body)
        return seq(begin, serial(number, tile.end - tile.begin, body, tile.begin))

    def _score(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Those of some columns of a page, while those of the page `after` it are brought near."""
        rows, page = tile.span * self.together, self.pages.page
        acc = self.acc(rows * vectors)
        ends = []
        for r in range(rows):
            scores = [Var(f"score{v}", acc.dtype) for v in range(vectors)]
            top = r * self.parts.size + self.parts.top
            highest = self.load(tile.part, const(top))
            for score in scores:
                highest = self.greater(highest, score)
            kept = self.store(tile.part, const(top), highest)
            for v in reversed(range(vectors)):
                at = column + v * self.lanes
                value: PrimExpr = acc[const(r * vectors + v)]
                value = Mul(value, self.key_scale(tile, r, base, const(at)), acc.dtype)
                value = self.score(value, number * page + at, tile.places[r // self.together])
                to = r * self.stride + (number - tile.begin) * page + at
                kept = seq(self.store(tile.scores, simplify(to), scores[v]), kept)
                kept = LetStmt(scores[v], value, kept)
            ends.append(kept)
        made = self.score_sums(tile, base, after, column, vectors, acc)
        return Allocate(acc, seq(made, *ends))

    def greater(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """The greater of two vectors in one instruction, as what becomes of NaN does not matter: a
        score that is one is a share that is one."""
        return Select(b < a, a, b, a.dtype)

    def score_sums(
        self, tile: Rows, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """The products of a tile of queries with some keys."""
        page, k = self.pages.page, Var("k")
        ahead = self.ahead_of_values(tile, after, k, page, column, vectors)
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
        """What sums of a row are times, for neighbouring keys, with `factor`."""
        return self.splat(self.factor)

    def weighed(self, tile: Rows) -> Stmt:
        """What becomes of weights before they multiply values."""
        return seq()

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile with what it needs beside scores."""
        return body()

    def softmax(self, tile: Rows) -> Stmt:
        """scores = exp(scores - max) in each row of a chunk; max and their sum go to its part. The
        ends of the chunk's values come near meanwhile: memory would be idle, and the lines that a
        processor can wait for at once bring no more than it has time for here."""
        row, number, v = Var("row"), Var("p"), Var("v")
        vector, parts, line = self.parts.vector, self.parts, LINE // dt.itemsize(self.cache.dtype)
        rows, each = tile.span * self.together, self.pages.page // self.lanes
        count = math.gcd(CHAINS, each)
        lanes = count * self.lanes
        kind = dt.with_lanes("float32", lanes)
        base, made = Var("base", "int64"), Var("made", kind)
        to, late = row * parts.size, self.late(tile.span * self.together)
        place = row * self.stride + (number - tile.begin) * self.pages.page + v * lanes
        there = ramp(place, 1, lanes)
        high = broadcast(tile.part[to + parts.top], lanes)
        shifted = Sub(BufferLoad(tile.scores, (there,), kind), high, kind)
        near = (row * each + v * count) * LATE
        first = base + (self.plane.size - late * line)
        total = self.load(tile.part, to + parts.total)
        for n in range(count):
            some = shuffle(made, made, range(n * self.lanes, (n + 1) * self.lanes))
            total = Add(total, some, vector)
        page = serial(v, const(each // count), seq(
            *(Prefetch(self.cache, (first + (near + n) * line,), 2) for n in range(count * LATE)),
            LetStmt(made, power_at_most_one(shifted), seq(
                BufferStore(tile.scores, made, (there,)),
                self.store(tile.part, to + parts.total, total),
            )),
        ))  # fmt: skip
        where = self.plane_of(self.page_of(tile, number), tile.group, 1)
        pages = LetStmt(base, where, serial(row, const(rows), page))
        top = VectorReduce(self.load(tile.part, to + parts.top), "max", "float32")
        begin = seq(
            self.store(tile.part, to + parts.top, self.splat(top)),
            self.store(tile.part, to + parts.total, self.splat(0.0)),
        )
        return seq(
            serial(row, const(rows), begin),
            serial(number, tile.end - tile.begin, pages, tile.begin),
        )

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
            to = r * self.parts.size + (column + v * self.lanes)
            ends.append(self.store(tile.part, const(to), acc[const(n)]))
        ahead = self.ahead(after + s * self.depth + column, vectors)
        made = self.products(acc, rows, vectors, steps, scalar, values, ahead)
        return Allocate(acc, seq(made, *ends))

    # The whole.

    def parted(self, tile: Rows) -> Stmt:
        """The part that a chunk comes to: scores, softmax, the weighed values and their sums."""
        return seq(self.scored(tile), self.softmax(tile), self.weighed(tile), self.value_sums(tile))

    def attended(self, tile: Rows, split: _Split, piece: PrimExpr, unit: PrimExpr) -> Stmt:
        """All chunks of a tile merged, or where they are shared that of a piece alone, kept."""
        rows, chunk = tile.span * self.together, Var("chunk", "int64")
        first, stop = self.chunks(tile.begin, tile.end)
        low = first + Select(split.is_shared, piece, const(0, "int64"), "int64")
        high = Select(split.is_shared, minimum(low + 1, stop), stop, "int64")
        found = Buffer("found", (const(rows * self.parts.size),))
        begin, end = Var("chunk_begin", "int64"), Var("chunk_end", "int64")
        part = replace(tile, begin=begin, end=end)
        place = self.place(tile, split, unit, piece)
        made: Stmt = seq(
            self.around(part, lambda: self.parted(part)),
            IfThenElse(
                split.is_shared,
                self.parts.copied(split.kept, place, tile.part, rows),
                self.parts.merged(found, tile.part, const(0), rows),
            ),
        )
        made = LetStmt(end, minimum(tile.end, (chunk + 1) * self.chunk), made)
        made = LetStmt(begin, maximum(tile.begin, chunk * self.chunk), made)
        made = serial(chunk, maximum(high - low, const(0)), made, low)
        alone = split.pieces < const(2, "int64")
        made = seq(self.parts.begun(found, rows), made, IfThenElse(alone, self.ended(tile, found)))
        return Allocate(tile.scores, Allocate(tile.part, Allocate(found, made)))

    def gathered(self, tile: Rows, split: _Split, unit: PrimExpr) -> Stmt:
        """The chunks of a tile, kept by those who shared them, merged in their order."""
        rows, chunk = tile.span * self.together, Var("chunk", "int64")
        first, stop = self.chunks(tile.begin, tile.end)
        found = Buffer("found", (const(rows * self.parts.size),))
        place = self.place(tile, split, unit, chunk)
        each = self.parts.merged(found, split.kept, place, rows)
        return Allocate(found, seq(
            self.parts.begun(found, rows), serial(chunk, stop - first, each),
            self.ended(tile, found),
        ))  # fmt: skip

    def place(self, tile: Rows, split: _Split, unit: PrimExpr, piece: PrimExpr) -> PrimExpr:
        """Where the part of a piece of a unit is kept."""
        row = (unit * split.pieces + piece) * (self.span * self.together) + tile.slot
        return row * self.parts.size

    def ended(self, tile: Rows, found: Buffer) -> Stmt:
        """The results of the rows of a tile."""
        row = Var("row")
        token, at = row // self.together, row % self.together
        to = ((tile.first + token) * self.heads + tile.head + at) * self.depth
        return self.parts.ended(self.output, to, row, found, tile.span * self.together)

    def unit(self, unit: PrimExpr, body: Callable[[Rows], Stmt]) -> Stmt:
        """A body for the tile of a unit, or one after the other for its tokens, where these are of
        several sequences."""
        heads, i = self.heads // self.together, Var("i")
        first, head = Var("first", "int64"), Var("head", "int64")
        if self.span == 1:
            made = self.tile(first, 1, head, const(0), body)
        else:
            limit = self.tokens - 1
            is_one: PrimExpr = first + self.span < self.tokens + 1
            for n in range(1, self.span):
                next_ = self.sequences[minimum(first + n, limit)]
                is_one = logical_and(is_one, EQ(next_, self.sequences[first]))
            count = minimum(const(self.span), self.tokens - first)
            one = self.tile(first + i, 1, head, i * self.together, body)
            whole = self.tile(first, self.span, head, const(0), body)
            made = IfThenElse(is_one, whole, serial(i, count, one))
        made = LetStmt(first, unit // heads * self.span, made)
        return LetStmt(head, unit % heads * self.together, made)

    def pieces(self, tiles: PrimExpr, most: Buffer) -> Stmt:
        """most = the chunks of the tile that has the most of them, and their halves, of which a
        last chunk that is short has one."""
        n, first, limit = Var("n"), Var("first", "int64"), self.tokens - 1
        places = tuple(Var(f"place{i}", "int64") for i in range(self.span))
        seen = self.seen(*_ends(places))
        low, high = self.chunks(*seen)
        half = max(1, self.chunk // 2)
        halves = (seen[1] - low * self.chunk + (half - 1)) // half
        made: Stmt = seq(*(
            BufferStore(most, maximum(most[const(at)], count), (const(at),))
            for at, count in enumerate((high - low, halves))
        ))  # fmt: skip
        for i in reversed(range(self.span)):
            at = self.positions[minimum(first + i, limit)]
            made = LetStmt(places[i], cast(at, "int64"), made)
        made = serial(n, tiles, LetStmt(first, n * self.span, made))
        one = const(1, "int64")
        return seq(*(BufferStore(most, one, (const(at),)) for at in range(2)), made)

    def body(self) -> Stmt:
        """Tiles of tokens and heads in parallel; of few, their chunks. Threads share these by
        halves, as the last chunk may be short, and a chunk is his who has the last half of it."""
        tiles = simplify((self.tokens + (self.span - 1)) // self.span)
        units = simplify(tiles * (self.heads // self.together))
        rows, index, unit = self.span * self.together, Var("index"), Var("unit")
        most = Buffer("most", (const(2),), "int64", "register")
        pieces, halves = Var("pieces", "int64"), Var("halves", "int64")
        is_shared = pieces > const(1, "int64")
        size = units * pieces * (rows * self.parts.size)
        size = Select(is_shared, size, const(1, "int64"), "int64")
        split = _Split(pieces, is_shared, Buffer("kept", (size,)))
        each, piece = Var("each", "int64"), Var("piece", "int64")
        parts = 2 if self.chunk > 1 else 1
        work = self.unit(each, lambda tile: self.attended(tile, split, piece, each))
        half = index % halves
        is_last = EQ(half, minimum((piece + 1) * parts, halves) - 1)
        work = LetStmt(piece, half // parts, IfThenElse(is_last, work))
        work = LetStmt(each, index // halves, work)
        gather = self.unit(unit, lambda tile: self.gathered(tile, split, unit))
        grain = max(1, GRAIN // (rows * self.parts.size))
        made: Stmt = seq(
            For(index, const(0), units * halves, ForKind.PARALLEL, work, {"grain": 1}),
            IfThenElse(is_shared, For(
                unit, const(0), units, ForKind.PARALLEL, gather, {"grain": grain}
            )),
        )  # fmt: skip
        own = Select(is_shared, most[const(1)], const(1, "int64"), "int64")
        made = LetStmt(halves, own, Allocate(split.kept, made))
        made = LetStmt(pieces, most[const(0)], made)
        is_few = units < self.cut.few
        known = self.pieces(Select(is_few, tiles, const(0, "int64"), "int64"), most)
        return Allocate(most, seq(known, made))


@dataclass(frozen=True, slots=True)
class _Split:
    """Whether threads share the chunks of a tile: how many pieces a tile has, at most, and where
    the part of each is kept."""

    pieces: PrimExpr
    is_shared: PrimExpr
    kept: Buffer


def _ends(places: Sequence[PrimExpr]) -> tuple[PrimExpr, PrimExpr]:
    """The least of some positions and the last."""
    least, last = places[0], places[0]
    for each in places[1:]:
        least, last = minimum(least, each), maximum(last, each)
    return least, last


__all__ = ["DENSE", "KEYS", "Cut", "PagedAttention", "Pages", "Rows", "number", "serial"]
