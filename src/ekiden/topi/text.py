"""Texts as tensors of bytes: the last axis of uint8 [..., width] holds one in UTF-8, and behind it
bytes 0xFF, which no text in UTF-8 contains.

Widths are bounds: where texts are joined or changed, the result is as wide as it can become.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import GE, NE, Not, Or, PrimExpr, Select, Var, binary, cast, const, logical_and
from ekiden.runtime.text import END
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.shape import expect_shape, known

GROWTH = 3
"""How many bytes, at most, each byte of a text becomes when its case changes."""
SPACES = (9, 10, 11, 12, 13, 32)
"""What separates words."""


def _rows(name: str, *texts: Tensor) -> None:
    """ValueError for what is not uint8 [n, width]."""
    for each in texts:
        if each.ndim != 2 or each.dtype != "uint8":
            raise ValueError(
                f"{name}: expected texts uint8 [n, width], got {each.dtype} {each.shape}"
            )


def _byte(text: BufferVar, row: PrimExpr, at: PrimExpr, width: PrimExpr) -> PrimExpr:
    """A byte of a text as int32; END behind its width."""
    return if_then_else(at < width, cast(text[row, at], "int32"), const(END, "int32"))


def length(text: Tensor) -> Tensor:
    """How many bytes each text [..., width] has: int64 [...]."""
    k = te.reduce_axis((0, text.shape[-1]), "k")
    return te.compute(
        text.shape[:-1],
        lambda *i: te.sum(cast(binary(NE, text[(*i, k)], const(END, "uint8")), "int64"), k),
        name="text_length",
        tag="reduce",
    )


def concat(first: Tensor, second: Tensor) -> Tensor:
    """Each text of `first` with that of `second` behind it: [n, width of both].

    Raises ValueError for other than rows of texts.
    """
    _rows("text.concat", first, second)
    expect_shape("text.concat", "second", second.shape, (first.shape[0], None))
    sizes, wide = length(first), first.shape[1]

    def body(i: Var, j: Var) -> PrimExpr:
        """The first text up to its size, then the second; END behind both."""
        at = j - sizes[i]
        inside = logical_and(binary(GE, at, const(0)), at < second.shape[1])
        later = if_then_else(inside, second[i, at], const(END, "uint8"))
        return if_then_else(j < sizes[i], first[i, j], later)

    return te.compute(
        (first.shape[0], wide + second.shape[1]), body, name="text_concat", tag="text"
    )


def find(text: Tensor, keys: Tensor) -> Tensor:
    """Which of the keys each text is: int64 [n], -1 for none. `keys` are distinct and in increasing
    order of their padded bytes.

    Raises ValueError for other than rows of texts.
    """
    _rows("text.find", text, keys)
    count, wide, key_wide = keys.shape[0], text.shape[1], keys.shape[1]
    bits = (known(count) or 1 << 62).bit_length()

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """A binary search for each text among the keys."""
        ib = IRBuilder()
        source, sorted_keys, found = (
            ib.buffer_ptr(ins[0]),
            ib.buffer_ptr(ins[1]),
            ib.buffer_ptr(outs[0]),
        )
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 3, "state", "local")  # low, high, how they compare
            state[0], state[1] = 0, count
            found[i] = -1
            with ib.for_range(0, bits, "step"), ib.if_scope(state[0] < state[1]):
                middle = ib.let("middle", (state[0] + state[1]) // 2)
                state[2] = 0
                most = te.max(wide, key_wide)
                with ib.for_range(0, most, "j") as j, ib.if_scope(state[2].equal(0)):
                    a = ib.let("a", _byte(source, i, j, wide))
                    b = ib.let("b", _byte(sorted_keys, middle, j, key_wide))
                    state[2] = cast(a - b, "int64")
                with ib.if_scope(state[2].equal(0)):
                    found[i] = middle
                    state[0] = state[1]
                with ib.if_scope(state[2] < 0):
                    state[1] = middle
                with ib.if_scope(state[2] > 0):
                    state[0] = middle + 1
        return ib.get()

    shape = (text.shape[0],)
    return te.extern_op([shape], [text, keys], build, ["int64"], name="text_find")[0]


def match(text: Tensor, moves: Tensor, kinds: Tensor, accepts: Tensor) -> Tensor:
    """Whether an automaton accepts each whole text: bool [n]. It begins in state 0; `moves` int32
    [states, kinds of bytes], `kinds` int32 [256], `accepts` bool [states].

    Raises ValueError for other than rows of texts.
    """
    _rows("text.match", text)
    limit = moves.shape[0]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """One state at a time, a byte after the other; what the tables say is held inside of
        them."""
        ib = IRBuilder()
        source, table, kind, final = map(ib.buffer_ptr, ins)
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 1, "state", "local")
            state[0] = 0
            with ib.for_range(0, text.shape[1], "j") as j:
                byte = ib.let("byte", source[i, j])
                with ib.if_scope(binary(NE, byte, const(END, "uint8"))):
                    found = cast(kind[te.min(cast(byte, "int64"), kinds.shape[0] - 1)], "int64")
                    column = ib.let("column", te.max(te.min(found, moves.shape[1] - 1), 0))
                    state[0] = te.max(te.min(cast(table[state[0], column], "int64"), limit - 1), 0)
            ib.buffer_ptr(outs[0])[i] = final[state[0]]
        return ib.get()

    inputs = [text, moves, kinds, accepts]
    return te.extern_op([(text.shape[0],)], inputs, build, ["bool"], name="text_match")[0]


def change_case(text: Tensor, letters: Tensor, sizes: Tensor, others: Tensor) -> Tensor:
    """Each text with its letters replaced: [n, GROWTH * width]. `letters` int32 [m] are code points
    in increasing order, `others` uint8 [m, most] what they become, of `sizes` int32 [m] bytes.

    Raises ValueError for other than rows of texts.
    """
    _rows("text.change_case", text, others)
    count, wide = letters.shape[0], text.shape[1]
    bits = (known(count) or 1 << 62).bit_length()

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """A code point after the other: a binary search among the letters; what is none is
        copied."""
        ib = IRBuilder()
        source, points, lengths, becomes = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 4, "state", "local")  # end of input, of output; low, high
            state[0], state[1] = 0, 0
            with ib.for_range(0, wide * GROWTH, "j") as j:
                out[i, j] = END
            with ib.for_range(0, wide, "at") as at:
                lead = ib.let("lead", cast(source[i, at], "int32"))
                begins = logical_and(state[0].equal(at), binary(NE, lead, const(END, "int32")))
                with ib.if_scope(begins):
                    size = ib.let("size", te.min(_size(lead), wide - at))
                    point = ib.let("point", _point(source, i, at, lead, size))
                    state[0], state[2], state[3] = at + size, 0, count
                    with ib.for_range(0, bits, "step"), ib.if_scope(state[2] < state[3]):
                        middle = ib.let("middle", (state[2] + state[3]) // 2)
                        with ib.if_scope(points[middle] < point):
                            state[2] = middle + 1
                        with ib.else_scope():
                            state[3] = middle
                    place = ib.let("place", te.min(state[2], count - 1))
                    start = ib.let("start", state[1])
                    with ib.if_scope(points[place].equal(point)):
                        new = ib.let("new", cast(lengths[place], "int64"))
                        with ib.for_range(0, new, "k") as k:
                            out[i, start + k] = becomes[place, k]
                        state[1] = start + new
                    with ib.else_scope():
                        with ib.for_range(0, size, "k") as k:
                            out[i, start + k] = source[i, at + k]
                        state[1] = start + size
        return ib.get()

    inputs = [text, letters, sizes, others]
    shape = (text.shape[0], wide * GROWTH)
    return te.extern_op([shape], inputs, build, ["uint8"], name="text_case")[0]


def _size(lead: PrimExpr) -> PrimExpr:
    """How many bytes a character has that begins with this one."""
    more = [cast(lead >= const(first, "int32"), "int64") for first in (0xC0, 0xE0, 0xF0)]
    return more[0] + more[1] + more[2] + 1


def _point(
    text: BufferVar, row: PrimExpr, at: PrimExpr, lead: PrimExpr, size: PrimExpr
) -> PrimExpr:
    """The number of a character in Unicode: the lead's own bits, then six of each further byte."""

    def wide(value: PrimExpr, factor: int) -> PrimExpr:
        return value * const(factor, "int32")

    def tail(k: int) -> PrimExpr:
        byte = cast(text[row, at + k], "int32") % const(64, "int32")
        return if_then_else(size > k, byte, const(0, "int32"))

    first, second, third = tail(1), tail(2), tail(3)
    two = wide(lead % const(32, "int32"), 64) + first
    three = wide(lead % const(16, "int32"), 4096) + wide(first, 64) + second
    four = wide(lead % const(8, "int32"), 1 << 18) + wide(first, 4096) + wide(second, 64) + third
    longer = Select(size > 3, four, Select(size > 2, three, two, "int32"), "int32")
    return Select(size > 1, longer, lead, "int32")


Part = Callable[[PrimExpr, PrimExpr, PrimExpr], None]
"""What is done with a part: its number, where it begins and ends."""


def _walk(
    ib: IRBuilder,
    text: Tensor,
    source: BufferVar,
    row: PrimExpr,
    how: tuple[bytes, int],
    part: Part,
) -> PrimExpr:
    """Emit the walk over one text that finds its parts; gives how many there are. `how` is the
    delimiter, empty for runs of white space, and the most cuts, below 0 for any number.
    """
    delimiter, most = how
    step, wide = max(len(delimiter), 1), text.shape[1]
    state = ib.allocate("int64", 3, "state", "local")  # parts, where one begins (-1: none), next
    state[0], state[1], state[2] = 0, 0 if delimiter else -1, 0
    with ib.for_range(0, wide + 1, "at") as at:
        byte = ib.let("byte", _byte(source, row, at, wide))
        with ib.if_scope(state[2] <= at):
            ends = ib.let("ends", byte.equal(const(END, "int32")))
            cuts = ib.let("cuts", _cuts(source, row, at, wide, delimiter))
            allowed = cuts if most < 0 else logical_and(cuts, state[0] < most)
            is_cut = ib.let("is_cut", binary(Or, allowed, ends))
            if not delimiter:
                with ib.if_scope(logical_and(Not(binary(Or, cuts, ends)), state[1].equal(-1))):
                    state[1] = at
            with ib.if_scope(logical_and(is_cut, state[1] >= 0)):
                part(state[0], state[1], at)
                state[0] = state[0] + 1
                state[1] = at + step if delimiter else -1
            with ib.if_scope(is_cut):
                state[2] = at + step
            with ib.if_scope(ends):
                state[2] = wide + 1
    return state[0]


def _cuts(
    source: BufferVar, row: PrimExpr, at: PrimExpr, wide: PrimExpr, delimiter: bytes
) -> PrimExpr:
    """Whether a delimiter stands here."""
    first = _byte(source, row, at, wide)
    if not delimiter:
        return reduce(partial(binary, Or), (first.equal(const(s, "int32")) for s in SPACES))
    bytes_ = [_byte(source, row, at + k, wide) for k in range(len(delimiter))]
    return reduce(
        logical_and,
        (b.equal(const(d, "int32")) for b, d in zip(bytes_, delimiter, strict=True)),
    )


def count_parts(text: Tensor, delimiter: str = "", maxsplit: int = -1) -> Tensor:
    """Into how many parts Python's `split` cuts each text: int64 [n].

    Raises ValueError for other than rows of texts.
    """
    _rows("text.count_parts", text)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """The number that the walk gives; its parts are not kept."""
        ib = IRBuilder()
        source, counts = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            how = (delimiter.encode(), maxsplit)
            counts[i] = _walk(ib, text, source, i, how, lambda number, begin, end: None)
        return ib.get()

    return te.extern_op([(text.shape[0],)], [text], build, ["int64"], name="text_count")[0]


def split(text: Tensor, slots: Tensor, delimiter: str = "", maxsplit: int = -1) -> Tensor:
    """The parts of each text as Python's `split` gives them: [n, slots, width], empty texts behind
    them. `slots` is a vector as long as the greatest number of parts.

    Raises ValueError for other than rows of texts.
    """
    _rows("text.split", text)
    (rows, wide), room = text.shape, slots.shape[0]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Texts in parallel; parts beyond the slots are dropped."""
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, rows, "i", kind="parallel") as i:
            with ib.for_range(0, room, "p") as p, ib.for_range(0, wide, "j") as j:
                out[i, p, j] = END

            def part(number: PrimExpr, begin: PrimExpr, end: PrimExpr) -> None:
                """Writes a part to its slot."""
                first, slot = ib.let("first", begin), ib.let("slot", number)
                with ib.if_scope(slot < room), ib.for_range(0, end - first, "k") as k:
                    out[i, slot, k] = source[i, first + k]

            _walk(ib, text, source, i, (delimiter.encode(), maxsplit), part)
        return ib.get()

    return te.extern_op([(rows, room, wide)], [text, slots], build, ["uint8"], name="text_split")[0]


__all__ = ["change_case", "concat", "count_parts", "find", "length", "match", "split"]
