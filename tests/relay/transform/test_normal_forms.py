"""ToGraphNormalForm, Inline, EtaExpand and RemoveUnusedFunctions."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, evaluate, main_of, program

import ekiden
from ekiden.ir.structural import structural_equal
from ekiden.relay import Function, IRModule, Let, Var, op, parse, var
from ekiden.relay.analysis import verify
from ekiden.relay.transform import (
    EtaExpand,
    InferType,
    Inline,
    RemoveUnusedFunctions,
    ToANormalForm,
    ToGraphNormalForm,
)
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick

X = "%x: Tensor[(4, 8), float32]"
ARGS = [np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)]


# To graph normal form.


def test_let_bindings_are_inlined() -> None:
    check(
        ToGraphNormalForm(),
        f"def @main({X}) {{ let %a = nn.relu(%x); let %b = add(%a, %a); %b }}",
        f"def @main({X}) {{ %0 = nn.relu(%x); add(%0, %0) }}",
    )


def test_names_of_names_are_followed() -> None:
    check(
        ToGraphNormalForm(),
        f"def @main({X}) {{ let %a = nn.relu(%x); let %b = %a; let %c = %b; exp(%c) }}",
        f"def @main({X}) {{ exp(nn.relu(%x)) }}",
    )


def test_let_with_an_effect_stays() -> None:
    text = f"def @main({X}) {{ let %r = ref(%x); let %u = ref_write(%r, exp(%x)); ref_read(%r) }}"
    check(ToGraphNormalForm(), text, text)


def test_let_used_inside_a_function_value_stays() -> None:
    text = f"""def @main({X}) {{ let %a = exp(%x);
      let %f = fn (%y: Tensor[(4, 8), float32]) {{ add(%y, %a) }}; %f(%f(%x)) }}"""
    transformed = ToGraphNormalForm()(program(text))
    verify(transformed)
    body = main_of(transformed).body
    assert isinstance(body, Let) and body.var.name_hint == "a"
    assert_same_meaning(program(text), transformed, ARGS)


def test_graph_normal_form_undoes_a_normal_form() -> None:
    graph = program(f"def @main({X}) {{ %0 = nn.relu(%x); multiply(add(%0, %0), exp(%0)) }}")
    assert structural_equal(ToGraphNormalForm()(ToANormalForm()(graph)), graph)


def test_recursive_function_stays_bound() -> None:
    text = """def @main(%n: int32) {
      let %loop = fn (%i: int32) -> int32 {
        if (less(%i, 10)) { %loop(add(%i, 1)) } else { %i } };
      let %m = add(%n, 1); %loop(%m) }"""
    transformed = ToGraphNormalForm()(program(text))
    verify(transformed)
    body = main_of(transformed).body
    assert isinstance(body, Let) and not isinstance(body.body, Let)
    assert evaluate(transformed, [np.int32(3)]) == [10]


@pytest.mark.slow
def test_long_chain_of_lets() -> None:
    x = var("x", shape=())
    names = [Var(f"v{i}") for i in range(50_000)]
    body = names[-1]
    for i in reversed(range(50_000)):
        body = Let(names[i], op.add(names[i - 1] if i else x, x), body)
    transformed = ToGraphNormalForm()(IRModule({"main": Function((x,), body, None)}))
    assert not isinstance(main_of(transformed).body, Let)


# Inline.


def test_marked_function_is_inlined_and_dropped() -> None:
    check(
        Inline(),
        f"""def @twice(%y: Tensor[(4, 8), float32], Inline=1) {{ add(%y, %y) }}
            def @main({X}) {{ @twice(nn.relu(%x)) }}""",
        f"def @main({X}) {{ %0 = nn.relu(%x); add(%0, %0) }}",
    )


def test_unmarked_functions_are_not_inlined() -> None:
    text = f"""def @twice(%y: Tensor[(4, 8), float32]) {{ add(%y, %y) }}
               def @main({X}) {{ @twice(%x) }}"""
    check(Inline(), text, text)


def test_inlining_twice_binds_variables_of_its_own() -> None:
    text = f"""def @f(%y: Tensor[(4, 8), float32], Inline=1) {{ let %z = exp(%y); add(%z, %y) }}
               def @main({X}) {{ let %a = @f(%x); @f(%a) }}"""
    transformed = Inline()(program(text))
    verify(transformed)
    assert calls(transformed).count("exp") == 2
    assert_same_meaning(program(text), transformed, ARGS)


def test_inlined_functions_inline_each_other() -> None:
    check(
        Inline(),
        f"""def @g(%y: Tensor[(4, 8), float32], Inline=1) {{ exp(%y) }}
            def @f(%y: Tensor[(4, 8), float32], Inline=1) {{ tanh(@g(%y)) }}
            def @main({X}) {{ @f(%x) }}""",
        f"def @main({X}) {{ tanh(exp(%x)) }}",
    )


def test_recursive_function_is_not_inlined() -> None:
    text = """def @f(%n: int32, Inline=1) -> int32 {
                if (less(%n, 10)) { @f(add(%n, 1)) } else { %n } }
              def @main(%n: int32) -> int32 { @f(%n) }"""
    check(Inline(), text, text)


def test_function_still_used_as_a_value_is_a_value() -> None:
    text = f"""def @f(%y: Tensor[(4, 8), float32], Inline=1) {{ exp(%y) }}
               def @main({X}) {{ let %g = @f; add(@f(%x), %g(%x)) }}"""
    transformed = InferType()(Inline()(program(text)))
    verify(transformed)
    assert_same_meaning(program(text), transformed, ARGS)


def test_marked_function_that_nothing_calls_stays() -> None:
    text = f"def @f({X}, Inline=1) {{ exp(%x) }} def @main({X}) {{ tanh(%x) }}"
    check(Inline(), text, text)


def test_argument_with_an_effect_is_evaluated_once() -> None:
    text = f"""def @f(%y: Tensor[(4, 8), float32], Inline=1) {{ add(%y, %y) }}
               def @main({X}) {{ let %r = ref(%x); @f(ref_read(%r)) }}"""
    transformed = Inline()(program(text))
    verify(transformed)
    body = main_of(transformed).body
    assert isinstance(body, Let) and isinstance(body.body, Let)
    assert_same_meaning(program(text), transformed, ARGS)


# Eta expansion, unused functions.


def test_constructor_used_as_a_value_becomes_a_function() -> None:
    check(
        EtaExpand(),
        """type Box { Put(int32) }
           def @apply(%f: fn (int32) -> Box, %x: int32) -> Box { %f(%x) }
           def @main(%x: int32) -> Box { @apply(Put, %x) }""",
        """type Box { Put(int32) }
           def @apply(%f: fn (int32) -> Box, %x: int32) -> Box { %f(%x) }
           def @main(%x: int32) -> Box { @apply(fn (%y: int32) -> Box { Put(%y) }, %x) }""",
    )


def test_global_function_is_expanded_where_asked_for() -> None:
    text = f"""def @f(%y: Tensor[(4, 8), float32]) -> Tensor[(4, 8), float32] {{ exp(%y) }}
               def @main({X}) {{ let %g = @f; %g(@f(%x)) }}"""
    check(EtaExpand(), text, text)
    check(
        EtaExpand(expand_global_var=True),
        text,
        f"""def @f(%y: Tensor[(4, 8), float32]) -> Tensor[(4, 8), float32] {{ exp(%y) }}
            def @main({X}) {{ let %g = fn (%z: Tensor[(4, 8), float32])
              -> Tensor[(4, 8), float32] {{ @f(%z) }}; %g(@f(%x)) }}""",
    )


def test_unreachable_functions_are_removed() -> None:
    text = f"""def @f(%y: Tensor[(4, 8), float32]) {{ exp(%y) }}
               def @g(%y: Tensor[(4, 8), float32]) {{ @f(%y) }}
               def @h(%y: Tensor[(4, 8), float32]) {{ @h(%y) }}
               def @main({X}) {{ @f(%x) }}"""
    module = program(text.replace("{ @h(%y) }", "-> Tensor[(4, 8), float32] { @h(%y) }"))
    assert [g.name_hint for g in RemoveUnusedFunctions()(module)] == ["f", "main"]
    assert len(list(RemoveUnusedFunctions(["main", "g"])(module))) == 3
    assert len(list(RemoveUnusedFunctions()(module.with_attr("entries", ("g",))))) == 3


def test_entries_that_are_no_functions_of_the_module_are_refused() -> None:
    module = parse("def @g(%x: float32) { %x } def @main(%x: float32) { %x }")
    for entries, message in (
        (("h",), "the module has no Relay function 'h', which its attribute 'entries' names"),
        ("g", "the module's attribute 'entries': expected names of functions, as .*, got 'g'"),
        ((1,), "expected names of functions"),
    ):
        with pytest.raises(CompileError, match=message):
            ekiden.compile(module.with_attr("entries", entries))
