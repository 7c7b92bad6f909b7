"""LambdaLift: function values become global functions."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, check, main_of, program

import ekiden
from ekiden.ir.structural import structural_equal
from ekiden.relay.expr import Function
from ekiden.relay.transform import LambdaLift, ToANormalForm
from ekiden.relay.transform.language.scope_tree import evaluation_order

pytestmark = pytest.mark.quick


def test_function_that_captures_nothing_becomes_a_global() -> None:
    check(
        LambdaLift(),
        "def @main(%x: float32) { let %f = fn (%y: float32) { tanh(%y) }; %f(%x) }",
        """def @main(%x: float32) { let %f = @lifted_f; %f(%x) }
        def @lifted_f(%y: float32) { tanh(%y) }""",
    )


def test_what_is_captured_becomes_parameters_of_a_closure() -> None:
    check(
        LambdaLift(),
        "def @main(%x: float32) { let %f = fn (%y: float32) { add(%y, %x) }; %f(%x) }",
        """def @main(%x: float32) { let %f = @lifted_f(%x); %f(%x) }
        def @lifted_f(%x: float32, Closure=1) { fn (%y: float32, Closure=1) { add(%y, %x) } }""",
    )


def test_name_that_is_taken_gets_a_number() -> None:
    module = LambdaLift()(
        program("""
        def @lifted_f(%x: float32) { %x }
        def @main(%x: float32) { let %f = fn (%y: float32) { tanh(%y) }; %f(@lifted_f(%x)) }""")
    )
    assert "lifted_f_1" in module


def test_primitive_functions_stay() -> None:
    text = """def @main(%x: float32) {
      fn (%p: float32, Primitive=1) -> float32 { tanh(%p) }(%x) }"""
    check(LambdaLift(), text, text)


FACTORIAL = """
def @main(%n: int32, %start: int32) {
  let %f = fn (%k: int32, %acc: int32) -> int32 {
    if (less(%k, %start)) { %acc } else { %f(subtract(%k, 1), multiply(%acc, %k)) }
  };
  %f(%n, 1)
}"""
NESTED = """
def @main(%x: float32, %y: float32) {
  let %outer = fn (%a: float32) {
    let %inner = fn (%b: float32) { add(multiply(%a, %b), %y) };
    add(%inner(%x), %inner(%a))
  };
  add(%outer(%x), %outer(%y))
}"""
HIGHER = """
def @twice(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(%f(%x)) }
def @main(%x: float32, %y: float32) { @twice(fn (%z: float32) { add(%z, %y) }, %x) }
"""


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (FACTORIAL, [np.int32(5), np.int32(2)]),
        (NESTED, [np.float32(2), np.float32(3)]),
        (HIGHER, [np.float32(2), np.float32(3)]),
    ],
    ids=["recursive", "nested", "passed"],
)
def test_closures_keep_their_meaning(text: str, args: list[np.ndarray]) -> None:
    before = program(text)
    after = LambdaLift()(ToANormalForm()(before))
    values = [np.asarray(a) for a in args]
    assert_same_meaning(before, after, values)
    inside = [e for e in evaluation_order(main_of(after).body) if isinstance(e, Function)]
    assert not inside


INVARIANT = """
def @main(%x: float32, %y: float32) {
  let %f = fn (%a: float32) { multiply(%a, tanh(%y)) };
  let %g = if (less(%x, %y)) { %f } else { fn (%b: float32) { exp(%y) } };
  %g(%x)
}"""


@pytest.mark.parametrize("text", [NESTED, HIGHER, INVARIANT])
def test_lifting_again_changes_nothing(text: str) -> None:
    once = LambdaLift()(program(text))
    assert structural_equal(LambdaLift()(once), once)


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("text", [NESTED, HIGHER, INVARIANT])
def test_lifted_programs_compile(text: str, executor: str) -> None:
    """HoistInvariants binds what a closure computes of its captures alone before it is made."""
    module, args = program(text), (np.float32(2), np.float32(3))
    expected = ekiden.compile(module)(*args).numpy()
    lifted = ekiden.compile(LambdaLift()(module), executor=executor)(*args).numpy()
    np.testing.assert_array_equal(lifted, expected)


def test_closure_excludes_surrounding_bindings() -> None:
    check(
        LambdaLift(),
        """def @f(%x: float32, Closure=1) {
          let %y = tanh(%x);
          let %g = fn (%z: float32, Closure=1) { add(%y, %z) };
          %g }
        def @main(%x: float32) { @f(%x)(%x) }""",
        """def @f(%x: float32) { let %y = tanh(%x); let %g = @lifted_g(%y); %g }
        def @main(%x: float32) { @f(%x)(%x) }
        def @lifted_g(%y: float32, Closure=1) {
          fn (%z: float32, Closure=1) { add(%y, %z) } }""",
    )


def test_tensor_that_determines_a_dimension_is_captured() -> None:
    check(
        LambdaLift(),
        """def @main(%x: Tensor[(n, 2), float32]) {
          let %f = fn (%y: float32) { full(%y, shape=[n]) }; %f(1f) }""",
        """def @main(%x: Tensor[(n, 2), float32]) { let %f = @lifted_f(%x); %f(1f) }
        def @lifted_f(%x: Tensor[(n, 2), float32], Closure=1) {
          fn (%y: float32, Closure=1) { full(%y, shape=[n]) } }""",
    )


@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_dimension_that_does_not_follow_from_what_is_captured_is_captured(size: int) -> None:
    text = """
    def @main(%x: Tensor[(n, 4), float32]) {
      let %y = strided_slice(%x, begin=[0, 0], end=[n, 4], strides=[2, 1]);
      let %loop = fn (%i: int32, %s: float32) -> Tensor[(?, 4), float32] {
        if (less(%i, 3)) { %loop(add(%i, 1), add(%s, 1f)) }
        else { concatenate((multiply(%y, %s), %y), axis=0) }
      };
      %loop(0, 1f)
    }"""
    x = np.random.default_rng(0).normal(size=(size, 4)).astype("float32")
    result = ekiden.compile(program(text))(x).numpy()
    np.testing.assert_allclose(result, np.concatenate((x[::2] * 4, x[::2])), rtol=1e-6)


def test_equal_functions_become_one() -> None:
    check(
        LambdaLift(),
        """def @main(%x: float32) {
          let %f = fn (%y: float32) { tanh(%y) }; let %g = fn (%z: float32) { tanh(%z) };
          let %h = fn (%z: float32) { exp(%z) }; %h(%f(%g(%x))) }""",
        """def @main(%x: float32) { let %f = @lifted_f; let %g = @lifted_f; let %h = @lifted_h;
          %h(%f(%g(%x))) }
        def @lifted_f(%y: float32) { tanh(%y) }
        def @lifted_h(%z: float32) { exp(%z) }""",
    )
