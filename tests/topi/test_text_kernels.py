"""String kernels against Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.frontend.onnx.converters.strings import unicode_case_table
from ekiden.frontend.onnx.regex import compile_dfa
from ekiden.relay.expr import Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.op import text
from ekiden.runtime.string_tensors import decode_strings, encode_strings, sort_strings
from ekiden.topi.text import MAX_CASE_GROWTH
from long_runs import share

Array = np.ndarray[Any, Any]
LETTERS = [*"ab, éßЖx ", "😀", "中"]


def words(seed: int = 0, count: int = 40) -> Array:
    rng = np.random.default_rng(seed)
    result = ["".join(rng.choice(LETTERS, rng.integers(0, 9))) for _ in range(count)]
    return np.array([*result, "", " ", "a,,b", ",,", "a"], object)


WORDS = words()


def run(function: Callable[..., Expr], *arrays: Array) -> Array:
    """What a function of tensors gives, compiled and interpreted, with symbolic shapes."""
    variables = [
        relay.var(
            f"x{n}",
            relay.TensorType([relay.SizeVar(f"d{n}_{i}") for i in range(a.ndim)], str(a.dtype)),
        )
        for n, a in enumerate(arrays)
    ]
    module = ekiden.IRModule.from_expr(relay.Function(variables, function(*variables)))
    expected = np.asarray(Interpreter(module).evaluate("main", *arrays))
    actual = ekiden.compile(module)(*arrays).numpy()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)
    return actual


def test_strings_round_trip() -> None:
    for shape in ((45,), (9, 5), (3, 0), ()):
        data = np.resize(WORDS, shape).astype(object)
        result = decode_strings(encode_strings(data))
        assert result.shape == data.shape and result.tolist() == data.tolist()
    with pytest.raises(TypeError, match="texts must be str, got int"):
        encode_strings([1, "a"])


def test_string_concat_matches_python() -> None:
    result = run(text.concat, encode_strings(WORDS), encode_strings(WORDS[::-1]))
    assert decode_strings(result).tolist() == [
        a + b for a, b in zip(WORDS, WORDS[::-1], strict=True)
    ]


def test_string_find_matches_python() -> None:
    keys = sort_strings(set(WORDS[::2]))
    result = run(text.find, encode_strings(WORDS), encode_strings(keys))
    assert result.tolist() == [keys.index(w) if w in keys else -1 for w in WORDS]


@share(4)
@pytest.mark.parametrize("delimiter", ["", ",", "é", ", "])
@pytest.mark.parametrize("maxsplit", [-1, 0, 1, 3])
def test_string_split_matches_python(delimiter: str, maxsplit: int) -> None:
    data = encode_strings(WORDS)
    counts = run(lambda x: text.count_parts(x, delimiter, maxsplit), data)
    parts = [w.split(delimiter or None, maxsplit) for w in WORDS]
    assert counts.tolist() == [len(p) for p in parts]
    slots = np.zeros(counts.max(), np.int64)
    actual = run(lambda x, s: text.split(x, s, delimiter, maxsplit), data, slots)
    for row, expected in zip(decode_strings(actual), parts, strict=True):
        assert row.tolist() == expected + [""] * (len(slots) - len(expected))


@pytest.mark.parametrize("pattern", ["a*", "[ab,]+", ".*é.*", "(ab|x )?.", "[^a😀]{2,5}", ""])
def test_regex_match_matches_python(pattern: str) -> None:
    result = run(text.match, encode_strings(WORDS), *compile_dfa(pattern))
    assert result.tolist() == [re.fullmatch(pattern, w) is not None for w in WORDS]


@pytest.mark.parametrize("upper", [False, True])
def test_case(upper: bool) -> None:
    data = np.array([*WORDS, "ﬃ ΐ Ǆ İ", "straße", "ÀÉÎ"], object)
    result = decode_strings(run(text.change_case, encode_strings(data), *unicode_case_table(upper)))
    assert result.tolist() == [w.upper() if upper else w.lower() for w in data]


@pytest.mark.parametrize("upper", [False, True])
def test_no_letter_grows_more(upper: bool) -> None:
    points, sizes, _ = unicode_case_table(upper)
    assert all(
        s <= MAX_CASE_GROWTH * len(chr(p).encode()) for p, s in zip(points, sizes, strict=True)
    )
    assert list(points) == sorted(points)
