"""DeadCodeElimination: unused bindings without effects are removed."""

import pytest
from pass_checks import check, main_of, program

from ekiden.relay.expr import Let
from ekiden.relay.transform import DeadCodeElimination
from ekiden.relay.visitor import post_order

pytestmark = pytest.mark.quick


def test_unused_binding_goes() -> None:
    check(
        DeadCodeElimination(),
        "def @main(%x: float32) { let %a = tanh(%x); let %b = exp(%x); %b }",
        "def @main(%x: float32) { let %b = exp(%x); %b }",
    )


def test_what_only_an_unused_binding_uses_goes_too() -> None:
    check(
        DeadCodeElimination(),
        "def @main(%x: float32) { let %a = tanh(%x); let %b = exp(%a); %x }",
        "def @main(%x: float32) { %x }",
    )


def test_use_inside_a_branch_counts() -> None:
    text = """
    def @main(%c: bool, %x: float32) {
      let %a = tanh(%x); let %r = if (%c) { %a } else { %x }; %r
    }"""
    check(DeadCodeElimination(), text, text)


def test_branches_are_cleaned() -> None:
    check(
        DeadCodeElimination(),
        """def @main(%c: bool, %x: float32) {
          let %r = if (%c) { let %a = tanh(%x); %x } else { %x }; %r }""",
        "def @main(%c: bool, %x: float32) { let %r = if (%c) { %x } else { %x }; %r }",
    )


def test_effect_stays() -> None:
    text = """
    def @main(%x: float32) { let %r = ref(%x); let %u = ref_write(%r, 1f); %x }"""
    check(DeadCodeElimination(), text, text)


def test_possibly_diverging_call_is_kept() -> None:
    text = """
    def @f(%x: float32) -> float32 { @f(%x) }
    def @main(%x: float32) { let %u = @f(%x); %x }"""
    check(DeadCodeElimination(), text, text)


def test_unused_closure_is_removed_despite_effects() -> None:
    check(
        DeadCodeElimination(),
        """def @main(%x: float32) {
          let %f = fn (%y: float32) -> float32 { let %r = ref(%y); ref_read(%r) }; %x }""",
        "def @main(%x: float32) { %x }",
    )


def test_values_used_once_can_take_the_place_of_their_names() -> None:
    check(
        DeadCodeElimination(inline_once=True),
        "def @main(%x: float32) { let %a = exp(%x); let %b = tanh(%a); let %c = add(%b, %b); %c }",
        "def @main(%x: float32) { let %b = tanh(exp(%x)); add(%b, %b) }",
    )


def test_value_used_once_inside_a_function_stays_outside() -> None:
    text = """def @main(%x: float32) { let %a = exp(%x);
      let %f = fn (%y: float32) { add(%y, %a) }; let %b = %f(%x); %f(%b) }"""
    transformed = DeadCodeElimination(inline_once=True)(program(text))
    assert "let %a" in str(transformed)


def test_effects_can_be_ignored() -> None:
    text = "def @main(%x: float32) { let %r = ref(%x); let %u = ref_write(%r, exp(%x)); %x }"
    check(DeadCodeElimination(), text, text)
    check(DeadCodeElimination(ignore_impurity=True), text, "def @main(%x: float32) { %x }")


def test_let_that_is_an_operand() -> None:
    text = """def @main(%x: int32) -> int32 {
      add({ let %a = 1; let %b = %a + %x; 3 }, { let %r = ref(%x); 2 }) }"""
    transformed = DeadCodeElimination()(program(text))
    lets = [e for e in post_order(main_of(transformed).body) if isinstance(e, Let)]
    assert [let.var.name_hint for let in lets] == ["r"]
    transformed = DeadCodeElimination(ignore_impurity=True)(program(text))
    assert not any(isinstance(e, Let) for e in post_order(main_of(transformed).body))
