"""Defunctionalize: equivalent first-order programs."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import check, program

import ekiden
from ekiden.ir.type import FuncType
from ekiden.relay import Function, Interpreter, IRModule, parse
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Constructor, TypeData
from ekiden.relay.transform import Defunctionalization, Defunctionalize, InferType
from ekiden.relay.visitor import post_order, type_post_order
from ekiden.runtime import VirtualMachine
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick

LIST = """type List[A] { Cons(A, List[A]), Nil }
def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)), Nil => Nil } }
def @foldl[A, B](%f: fn (A, B) -> A, %a: A, %l: List[B]) -> A {
  match (%l) { Cons(%h, %t) => @foldl(%f, %f(%a, %h), %t), Nil => %a } }
"""


def test_entry_functions_stay() -> None:
    module = parse(
        LIST + "def @twice(%x: float32) -> float32 { let %f = fn (%y: float32) { add(%y, %x) }; "
        "@foldl(fn (%a: float32, %g: fn (float32) -> float32) { %g(%a) }, %x, Cons(%f, Nil)) }\n"
        "def @main(%x: float32) -> float32 { %x }"
    )
    result = Defunctionalize()(module.with_attr("entries", ("twice",)))
    assert_first_order(result)
    machine = VirtualMachine(ekiden.compile(result).raw)
    assert machine.invoke("twice", np.float32(3)).numpy() == 6


def assert_first_order(module: IRModule) -> None:
    """No value is a function: neither expressions nor fields of data."""
    for function in module.functions.values():
        assert isinstance(function, Function)
        callees = {e.op for e in post_order(function, True) if hasattr(e, "op")}
        for expr in post_order(function, True):
            if expr is function or expr in callees or isinstance(expr, Constructor):
                continue
            kind = expr.checked_type_or_none()
            assert kind is None or not any(
                isinstance(t, FuncType) for t in type_post_order(kind)
            ), f"{expr} is a function"
    for data in module.type_definitions.values():
        assert isinstance(data, TypeData)
        inputs = [t for c in data.constructors for i in c.inputs for t in type_post_order(i)]
        assert not any(isinstance(t, FuncType) for t in inputs)


def run(text: str, *args: object) -> tuple[np.ndarray, IRModule]:
    """What a program computes before and after, which must be the same."""
    before = InferType()(program(text))
    transformed = Defunctionalize()(program(text))
    verify(transformed)
    assert_first_order(transformed)
    expected = Interpreter(before).evaluate("main", *args)
    actual = Interpreter(transformed).evaluate("main", *args)
    np.testing.assert_array_equal(actual, expected)
    return actual, transformed


def test_closure_becomes_data() -> None:
    check(
        Defunctionalize(),
        """def @main(%x: float32) -> float32 {
             let %f = fn (%y: float32) -> float32 { add(%y, %x) }; %f(1f) }""",
        """type Fn0 { Fn0_0(float32) }
           def @main(%x: float32) -> float32 { let %f: Fn0 = Fn0_0(%x); @apply_0(%f, 1f) }
           def @apply_0(%f: Fn0, %a: float32) -> float32 {
             match (%f) { Fn0_0(%c: float32) => add(%a, %c) } }""",
    )


def test_functions_of_one_type_share_a_data_type() -> None:
    text = """def @main(%x: float32, %c: bool) -> float32 {
      let %f = fn (%y: float32) -> float32 { add(%y, %x) };
      let %g = fn (%y: float32) -> float32 { exp(%y) };
      let %h = if (%c) { %f } else { %g }; %h(%x) }"""
    for flag in (True, False):
        _, result = run(text, np.float32(0.5), np.bool_(flag))
    assert len(result.type_definitions) == 1


def test_global_function_as_a_value() -> None:
    result, _ = run(
        """def @double(%x: float32) -> float32 { add(%x, %x) }
           def @twice(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(%f(%x)) }
           def @main(%x: float32) -> float32 { @twice(@double, @double(%x)) }""",
        np.float32(1.5),
    )
    assert result == 12


def test_functions_of_functions() -> None:
    result, _ = run(
        """def @main(%x: float32) -> float32 {
             let %compose = fn (%f: fn (float32) -> float32, %g: fn (float32) -> float32) {
               fn (%y: float32) -> float32 { %f(%g(%y)) } };
             let %inc = fn (%y: float32) -> float32 { add(%y, 1f) };
             let %sq = fn (%y: float32) -> float32 { multiply(%y, %y) };
             let %h = %compose(%inc, %compose(%sq, %inc)); %h(%x) }""",
        np.float32(2),
    )
    assert result == 10


def test_local_recursive_function() -> None:
    result, _ = run(
        """def @main(%n: int32) -> int32 {
             let %step = 2;
             let %loop = fn (%i: int32, %s: int32) -> int32 {
               if (greater(%i, 0)) { %loop(subtract(%i, %step), add(%s, %i)) } else { %s } };
             %loop(%n, 0) }""",
        np.int32(6),
    )
    assert result == 12


def test_polymorphic_functions_over_lists() -> None:
    result, output = run(
        LIST
        + """def @main(%x: float32) -> float32 {
             let %l = @map(fn (%y: float32) -> float32 { multiply(%y, %x) },
                           Cons(1f, Cons(2f, Cons(3f, Nil))));
             let %n = @map(fn (%y: float32) -> int32 { cast(%y, dtype="int32") }, %l);
             let %s = @foldl(fn (%a: int32, %b: int32) -> int32 { add(%a, %b) }, 0, %n);
             cast(%s, dtype="float32") }""",
        np.float32(2),
    )
    assert result == 12
    assert sum(g.name_hint.startswith("map") for g in output.functions) == 2


def test_functions_inside_data() -> None:
    result, _ = run(
        """type Step { Do(fn (float32) -> float32), Skip }
           def @run(%s: Step, %x: float32) -> float32 {
             match (%s) { Do(%f) => %f(%x), Skip => %x } }
           def @main(%x: float32) -> float32 {
             @run(Skip, @run(Do(fn (%y: float32) -> float32 { add(%y, %x) }), 1f)) }""",
        np.float32(2),
    )
    assert result == 3


def test_tvms_form_changes_the_module() -> None:
    module = InferType()(
        program("""def @main(%x: float32) -> float32 {
                     let %f = fn (%y: float32) -> float32 { add(%y, %x) }; %f(1f) }""")
    )
    main = module["main"]
    assert isinstance(main, Function)
    module["main"] = Defunctionalization(main, module)
    assert_first_order(InferType()(module))
    assert "apply_0" in module


APPLY = "def @apply[A, B](%f: fn (A) -> B, %x: A) -> B { %f(%x) }\n"
ID = "def @id[A](%x: A) -> A { %x }\n"


@pytest.mark.parametrize(
    "body",
    [
        "@apply(@id, %x)",
        "%0 = fn [A](%y: A) -> A { %y }; @apply(%0, %x)",
        "let %f = fn [A](%y: A) -> A { %y }; @apply(%f, %f(%x))",
        "let %f = fn [A](%y: A) -> (A, int32) { (%y, %n) }; @apply(%f, %x).0",
        "@apply(fn [A](%y: A) -> A { @apply(@id, %y) }, %x)",
        "let %two = fn [A](%f: fn (A) -> A, %y: A) -> A { %f(%f(%y)) }; %two(@id, %x)",
        "fn [A](%y: A) -> A { %y }(%x)",
    ],
)
def test_polymorphic_arguments(body: str) -> None:
    """A function that is passed on is copied at the type that its place asks for."""
    text = f"{APPLY}{ID}def @main(%x: float32, %n: int32) -> float32 {{ {body} }}"
    result, _ = run(text, np.float32(3), np.int32(1))
    assert result == 3


def test_polymorphic_function_passed_through_a_list() -> None:
    result, _ = run(
        LIST
        + ID
        + """def @main(%x: int32) -> int32 {
             @foldl(fn (%a: int32, %b: int32) -> int32 { add(%a, %b) }, 0,
                    @map(@id, Cons(%x, Cons(4, Nil)))) }""",
        np.int32(2),
    )
    assert result == 6


def test_local_polymorphic_function_that_calls_itself_is_refused() -> None:
    text = """def @main(%x: float32) -> float32 {
                let %f = fn [A](%y: A) -> A { %f(%y) }; %f(%x) }"""
    with pytest.raises(CompileError, match="the polymorphic function %f"):
        Defunctionalize()(program(text))


def test_polymorphic_value_is_refused() -> None:
    text = """def @id[A](%x: A) -> A { %x }
              def @main(%x: float32) -> float32 {
                let %t = (@id, %x); %t.1 }"""
    with pytest.raises(CompileError, match="polymorphic function @id is used as a value"):
        Defunctionalize()(program(text))
