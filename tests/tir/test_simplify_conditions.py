"""Simplify and RemoveNoOp on conditions and stores."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import ekiden
from ekiden import arith, tir
from ekiden.ir.prim import NE, Var
from ekiden.tir import interpreter

HEAD = "@T.prim_func\ndef f(A: T.Buffer((16,), 'int32'), B: T.Buffer((16,), 'int32'), {}):\n"
NUMBERS = "n: T.int32, m: T.int32, k: T.int32"

SIMPLIFIED = [
    # a condition inside of another
    ("if n == 5:\n    if n < 7:\n        A[0] = 1", "if n == 5:\n    A[0] = 1"),
    ("if n != 5:\n    if n == 5:\n        A[0] = 1\n    else:\n        A[0] = 2",
     "if n != 5:\n    A[0] = 2"),
    ("if n < m:\n    A[0] = 1\nelse:\n    if m <= n:\n        A[0] = 2",
     "if n < m:\n    A[0] = 1\nelse:\n    A[0] = 2"),
    ("if n < m and m < k:\n    if n < k:\n        A[0] = 1", "if n < m and m < k:\n    A[0] = 1"),
    ("if n == 0 or m == 0:\n    A[0] = 1\nelse:\n    if m == 0:\n        A[0] = 2",
     "if n == 0 or m == 0:\n    A[0] = 1"),
    ("if n <= 0:\n    if 0 <= n:\n        A[0] = 1",
     "if n <= 0:\n    if n == 0:\n        A[0] = 1"),
    ("for i in range(16):\n    if i < 8:\n        for j in range(4):\n            if i + j < 11:\n"
     "                A[i] = j",
     "for i in range(16):\n    if i < 8:\n        for j in range(4):\n            A[i] = j"),
    # a condition with a name
    ("c: T.bool = n < 3\nif n < 3:\n    if c:\n        A[0] = 1\nif c or n >= 3:\n    A[1] = 2",
     "c: T.bool = n < 3\nif n < 3:\n    A[0] = 1\nA[1] = 2"),
    ("c: T.bool = A[0] < 3\nA[0] = 5\nif A[0] < 3:\n    if c:\n        A[1] = 1", None),
    # what memory says may have changed
    ("if A[0] == 1:\n    A[0] = 2\n    if A[0] == 1:\n        A[1] = 3", None),
    # parts of an expression
    ("A[0] = T.Select(n < m + 5 and n < m + 9, 1, 2)", "A[0] = T.Select(n < m + 5, 1, 2)"),
    ("A[0] = T.Select(n < m + 5 or n < m + 9, 1, 2)", "A[0] = T.Select(n < m + 9, 1, 2)"),
    ("A[0] = T.Select(n <= m and n != m, 1, 2)", "A[0] = T.Select(n < m, 1, 2)"),
    ("A[0] = T.Select(n < 3 and n > 7, 1, 2)", "A[0] = 2"),
    ("A[n] = T.if_then_else(n < 8, T.if_then_else(n < 9, B[n], 0), 1)",
     "A[n] = T.if_then_else(n < 8, B[n], 1)"),
    # a store of what is there
    ("A[n] = A[n]\nA[0] = 1", "A[0] = 1"),
]  # fmt: skip


def program(body: str) -> tir.PrimFunc:
    text = HEAD.format(NUMBERS) + textwrap.indent(body, "    ")
    result = ekiden.script.from_source(text)
    assert isinstance(result, tir.PrimFunc)
    return result


@pytest.mark.parametrize(("before", "after"), SIMPLIFIED)
def test_conditions_are_known_where_they_hold(before: str, after: str | None) -> None:
    actual = tir.transform.simplify(program(before))
    assert actual.script() == program(after or before).script()
    for n, m, k in ((0, 0, 0), (5, 3, 9), (2, 5, 7), (8, 1, 1), (3, 5, 4)):
        a, b = np.ones(16, "int32"), np.arange(16, dtype="int32")
        expected = a.copy()
        interpreter.run_prim_func(program(before), expected, b, n, m, k)
        interpreter.run_prim_func(actual, a, b, n, m, k)
        assert (a == expected).all(), (n, m, k)


EFFECTLESS = [
    ("for i in range(0):\n    A[i] = 1\nA[0] = 2", "A[0] = 2"),
    ("if n < 3:\n    pass\nelse:\n    A[0] = 1", "if not (n < 3):\n    A[0] = 1"),
    ("A[n] = A[n]\nA[0] = 1", "A[0] = 1"),
]
OVERWRITTEN = [
    ("for i in range(16):\n    A[i] = 1\nfor i in range(16):\n    A[i] = 2",
     "for i in range(16):\n    A[i] = 2"),
    ("for i in range(4, 12):\n    A[i] = 1\nB[0] = 3\nfor i in range(16):\n    A[i] = 2",
     "B[0] = 3\nfor i in range(16):\n    A[i] = 2"),
    ("for i in range(16):\n    if i < 10:\n        A[i] = 1\n"
     "for i in range(16):\n    if i // 4 < 3:\n        A[i] = 2",
     "for i in range(16):\n    if i // 4 < 3:\n        A[i] = 2"),
    ("A[n] = 1\nA[n] = 2", "A[n] = 2"),
    # read between, not covered, a loop that may not run, memory in the condition
    ("for i in range(16):\n    A[i] = 1\nB[0] = A[3]\nfor i in range(16):\n    A[i] = 2", None),
    ("for i in range(16):\n    A[i] = 1\nfor i in range(16):\n    A[i] = A[i] + 2", None),
    ("for i in range(16):\n    A[i] = 1\nfor i in range(15):\n    A[i] = 2", None),
    ("for i in range(16):\n    A[i] = 1\n"
     "for i in range(16):\n    if i < 12:\n        A[i] = 2", None),
    ("A[3] = 1\nfor i in range(n):\n    A[3] = 2", None),
    ("A[n] = 1\nA[m] = 2", None),
    ("A[3] = 1\nfor i in range(16):\n    if B[i] == 0:\n        A[i] = 2", None),
    ("for i in range(8):\n    A[i] = 1\nfor i in range(8):\n    A[i * 2] = 2", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "analyse"),
    [*((*item, False) for item in EFFECTLESS), *((*item, True) for item in OVERWRITTEN)],
)
def test_statements_without_effect_are_removed(
    before: str, after: str | None, analyse: bool
) -> None:
    options = {"tir.RemoveNoOp": {"use_dataflow_analysis": analyse}}
    with ekiden.transform.PassContext(config=options):
        result = tir.transform.RemoveNoOp()(ekiden.IRModule({"main": program(before)}))["main"]
    assert isinstance(result, tir.PrimFunc)
    assert str(result.body) == str(program(after or before).body)
    if analyse and after:  # only where it is asked for
        kept = tir.transform.RemoveNoOp()(ekiden.IRModule({"main": program(before)}))["main"]
        assert isinstance(kept, tir.PrimFunc)
        assert str(kept.body) == str(program(before).body)


def test_let_that_nothing_reads_keeps_its_effect() -> None:
    text = 'x: T.int32 = T.call_extern("int32", "count")\nA[0] = 1'
    result = tir.transform.remove_no_op(program(text))
    assert "count" in result.script() and "x" not in result.script().replace("extern", "")


def test_equations_among_facts_come_to_an_end() -> None:
    x, y, z = (Var(name) for name in "xyz")
    analyzer = arith.Analyzer()
    with analyzer.constraint_scope(tir.all(tir.EQ(x, y), tir.EQ(y, z))):
        assert analyzer.can_prove(tir.EQ(x, z))
        assert not analyzer.can_prove(tir.EQ(x * 2, y * 3 + 1))
    with analyzer.constraint_scope(NE(x, y)):
        assert analyzer.can_prove(tir.Not(tir.EQ(x, y)))
    assert not analyzer.can_prove(NE(x, y))


def test_ranges_end_with_the_scope_that_met_the_variable() -> None:
    i, j, n = (Var(name) for name in "ijn")
    analyzer = arith.Analyzer()
    with analyzer.constraint_scope(n > 0):
        analyzer.bind(i, 0, n)
        assert analyzer.can_prove(i < n)
    assert not analyzer.can_prove(j < n) and not analyzer.can_prove(i < n)
