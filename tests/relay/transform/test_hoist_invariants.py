"""HoistInvariants: loop-invariant values are computed before the loop."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pass_checks import assert_same_meaning, check, program

import ekiden
from ekiden.relay import IRModule
from ekiden.relay.parser import parse
from ekiden.relay.transform import InferType
from ekiden.relay.transform.language.hoist_invariants import HoistInvariants

LOOP = """
  let %loop = fn (%i: int64, %v: Tensor[(4, 4), float32]) -> Tensor[(4, 4), float32] {
    if (less(%i, %n)) { BODY } else { %v }
  };
  %loop(0i64, %x)
"""
TENSOR = "Tensor[(4, 4), float32]"
X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def main(body: str, before: str = "") -> str:
    """A program whose loop of `n` iterations has that body."""
    head = f"def @main(%x: {TENSOR}, %n: int64, %c: bool)"
    return f"{head} {{ {before} {LOOP.replace('BODY', body)} }}"


def calls(module: IRModule, *args: object) -> Counter[str]:
    """How often each kernel runs, on the VM."""
    report = ekiden.compile(module).profile(*args, peak=False)
    return Counter(call.title for call in report.calls)


def hoisted(text: str) -> IRModule:
    """The program after the pass; both mean the same."""
    before = program(text)
    after = HoistInvariants()(before)
    for turns in (0, 3):
        assert_same_meaning(before, after, [X, np.array(turns), np.array(turns == 3)])
    return after


@pytest.mark.quick
def test_invariant_call_moves_before_the_loop() -> None:
    again = "%loop(add(%i, 1i64), add(%v, WHAT))"
    check(
        HoistInvariants(),
        main(again.replace("WHAT", "sort(%x)")),
        main(again.replace("WHAT", "%w"), "let %w = sort(%x);"),
    )


@pytest.mark.quick
def test_names_of_what_moves_move_with_it() -> None:
    body = """let %a = sort(%x); let %b = %a; let %d = exp(%b);
      %loop(add(%i, 1i64), add(%v, %d))"""
    text = str(hoisted(main(body)))
    assert text.index("exp(") < text.index("fn (")


@pytest.mark.quick
def test_loop_variant_calls_are_not_hoisted() -> None:
    body = "let %a = sort(%v); %loop(add(%i, 1i64), exp(%a))"
    module = program(main(body))
    assert HoistInvariants()(module)["main"] == module["main"]


@pytest.mark.quick
def test_infallible_invariants_leave_branches() -> None:
    body = """let %a = if (equal(%i, 2i64)) { sort(%x) } else { %v };
      %loop(add(%i, 1i64), %a)"""
    text = str(hoisted(main(body)))
    assert text.index("sort(") < text.index("fn (")


@pytest.mark.quick
@pytest.mark.parametrize(
    "what",
    ["take(%x, %rows, axis=0)", "add(%x, %other)"],
    ids=["data that are refused", "shapes that may not fit"],
)
def test_failing_operators_are_not_hoisted(what: str) -> None:
    text = f"""def @main(%x: Tensor[(4, m), float32], %n: int64, %other: Tensor[(4, k), float32],
                         %rows: Tensor[(4), int64]) {{
      let %loop = fn (%i: int64, %v: float32) -> float32 {{
        if (less(%i, %n)) {{ %loop(add(%i, 1i64), add(%v, sum({what}))) }} else {{ %v }}
      }};
      %loop(0i64, 0f)
    }}"""
    module = program(text)
    assert HoistInvariants()(module)["main"] == module["main"]


@pytest.mark.quick
def test_loop_local_dimension_blocks_hoisting() -> None:
    body = """let %w: Tensor[(k, 4), float32] = %v;
      %loop(add(%i, 1i64), add(%w, cumsum(ones(shape=(k, 4), dtype="float32"), axis=0)))"""
    text = f"""def @main(%x: Tensor[(?, 4), float32], %n: int64) {{
      let %loop = fn (%i: int64, %v: Tensor[(?, 4), float32]) -> Tensor[(?, 4), float32] {{
        if (less(%i, %n)) {{ {body} }} else {{ %v }}
      }};
      %loop(0i64, %x)
    }}"""
    module = InferType()(parse(text))
    after = str(HoistInvariants()(module))
    assert after.index("cumsum(") > after.index("fn (")


INNER = """(let %in = fn (%j: int64, %u: Tensor[(4, 4), float32]) -> Tensor[(4, 4), float32] {
  if (less(%j, 5i64)) { %in(add(%j, 1i64), add(%u, WHAT)) } else { %u } }; %in(0i64, %x))"""


@pytest.mark.quick
def test_invariant_inner_loop_is_hoisted() -> None:
    body = f"%loop(add(%i, 1i64), add(%v, {INNER.replace('WHAT', 'sort(%x)')}))"
    text = str(hoisted(main(body)))
    assert text.index("sort(") < text.index("%in = fn") < text.index("%loop = fn")


@pytest.mark.quick
def test_guarded_loop_is_not_hoisted() -> None:
    inner = INNER.replace("WHAT", "sort(%x)")
    body = f"let %a = if (%c) {{ {inner} }} else {{ %v }}; %loop(add(%i, 1i64), add(%a, %v))"
    text = str(hoisted(main(body)))
    assert text.index("sort(") < text.index("%loop = fn") < text.index("%in = fn")


@pytest.mark.quick
def test_hoisting_stops_at_varying_outer_loop() -> None:
    body = f"%loop(add(%i, 1i64), add(%v, {INNER.replace('WHAT', 'sort(%v)')}))"
    text = str(hoisted(main(body)))
    assert text.index("%loop = fn") < text.index("sort(") < text.index("%in = fn")


def test_fusion_does_not_undo_hoisting() -> None:
    body = "%loop(add(%i, 1i64), add(%v, multiply(exp(%x), sigmoid(%x))))"
    counted = calls(program(main(body)), X, np.int64(30), np.array(True))
    assert [n for title, n in counted.items() if "exp" in title] == [1]
    assert counted["add"] == 60


def test_inlining_moves_nothing_into_a_loop() -> None:
    text = f"""
    def @repeat(%y: {TENSOR}, %x: {TENSOR}, %n: int64, Inline=1) -> {TENSOR} {{
      {LOOP.replace("BODY", "%loop(add(%i, 1i64), add(%v, %y))")}
    }}
    def @main(%x: {TENSOR}, %n: int64, %rows: Tensor[(4), int64]) {{
      @repeat(take(%x, %rows, axis=0), %x, %n)
    }}"""
    counted = calls(program(text), X, np.int64(30), np.arange(4))
    assert counted["take"] == 1


@pytest.mark.quick
@pytest.mark.slow
def test_long_body_takes_linear_work() -> None:
    lets = "".join(f"let %a{n} = tanh(%{f'a{n - 1}' if n else 'x'});\n" for n in range(2000))
    module = program(main(f"{lets} %loop(add(%i, 1i64), add(%v, %a1999))"))
    text = str(HoistInvariants()(module))
    assert text.count("tanh(") == 2000 and text.rindex("tanh(") < text.index("fn (")
