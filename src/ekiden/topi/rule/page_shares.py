"""Shares of values as whole numbers, and the sums of values that they weigh.

    share   exp(score - max) * a value's scale, in steps of the greatest

    by words    steps of each page's greatest, 65,535 of them or 255: two bytes or one, of which
                each multiplies four tokens at once
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
from ekiden.ir.prim import Add, Cast, Div, Max, Mul, PrimExpr, Sub, Var, const, minimum
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, LetStmt, Stmt, seq
from ekiden.topi.rule.page_planes import TOGETHER
from ekiden.topi.rule.pages import Rows, serial
from ekiden.topi.rule.rounded_data import LEAST
from ekiden.topi.rule.words import paired

if TYPE_CHECKING:
    from ekiden.topi.rule.page_bytes import BytePages

NEAREST = 1.5 * (1 << 23)
"""What is added to a float below 2**22 so that its last bits are the nearest whole number."""
ADDED = int(np.float32(NEAREST).view(np.int32))
"""That, in bits: the last 16 are 0."""
ZERO = const(0)


class ShortShares:
    """By halves."""

    def __init__(self, kernel: BytePages) -> None:
        self.kernel = kernel
        self.tokens = kernel.chunk * kernel.pages.page
        row = kernel.plane.format
        most = int(max(row.most + row.zero, -row.least - row.zero)) if row.group else 1
        self.steps = float(min((1 << 15) - 1, ((1 << 31) - 1) // (most * self.tokens)))
        """Of the greatest share of a chunk, so that sums of products with all values fit."""
        self.shares = Buffer("shares", (ZERO,), "int16")
        self.factors = Buffer("factors", (ZERO,))
        self.sums = Buffer("sums", (ZERO,), "int32")

    def lines(self, tile: Rows) -> list[tuple[int, int]]:
        """(row, group of places) of which each has steps of its own."""
        groups = range(self.kernel.plane.groups)
        return [(r, g) for r in range(tile.span * self.kernel.together) for g in groups]

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
        kernel, lines = self.kernel, self.lines(tile)
        best, total = (
            Buffer(n, (const(len(lines)),), kernel.whole, "register") for n in ("best", "total")
        )
        finer = [Var(f"finer{n}", "float32") for n in range(len(lines))]
        made: Stmt = self._each(tile, lambda at, n, share: self._kept(at, n, share, finer, total))
        if kernel.value_zero:
            none = [BufferStore(total, kernel.number(0), (const(n),)) for n in range(len(lines))]
            made = Allocate(total, seq(*none, made, *self._begin(tile, total)))
        else:
            made = seq(made, *self._begin(tile, None))
        for n in reversed(range(len(lines))):
            top = Var("top", "float32")
            factor = Mul(top, const(1 / self.steps, "float32"), "float32")
            bound = Max(top, const(LEAST * self.steps, "float32"), "float32")
            steps = Div(const(self.steps, "float32"), bound, "float32")
            made = LetStmt(finer[n], steps, made)
            made = seq(BufferStore(self.factors, factor, (const(n),)), made)
            # none is below 0: in the order of their bits
            largest = VectorReduce(best[const(n)], "max", "int32")
            made = LetStmt(top, call_intrin("reinterpret", largest, dtype="float32"), made)
        known = self._each(tile, lambda _, n, share: BufferStore(
            best, Max(best[const(n)], call_intrin("reinterpret", share, dtype=kernel.whole),
                      kernel.whole), (const(n),),
        ))  # fmt: skip
        none = [BufferStore(best, kernel.number(0), (const(n),)) for n in range(len(lines))]
        return Allocate(best, seq(*none, known, made))

    def _each(self, tile: Rows, body: Callable[[PrimExpr, int, PrimExpr], Stmt]) -> Stmt:
        """A body for each vector of shares times scales: where its tokens are in the chunk, and the
        number of its line."""
        kernel, number, v, base = self.kernel, Var("p"), Var("v"), Var("base", "int64")
        at = (number - tile.begin) * kernel.pages.page + v * kernel.lanes
        lines, made = self.lines(tile), list[Stmt]()
        scales = [Var(f"scale{g}", kernel.real) for g in range(kernel.plane.groups)]
        for n, (row, group) in enumerate(lines):
            share = kernel.load(tile.scores, kernel.share_place(tile, row, number, v))
            made.append(body(at, n, Mul(share, scales[group], kernel.real)))
        found = seq(*made)
        for group, scale in enumerate(scales):
            found = LetStmt(scale, kernel.value_scales(tile, base, number, v, group), found)
        found = serial(v, const(kernel.pages.page // kernel.lanes), found)
        where = kernel.plane_of(kernel.page_of(tile, number), tile.group, 1)
        return serial(number, tile.end - tile.begin, LetStmt(base, where, found), tile.begin)

    def _kept(
        self, at: PrimExpr, n: int, share: PrimExpr, finer: list[Var], total: Buffer
    ) -> Stmt:
        """A vector of shares as whole numbers, of each four the first and the third first."""
        kernel, level = self.kernel, Var("level", self.kernel.whole)
        near = call_intrin(
            "fma", share, kernel.splat(finer[n]), kernel.splat(NEAREST), dtype=kernel.real
        )
        place = ramp(simplify(at + n * self.tokens), 1, kernel.lanes)
        made: Stmt = BufferStore(self.shares, paired(level), (place,))
        if kernel.value_zero:
            more = Sub(level, kernel.number(ADDED), kernel.whole)
            more = Add(total[const(n)], more, kernel.whole)
            made = seq(made, BufferStore(total, more, (const(n),)))
        return LetStmt(level, call_intrin("reinterpret", near, dtype=kernel.whole), made)

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
                made.append(kernel.grown(acc, row, share, loaded, kernel.value_dot, True))
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


class ByteShares:
    """By words."""

    def __init__(self, kernel: BytePages) -> None:
        self.kernel = kernel
        self.steps = float((1 << 8 * kernel.share_bytes) - 1)
        self.shares = Buffer("shares", (ZERO,), "uint8")
        self.factors = Buffer("factors", (ZERO,))
        self.bases = Buffer("bases", (ZERO,), "int32")

    def around(self, tile: Rows, body: Callable[[], Stmt]) -> Stmt:
        """The body of a tile, with buffers for the shares of a page."""
        kernel = self.kernel
        lines = tile.span * kernel.together * kernel.plane.groups
        size = const(kernel.share_bytes * lines * kernel.pages.page)
        self.shares = Buffer("shares", (size,), "uint8", "local")
        self.factors = Buffer("factors", (const(lines),), scope="local")
        self.bases = Buffer("bases", (const(lines),), "int32", "local")
        return Allocate(self.shares, Allocate(self.factors, Allocate(self.bases, body())))

    def value_sums(self, tile: Rows) -> Stmt:
        """Sums of a page become floats, and these are added up."""
        kernel, plane, number = self.kernel, self.kernel.plane, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        rows, groups = tile.span * kernel.together, range(plane.groups)
        ahead = kernel.ahead(after + plane.numbers, (plane.size - plane.numbers) // kernel.lanes)
        shares = [self._shared(tile, r, g, number, base) for r in range(rows) for g in groups]
        blocks = [
            (g * plane.group + c, v) for g in groups
            for c, v in kernel.blocks(plane.group, kernel.share_bytes * rows)
        ]  # fmt: skip
        parts = [self._page_sums(tile, number, base, after, *each) for each in blocks]
        where = kernel.plane_of(kernel.page_of(tile, number), tile.group, 1)
        body = LetStmt(after, kernel.plane_after(tile, number, 1), seq(*ahead, *shares, *parts))
        v, row = Var("v"), Var("row")
        at = row * kernel.parts.size + v * kernel.lanes
        zero: Stmt = kernel.store(tile.part, at, kernel.splat(0.0))
        zero = serial(row, const(rows), serial(v, const(kernel.depth // kernel.lanes), zero))
        body = LetStmt(base, where, body)
        return seq(zero, serial(number, tile.end - tile.begin, body, tile.begin))

    def _shared(self, tile: Rows, row: int, group: int, number: Var, base: Var) -> Stmt:
        """A row's shares of a page as bytes."""
        kernel = self.kernel
        line = row * kernel.plane.groups + group
        count = kernel.pages.page // kernel.lanes
        scaled = [Var(f"scaled{u}", kernel.real) for u in range(count)]
        levels = [Var(f"levels{u}", kernel.whole) for u in range(count)]
        top, finer = Var("top", "float32"), Var("finer", "float32")
        factor = Mul(top, const(1 / self.steps, "float32"), "float32")
        made = seq(
            BufferStore(self.factors, factor, (const(line),)),
            *(each for u in range(count) for each in self._bytes_of(levels[u], line, u)),
        )
        if kernel.value_zero:
            every: PrimExpr = levels[0]
            for level in levels[1:]:
                every = Add(every, level, kernel.whole)
            total = VectorReduce(every, "sum", "int32") * const(-kernel.value_zero, "int32")
            made = seq(made, BufferStore(self.bases, total, (const(line),)))
        for level, value in zip(levels, scaled, strict=True):
            near = call_intrin(
                "fma", value, kernel.splat(finer), kernel.splat(NEAREST), dtype=kernel.real
            )
            whole = call_intrin("reinterpret", near, dtype=kernel.whole)
            made = LetStmt(level, Sub(whole, kernel.number(ADDED), kernel.whole), made)
        bound = Max(top, const(LEAST * self.steps, "float32"), "float32")
        made = LetStmt(finer, Div(const(self.steps, "float32"), bound, "float32"), made)
        bits = [call_intrin("reinterpret", value, dtype=kernel.whole) for value in scaled]
        most: PrimExpr = bits[0]
        for each in bits[1:]:
            most = Max(most, each, kernel.whole)
        largest = VectorReduce(most, "max", "int32")  # none is below 0: in the order of their bits
        made = LetStmt(top, call_intrin("reinterpret", largest, dtype="float32"), made)
        for u, var in enumerate(scaled):
            share = kernel.load(tile.scores, kernel.share_place(tile, row, number, u))
            scale = kernel.value_scales(tile, base, number, u, group)
            made = LetStmt(var, Mul(share, scale, kernel.real), made)
        return made

    def _bytes_of(self, level: Var, line: int, u: int) -> list[Stmt]:
        """A vector of shares, byte by byte."""
        kernel, made = self.kernel, list[Stmt]()
        count = kernel.share_bytes
        for part in range(count):
            by = kernel.number(8 * (count - 1 - part))
            value = call_intrin("right_shift", level, by, dtype=kernel.whole)
            at = self._place(count * line + part, const(u * kernel.lanes))
            byte = Cast(value, dt.with_lanes("uint8", kernel.lanes))
            made.append(kernel.store(self.shares, at, byte))
        return made

    def _place(self, line: int, token: PrimExpr) -> PrimExpr:
        """Where bytes of shares of a page lie: the upper ones of a row, then its lower ones."""
        return simplify(token + line * self.kernel.pages.page)

    def _page_sums(
        self, tile: Rows, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Those of some columns, whose numbers share scales."""
        kernel, s = self.kernel, Var("s")
        rows, page, depth = tile.span * kernel.together, kernel.pages.page, kernel.depth
        count = kernel.share_bytes * rows
        lines = [r * kernel.plane.groups + column // kernel.plane.group for r in range(rows)]
        acc = Buffer("acc", (const(count * vectors),), kernel.whole, "register")
        body, parts = kernel.loaded(
            vectors, lambda v: base + (s * depth + (column + v * kernel.lanes)) * TOGETHER,
            lambda words: kernel.taken(words, kernel.value_dot, False),
        )  # fmt: skip
        made = kernel.ahead(after + (s * depth + column) * TOGETHER, vectors * TOGETHER)
        for n in range(count):
            line = kernel.share_bytes * lines[n // kernel.share_bytes] + n % kernel.share_bytes
            for part, loaded in enumerate(parts):
                place = kernel.first_of(part, kernel.value_dot)
                share = kernel.word(self.shares, self._place(line, s * kernel.held + place))
                made.append(kernel.grown(acc, n, share, loaded, kernel.value_dot, True))
        here = minimum(const(page), tile.last + 1 - number * page)
        loop = serial(s, (here + (kernel.held - 1)) // kernel.held, body(seq(*made)))
        zero = [BufferStore(acc, kernel.number(0), (const(n),)) for n in range(count * vectors)]
        ends = [
            self._page_end(acc, tile.part, n, lines[n // vectors], vectors,
                           n // vectors * kernel.parts.size + column + n % vectors * kernel.lanes)
            for n in range(rows * vectors)
        ]  # fmt: skip
        return Allocate(acc, seq(*zero, loop, *ends))

    def _page_end(
        self, acc: Buffer, sums: Buffer, n: int, line: int, vectors: int, to: int
    ) -> Stmt:
        """A vector of a page's sums as floats, added up at `to`."""
        kernel = self.kernel
        row, v = divmod(n, vectors)
        first = kernel.share_bytes * row
        whole: PrimExpr = acc[const(first * vectors + v)]
        for lower in range(first + 1, first + kernel.share_bytes):
            upper = call_intrin("left_shift", whole, kernel.number(8), dtype=kernel.whole)
            whole = Add(upper, acc[const(lower * vectors + v)], kernel.whole)
        if kernel.value_zero:
            whole = Add(whole, broadcast(self.bases[const(line)], kernel.lanes), kernel.whole)
        factor = kernel.splat(self.factors[const(line)])
        known = kernel.load(sums, const(to))
        grown = call_intrin("fma", Cast(whole, kernel.real), factor, known, dtype=kernel.real)
        return kernel.store(sums, const(to), grown)


__all__ = ["ByteShares", "ShortShares"]
