"""String operators on byte tensors: see ekiden.topi.text."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.runtime.string_tensors import STRING_TERMINATOR, decode_strings, encode_strings
from ekiden.topi.text import (
    INFINITE_SIGN,
    MAX_CASE_GROWTH,
    MAX_NUMBER_TEXT_BYTES,
    MAX_SIGNIFICANT_DIGITS,
    NAN_SIGN,
)


@node("relay.attrs.TextSplitAttrs")
class TextSplitAttrs(Attrs):
    """Attributes of text.split: the delimiter (empty: runs of whitespace) and maxsplit (negative:
    unlimited).
    """

    delimiter: str = ""
    maxsplit: int = -1


@node("relay.attrs.TextWrittenAttrs")
class TextWrittenAttrs(Attrs):
    """Attributes of text.written: significant digits as in C's %g; 0 for integers."""

    precision: int = 0


def _concat_reference(attrs: Attrs | None, first: Array, second: Array) -> Array:
    width = first.shape[-1] + second.shape[-1]
    return encode_strings(decode_strings(first) + decode_strings(second), width)


def _find_reference(attrs: Attrs | None, text: Array, keys: Array) -> Array:
    positions = {k: i for i, k in enumerate(decode_strings(keys))}
    return np.array([positions.get(t, -1) for t in decode_strings(text)], np.int64)


def _match_reference(
    attrs: Attrs | None, text: Array, moves: Array, kinds: Array, accepts: Array
) -> Array:
    accepted = np.zeros(len(text), np.bool_)
    for i, row in enumerate(text):
        state = 0
        # The automaton sees the text alone, not the padding behind it.
        for byte in row[row != STRING_TERMINATOR]:
            state = moves[state, kinds[byte]]
        accepted[i] = accepts[state]
    return accepted


def _change_case_reference(
    attrs: Attrs | None, text: Array, letters: Array, sizes: Array, replacements: Array
) -> Array:
    table = {
        chr(p): bytes(o[:s]).decode() for p, s, o in zip(letters, sizes, replacements, strict=True)
    }
    changed = ["".join(table.get(c, c) for c in t) for t in decode_strings(text)]
    # A letter may become longer: the width allows for the worst case.
    return encode_strings(changed, text.shape[-1] * MAX_CASE_GROWTH)


def _split_strings(attrs: TextSplitAttrs, text: Array) -> list[list[str]]:
    return [t.split(attrs.delimiter or None, attrs.maxsplit) for t in decode_strings(text)]


def _split_reference(attrs: TextSplitAttrs, text: Array, slots: Array) -> Array:
    slots_of_text = np.full((len(text), slots.size), "", object)
    for i, pieces in enumerate(_split_strings(attrs, text)):
        slots_of_text[i, : len(pieces)] = pieces
    return encode_strings(slots_of_text, text.shape[-1])


def _number_parts_reference(attrs: Attrs | None, text: Array) -> Array:
    """Parse decimals as topi.text.number_parts does, truncating digits beyond
    MAX_SIGNIFICANT_DIGITS.
    """
    rows = []
    for source in decode_strings(text):
        word = source.strip().lower()
        if word.lstrip("+-").startswith(("i", "n")):
            sign = INFINITE_SIGN if "i" in word else NAN_SIGN
            rows.append((-sign if word.startswith("-") and sign == INFINITE_SIGN else sign, 0, 0))
            continue
        mantissa, _, exponent = word.lstrip("+-").partition("e")
        integer, _, fraction = mantissa.partition(".")
        digits = (integer + fraction).lstrip("0")
        read_digits = digits[:MAX_SIGNIFICANT_DIGITS]
        # Digits that are cut off count as a power of ten.
        power = len(digits) - len(read_digits) - len(fraction) + int(exponent or 0)
        rows.append((-1 if word.startswith("-") else 1, int(read_digits or 0), power))
    return np.array(rows, np.int64).reshape(len(text), 3)


def _whole_number_reference(attrs: Attrs | None, text: Array) -> Array:
    numbers = [int(t.partition(".")[0] or 0) for t in decode_strings(text)]
    # Python's integers are reduced modulo 2**64, and read as two's complement.
    return np.array([n & (1 << 64) - 1 for n in numbers], np.uint64).view(np.int64)


def _written_reference(
    attrs: TextWrittenAttrs, signs: Array, digits: Array, exponents: Array
) -> Array:
    special = {INFINITE_SIGN: "INF", -INFINITE_SIGN: "-INF", NAN_SIGN: "NaN"}
    texts = []
    for sign, number, exponent in zip(signs, digits, exponents, strict=True):
        plain = "-" * bool(sign < 0)
        if attrs.precision:
            value = Decimal(int(number)).scaleb(int(exponent))
            plain += (
                f"%.{attrs.precision}g" % value if not number else _format_general(value, attrs)
            )
        else:
            plain += str(number)
        texts.append(special.get(int(sign), plain))
    return encode_strings(texts, MAX_NUMBER_TEXT_BYTES)


def _format_general(value: Decimal, attrs: TextWrittenAttrs) -> str:
    """Format a decimal as %g does, without rounding to binary first."""
    first = value.adjusted()
    digits = "".join(map(str, value.normalize().as_tuple().digits))
    # C's %g switches to an exponent below 1e-4 and from the precision on.
    if first < -4 or first >= attrs.precision:
        return f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{first:+03d}"
    if first < 0:
        return f"0.{'0' * (-1 - first)}{digits}"
    integer, fraction = digits[: first + 1].ljust(first + 1, "0"), digits[first + 1 :]
    return f"{integer}.{fraction}" if fraction else integer


# fmt: off
declare_topi_op("text.concat", ("first", "second"), lambda attrs, a, b: topi.text.concat(a, b),
        "texts [n, width of both]", reference=_concat_reference)
declare_topi_op("text.find", ("text", "keys"), lambda attrs, text, keys: topi.text.find(text, keys),
        "int64 [n]: which of the sorted keys each text is, -1 for none", reference=_find_reference)
declare_topi_op("text.match", ("text", "moves", "kinds", "accepts"),
        lambda attrs, *operands: topi.text.match(*operands),
        "bool [n]: whether the automaton accepts each text", reference=_match_reference)
declare_topi_op("text.change_case", ("text", "letters", "sizes", "others"),
        lambda attrs, *operands: topi.text.change_case(*operands),
        "texts [n, 3 * width] with letters replaced", reference=_change_case_reference)
declare_topi_op("text.count_parts", ("text",),
        lambda attrs, text: topi.text.count_parts(text, attrs.delimiter, attrs.maxsplit),
        "int64 [n]: how many parts each text has", TextSplitAttrs,
        reference=lambda attrs, text: np.array(
            [len(p) for p in _split_strings(attrs, text)], np.int64))
declare_topi_op("text.whole_number", ("text",), lambda attrs, text: topi.text.whole_number(text),
        "int64 [n]: the whole number that each text is, modulo 2**64",
        reference=_whole_number_reference)
declare_topi_op("text.number_parts", ("text",), lambda attrs, text: topi.text.number_parts(text),
        "int64 [n, 3]: sign, digits and exponent of ten of the number that each text is",
        reference=_number_parts_reference)
declare_topi_op("text.written", ("signs", "digits", "exponents"),
        lambda attrs, s, d, e: topi.text.written(s, d, e, attrs.precision),
        "texts [n, 32]: the numbers as C's %g or %d writes them", TextWrittenAttrs,
        reference=_written_reference)
declare_topi_op("text.split", ("text", "slots"),
        lambda attrs, text, slots: topi.text.split(text, slots, attrs.delimiter, attrs.maxsplit),
        "texts [n, slots, width]: the parts of each", TextSplitAttrs, reference=_split_reference)
# fmt: on


def concat(first: Expr, second: Expr) -> Call:
    """Concatenate strings pairwise; both are [n, width]."""
    return call_op("text.concat", first, second)


def find(text: Expr, keys: Expr) -> Call:
    """Look each string up among sorted distinct keys: int64 [n], -1 if absent."""
    return call_op("text.find", text, keys)


def match(text: Expr, moves: Expr, kinds: Expr, accepts: Expr) -> Call:
    """Return whether an automaton accepts each whole string; see ekiden.topi.text.match."""
    return call_op("text.match", text, moves, kinds, accepts)


def change_case(text: Expr, letters: Expr, sizes: Expr, others: Expr) -> Call:
    """Map letters of strings; see ekiden.topi.text.change_case."""
    return call_op("text.change_case", text, letters, sizes, others)


def count_parts(text: Expr, delimiter: str = "", maxsplit: int = -1) -> Call:
    """Return the number of pieces each string splits into: int64 [n]."""
    return call_op("text.count_parts", text, attrs=TextSplitAttrs(delimiter, maxsplit))


def split(text: Expr, slots: Expr, delimiter: str = "", maxsplit: int = -1) -> Call:
    """Split each string into [n, slots, width]; the vector `slots` has the length of that axis."""
    return call_op("text.split", text, slots, attrs=TextSplitAttrs(delimiter, maxsplit))


def whole_number(text: Expr) -> Call:
    """Parse each string as an integer: int64 [n], modulo 2**64."""
    return call_op("text.whole_number", text)


def number_parts(text: Expr) -> Call:
    """Parse each string as a decimal number; return sign, digits and exponent.

    See ekiden.topi.text.number_parts.
    """
    return call_op("text.number_parts", text)


def written(signs: Expr, digits: Expr, exponents: Expr, precision: int = 0) -> Call:
    """Format numbers (sign, digits, exponent) as strings; see ekiden.topi.text.written."""
    return call_op("text.written", signs, digits, exponents, attrs=TextWrittenAttrs(precision))


__all__ = [
    "change_case", "concat", "count_parts", "find", "match", "number_parts", "split",
    "whole_number", "written",
]  # fmt: skip
