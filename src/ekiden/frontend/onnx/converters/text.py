"""Operators on strings; see ekiden.frontend.common.text_value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.text_value import (
    TextValue,
    common_width,
    measured,
    moved,
    rows,
    text,
    text_of,
    widened,
)
from ekiden.frontend.onnx.converters.text_numbers import cast_text
from ekiden.frontend.onnx.node import Node, Row
from ekiden.frontend.onnx.regex import RegexError, automaton
from ekiden.frontend.onnx.shape_value import evaluate, fold
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, const
from ekiden.runtime.text import encode, sorted_texts
from ekiden.topi.dimensions import as_dim, broadcast_shape, known

MOVES = frozenset(
    "Compress Concat Expand Flatten Gather GatherElements GatherND Pad Reshape ReverseSequence "
    "Scatter ScatterElements ScatterND Slice Split Squeeze Tile Transpose Unsqueeze Where".split()
)
"""Operators that only move elements."""
MEASURES = frozenset(("Shape", "Size"))
"""Operators that look at the shape alone."""


def convert_text(node: Node, row: Row) -> Result:
    """Convert a node that has strings among its inputs."""

    def apply(numbers: Node) -> Result:
        return evaluate(numbers) or fold(numbers, row.convert(numbers))

    if node.proto.domain in ("", "ai.onnx"):
        if node.op_type in MOVES:
            return moved(node, apply)
        if node.op_type in MEASURES:
            return measured(node, apply)
    return OF_TEXT.get(node.op_type, row.convert)(node)


def _pair(node: Node) -> tuple[TextValue, TextValue]:
    """Return two inputs of strings, broadcast to one shape."""
    first, second = text(node, 0), text(node, 1)
    node.scope.broadcasts(first.shape, second.shape)
    shape = broadcast_shape(first.shape, second.shape)
    if shape is None:
        node.unsupported(f"shapes {first.shape} and {second.shape} do not broadcast")
    wide = []
    for operand in (first, second):
        assert operand.expr is not None
        wide.append(text_of(node.scope, op.broadcast_to(operand.expr, (*shape, operand.width))))
    return wide[0], wide[1]


def _shaped(node: Node, data: Expr, shape: Sequence[PrimExpr]) -> TextValue:
    """Reshape rows of strings."""
    width = node.typed(data).shape[-1]
    return text_of(node.scope, op.reshape(data, (*shape, width), allowzero=True))


def _concat(node: Node) -> TextValue:
    first, second = _pair(node)
    return _shaped(node, op.text.concat(rows(first), rows(second)), first.shape)


def _equal(node: Node) -> Expr:
    first, second = _pair(node)
    width = common_width([first, second])
    return op.all(op.equal(widened(first, width), widened(second, width)), axis=-1)


def _match(node: Node) -> Expr:
    try:
        tables = automaton(node.get_string("pattern", ""))
    except RegexError as error:
        node.unsupported(str(error))
    is_match = op.text.match(rows(text(node, 0)), *map(const, tables))
    return op.reshape(is_match, text(node, 0).shape, allowzero=True)


def _split(node: Node) -> list[TextValue | Expr]:
    strings = text(node, 0)
    delimiter, max_split = node.get_string("delimiter", ""), node.get_int("maxsplit", -1)
    data, zero = rows(strings), const(np.int64(0))
    counts = node.scope.spanned(op.text.count_parts(data, delimiter, max_split))
    greatest = op.max(op.concatenate(Tuple((counts, const(np.zeros(1, np.int64)))), axis=0))
    # The most parts of any string; the rows of shorter ones are filled with empty strings.
    slots = node.scope.bound(op.arange(zero, greatest, const(np.int64(1)), dtype="int64"))
    substrings = op.text.split(data, node.scope.expr(slots), delimiter, max_split)
    (room,) = slots.type.shape
    number = op.reshape(counts, strings.shape, allowzero=True)
    return [_shaped(node, substrings, (*strings.shape, room)), number]


# Normalizing.


@lru_cache(2)
def case_table(upper: bool) -> tuple[Array, Array, Array]:
    """Return the characters that change case: code points, and sizes and bytes of their
    replacements.
    """
    change = str.upper if upper else str.lower
    # Surrogates are no characters and cannot be encoded as UTF-8.
    every = (chr(p) for p in range(sys.maxunicode + 1) if not 0xD800 <= p < 0xE000)
    changes = [(ord(c), change(c)) for c in every if change(c) != c]
    sizes = np.array([len(t.encode()) for _, t in changes], np.int32)
    return np.array([p for p, _ in changes], np.int32), sizes, encode([t for _, t in changes])


def in_case(data: Expr, upper: bool) -> Expr:
    """Return rows of strings in upper or lower case."""
    return op.text.change_case(data, *map(const, case_table(upper)))


def _normalize(node: Node) -> TextValue:
    strings = text(node, 0)
    rank, action = len(strings.shape), node.get_string("case_change_action", "NONE")
    if rank != 1 and not (rank == 2 and known(strings.shape[0]) == 1):
        node.unsupported("shape (C,) or (1, C) expected")
    data, stop = rows(strings), node.get_strings("stopwords")
    if stop:
        data = _without(node, data, stop, bool(node.get_int("is_case_sensitive", 0)))
    if action != "NONE":
        data = in_case(data, action == "UPPER")
    count = node.typed(data).shape[0]
    return _shaped(node, data, (as_dim(1), count) if rank == 2 else (count,))


def _without(node: Node, data: Expr, stop: Sequence[str], exact: bool) -> Expr:
    """Return the strings that are not stop words; one empty string if none is left."""
    probe = data if exact else in_case(data, upper=False)
    keys = sorted_texts({w if exact else w.lower() for w in stop})
    stays = op.less(op.text.find(probe, const(encode(keys))), const(np.int64(0)))
    # StringNormalizer: if every string is removed, the output is a single empty string.
    none = op.reshape(op.logical_not(op.any(stays)), (1,))
    where = op.argwhere(op.concatenate(Tuple((stays, none)), axis=0))
    empty = op.full_like(op.strided_slice(data, [0], [1], axes=[0]), const(255, "uint8"))
    kept_rows = op.cast(op.squeeze(where, axis=[1]), "int64")
    table = op.concatenate(Tuple((data, empty)), axis=0)
    return node.scope.expr(node.scope.bound(op.take(table, kept_rows, axis=0)))


# fmt: off
OF_TEXT: Mapping[str, Callable[[Node], Result]] = {
    "Equal": _equal, "Cast": cast_text, "CastLike": cast_text,
}
"""Operators that have another meaning for strings."""

ROWS = (
    Row("StringConcat",     _concat, since=20),
    Row("StringSplit",      _split, since=20, attributes="delimiter maxsplit"),
    Row("StringNormalizer", _normalize, since=10,
        attributes="case_change_action is_case_sensitive locale stopwords",
        values={"case_change_action": ("NONE", "LOWER", "UPPER")}),
    Row("RegexFullMatch",   _match, since=20, attributes="pattern"),
)
# fmt: on
