"""Shares of values as whole numbers, and the sums of values that they weigh.

    share   exp(score - max) * a value's scale, in steps of the greatest

    by words    steps of each page's greatest, 65,535 of them or 255: two bytes or one, of which
                each multiplies four tokens at once; of 127 where halves of bytes are multiplied
                two at a time and sums of a few such products fit int16
    by halves   steps of each chunk's greatest, 32,767 of them, as int16 that multiply two tokens;
                sums stay whole over all pages of a chunk

Of few steps those of a page keep what many small shares add up to: of a whole text in 255 steps
those below a thousandth of the greatest would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
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
from ekiden.kernels.attention.page_planes import TOGETHER
from ekiden.kernels.attention.pages import Rows, serial
from ekiden.kernels.quantized.rounded_data import LEAST
from ekiden.kernels.quantized.words import MADD, ONES, SHORT_DOT, paired
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, IfThenElse, LetStmt, Stmt, seq

if TYPE_CHECKING:
    from ekiden.kernels.attention.page_bytes import BytePages

NEAREST = 1.5 * (1 << 23)
"""What is added to a float below 2**22 so that its last bits are the nearest whole number."""
ADDED = int(np.float32(NEAREST).view(np.int32))
"""That, in bits: the last 16 are 0."""
ZERO = const(0)

# A body for a vector of shares times scales: the number of its line, and the vector.
Body = Callable[[int, PrimExpr], Stmt]


class Shares:
    """What both ways have: of each row of a tile and group of places a line of shares."""

    def __init__(self, kernel: BytePages) -> None:
        self.kernel = kernel
        self.steps = 1.0
        self.factors = Buffer("factors", (ZERO,))

    def lines(self, tile: Rows) -> list[tuple[int, int]]:
        """(row, group of places) of which each has steps of its own."""
        groups = range(self.kernel.plane.groups)
        return [(r, g) for r in range(tile.span * self.kernel.together) for g in groups]

    def scaled(self, tile: Rows, number: Var, base: Var, v: PrimExpr, body: Body) -> Stmt:
        """A body for a vector of tokens of each line."""
        kernel, made = self.kernel, list[Stmt]()
        scales = [Var(f"scale{g}", kernel.real) for g in range(kernel.plane.groups)]
        for n, (row, group) in enumerate(self.lines(tile)):
            share = kernel.load(tile.scores, kernel.share_place(tile, row, number, v))
            made.append(body(n, Mul(share, scales[group], kernel.real)))
        found = seq(*made)
        for group, scale in enumerate(scales):
            found = LetStmt(scale, kernel.value_scales(tile, base, number, v, group), found)
        return found

    def greatest(
        self, tile: Rows, find: Callable[[Body], Stmt], body: Callable[[list[Var]], Stmt],
        first: PrimExpr = ZERO,
    ) -> Stmt:  # fmt: skip
        """A body with how many steps of each line 1 is, after the greatest of its shares was found;
        the factors of their steps are kept from `first` on."""
        kernel, count = self.kernel, len(self.lines(tile))
        best = Buffer("best", (const(count),), kernel.whole, "register")
        finer = [Var(f"finer{n}", "float32") for n in range(count)]
        made = body(finer)
        for n in reversed(range(count)):
            top = Var("top", "float32")
            factor = Mul(top, const(1 / (self.steps * kernel.value_unit), "float32"), "float32")
            bound = Max(top, const(LEAST * self.steps, "float32"), "float32")
            steps = Div(const(self.steps, "float32"), bound, "float32")
            made = LetStmt(finer[n], steps, made)
            made = seq(BufferStore(self.factors, factor, (first + n,)), made)
            # none is below 0: in the order of their bits
            largest = VectorReduce(best[const(n)], "max", "int32")
            made = LetStmt(top, call_intrin("reinterpret", largest, dtype="float32"), made)

        def grown(n: int, share: PrimExpr) -> Stmt:
            bits = call_intrin("reinterpret", share, dtype=kernel.whole)
            return BufferStore(best, Max(best[const(n)], bits, kernel.whole), (const(n),))

        none = [BufferStore(best, kernel.number(0), (const(n),)) for n in range(count)]
        return Allocate(best, seq(*none, find(grown), made))

    def level(self, share: PrimExpr, finer: Var) -> PrimExpr:
        """Shares in steps: the last bits of an int32 each."""
        kernel = self.kernel
        near = call_intrin(
            "fma", share, kernel.splat(finer), kernel.splat(NEAREST), dtype=kernel.real
        )
        return call_intrin("reinterpret", near, dtype=kernel.whole)


class ShortShares(Shares):
    """By halves."""

    def __init__(self, kernel: BytePages) -> None:
        super().__init__(kernel)
        self.tokens = kernel.chunk * kernel.pages.page
        row = kernel.plane.format
        most = int(max(row.most + row.zero, -row.least - row.zero)) if row.group else 1
        self.steps = float(min((1 << 15) - 1, ((1 << 31) - 1) // (most * self.tokens)))
        """Of the greatest share of a chunk, so that sums of products with all values fit."""
        self.shares = Buffer("shares", (ZERO,), "int16")
        self.sums = Buffer("sums", (ZERO,), "int32")

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for what a chunk has."""
        count = len(self.lines(tile))
        size = tile.span * self.kernel.together * self.kernel.depth
        self.shares = Buffer("shares", (const(count * self.tokens),), "int16", "local")
        self.factors = Buffer("factors", (const(count),), scope="local")
        self.sums = Buffer("sums", (const(size),), "int32", "local")
        return Allocate(self.shares, Allocate(self.factors, Allocate(self.sums, body())))

    def value_sums(self, tile: Rows) -> Stmt:
        """Shares are rounded, then pages weighed, then sums become floats."""
        kernel, number = self.kernel, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        plane = kernel.plane
        ahead = kernel.ahead(after + plane.numbers, (plane.size - plane.numbers) // kernel.lanes)
        blocks = [
            (g * plane.group + c, v) for g in range(plane.groups)
            for c, v in kernel.blocks(plane.group, tile.span * kernel.together)
        ]  # fmt: skip
        parts = [self._page_sums(tile, number, base, after, *each) for each in blocks]
        body = LetStmt(after, kernel.plane_after(tile, number, 1), seq(*ahead, *parts))
        where = kernel.plane_of(kernel.page_of(tile, number), tile.group, 1)
        pages = serial(number, tile.end - tile.begin, LetStmt(base, where, body), tile.begin)
        return seq(self._rounded(tile), pages, *self._ends(tile))

    # Shares.

    def _rounded(self, tile: Rows) -> Stmt:
        """The greatest of each line first; sums begin with what all values are more than they stand
        for."""
        kernel, count = self.kernel, len(self.lines(tile))
        total = Buffer("total", (const(count),), kernel.whole, "register")
        has_total = kernel.value_zero > 0

        def body(finer: list[Var]) -> Stmt:
            """Whole numbers, and what sums begin with."""
            made = self._each(tile, lambda at: lambda n, share: self._kept(
                at, n, self.level(share, finer[n]), total
            ))  # fmt: skip
            made = seq(made, *self._begin(tile, total if has_total else None))
            none = [BufferStore(total, kernel.number(0), (const(n),)) for n in range(count)]
            return Allocate(total, seq(*none, made)) if has_total else made

        return self.greatest(tile, lambda grown: self._each(tile, lambda _: grown), body)

    def _each(self, tile: Rows, body: Callable[[PrimExpr], Body]) -> Stmt:
        """A body for each vector of shares of a chunk, made for where its tokens are there."""
        kernel, number, v, base = self.kernel, Var("p"), Var("v"), Var("base", "int64")
        at = (number - tile.begin) * kernel.pages.page + v * kernel.lanes
        made = self.scaled(tile, number, base, v, body(at))
        made = serial(v, const(kernel.pages.page // kernel.lanes), made)
        where = kernel.plane_of(kernel.page_of(tile, number), tile.group, 1)
        return serial(number, tile.end - tile.begin, LetStmt(base, where, made), tile.begin)

    def _kept(self, at: PrimExpr, n: int, value: PrimExpr, total: Buffer) -> Stmt:
        """A vector of shares as whole numbers, of each four the first and the third first."""
        kernel, level = self.kernel, Var("level", self.kernel.whole)
        place = ramp(simplify(at + n * self.tokens), 1, kernel.lanes)
        made: Stmt = BufferStore(self.shares, paired(level), (place,))
        if kernel.value_zero:
            more = Sub(level, kernel.number(ADDED), kernel.whole)
            grown = Add(total[const(n)], more, kernel.whole)
            made = seq(made, BufferStore(total, grown, (const(n),)))
        return LetStmt(level, value, made)

    def _begin(self, tile: Rows, total: Buffer | None) -> list[Stmt]:
        """What the sums of lines begin with."""
        kernel, made = self.kernel, list[Stmt]()
        count = kernel.plane.group // kernel.lanes
        for n in range(len(self.lines(tile))):
            v, start = Var("v"), Var("start", "int32")
            put = kernel.store(
                self.sums, n * kernel.plane.group + v * kernel.lanes, broadcast(start, kernel.lanes)
            )
            value: PrimExpr = const(0, "int32")
            if total is not None:
                every = VectorReduce(total[const(n)], "sum", "int32")
                value = every * const(-kernel.value_zero, "int32")
            made.append(LetStmt(start, value, serial(v, const(count), put)))
        return made

    # Values.

    def _page_sums(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """What a page adds to some columns, whose numbers share scales."""
        kernel, s = self.kernel, Var("s")
        rows, page, depth = tile.span * kernel.together, kernel.pages.page, kernel.depth
        acc = Buffer("acc", (const(rows * vectors),), kernel.whole, "register")
        body, parts = kernel.loaded(
            vectors, lambda v: base + (s * depth + (column + v * kernel.lanes)) * TOGETHER,
            lambda words: kernel.taken(words, kernel.value_dot, False),
        )  # fmt: skip
        made = kernel.ahead(after + (s * depth + column) * TOGETHER, vectors * TOGETHER)
        first = (number - tile.begin) * page + s * kernel.held
        for row in range(rows):
            line = row * kernel.plane.groups + column // kernel.plane.group
            for n, loaded in enumerate(parts):
                at = line * self.tokens + kernel.first_of(n, kernel.value_dot) + first
                share = kernel.word(self.shares, at)
                places = {row * vectors + v: b for v, b in enumerate(loaded)}
                made.append(kernel.grown(acc, places, share, kernel.value_dot, True))
        here = minimum(const(page), tile.last + 1 - number * page)
        loop = serial(s, (here + (kernel.held - 1)) // kernel.held, body(seq(*made)))
        begin, ends = list[Stmt](), list[Stmt]()
        for n in range(rows * vectors):
            row, v = divmod(n, vectors)
            place = ramp(const(row * depth + column + v * kernel.lanes), 1, kernel.lanes)
            known = self.sums[place].with_fields(dtype=kernel.whole)
            begin.append(BufferStore(acc, known, (const(n),)))
            ends.append(BufferStore(self.sums, acc[const(n)], (place,)))
        return Allocate(acc, seq(*begin, loop, *ends))

    def _ends(self, tile: Rows) -> list[Stmt]:
        """The sums of a chunk as floats."""
        kernel, made = self.kernel, list[Stmt]()
        size = kernel.plane.group
        for n, (row, group) in enumerate(self.lines(tile)):
            v, factor = Var("v"), kernel.splat(self.factors[const(n)])
            place = ramp(n * size + v * kernel.lanes, 1, kernel.lanes)
            whole = self.sums[place].with_fields(dtype=kernel.whole)
            to = row * kernel.parts.size + group * size + v * kernel.lanes
            value = Mul(Cast(whole, kernel.real), factor, kernel.real)
            made.append(serial(v, const(size // kernel.lanes), kernel.store(tile.part, to, value)))
        return made


class ByteShares(Shares):
    """By words."""

    def __init__(self, kernel: BytePages) -> None:
        super().__init__(kernel)
        self.is_short = kernel.value_dot == SHORT_DOT
        bits = 7 if self.is_short else 8
        self.steps = float((1 << bits * kernel.share_bytes) - 1)
        self.line = kernel.pages.page
        """Bytes of a line."""
        self.run = kernel.pages.page // kernel.held
        """Words whose products are added up before they become floats."""
        if self.is_short:  # so many sums of two products of halves of bytes fit
            self.run = ((1 << 15) - 1) // (2 * 127 * 15) * TOGETHER // kernel.held
        self.shares = Buffer("shares", (ZERO,), "uint8")
        self.finer = Buffer("finer", (ZERO,))
        self.bases = Buffer("bases", (ZERO,), "int32")

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for the shares of a page, and the steps of a chunk's."""
        lines, pages = len(self.lines(tile)), self.kernel.chunk
        size = const(self.kernel.share_bytes * lines * self.line)
        self.shares = Buffer("shares", (size,), "uint8", "local")
        self.factors = Buffer("factors", (const(lines * pages),), scope="local")
        self.finer = Buffer("finer", (const(lines * pages),), scope="local")
        self.bases = Buffer("bases", (const(lines),), "int32", "local")
        made = Allocate(self.finer, Allocate(self.bases, body()))
        return Allocate(self.shares, Allocate(self.factors, made))

    def value_sums(self, tile: Rows) -> Stmt:
        """Sums of a page become floats, and these are added up. The steps of the page behind are
        found before its products: what they wait for, a processor waits for beside these."""
        kernel, plane, number = self.kernel, self.kernel.plane, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        rows = tile.span * kernel.together
        ahead = kernel.ahead(after + plane.numbers, (plane.size - plane.numbers) // kernel.lanes)
        blocks = kernel.blocks(kernel.depth, kernel.share_bytes * rows)
        parts = [self._page_sums(tile, number, base, after, *each) for each in blocks]
        behind, is_there = number + 1, number + 1 < tile.end
        found = IfThenElse(is_there, self._steps(tile, behind))
        body = seq(*ahead, self._rounded(tile, number, base), found, *parts)
        body = LetStmt(after, kernel.plane_after(tile, number, 1), body)
        where = kernel.plane_of(kernel.page_of(tile, number), tile.group, 1)
        v, row = Var("v"), Var("row")
        at = row * kernel.parts.size + v * kernel.lanes
        zero: Stmt = kernel.store(tile.part, at, kernel.splat(0.0))
        zero = serial(row, const(rows), serial(v, const(kernel.depth // kernel.lanes), zero))
        body = LetStmt(base, where, body)
        return seq(
            zero, self._steps(tile, tile.begin),
            serial(number, tile.end - tile.begin, body, tile.begin),
        )  # fmt: skip

    # Shares.

    def line_of(self, tile: Rows, number: PrimExpr, n: int) -> PrimExpr:
        """Where what a line of a page has is kept."""
        return (number - tile.begin) * len(self.lines(tile)) + n

    def _steps(self, tile: Rows, number: PrimExpr) -> Stmt:
        """Those of a page's lines, of which the greatest of each is found."""
        kernel, page, base, v = self.kernel, Var("page", "int64"), Var("base", "int64"), Var("v")

        def kept(finer: list[Var]) -> Stmt:
            return seq(*(
                BufferStore(self.finer, each, (self.line_of(tile, page, n),))
                for n, each in enumerate(finer)
            ))  # fmt: skip

        vectors = const(kernel.pages.page // kernel.lanes)
        made = self.greatest(
            tile, lambda grown: serial(v, vectors, self.scaled(tile, page, base, v, grown)),
            kept, self.line_of(tile, page, 0),
        )  # fmt: skip
        where = kernel.plane_of(kernel.page_of(tile, page), tile.group, 1)
        return LetStmt(page, cast(number, "int64"), LetStmt(base, where, made))

    def _rounded(self, tile: Rows, number: Var, base: Var) -> Stmt:
        """The shares of a page as bytes, and what the sums of values begin with."""
        kernel, v, count = self.kernel, Var("v"), len(self.lines(tile))
        total = Buffer("total", (const(count),), kernel.whole, "register")
        finer = [Var(f"finer{n}", "float32") for n in range(count)]
        vectors = const(kernel.pages.page // kernel.lanes)
        made = serial(v, vectors, self.scaled(
            tile, number, base, v,
            lambda n, share: self._kept(v, n, self.level(share, finer[n]), total),
        ))  # fmt: skip
        if kernel.value_zero:
            none = [BufferStore(total, kernel.number(0), (const(n),)) for n in range(count)]
            ends = [BufferStore(self.bases, VectorReduce(total[const(n)], "sum", "int32")
                                * const(-kernel.value_zero, "int32"), (const(n),))
                    for n in range(count)]  # fmt: skip
            made = Allocate(total, seq(*none, made, *ends))
        for n in reversed(range(count)):
            made = LetStmt(finer[n], self.finer[self.line_of(tile, number, n)], made)
        return made

    def _kept(self, v: PrimExpr, n: int, value: PrimExpr, total: Buffer) -> Stmt:
        """The bytes of a vector of shares, the highest first; what is above them falls off."""
        kernel, level, made = self.kernel, Var("level", self.kernel.whole), list[Stmt]()
        count, size = kernel.share_bytes, kernel.lanes
        for part in range(count):
            bits: PrimExpr = level
            if below := 8 * (count - 1 - part):
                bits = call_intrin("right_shift", bits, kernel.number(below), dtype=kernel.whole)
            at = ramp(simplify(v * size + (count * n + part) * self.line), 1, size)
            made.append(BufferStore(self.shares, Cast(bits, dt.with_lanes("uint8", size)), (at,)))
        if kernel.value_zero:
            more = Sub(level, kernel.number(ADDED), kernel.whole)
            grown = Add(total[const(n)], more, kernel.whole)
            made.append(BufferStore(total, grown, (const(n),)))
        return LetStmt(level, value, seq(*made))

    # Values.

    def _page_sums(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Those of some columns."""
        kernel, s, run = self.kernel, Var("s"), Var("run")
        rows, page, depth = tile.span * kernel.together, kernel.pages.page, kernel.depth
        plane, count = kernel.plane, kernel.share_bytes * rows
        groups = [(column + v * kernel.lanes) // plane.group for v in range(vectors)]
        kind = dt.with_lanes("int16", 2 * kernel.lanes) if self.is_short else kernel.whole
        acc = Buffer("acc", (const(count * vectors),), kind, "register")
        body, parts = kernel.loaded(
            vectors, lambda v: base + (s * depth + (column + v * kernel.lanes)) * TOGETHER,
            lambda words: kernel.taken(words, kernel.value_dot, False),
        )  # fmt: skip
        made = kernel.ahead(after + (s * depth + column) * TOGETHER, vectors * TOGETHER)
        for n in range(count):
            row, byte = divmod(n, kernel.share_bytes)
            for part, loaded in enumerate(parts):
                for group in dict.fromkeys(groups):  # those that share scales are multiplied by one
                    line = kernel.share_bytes * (row * plane.groups + group) + byte
                    place = kernel.first_of(part, kernel.value_dot) + line * self.line
                    share = kernel.word(self.shares, s * kernel.held + place)
                    mine = {v: b for v, b in enumerate(loaded) if groups[v] == group}
                    at = {n * vectors + v: b for v, b in mine.items()}
                    made.append(kernel.grown(acc, at, share, kernel.value_dot, True))
        here = minimum(const(page), tile.last + 1 - number * page)
        words = (here + (kernel.held - 1)) // kernel.held
        none = broadcast(const(0, dt.element(kind)), dt.lanes(kind))
        zero = [BufferStore(acc, none, (const(n),)) for n in range(count * vectors)]
        first = run * self.run
        loop = serial(s, minimum(const(self.run), words - first), body(seq(*made)), first)
        ends = []
        for n in range(rows * vectors):
            row, v = divmod(n, vectors)
            to = row * kernel.parts.size + column + v * kernel.lanes
            line = row * plane.groups + groups[v]
            factor = self.factors[self.line_of(tile, number, line)]
            ends.append(self._run_end(acc, tile.part, n, line, vectors, to, run, factor))
        runs = serial(run, (words + (self.run - 1)) // self.run, seq(*zero, loop, *ends))
        return Allocate(acc, runs)

    def _run_end(
        self, acc: Buffer, sums: Buffer, n: int, line: int, vectors: int, to: int, run: Var,
        factor: PrimExpr,
    ) -> Stmt:  # fmt: skip
        """A vector of sums as floats, added up at `to`; what a page's begin with is in those of its
        first run."""
        kernel = self.kernel
        row, v = divmod(n, vectors)
        first = kernel.share_bytes * row
        whole: PrimExpr = acc[const(first * vectors + v)]
        start: PrimExpr = kernel.number(0)
        if kernel.value_zero:
            base = Select(EQ(run, const(0)), self.bases[const(line)], const(0, "int32"), "int32")
            start = broadcast(base, kernel.lanes)
        if self.is_short:
            halves = call_intrin("reinterpret", whole, dtype=kernel.whole)
            whole = call_intrin(MADD, start, halves, kernel.number(ONES), dtype=kernel.whole)
        for lower in range(first + 1, first + kernel.share_bytes):
            upper = call_intrin("left_shift", whole, kernel.number(8), dtype=kernel.whole)
            whole = Add(upper, acc[const(lower * vectors + v)], kernel.whole)
        if kernel.value_zero and not self.is_short:
            whole = Add(whole, start, kernel.whole)
        known = kernel.load(sums, const(to))
        value = Cast(whole, kernel.real)
        grown = call_intrin("fma", value, kernel.splat(factor), known, dtype=kernel.real)
        return kernel.store(sums, const(to), grown)


__all__ = ["ByteShares", "ShortShares"]
