"""Operators on texts, which are tensors of bytes: see ekiden.topi.text. Their kernels are compiled
like those of numbers."""

from __future__ import annotations

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call
from ekiden.relay.op._inventory import declare
from ekiden.runtime.text import END, decode, encode
from ekiden.topi.text import GROWTH


@node("relay.attrs.TextSplitAttrs")
class TextSplitAttrs(Attrs):
    """The delimiter, empty for runs of white space, and the most cuts, below 0 for any number."""

    delimiter: str = ""
    maxsplit: int = -1


def _concat(attrs: Attrs | None, first: Array, second: Array) -> Array:
    width = first.shape[-1] + second.shape[-1]
    return encode(decode(first) + decode(second), width)


def _find(attrs: Attrs | None, text: Array, keys: Array) -> Array:
    places = {k: i for i, k in enumerate(decode(keys))}
    return np.array([places.get(t, -1) for t in decode(text)], np.int64)


def _match(attrs: Attrs | None, text: Array, moves: Array, kinds: Array, accepts: Array) -> Array:
    found = np.zeros(len(text), np.bool_)
    for i, row in enumerate(text):
        state = 0
        for byte in row[row != END]:
            state = moves[state, kinds[byte]]
        found[i] = accepts[state]
    return found


def _change(attrs: Attrs | None, text: Array, letters: Array, sizes: Array, others: Array) -> Array:
    table = {chr(p): bytes(o[:s]).decode() for p, s, o in zip(letters, sizes, others, strict=True)}
    changed = ["".join(table.get(c, c) for c in t) for t in decode(text)]
    return encode(changed, text.shape[-1] * GROWTH)


def _parts(attrs: TextSplitAttrs, text: Array) -> list[list[str]]:
    return [t.split(attrs.delimiter or None, attrs.maxsplit) for t in decode(text)]


def _split(attrs: TextSplitAttrs, text: Array, slots: Array) -> Array:
    made = np.full((len(text), slots.size), "", object)
    for i, parts in enumerate(_parts(attrs, text)):
        made[i, : len(parts)] = parts
    return encode(made, text.shape[-1])


# fmt: off
declare("text.concat", ("first", "second"), lambda attrs, a, b: topi.text.concat(a, b),
        "texts [n, width of both]", reference=_concat)
declare("text.find", ("text", "keys"), lambda attrs, text, keys: topi.text.find(text, keys),
        "int64 [n]: which of the sorted keys each text is, -1 for none", reference=_find)
declare("text.match", ("text", "moves", "kinds", "accepts"),
        lambda attrs, *given: topi.text.match(*given),
        "bool [n]: whether the automaton accepts each text", reference=_match)
declare("text.change_case", ("text", "letters", "sizes", "others"),
        lambda attrs, *given: topi.text.change_case(*given),
        "texts [n, 3 * width] with letters replaced", reference=_change)
declare("text.count_parts", ("text",),
        lambda attrs, text: topi.text.count_parts(text, attrs.delimiter, attrs.maxsplit),
        "int64 [n]: how many parts each text has", TextSplitAttrs,
        reference=lambda attrs, text: np.array([len(p) for p in _parts(attrs, text)], np.int64))
declare("text.split", ("text", "slots"),
        lambda attrs, text, slots: topi.text.split(text, slots, attrs.delimiter, attrs.maxsplit),
        "texts [n, slots, width]: the parts of each", TextSplitAttrs, reference=_split)
# fmt: on


def concat(first: Expr, second: Expr) -> Call:
    """Each text with another behind it; both are [n, width]."""
    return call("text.concat", first, second)


def find(text: Expr, keys: Expr) -> Call:
    """Which of the keys (distinct, sorted by their bytes) each text is: int64 [n], -1 for none."""
    return call("text.find", text, keys)


def match(text: Expr, moves: Expr, kinds: Expr, accepts: Expr) -> Call:
    """Whether an automaton accepts each whole text; see ekiden.topi.text.match."""
    return call("text.match", text, moves, kinds, accepts)


def change_case(text: Expr, letters: Expr, sizes: Expr, others: Expr) -> Call:
    """Texts with letters replaced; see ekiden.topi.text.change_case."""
    return call("text.change_case", text, letters, sizes, others)


def count_parts(text: Expr, delimiter: str = "", maxsplit: int = -1) -> Call:
    """Into how many parts each text is cut: int64 [n]."""
    return call("text.count_parts", text, attrs=TextSplitAttrs(delimiter, maxsplit))


def split(text: Expr, slots: Expr, delimiter: str = "", maxsplit: int = -1) -> Call:
    """The parts of each text [n, slots, width]; `slots` is a vector of that length."""
    return call("text.split", text, slots, attrs=TextSplitAttrs(delimiter, maxsplit))


__all__ = [
    "change_case", "concat", "count_parts", "find", "match", "split",
]  # fmt: skip
