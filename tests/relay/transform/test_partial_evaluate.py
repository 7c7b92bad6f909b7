"""PartialEvaluate: known values are computed, effects keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, evaluate, main_of, program

from ekiden.relay import Function, IRModule, Let, const, op, var
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Constant
from ekiden.relay.transform import PartialEvaluate
from ekiden.relay.visitor import post_order

pytestmark = pytest.mark.quick

X = "%x: float32"
NAT = "type Nat { Z, S(Nat) }"
LIST = "type List[A] { Cons(A, List[A]), Nil }"
POWER = f"""{NAT}
def @power(%n: Nat, {X}) -> float32 {{
  match (%n) {{ Z => 1f, S(%m) => multiply(%x, @power(%m, %x)) }} }}
"""


def main_after(text: str) -> IRModule:
    transformed = PartialEvaluate()(program(text))
    verify(transformed)
    return transformed


def test_known_values_are_computed() -> None:
    check(
        PartialEvaluate(),
        f"def @main({X}) {{ add(%x, multiply(2f, add(1f, 2f))) }}",
        f"def @main({X}) {{ let %v = add(%x, 6f); %v }}",
    )


def test_tuples_and_projections_are_eliminated() -> None:
    check(
        PartialEvaluate(),
        f"def @main({X}) {{ let %t = (exp(%x), (%x, 1f)); add(%t.1.0, %t.1.1) }}",
        f"def @main({X}) {{ let %v = add(%x, 1f); %v }}",
    )


def test_known_functions_are_applied() -> None:
    check(
        PartialEvaluate(),
        f"""def @twice(%f: fn (float32) -> float32, %y: float32) -> float32 {{ %f(%f(%y)) }}
            def @main({X}) {{ @twice(fn (%y: float32) -> float32 {{ add(%y, %x) }}, 1f) }}""",
        f"""def @twice(%f: fn (float32) -> float32, %y: float32) -> float32 {{
              let %v1 = %f(%y); let %v2 = %f(%v1); %v2 }}
            def @main({X}) {{ let %v1 = add(1f, %x); let %v2 = add(%v1, %x); %v2 }}""",
    )


def test_function_that_is_a_result_stays_one() -> None:
    result = main_after(f"""def @main({X}) {{ let %y = add(%x, %x);
                          fn (%z: float32) {{ add(multiply(%z, add(1f, 1f)), %y) }} }}""")
    assert calls(result) == ["add", "multiply", "add"]


def test_known_branch_is_taken() -> None:
    check(
        PartialEvaluate(),
        f"def @main({X}) {{ if (less(1f, 2f)) {{ exp(%x) }} else {{ tanh(%x) }} }}",
        f"def @main({X}) {{ let %v = exp(%x); %v }}",
    )


def test_unknown_branch_stays_with_each_side_simplified() -> None:
    check(
        PartialEvaluate(),
        f"""def @main({X}, %c: bool) {{
              if (%c) {{ let %t = (exp(%x), %x); %t.0 }} else {{ add(1f, 1f) }} }}""",
        f"def @main({X}, %c: bool) {{ let %r = if (%c) {{ let %v = exp(%x); %v }} "
        "else { 2f }; %r }",
    )


def test_recursion_over_known_data_is_unrolled() -> None:
    result = main_after(POWER + f"def @main({X}) {{ @power(S(S(S(Z))), %x) }}")
    assert calls(result) == ["multiply"] * 3
    assert evaluate(result, [np.float32(2)]) == [8]


def test_recursion_counted_by_known_numbers_is_unrolled() -> None:
    result = main_after(
        f"""def @count(%i: int32, {X}) -> float32 {{
              if (less(%i, 5)) {{ @count(add(%i, 1), add(%x, %x)) }} else {{ %x }} }}
            def @main({X}) {{ @count(0, %x) }}"""
    )
    assert calls(result) == ["add"] * 5


def test_recursion_over_unknown_data_stays() -> None:
    """The first step does not know its data; the call inside of its branch is left as it is."""
    text = POWER + f"def @main(%n: Nat, {X}) -> float32 {{ @power(%n, %x) }}"
    result = main_after(text)
    assert calls(result) == ["multiply"]
    assert str(result["main"]).count("@power(") == 1


@pytest.mark.parametrize("x, expected", [(0.5, 4.0), (20.0, 20.0)])
def test_loop_that_the_argument_ends_is_not_unrolled(x: float, expected: float) -> None:
    text = f"""def @loop(%i: int32, {X}) -> float32 {{
                 if (less(%x, 3f)) {{ @loop(add(%i, 1), add(%x, %x)) }} else {{ %x }} }}
               def @main({X}) {{ @loop(0, %x) }}"""
    result = main_after(text)
    assert len(calls(result)) < 10
    assert evaluate(result, [np.float32(x)]) == [expected]


@pytest.mark.slow
def test_loop_without_end_is_left_after_some_steps() -> None:
    text = f"""def @loop({X}) -> float32 {{ @loop(add(%x, 1f)) }}
               def @main(%y: float32, %c: bool) -> float32 {{
                 if (%c) {{ @loop(0f) }} else {{ %y }} }}"""
    result = main_after(text)
    assert evaluate(result, [np.float32(1), np.bool_(False)]) == [1]


def test_local_recursive_functions() -> None:
    text = """def @main(%n: int32) -> int32 {
      let %sum = fn (%i: int32, %s: int32) -> int32 {
        if (greater(%i, 0)) { %sum(subtract(%i, 1), add(%s, %i)) } else { %s } };
      add(%sum(4, 0), %sum(%n, 0)) }"""
    result = main_after(text)
    assert evaluate(result, [np.int32(3)]) == [16]
    constants = [e.data for e in post_order(main_of(result), True) if isinstance(e, Constant)]
    assert 10 in constants


def test_mutual_recursion() -> None:
    text = (
        NAT
        + """
      def @even(%n: Nat) -> bool { match (%n) { Z => True, S(%m) => @odd(%m) } }
      def @odd(%n: Nat) -> bool { match (%n) { Z => False, S(%m) => @even(%m) } }
      def @main(%x: bool) -> bool { logical_and(%x, @even(S(S(S(Z))))) }"""
    )
    result = main_after(text)
    assert calls(result) == ["logical_and"] and "@even" not in str(result["main"])
    assert evaluate(result, [np.bool_(True)]) == [False]


def test_matching_partly_known_data() -> None:
    text = f"""{LIST}
      def @main({X}, %rest: List[float32]) -> float32 {{
        match (Cons(%x, %rest)) {{
          Cons(%a, Cons(%b, _)) => add(%a, %b),
          Cons(%a, Nil) => %a,
          Nil => 0f }} }}"""
    result = main_after(text)
    assert "match" in str(result["main"])
    known = main_after(text.replace("match (Cons(%x, %rest))", "match (Cons(%x, Cons(1f, %rest)))"))
    assert "match" not in str(known["main"]) and calls(known) == ["add"]


def test_map_over_a_known_list() -> None:
    text = f"""{LIST}
      def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {{
        match (%l) {{ Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)), Nil => Nil }} }}
      def @sum(%l: List[float32]) -> float32 {{
        match (%l) {{ Cons(%h, %t) => add(%h, @sum(%t)), Nil => 0f }} }}
      def @main({X}) -> float32 {{
        @sum(@map(fn (%y: float32) -> float32 {{ multiply(%y, %x) }},
                  Cons(1f, Cons(%x, Cons(3f, Nil))))) }}"""
    result = main_after(text)
    assert calls(result) == ["multiply", "multiply", "multiply", "add", "add", "add"]
    assert_same_meaning(program(text), result, [np.float32(2)])


def test_data_that_is_a_result_is_built() -> None:
    text = f"{LIST} def @main({X}) -> List[float32] {{ let %l = Cons(%x, Nil); Cons(1f, %l) }}"
    assert "Cons" in str(main_after(text)["main"])


def test_effects_keep_their_order() -> None:
    text = f"""def @main({X}) {{ let %r = ref(%x); let %a = ref_read(%r);
      let %u = ref_write(%r, add(%a, add(1f, 1f))); let %b = ref_read(%r); multiply(%a, %b) }}"""
    result = main_after(text)
    assert calls(result) == ["add", "multiply"]
    assert evaluate(result, [np.float32(3)]) == [15]


def test_inner_values_are_rematerialized_outside() -> None:
    """A tuple first needed inside of a branch is not visible after it."""
    text = f"""def @f(%t: (float32, float32)) -> float32 {{ add(%t.0, %t.1) }}
      def @main({X}, %c: bool) {{
        let %t = (%x, exp(%x));
        let %a = if (%c) {{ (%t, 1f) }} else {{ ((%x, %x), 2f) }};
        (%t, %a) }}"""
    module = program(text)
    transformed = PartialEvaluate()(module)
    verify(transformed)


def test_partial_evaluation_does_not_grow_constants() -> None:
    big = 'zeros(shape=[1000, 1000], dtype="float32")'
    assert calls(main_after(f"def @main({X}) {{ add(%x, {big}) }}")) == ["zeros", "add"]


def test_oversized_values_are_not_evaluated() -> None:
    huge = "max(ones(shape=[16777216, 16777216]))"
    assert calls(main_after(f"def @main({X}) {{ add(%x, {huge}) }}")) == ["ones", "max", "add"]


@pytest.mark.slow
def test_long_program() -> None:
    x = var("x", shape=())
    names = [var(f"v{i}", shape=()) for i in range(5_000)]
    body = names[-1]
    for i in reversed(range(5_000)):
        body = Let(names[i], op.add(names[i - 1] if i else x, const(1.0)), body)
    transformed = PartialEvaluate()(IRModule({"main": Function((x,), body, None)}))
    assert len(calls(transformed)) == 5_000


@pytest.mark.slow
def test_deep_unrolling() -> None:
    text = f"""def @count(%i: int32, {X}) -> float32 {{
                 if (less(%i, 2000)) {{ add(%x, @count(add(%i, 1), %x)) }} else {{ %x }} }}
               def @main({X}) {{ @count(0, %x) }}"""
    assert calls(main_after(text)) == ["add"] * 2000


def test_polymorphic_function_over_unknown_data_is_called() -> None:
    text = f"""{LIST}
      def @foldl[A, B](%f: fn (A, B) -> A, %a: A, %l: List[B]) -> A {{
        match (%l) {{ Cons(%h, %t) => @foldl(%f, %f(%a, %h), %t), Nil => %a }} }}
      def @main(%rest: List[int32], %x: int32) -> int32 {{
        @foldl(fn (%a: int32, %b: int32) -> int32 {{ add(%a, %b) }}, 0, Cons(%x, %rest)) }}"""
    result = main_after(text)
    assert "@foldl" in str(result["main"])


def test_empty_lists_keep_their_element_type() -> None:
    """A list that is only matched has no element which its type could be inferred from."""
    text = f"""{LIST}
      def @pick[A](%l: List[A], {X}) -> float32 {{ match (%l) {{ Nil => %x, _ => 1f }} }}
      def @main({X}, %c: bool) {{
        %0 = if (%c) {{ let %a = %x; Nil[bool] }} else {{ Nil[bool] }};
        @pick(%0, %x) }}"""
    assert_same_meaning(program(text), main_after(text), [np.float32(2), np.bool_(True)])
