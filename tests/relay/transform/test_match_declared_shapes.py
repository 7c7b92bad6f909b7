"""MatchDeclaredShapes: unknown sizes are checked against declared ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.transform import InferType, Inline, MatchDeclaredShapes, PartialEvaluate
from ekiden.runtime.errors import InputError, TypeInferenceError

pytestmark = pytest.mark.quick

N3, Q3 = "Tensor[(n, 3), float32]", "Tensor[(?, 3), float32]"
MAIN = f"def @main(%x: {N3}, %z: {Q3})"
LIST = "type List[A] { Cons(A, List[A]), Nil, }\n"
IDENTITY = f"def @id(%a: {Q3}) -> {Q3} {{ %a }}\n"

PLACES = {
    "let": (f"{MAIN} {{ let %r: {N3} = %z; add(%r, %x) }}", "let %r"),
    "let of a number": (f"{MAIN} {{ let %r: Tensor[(4, 3), float32] = %z; exp(%r) }}", "let %r"),
    "let of a field": (
        f"{MAIN} {{ let %t = (%z, %x); let %r: ({N3}, {N3}) = %t; add(%r.0, %r.1) }}",
        "let %r",
    ),
    "let of a compound size": (
        f"{MAIN} {{ let %r: Tensor[(n * 2, 3), float32] = concatenate((%z, %x)); exp(%r) }}",
        "let %r",
    ),
    "reference": (
        f"{MAIN} {{ let %r = ref(%x); let %u = ref_write(%r, %z); add(ref_read(%r), %x) }}",
        "ref_write",
    ),
    "reference read nowhere": (
        f"{MAIN} {{ let %r = ref(%x); let %u = ref_write(%r, %z); %x }}",
        "ref_write",
    ),
    "argument": (
        f"def @f(%a: Tensor[(m, 3), float32], %b: Tensor[(m, 3), float32]) {{ add(%a, %b) }}\n"
        f"{MAIN} {{ @f(%x, %z) }}",
        "argument 1 of f",
    ),
    "argument beside another that is not known": (
        f"def @f(%a: Tensor[(m, 3), float32], %b: Tensor[(m, 3), float32]) {{ add(%a, %b) }}\n"
        f"{IDENTITY}{MAIN} {{ @f(@id(%x), %z) }}",
        " of f",
    ),
    "result": (
        f"def @f(%a: Tensor[(m, 3), float32], %z: {Q3}) -> Tensor[(m, 3), float32] {{ %z }}\n"
        f"{MAIN} {{ nn.softmax(@f(%x, %z)) }}",
        "the result of @f",
    ),
    "closure parameter": (
        f"{MAIN} {{ let %f = fn (%a: {N3}) -> {N3} {{ nn.softmax(%a) }}; let %r = ref(%f);"
        f" %f(%z) }}",
        "argument 0 of f",
    ),
    "parameter of a closure whose place declares less": (
        f"{MAIN} {{ let %f = fn (%a: {N3}) -> {N3} {{ nn.softmax(%a) }};"
        f" let %g: fn ({Q3}) -> {Q3} = %f; let %r = ref(%g); ref_read(%r)(%z) }}",
        "let %g",
    ),
    "closure of a branch": (
        f"{MAIN} {{ let %f = if (less(sum(%x), 0f)) {{ fn (%a: {Q3}) -> {Q3} {{ exp(%a) }} }}"
        f" else {{ fn (%a: {N3}) -> {N3} {{ nn.softmax(%a) }} }}; let %r = ref(%f);"
        f" ref_read(%r)(%z) }}",
        "if: a branch",
    ),
    "result of a closure": (
        f"{MAIN} {{ let %f = fn (%a: {Q3}) -> {N3} {{ exp(%a) }}; let %r = ref(%f);"
        f" add(ref_read(%r)(%z), %x) }}",
        "the result of a function",
    ),
    "element of a data type": (
        f"{LIST}{MAIN} {{ match (Cons[{N3}](%z, Nil[{N3}])) "
        f"{{ Cons(%h, %t) => add(%h, %x), Nil => %x }} }}",
        "argument 0 of Cons",
    ),
    "variable of a pattern": (
        f"{LIST}{MAIN} {{ match (Cons[{Q3}](%z, Nil[{Q3}])) "
        f"{{ Cons(%h: {N3}, %t) => add(%h, %x), Nil => %x }} }}",
        "match: %h",
    ),
}


def parsed(source: str) -> IRModule:
    """The module of a text."""
    return relay.parse(f'#[version = "0.0.5"]\n{source}')


def program(kind: str, module: IRModule) -> Callable[..., Any]:
    """The main function of a module, as an executor runs it."""
    return cast("Callable[..., Any]", create_executor(kind, module).evaluate())


X, ONE_ROW = np.ones((4, 3), np.float32), np.full((1, 3), 7, np.float32)


@pytest.mark.parametrize("kind", ["debug", "vm", "aot"])
@pytest.mark.parametrize("place", PLACES)
def test_another_size_is_refused_where_the_place_declares_one(place: str, kind: str) -> None:
    source, what = PLACES[place]
    run = program(kind, parsed(source))
    assert run(X, X).numpy().shape[1] == 3
    with pytest.raises(InputError) as caught:
        run(X, ONE_ROW)
    message = str(caught.value)
    assert what in message and "text:" in message
    assert re.search(r"\b[48]\b", message) and re.search(r"\b[15]\b", message), "both sizes"


@pytest.mark.parametrize("kind", ["graph", "vm"])
def test_straight_program_checks_the_sizes_of_lets(kind: str) -> None:
    source, _ = PLACES["let"]
    run = program(kind, parsed(source))
    np.testing.assert_array_equal(run(X, X).numpy(), X + X)
    with pytest.raises(InputError, match="let %r"):
        run(X, ONE_ROW)


def test_unbound_dimension_is_bound_by_its_value() -> None:
    source = (
        f"{IDENTITY}{MAIN} {{ let %r: Tensor[(k, 3), float32] = @id(%z);"
        f" let %s: Tensor[(k, 3), float32] = @id(%x); add(%r, %s) }}"
    )
    for kind in ("debug", "vm"):
        run = program(kind, parsed(source))
        assert run(X, X).numpy().shape == (4, 3)
        with pytest.raises(InputError, match="let %s"):
            run(X, ONE_ROW)


def test_sizes_that_are_known_to_agree_are_not_checked() -> None:
    source = (
        f"def @f(%a: Tensor[(m, 3), float32]) -> Tensor[(m, 3), float32] {{ exp(%a) }}\n"
        f"{MAIN} {{ let %r: {N3} = @f(%x); let %c = ref(%r); let %u = ref_write(%c, exp(%x));"
        f" let %q: {Q3} = %x; (ref_read(%c), %q) }}"
    )
    module = InferType()(parsed(source))
    assert MatchDeclaredShapes()(module) is module


def test_loop_with_own_sizes_stays_tail_recursive() -> None:
    """No check stands behind its call of itself, which needs no frame of its own."""
    source = f"""def @loop(%i: int32, %a: {Q3}) -> {Q3} {{
        if (greater(%i, 0)) {{ @loop(subtract(%i, 1), %a) }} else {{ %a }} }}
      def @main(%x: {N3}) -> {N3} {{ @loop(3, %x) }}"""
    text = ekiden.compile(parsed(source)).disassemble()
    assert "invoke_tail VMFunc" in text


def inlined(module: IRModule) -> IRModule:
    """A module whose functions but main are inlined."""
    for name, function in module.functions.items():
        if name.name_hint != "main" and isinstance(function, relay.Function):
            module = module.with_function(name.name_hint, function.with_attr("Inline", 1))
    return Inline()(module)


@pytest.mark.parametrize("rewrite", [inlined, PartialEvaluate()])
@pytest.mark.parametrize("place", PLACES)
def test_inlining_keeps_declared_shape_checks(
    place: str, rewrite: Callable[[IRModule], IRModule]
) -> None:
    source, _ = PLACES[place]
    run = program("vm", rewrite(parsed(source)))
    assert run(X, X).numpy().shape[1] == 3
    with pytest.raises(InputError):
        run(X, ONE_ROW)


@pytest.mark.parametrize("rewrite", [inlined, PartialEvaluate()])
def test_inlined_reference_types_are_kept(
    rewrite: Callable[[IRModule], IRModule],
) -> None:
    source = f"""def @f(%a: {Q3}, %b: {Q3}) -> {Q3} {{
        let %r = ref(%a); let %u = ref_write(%r, %b); ref_read(%r) }}
      {IDENTITY}
      def @main(%x: {N3}) {{
        let %r = ref(@id(%x));
        let %u = ref_write(%r, concatenate((ref_read(%r), %x)));
        (@f(zeros(shape=[1, 3], dtype="float32"), %x), ref_read(%r)) }}"""
    for kind in ("debug", "vm"):
        one, other = program(kind, rewrite(parsed(source)))(X)
        assert one.numpy().shape == (4, 3) and other.numpy().shape == (8, 3)


@pytest.mark.parametrize("rewrite", [inlined, PartialEvaluate()])
def test_inlining_uses_caller_dimension_names(
    rewrite: Callable[[IRModule], IRModule],
) -> None:
    source = f"""def @f(%a: Tensor[(m, 3), float32]) -> Tensor[(m, 3), float32] {{
        add(%a, ones(shape=[m, 3], dtype="float32")) }}
      def @main(%x: {N3}, %y: Tensor[(k, 3), float32]) {{ (@f(%x), @f(%y), @f(exp(%x))) }}"""
    module = rewrite(parsed(source))
    for kind in ("debug", "vm"):
        results = program(kind, module)(X, ONE_ROW)
        for result, expected in zip(results, (X + 1, ONE_ROW + 1, np.exp(X) + 1), strict=True):
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["debug", "vm", "aot"])
def test_returned_functions_check_their_arguments(kind: str) -> None:
    source = f"""def @main(%x: {N3}) {{
        (fn (%a: {N3}) -> {N3} {{ add(%a, %x) }},
         fn (%a: Tensor[(n * 2, 3), float32]) {{ nn.softmax(%a) }}) }}"""
    add, softmax = program(kind, parsed(source))(X)
    np.testing.assert_array_equal(add(X).numpy(), X + X)
    assert softmax(np.ones((8, 3), np.float32)).numpy().shape == (8, 3)
    for function in (add, softmax):
        with pytest.raises(InputError, match="a function that @main gives"):
            function(ONE_ROW)


CONTAINERS = {
    "a list": f"""{LIST}def @main(%x: {N3}, %z: {Q3}) {{
        let %l: List[{N3}] = Cons(%z, Nil); match? (%l) {{ Cons(%h, _) => add(%h, %x) }} }}""",
    "a cell of less": f"""def @write(%r: ref({Q3}), %z: {Q3}) {{ ref_write(%r, %z) }}
      def @main(%x: {N3}, %z: {Q3}) {{
        let %r = ref(%x); let %u = @write(%r, %z); add(ref_read(%r), %x) }}""",
    "a cell of more": f"""def @main(%x: {N3}, %z: {Q3}) {{
        let %r = ref(%z); let %s: ref({N3}) = %r; add(ref_read(%s), %x) }}""",
}


@pytest.mark.parametrize("kind", ["debug", "vm"])
@pytest.mark.parametrize("source", CONTAINERS.values(), ids=CONTAINERS)
def test_value_with_other_sizes_inside_is_refused(source: str, kind: str) -> None:
    with pytest.raises(TypeInferenceError, match="sizes inside of a value that exists already"):
        program(kind, parsed(source))


def test_new_reference_has_declared_type() -> None:
    source = f"""def @main(%x: {N3}, %z: {Q3}) {{
        let %r: ref({Q3}) = ref(%x); let %u = ref_write(%r, %z); let %s: ref({N3}) = ref(%z);
        (ref_read(%r), add(ref_read(%s), %x)) }}"""
    for kind in ("debug", "vm"):
        run = program(kind, parsed(source))
        assert [y.numpy().shape for y in run(X, X)] == [(4, 3), (4, 3)]
        with pytest.raises(InputError, match="let %s"):
            run(X, ONE_ROW)
