"""ONNX string operators (values: ekiden.frontend.common.string_value)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.string_value import (
    StringValue,
    apply_to_indices,
    flatten_strings,
    max_string_width,
    move_strings,
    pad_string_width,
    string_input,
    to_string_value,
)
from ekiden.frontend.onnx.converters.string_number_casts import cast_text
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.frontend.onnx.regex import RegexError, compile_dfa
from ekiden.frontend.onnx.shape_evaluation import evaluate_node, fold_result
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, const
from ekiden.runtime.string_tensors import encode_strings, sort_strings
from ekiden.topi.dimensions import as_dim, broadcast_shape, known_int

MOVEMENT_OPERATORS = frozenset(
    "Compress Concat Expand Flatten Gather GatherElements GatherND Pad Reshape ReverseSequence "
    "Scatter ScatterElements ScatterND Slice Split Squeeze Tile Transpose Unsqueeze Where".split()
)
"""Operators that only move elements."""
SHAPE_OPERATORS = frozenset(("Shape", "Size"))
"""Operators that look at the shape alone."""


def convert_text(node: OnnxNode, row: OnnxRow) -> Result:
    """Convert a node with string inputs."""

    def convert_numbers(numbers: OnnxNode) -> Result:
        """Convert the node on row numbers in place of strings."""
        return evaluate_node(numbers) or fold_result(numbers, row.convert(numbers))

    if node.proto.domain in ("", "ai.onnx"):
        if node.op_type in MOVEMENT_OPERATORS:
            return move_strings(node, convert_numbers)
        if node.op_type in SHAPE_OPERATORS:
            return apply_to_indices(node, convert_numbers)
    return STRING_CONVERTERS.get(node.op_type, row.convert)(node)


def _broadcast_pair(node: OnnxNode) -> tuple[StringValue, StringValue]:
    """Return two string inputs broadcast to one shape."""
    first, second = string_input(node, 0), string_input(node, 1)
    node.scope.require_broadcastable(first.shape, second.shape)
    shape = broadcast_shape(first.shape, second.shape)
    if shape is None:
        node.reject(f"shapes {first.shape} and {second.shape} do not broadcast")
    wide = []
    for operand in (first, second):
        assert operand.expr is not None
        wide.append(
            to_string_value(node.scope, op.broadcast_to(operand.expr, (*shape, operand.width)))
        )
    return wide[0], wide[1]


def _reshape_strings(node: OnnxNode, data: Expr, shape: Sequence[PrimExpr]) -> StringValue:
    """Reshape rows of strings."""
    width = node.tensor_type_of(data).shape[-1]
    return to_string_value(node.scope, op.reshape(data, (*shape, width), allowzero=True))


def _string_concat(node: OnnxNode) -> StringValue:
    """Convert StringConcat."""
    first, second = _broadcast_pair(node)
    return _reshape_strings(
        node, op.text.concat(flatten_strings(first), flatten_strings(second)), first.shape
    )


def _string_equal(node: OnnxNode) -> Expr:
    """Convert Equal of strings: equal bytes at a common width."""
    first, second = _broadcast_pair(node)
    width = max_string_width([first, second])
    return op.all(
        op.equal(pad_string_width(first, width), pad_string_width(second, width)), axis=-1
    )


def _regex_full_match(node: OnnxNode) -> Expr:
    """Convert RegexFullMatch by the pattern's DFA."""
    try:
        tables = compile_dfa(node.get_string("pattern", ""))
    except RegexError as error:
        node.reject(str(error))
    is_match = op.text.match(flatten_strings(string_input(node, 0)), *map(const, tables))
    return op.reshape(is_match, string_input(node, 0).shape, allowzero=True)


def _string_split(node: OnnxNode) -> list[StringValue | Expr]:
    """Convert StringSplit: substrings, padded with empty ones, and their counts."""
    strings = string_input(node, 0)
    delimiter, max_split = node.get_string("delimiter", ""), node.get_int("maxsplit", -1)
    data, zero = flatten_strings(strings), const(np.int64(0))
    counts = node.scope.attach_span(op.text.count_parts(data, delimiter, max_split))
    # The 0 is the maximum where there are no strings.
    greatest = op.max(op.concatenate(Tuple((counts, const(np.zeros(1, np.int64)))), axis=0))
    # The most parts of any string; the rows of shorter ones are filled with empty strings.
    slots = node.scope.bind_named(op.arange(zero, greatest, const(np.int64(1)), dtype="int64"))
    substrings = op.text.split(data, node.scope.expr(slots), delimiter, max_split)
    (room,) = slots.type.shape
    number = op.reshape(counts, strings.shape, allowzero=True)
    return [_reshape_strings(node, substrings, (*strings.shape, room)), number]


# Normalizing.


@lru_cache(2)
def unicode_case_table(upper: bool) -> tuple[Array, Array, Array]:
    """Return the case mapping: code points, and sizes and UTF-8 bytes of their replacements."""
    change = str.upper if upper else str.lower
    # Surrogates are no characters and cannot be encoded as UTF-8.
    every = (chr(p) for p in range(sys.maxunicode + 1) if not 0xD800 <= p < 0xE000)
    changes = [(ord(c), change(c)) for c in every if change(c) != c]
    sizes = np.array([len(t.encode()) for _, t in changes], np.int32)
    return (
        np.array([p for p, _ in changes], np.int32),
        sizes,
        encode_strings([t for _, t in changes]),
    )


def emit_case_change(data: Expr, upper: bool) -> Expr:
    """Emit rows of strings in upper or lower case."""
    return op.text.change_case(data, *map(const, unicode_case_table(upper)))


def _string_normalizer(node: OnnxNode) -> StringValue:
    """Convert StringNormalizer: remove stop words, then change case."""
    strings = string_input(node, 0)
    rank, action = len(strings.shape), node.get_string("case_change_action", "NONE")
    if rank != 1 and not (rank == 2 and known_int(strings.shape[0]) == 1):
        node.reject("shape (C,) or (1, C) expected")
    data, stop = flatten_strings(strings), node.get_strings("stopwords")
    if stop:
        data = _remove_stopwords(node, data, stop, bool(node.get_int("is_case_sensitive", 0)))
    if action != "NONE":
        data = emit_case_change(data, action == "UPPER")
    count = node.tensor_type_of(data).shape[0]
    return _reshape_strings(node, data, (as_dim(1), count) if rank == 2 else (count,))


def _remove_stopwords(node: OnnxNode, data: Expr, stop: Sequence[str], exact: bool) -> Expr:
    """Emit the strings that are no stop words; one empty string if none is left."""
    probe = data if exact else emit_case_change(data, upper=False)
    keys = sort_strings({w if exact else w.lower() for w in stop})
    stays = op.less(op.text.find(probe, const(encode_strings(keys))), const(np.int64(0)))
    # StringNormalizer: if every string is removed, the output is a single empty string.
    none = op.reshape(op.logical_not(op.any(stays)), (1,))
    where = op.argwhere(op.concatenate(Tuple((stays, none)), axis=0))
    # UTF-8 has no byte 255, so it fills the width of an empty string.
    empty = op.full_like(op.strided_slice(data, [0], [1], axes=[0]), const(255, "uint8"))
    kept_rows = op.cast(op.squeeze(where, axis=[1]), "int64")
    table = op.concatenate(Tuple((data, empty)), axis=0)
    return node.scope.expr(node.scope.bind_named(op.take(table, kept_rows, axis=0)))


# fmt: off
STRING_CONVERTERS: Mapping[str, Callable[[OnnxNode], Result]] = {
    "Equal": _string_equal, "Cast": cast_text, "CastLike": cast_text,
}
"""Operators that have another meaning for strings."""

ROWS = (
    OnnxRow("StringConcat",     _string_concat, since_version=20),
    OnnxRow("StringSplit",      _string_split, since_version=20, attributes="delimiter maxsplit"),
    OnnxRow("StringNormalizer", _string_normalizer, since_version=10,
        attributes="case_change_action is_case_sensitive locale stopwords",
        supported_values={"case_change_action": ("NONE", "LOWER", "UPPER")}),
    OnnxRow("RegexFullMatch",   _regex_full_match, since_version=20, attributes="pattern"),
)
# fmt: on
