"""ToANormalForm: every intermediate value is bound in the innermost sufficient scope."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, check

from ekiden.relay import Function, If, IRModule, Let, Var, op, post_order, var
from ekiden.relay.analysis import verify
from ekiden.relay.transform import ToANormalForm
from ekiden.relay.transform.language.scope_tree import operands

pytestmark = pytest.mark.quick


def test_calls_are_named_in_order() -> None:
    check(
        ToANormalForm(),
        "def @main(%x: float32) { add(tanh(%x), exp(%x)) }",
        "def @main(%x: float32) { let %a = tanh(%x); let %b = exp(%x); let %c = add(%a, %b); %c }",
    )


def test_shared_value_is_named_once() -> None:
    check(
        ToANormalForm(),
        "def @main(%x: float32) { %0 = tanh(%x); add(%0, %0) }",
        "def @main(%x: float32) { let %a = tanh(%x); let %b = add(%a, %a); %b }",
    )


def test_constants_stay_in_place() -> None:
    check(
        ToANormalForm(),
        "def @main(%x: float32) { add(%x, 1f) }",
        "def @main(%x: float32) { let %a = add(%x, 1f); %a }",
    )


def test_value_of_one_branch_stays_in_it() -> None:
    check(
        ToANormalForm(),
        "def @main(%c: bool, %x: float32) { if (%c) { tanh(%x) } else { %x } }",
        """def @main(%c: bool, %x: float32) {
          let %r = if (%c) { let %a = tanh(%x); %a } else { %x }; %r }""",
    )


def test_value_of_both_branches_comes_before_them() -> None:
    check(
        ToANormalForm(),
        """def @main(%c: bool, %x: float32) {
          %0 = tanh(%x); if (%c) { exp(%0) } else { negative(%0) } }""",
        """def @main(%c: bool, %x: float32) {
          let %a = tanh(%x);
          let %r = if (%c) { let %b = exp(%a); %b } else { let %d = negative(%a); %d };
          %r }""",
    )


def test_nested_scopes_bind_in_the_innermost_around_all_uses() -> None:
    check(
        ToANormalForm(),
        """def @main(%c: bool, %d: bool, %x: float32) {
          if (%c) { %0 = tanh(%x); if (%d) { exp(%0) } else { negative(%0) } } else { %x } }""",
        """def @main(%c: bool, %d: bool, %x: float32) {
          let %r = if (%c) {
            let %a = tanh(%x);
            let %s = if (%d) { let %e = exp(%a); %e } else { let %n = negative(%a); %n };
            %s
          } else { %x };
          %r }""",
    )


def test_lets_keep_their_names_and_order() -> None:
    text = """def @main(%x: float32) {
      let %a = tanh(%x); let %b = exp(%a); let %c = add(%a, %b); %c }"""
    check(ToANormalForm(), text, text)


def test_let_inside_an_operand_moves_out() -> None:
    check(
        ToANormalForm(),
        "def @main(%x: float32) { exp({ let %a = tanh(%x); add(%a, %a) }) }",
        """def @main(%x: float32) {
          let %a = tanh(%x); let %b = add(%a, %a); let %c = exp(%b); %c }""",
    )


def test_recursive_closure_keeps_its_name() -> None:
    text = """def @main(%x: float32) {
      let %f = fn (%y: float32) -> float32 { let %r = %f(%y); %r };
      let %z = %f(%x); %z }"""
    check(ToANormalForm(), text, text)


def test_primitive_functions_stay_in_place() -> None:
    check(
        ToANormalForm(),
        "def @main(%x: float32) { fn (%p: float32, Primitive=1) -> float32 { tanh(%p) }(%x) }",
        """def @main(%x: float32) {
          let %a = fn (%p: float32, Primitive=1) -> float32 { tanh(%p) }(%x); %a }""",
    )


def test_clauses_of_a_match_are_scopes() -> None:
    prelude = "type Opt { Some(float32), None_ }\n"
    check(
        ToANormalForm(),
        prelude
        + """def @main(%o: Opt, %x: float32) {
          match (%o) { Some(%y) => add(tanh(%x), %y), None_ => tanh(%x) } }""",
        prelude
        + """def @main(%o: Opt, %x: float32) {
          let %r = match (%o) {
            Some(%y) => { let %a = tanh(%x); let %b = add(%a, %y); %b },
            None_ => { let %c = tanh(%x); %c } };
          %r }""",
    )


def test_let_that_is_shared_is_the_body_of_one_further_in() -> None:
    """%0 = { let %b = exp(%x); %b }; %0 + (if (%c) { let %a = negative(%x); %0 } else { %x })"""
    x, c = var("x", shape=(2,)), var("c", shape=(), dtype="bool")
    a, b = Var("a"), Var("b")
    shared = Let(b, op.exp(x), b)
    branch = If(c, Let(a, op.negative(x), shared), x)
    module = IRModule.from_expr(Function((x, c), op.add(shared, branch), None))
    transformed = ToANormalForm()(module)
    verify(transformed)
    values = np.ones(2, np.float32), np.asarray(True)
    assert_same_meaning(module, transformed, values)
    lets = [e for e in post_order(transformed["main"], into_functions=True) if isinstance(e, Let)]
    assert not any(isinstance(e.value, Let) for e in lets)
    assert not any(isinstance(p, Let) for e in lets for p in operands(e.value))
