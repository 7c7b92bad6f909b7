"""String operators on byte tensors: UTF-8 in the last axis of uint8 [..., width], padded with 0xFF
bytes.

Widths are bounds: where texts are joined or changed, the result is as wide as it can become.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    GE,
    NE,
    Not,
    Or,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    fold_binary,
    logical_and,
)
from ekiden.runtime.string_tensors import STRING_TERMINATOR
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import known_int, require_shape

MAX_CASE_GROWTH = 3
"""Maximum growth of a text in bytes when its case changes."""
WHITESPACE_BYTES = (9, 10, 11, 12, 13, 32)
"""Bytes that separate words."""


def _require_byte_rows(name: str, *texts: Tensor) -> None:
    """Raise ValueError for tensors other than uint8 [n, width]."""
    for text in texts:
        if text.ndim != 2 or text.dtype != "uint8":
            raise ValueError(
                f"{name}: expected texts uint8 [n, width], got {text.dtype} {text.shape}"
            )


def _load_byte(text: BufferVar, row: PrimExpr, at: PrimExpr, width: PrimExpr) -> PrimExpr:
    """Load a byte of a text as int32; the padding byte past its width."""
    return if_then_else(at < width, cast(text[row, at], "int32"), const(STRING_TERMINATOR, "int32"))


def length(text: Tensor) -> Tensor:
    """Return the number of bytes of each text [..., width]: int64 [...]."""
    k = te.reduce_axis((0, text.shape[-1]), "k")
    return te.compute(
        text.shape[:-1],
        lambda *i: te.sum(
            cast(fold_binary(NE, text[(*i, k)], const(STRING_TERMINATOR, "uint8")), "int64"), k
        ),
        name="text_length",
        tag="reduce",
    )


def concat(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate each text of `first` with that of `second`: [n, sum of widths]. Raises ValueError
    for other than rows of strings.
    """
    _require_byte_rows("text.concat", first, second)
    require_shape("text.concat", "second", second.shape, (first.shape[0], None))
    sizes, wide = length(first), first.shape[1]

    def concat_byte(i: Var, j: Var) -> PrimExpr:
        """Return a byte of the concatenation: the first text, the second, then the end marker."""
        position = j - sizes[i]
        inside = logical_and(fold_binary(GE, position, const(0)), position < second.shape[1])
        later = if_then_else(inside, second[i, position], const(STRING_TERMINATOR, "uint8"))
        return if_then_else(j < sizes[i], first[i, j], later)

    return te.compute(
        (first.shape[0], wide + second.shape[1]), concat_byte, name="text_concat", tag="text"
    )


def find(text: Tensor, keys: Tensor) -> Tensor:
    """Return the index of each text among the keys: int64 [n], -1 for none. `keys` are distinct and
    sorted by their padded bytes. Raises ValueError for other than rows of strings.
    """
    _require_byte_rows("text.find", text, keys)
    count, wide, key_wide = keys.shape[0], text.shape[1], keys.shape[1]
    # A binary search over n keys ends within bit_length(n) steps; 63 are enough for any symbolic n.
    bits = (known_int(count) or 1 << 62).bit_length()

    def emit_find(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a binary search among the keys for each text."""
        ib = IRBuilder()
        source, sorted_keys, positions = (
            ib.buffer_ptr(ins[0]),
            ib.buffer_ptr(ins[1]),
            ib.buffer_ptr(outs[0]),
        )
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 3, "state", "local")  # low, high, how they compare
            state[0], state[1] = 0, count
            positions[i] = -1
            with ib.for_range(0, bits, "step"), ib.if_scope(state[0] < state[1]):
                middle = ib.let("middle", (state[0] + state[1]) // 2)
                state[2] = 0
                compared_width = te.max(wide, key_wide)
                with ib.for_range(0, compared_width, "j") as j, ib.if_scope(state[2].equal(0)):
                    a = ib.let("a", _load_byte(source, i, j, wide))
                    b = ib.let("b", _load_byte(sorted_keys, middle, j, key_wide))
                    state[2] = cast(a - b, "int64")
                with ib.if_scope(state[2].equal(0)):
                    positions[i] = middle
                    # An empty range ends the search.
                    state[0] = state[1]
                with ib.if_scope(state[2] < 0):
                    state[1] = middle
                with ib.if_scope(state[2] > 0):
                    state[0] = middle + 1
        return ib.get()

    shape = (text.shape[0],)
    return te.extern_op([shape], [text, keys], emit_find, ["int64"], name="text_find")[0]


def match(text: Tensor, moves: Tensor, kinds: Tensor, accepts: Tensor) -> Tensor:
    """Return whether an automaton accepts each whole text: bool [n]. It begins in state 0.

    Args:
        text: uint8 [n, width].
        moves: int32 [states, byte classes], the transitions.
        kinds: int32 [256], the class of each byte.
        accepts: bool [states].

    Returns:
        Whether each text is accepted.

    Raises:
        ValueError: for other than rows of strings.
    """
    _require_byte_rows("text.match", text)
    limit = moves.shape[0]

    def emit_automaton(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the automaton, byte by byte; table entries are clamped to valid indices."""
        ib = IRBuilder()
        source, table, kind, final = map(ib.buffer_ptr, ins)
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 1, "state", "local")
            state[0] = 0
            with ib.for_range(0, text.shape[1], "j") as j:
                byte = ib.let("byte", source[i, j])
                with ib.if_scope(fold_binary(NE, byte, const(STRING_TERMINATOR, "uint8"))):
                    byte_class = cast(
                        kind[te.min(cast(byte, "int64"), kinds.shape[0] - 1)], "int64"
                    )
                    column = ib.let("column", te.max(te.min(byte_class, moves.shape[1] - 1), 0))
                    # Table entries are data: clamped so that a malformed table cannot index out of
                    # range.
                    state[0] = te.max(te.min(cast(table[state[0], column], "int64"), limit - 1), 0)
            ib.buffer_ptr(outs[0])[i] = final[state[0]]
        return ib.get()

    inputs = [text, moves, kinds, accepts]
    return te.extern_op([(text.shape[0],)], inputs, emit_automaton, ["bool"], name="text_match")[0]


def change_case(text: Tensor, letters: Tensor, sizes: Tensor, others: Tensor) -> Tensor:
    """Return each text with its letters replaced: [n, MAX_CASE_GROWTH * width]. `letters` int32 [m]
    are sorted code points, the replacements uint8 [m, most] of `sizes` int32 [m] bytes. Raises
    ValueError for other than rows of strings.
    """
    _require_byte_rows("text.change_case", text, others)
    count, wide = letters.shape[0], text.shape[1]
    # The number of steps of the binary search among the letters, as in `find`.
    bits = (known_int(count) or 1 << 62).bit_length()

    def emit_change_case(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit code points in order: a binary search among the letters; other code points are
        copied.
        """
        ib = IRBuilder()
        source, points, lengths, becomes = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 4, "state", "local")  # end of input, of output; low, high
            state[0], state[1] = 0, 0
            with ib.for_range(0, wide * MAX_CASE_GROWTH, "j") as j:
                out[i, j] = STRING_TERMINATOR
            with ib.for_range(0, wide, "at") as position:
                lead = ib.let("lead", cast(source[i, position], "int32"))
                begins = logical_and(
                    state[0].equal(position),
                    fold_binary(NE, lead, const(STRING_TERMINATOR, "int32")),
                )
                with ib.if_scope(begins):
                    # A character cut off by the width ends with it: malformed text reads nothing
                    # behind its row.
                    size = ib.let("size", te.min(_utf8_length(lead), wide - position))
                    point = ib.let("point", _decode_utf8(source, i, position, lead, size))
                    state[0], state[2], state[3] = position + size, 0, count
                    with ib.for_range(0, bits, "step"), ib.if_scope(state[2] < state[3]):
                        middle = ib.let("middle", (state[2] + state[3]) // 2)
                        with ib.if_scope(points[middle] < point):
                            state[2] = middle + 1
                        with ib.else_scope():
                            state[3] = middle
                    # Above the last letter the search ends at `count`, which is no index.
                    letter_index = ib.let("place", te.min(state[2], count - 1))
                    start = ib.let("start", state[1])
                    with ib.if_scope(points[letter_index].equal(point)):
                        new = ib.let("new", cast(lengths[letter_index], "int64"))
                        with ib.for_range(0, new, "k") as k:
                            out[i, start + k] = becomes[letter_index, k]
                        state[1] = start + new
                    with ib.else_scope():
                        with ib.for_range(0, size, "k") as k:
                            out[i, start + k] = source[i, position + k]
                        state[1] = start + size
        return ib.get()

    inputs = [text, letters, sizes, others]
    shape = (text.shape[0], wide * MAX_CASE_GROWTH)
    return te.extern_op([shape], inputs, emit_change_case, ["uint8"], name="text_case")[0]


def _utf8_length(lead: PrimExpr) -> PrimExpr:
    """Return the byte length of the UTF-8 character that begins with a byte."""
    more = [cast(lead >= const(first, "int32"), "int64") for first in (0xC0, 0xE0, 0xF0)]
    return more[0] + more[1] + more[2] + 1


def _decode_utf8(
    text: BufferVar, row: PrimExpr, at: PrimExpr, lead: PrimExpr, size: PrimExpr
) -> PrimExpr:
    """Return the code point of a UTF-8 character: the lead byte's own bits, then six of each
    further byte.
    """

    def scale_bits(value: PrimExpr, factor: int) -> PrimExpr:
        return value * const(factor, "int32")

    def continuation_bits(k: int) -> PrimExpr:
        byte = cast(text[row, at + k], "int32") % const(64, "int32")
        return if_then_else(size > k, byte, const(0, "int32"))

    first, second, third = continuation_bits(1), continuation_bits(2), continuation_bits(3)
    two = scale_bits(lead % const(32, "int32"), 64) + first
    three = scale_bits(lead % const(16, "int32"), 4096) + scale_bits(first, 64) + second
    four = (
        scale_bits(lead % const(8, "int32"), 1 << 18)
        + scale_bits(first, 4096)
        + scale_bits(second, 64)
        + third
    )
    longer = Select(size > 3, four, Select(size > 2, three, two, "int32"), "int32")
    return Select(size > 1, longer, lead, "int32")


PartAction = Callable[[PrimExpr, PrimExpr, PrimExpr], None]
"""Function (number, begin, end) applied to each part."""


def _emit_split_walk(
    ib: IRBuilder,
    text: Tensor,
    source: BufferVar,
    row: PrimExpr,
    how: tuple[bytes, int],
    on_part: PartAction,
) -> PrimExpr:
    """Emit the loop that splits one text, with `on_part` per part; return the number of parts.
    `how` is the delimiter, empty for runs of white space, and the maximum number of cuts, unlimited
    below 0.
    """
    delimiter, max_cuts = how
    step, wide = max(len(delimiter), 1), text.shape[1]
    state = ib.allocate("int64", 3, "state", "local")  # parts, where one begins (-1: none), next
    state[0], state[1], state[2] = 0, 0 if delimiter else -1, 0
    # One position more than bytes: a text that fills its row ends there.
    with ib.for_range(0, wide + 1, "at") as position:
        byte = ib.let("byte", _load_byte(source, row, position, wide))
        with ib.if_scope(state[2] <= position):
            ends = ib.let("ends", byte.equal(const(STRING_TERMINATOR, "int32")))
            cuts = ib.let("cuts", _is_delimiter_at(source, row, position, wide, delimiter))
            allowed = cuts if max_cuts < 0 else logical_and(cuts, state[0] < max_cuts)
            is_cut = ib.let("is_cut", fold_binary(Or, allowed, ends))
            if not delimiter:
                with ib.if_scope(logical_and(Not(fold_binary(Or, cuts, ends)), state[1].equal(-1))):
                    state[1] = position
            with ib.if_scope(logical_and(is_cut, state[1] >= 0)):
                on_part(state[0], state[1], position)
                state[0] = state[0] + 1
                state[1] = position + step if delimiter else -1
            with ib.if_scope(is_cut):
                state[2] = position + step
            with ib.if_scope(ends):
                # Behind the last position: only padding follows.
                state[2] = wide + 1
    return state[0]


def _is_delimiter_at(
    source: BufferVar, row: PrimExpr, at: PrimExpr, wide: PrimExpr, delimiter: bytes
) -> PrimExpr:
    """Return whether there is a delimiter at a position."""
    first = _load_byte(source, row, at, wide)
    if not delimiter:
        return reduce(
            partial(fold_binary, Or), (first.equal(const(s, "int32")) for s in WHITESPACE_BYTES)
        )
    bytes_ = [_load_byte(source, row, at + k, wide) for k in range(len(delimiter))]
    return reduce(
        logical_and,
        (b.equal(const(d, "int32")) for b, d in zip(bytes_, delimiter, strict=True)),
    )


def count_parts(text: Tensor, delimiter: str = "", maxsplit: int = -1) -> Tensor:
    """Return the number of parts of each text under Python's `split`; int64 [n].

    Raises ValueError for other than rows of strings.
    """
    _require_byte_rows("text.count_parts", text)

    def emit_count(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the count of the parts, without storing them."""
        ib = IRBuilder()
        source, counts = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            how = (delimiter.encode(), maxsplit)
            counts[i] = _emit_split_walk(ib, text, source, i, how, lambda number, begin, end: None)
        return ib.get()

    return te.extern_op([(text.shape[0],)], [text], emit_count, ["int64"], name="text_count")[0]


def split(text: Tensor, slots: Tensor, delimiter: str = "", maxsplit: int = -1) -> Tensor:
    """Return the parts of each text under Python's `split`: [n, slots, width], padded with empty
    texts. `slots` is a vector as long as the largest number of parts. Raises ValueError for
    other than rows of strings.
    """
    _require_byte_rows("text.split", text)
    (rows, wide), room = text.shape, slots.shape[0]

    def emit_split(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit texts in parallel; parts beyond the slots are dropped."""
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, rows, "i", kind="parallel") as i:
            with ib.for_range(0, room, "p") as p, ib.for_range(0, wide, "j") as j:
                out[i, p, j] = STRING_TERMINATOR

            def store_part(number: PrimExpr, begin: PrimExpr, end: PrimExpr) -> None:
                """Store a part in its slot."""
                first, slot = ib.let("first", begin), ib.let("slot", number)
                with ib.if_scope(slot < room), ib.for_range(0, end - first, "k") as k:
                    out[i, slot, k] = source[i, first + k]

            _emit_split_walk(ib, text, source, i, (delimiter.encode(), maxsplit), store_part)
        return ib.get()

    return te.extern_op(
        [(rows, room, wide)], [text, slots], emit_split, ["uint8"], name="text_split"
    )[0]


# Numbers.

MAX_SIGNIFICANT_DIGITS = 18
"""Maximum decimal digits parsed, as many as fit int64."""
MAX_NUMBER_TEXT_BYTES = 32
"""Maximum bytes of a formatted number: sign, 20 digits, point, four zeros, exponent."""
MAX_PRECISION = 20
"""Maximum precision that fits MAX_NUMBER_TEXT_BYTES."""
MAX_DECIMAL_EXPONENT = 100_000
INFINITE_SIGN, NAN_SIGN = 2, 3
"""Sign codes of infinities (either sign) and NaN."""


def whole_number(text: Tensor) -> Tensor:
    """Parse the integer at the beginning of each text, with an optional sign: int64 [n], modulo
    2**64. Parsing stops at a point; letters are skipped. Raises ValueError for other than rows of
    strings.
    """
    _require_byte_rows("text.whole_number", text)
    wide = text.shape[1]

    def emit_parse_integer(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the loop that parses the integer at the beginning of each row, digit by digit."""
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            state = ib.allocate("int64", 3, "state", "local")  # the number, its sign, 1 at the end
            state[0], state[1], state[2] = 0, 1, 0
            with ib.for_range(0, wide, "j") as j:
                byte = ib.let("byte", _load_byte(source, i, j, wide))
                with ib.if_scope(_is_letter(byte, "-")):
                    state[1] = -1
                with ib.if_scope(_is_letter(byte, ".")):
                    state[2] = 1
                with ib.if_scope(logical_and(_is_digit(byte), state[2].equal(0))):
                    state[0] = state[0] * 10 + cast(byte - ord("0"), "int64")
            out[i] = state[0] * state[1]
        return ib.get()

    shape = (text.shape[0],)
    return te.extern_op([shape], [text], emit_parse_integer, ["int64"], name="text_whole_number")[0]


def _is_letter(byte: PrimExpr, letter: str) -> PrimExpr:
    return byte.equal(const(ord(letter), "int32"))


def _is_digit(byte: PrimExpr) -> PrimExpr:
    return logical_and(byte >= const(ord("0"), "int32"), byte <= const(ord("9"), "int32"))


def _to_lower(byte: PrimExpr) -> PrimExpr:
    is_upper = logical_and(byte >= const(ord("A"), "int32"), byte <= const(ord("Z"), "int32"))
    return if_then_else(is_upper, byte + 32, byte)


def number_parts(text: Tensor) -> Tensor:
    """Parse each decimal number into sign, digits and exponent: int64 [n, 3]; -1.25e3 becomes -1,
    125 and 1.
    -1.25e3 is -1, 125 and 1. Digits after the first MAX_SIGNIFICANT_DIGITS count in the
    exponent. The sign
    of an infinity is INFINITE_SIGN or its negative, that of NaN NAN_SIGN. Raises ValueError for
    other than rows of strings.
    """
    _require_byte_rows("text.number_parts", text)
    wide = text.shape[1]

    def emit_parse_number(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the loop that parses each number: digits before and after the point, then those of
        the exponent.
        """
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        room = const(10 ** (MAX_SIGNIFICANT_DIGITS - 1), "int64")
        with ib.for_range(0, text.shape[0], "i", kind="parallel") as i:
            # digits, their exponent, sign, 1 behind the point, the sign of the exponent (0 before
            # it), the exponent, 1 for a plain number
            s = ib.allocate("int64", 7, "state", "local")
            for field, value in enumerate((0, 0, 1, 0, 0, 0, 1)):
                s[field] = value
            with ib.for_range(0, wide, "j") as j:
                byte = ib.let("byte", _load_byte(source, i, j, wide))
                lower = ib.let("lower", _to_lower(byte))
                with ib.if_scope(logical_and(_is_letter(byte, "-"), s[4].equal(0))):
                    s[2] = -1
                with ib.if_scope(logical_and(_is_letter(byte, "-"), s[4] > 0)):
                    s[4] = -1
                with ib.if_scope(_is_letter(byte, ".")):
                    s[3] = 1
                with ib.if_scope(logical_and(_is_letter(lower, "e"), s[6].equal(1))):
                    s[4] = 1
                with ib.if_scope(logical_and(_is_letter(lower, "n"), s[6].equal(1))):
                    s[6] = NAN_SIGN
                with ib.if_scope(logical_and(_is_letter(lower, "i"), s[6].equal(1))):
                    s[6] = INFINITE_SIGN
                with ib.if_scope(
                    logical_and(_is_digit(byte), fold_binary(NE, s[4], const(0, "int64")))
                ):
                    exponent = s[5] * 10 + cast(byte - ord("0"), "int64")
                    # Clamped so that a long exponent cannot overflow int64; the value is then 0 or
                    # infinity anyway.
                    s[5] = te.min(exponent, const(MAX_DECIMAL_EXPONENT, "int64"))
                with ib.if_scope(logical_and(_is_digit(byte), s[4].equal(0))):
                    # Below 10**17, one more digit keeps the number below 10**18, which int64 holds.
                    with ib.if_scope(s[0] < room):
                        s[0] = s[0] * 10 + cast(byte - ord("0"), "int64")
                        s[1] = s[1] - s[3]
                    with ib.else_scope():
                        # A dropped digit before the point is a factor of ten; one behind it changes
                        # nothing.
                        s[1] = s[1] + 1 - s[3]
            sign = ib.let("sign", if_then_else(s[6].equal(NAN_SIGN), s[6], s[2] * s[6]))
            out[i, 0], out[i, 1], out[i, 2] = sign, s[0], s[1] + s[4] * s[5]
        return ib.get()

    shape = (text.shape[0], 3)
    return te.extern_op([shape], [text], emit_parse_number, ["int64"], name="text_number_parts")[0]


def written(signs: Tensor, digits: Tensor, exponents: Tensor, precision: int) -> Tensor:
    """Format numbers given as sign, digits and exponent: [n, MAX_NUMBER_TEXT_BYTES]. `digits`
    uint64 [n] times ten to the int64 `exponents`, with `signs` int64 as of `number_parts`. As C's
    %g with that precision writes them; with precision 0 the digits alone. Raises ValueError for a
    precision that needs more than MAX_NUMBER_TEXT_BYTES bytes.
    """
    if not 0 <= precision <= MAX_PRECISION:
        raise ValueError(f"precision: from 0 to {MAX_PRECISION} expected, got {precision}")
    rows = digits.shape[0]

    def emit_format_number(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the extraction of digits from the last, then their output from the first."""
        ib = IRBuilder()
        sign_of, digits_of, exponent_of = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, rows, "i", kind="parallel") as i:
            decimal = ib.allocate("int32", 20, "digits", "local")
            quotient = ib.allocate("uint64", 1, "rest", "local")
            s = ib.allocate("int64", 3, "state", "local")  # digits, bytes written, exponent
            with ib.for_range(0, MAX_NUMBER_TEXT_BYTES, "j") as j:
                out[i, j] = STRING_TERMINATOR
            quotient[0], s[0], s[1], s[2] = digits_of[i], 0, 0, exponent_of[i]
            # No uint64 has more than 20 decimal digits.
            with ib.for_range(0, 20, "d") as d:
                digit = ib.let("digit", cast(quotient[0] % const(10, "uint64"), "int32"))
                has_digits = fold_binary(NE, quotient[0], const(0, "uint64"))
                with ib.if_scope(fold_binary(Or, has_digits, d.equal(0))):
                    # Trailing zeros move into the exponent, as %g drops them.
                    is_end = logical_and(digit.equal(0), s[0].equal(0))
                    drops = logical_and(is_end, has_digits) if precision else const(False)
                    with ib.if_scope(drops):
                        s[2] = s[2] + 1
                    with ib.else_scope():
                        decimal[s[0]] = digit
                        s[0] = s[0] + 1
                quotient[0] = quotient[0] // const(10, "uint64")
            pen = _RowWriter(ib, out, i, s, decimal)
            sign = ib.let("sign", sign_of[i])
            with ib.if_scope(sign < 0):
                pen.emit_bytes("-")
            with ib.if_scope(
                fold_binary(Or, sign.equal(INFINITE_SIGN), sign.equal(-INFINITE_SIGN))
            ):
                pen.emit_bytes("INF")
            with ib.if_scope(sign.equal(NAN_SIGN)):
                pen.emit_bytes("NaN")
            with ib.if_scope(fold_binary(Or, sign.equal(1), sign.equal(-1))):
                pen.emit_number(precision)
        return ib.get()

    inputs = [signs, digits, exponents]
    return te.extern_op(
        [(rows, MAX_NUMBER_TEXT_BYTES)], inputs, emit_format_number, ["uint8"], name="text_written"
    )[0]


class _RowWriter:
    """Writer of one row of formatted text; `state` holds the number of digits, of written bytes,
    and the exponent of the last digit.
    """

    def __init__(
        self, ib: IRBuilder, out: BufferVar, row: PrimExpr, state: BufferVar, digits: BufferVar
    ) -> None:
        self._ib, self._out, self._row, self._state, self._digits = ib, out, row, state, digits

    def emit_bytes(self, letters: str | PrimExpr) -> None:
        """Emit letters, or one byte that is computed."""
        state = self._state
        for letter in letters if isinstance(letters, str) else (letters,):
            byte = const(ord(letter), "int32") if isinstance(letter, str) else letter
            self._out[self._row, state[1]] = cast(byte, "uint8")
            state[1] = state[1] + 1

    def _emit_digit(self, digit_index: PrimExpr) -> None:
        self.emit_bytes(self._digits[digit_index] + ord("0"))

    def emit_number(self, precision: int) -> None:
        """Emit the digits, with a decimal point or an exponent if there is a precision."""
        ib, state = self._ib, self._state
        count = ib.let("count", state[0])
        if not precision:
            with ib.for_range(0, count, "d") as d:
                self._emit_digit(count - 1 - d)
            return
        # the exponent of the first digit; 0 has none
        is_zero = logical_and(count.equal(1), self._digits[0].equal(0))
        first = ib.let("first", if_then_else(is_zero, const(0, "int64"), state[2] + count - 1))
        # The rule of C's %g: an exponent is written below -4 and from the precision on.
        with ib.if_scope(fold_binary(Or, first < -4, first >= precision)):
            self._emit_digit(count - 1)
            with ib.if_scope(count > 1):
                self.emit_bytes(".")
            with ib.for_range(0, count - 1, "d") as d:
                self._emit_digit(count - 2 - d)
            self._emit_exponent(first)
        with ib.else_scope():
            with ib.if_scope(first < 0):
                self.emit_bytes("0.")
                with ib.for_range(0, -1 - first, "z"):
                    self.emit_bytes("0")
            with ib.for_range(0, count, "d") as d:
                self._emit_digit(count - 1 - d)
                with ib.if_scope(logical_and(d.equal(first), d < count - 1)):
                    self.emit_bytes(".")
            with ib.for_range(0, te.max(first + 1 - count, const(0, "int64")), "z"):
                self.emit_bytes("0")

    def _emit_exponent(self, exponent: PrimExpr) -> None:
        """Emit e, a sign, and two digits or three."""
        ib = self._ib
        with ib.if_scope(exponent < 0):
            self.emit_bytes("e-")
        with ib.else_scope():
            self.emit_bytes("e+")
        size = ib.let("size", cast(te.max(exponent, 0 - exponent), "int32"))
        with ib.if_scope(size >= 100):
            self.emit_bytes(size // 100 + ord("0"))
        self.emit_bytes(size // 10 % 10 + ord("0"))
        self.emit_bytes(size % 10 + ord("0"))


__all__ = [
    "change_case", "concat", "count_parts", "find", "length", "match", "number_parts", "split",
    "whole_number", "written",
]  # fmt: skip
