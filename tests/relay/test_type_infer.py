"""Type inference: what it finds, what it refuses and how it says so."""

from __future__ import annotations

import pytest
from relay_programs import LIST, PROGRAMS

from ekiden.ir.span import Span
from ekiden.ir.text import type_text
from ekiden.relay import (
    Call,
    Function,
    IRModule,
    Let,
    SizeVar,
    TensorType,
    Tuple,
    TupleGetItem,
    const,
    infer_expr_type,
    infer_type,
    op,
    parse,
    parse_expr,
    post_order,
    tensor_type,
    var,
)
from ekiden.runtime.errors import TypeInferenceError

pytestmark = pytest.mark.quick

TYPES = {
    "graph with a shared value": "fn (Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32]",
    "attributes": "fn (Tensor[(n, 8), float32]) -> Tensor[(n * 4, 4), float32]",
    "projections": "fn ((Tensor[(2,), float32], (int32, bool))) -> "
    "(bool, Tensor[(2,), float32], (int32, bool))",
    "choice": "fn (bool, Tensor[(4,), float32]) -> Tensor[(4,), float32]",
    "lets and effects": "fn (int32) -> int32",
    "a local function that calls itself": "fn (int32) -> int32",
    "closures": "fn (float32) -> float32",
    "mutual recursion": "fn (int32) -> bool",
    "lists": "fn (float32) -> int32",
    "tuple patterns": "fn ((int32, (float32, bool))) -> (bool, int32)",
    "polymorphic call with its type argument": "fn () -> (int32, bool)",
}


@pytest.mark.parametrize("name", TYPES)
def test_type_of_main(name: str) -> None:
    assert type_text(parse(PROGRAMS[name])["main"].checked_type) == TYPES[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_expression_gets_a_type(name: str) -> None:
    module = parse(PROGRAMS[name])
    for function in module.functions.values():
        assert all(
            e.checked_type_or_none() is not None for e in post_order(function, into_functions=True)
        )


INFERRED = [
    ("fn (%x: float32) { let %y: _ = %x; (%y, 1) }", "fn (float32) -> (float32, int32)"),
    ("let %f = fn (%x) { %x + 1f }; %f(2f)", "float32"),
    ("let %id = fn [A](%x: A) { %x }; (%id(1), %id(True))", "(int32, bool)"),
    ("(fn (%p) { %p.1 })((1, True))", "bool"),
    ("let %loop = fn (%n: int32, %acc) {"
     " if (%n == 0) { %acc } else { %loop(%n - 1, %acc + 1f) } }; %loop(3, 0f)", "float32"),
    ("let %apply = fn (%f, %x) { %f(%x) };"
     " %apply(fn (%y: int32) { (%y, %y) }, 3)", "(int32, int32)"),
    ("if (True) { (1, 2f) } else { (3, 4f) }", "(int32, float32)"),
    ("let %r = ref(ref(1)); ref_read(ref_read(%r))", "int32"),
    ("fn (%x: Tensor[(n, 3), float32],"
     " %y: Tensor[(?, 3), float32]) { if (True) { %x } else { %y } }",
     "fn (Tensor[(n, 3), float32], Tensor[(?, 3), float32]) -> Tensor[(?, 3), float32]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), INFERRED, ids=[t for t, _ in INFERRED])
def test_inferred_expression(text: str, expected: str) -> None:
    assert type_text(infer_expr_type(parse_expr(text))) == expected


def test_callee_dimensions_are_chosen_by_the_call() -> None:
    module = parse(
        """
        def @twice(%x: Tensor[(k, 2), float32]) -> Tensor[(k * 2, 2), float32] {
          concatenate((%x, %x))
        }
        def @main(%x: Tensor[(n, 2), float32]) {
          (@twice(%x), @twice(@twice(%x)), @twice(zeros(shape=[3, 2], dtype="float32")))
        }
        """
    )
    fields = type_text(module["main"].checked_type).partition(" -> ")[2]
    assert (
        fields
        == "(Tensor[(n * 2, 2), float32], Tensor[(n * 4, 2), float32], Tensor[(6, 2), float32])"
    )


def test_function_without_result_annotation_is_inferred_before_its_callers() -> None:
    module = parse(
        "def @main(%x: int32) { @f(%x) }\ndef @f(%x: int32) { (@g(), %x) }\ndef @g() { True }"
    )
    assert type_text(module["main"].checked_type) == "fn (int32) -> (bool, int32)"


def test_pattern_variables_have_the_types_of_fields() -> None:
    module = parse(
        LIST + "def @main(%l: List[(int32, bool)]) {"
        " match (%l) { Cons((%a, %b), _) => %b, Nil => False } }"
    )
    assert type_text(module["main"].checked_type) == "fn (List[(int32, bool)]) -> bool"


REJECTED = [
    ("fn (%x: Tensor[(2,), float32]) -> Tensor[(3,), float32] { %x }",
     "the result of the function: expected Tensor[(3,), float32], got Tensor[(2,), float32]"),
    ("fn (%x: Tensor[(n,), float32]) -> Tensor[(m,), float32] { %x }",
     "the result of the function: expected Tensor[(m,), float32], got Tensor[(n,), float32]"),
    ("if (1) { 2 } else { 3 }", "the condition of if: expected bool, got int32"),
    ("if (True) { 2 } else { 3f }", "the else branch of if: expected int32, got float32"),
    ("let %x: float32 = 1; %x", "the value of %x: expected float32, got int32"),
    ("(1, 2).2", "field 2: the tuple has 2: (int32, int32)"),
    ("1 .0", "field 0: expected a tuple, got int32"),
    ("1(2)", "call of a Constant: expected a function, got int32"),
    ("let %f = fn (%x: int32) { %x }; %f(1, 2)", "call of %f: expected 1 arguments, got 2"),
    ("let %f = fn (%x: int32) { %x }; %f(1f)", "argument 0 of %f: expected int32, got float32"),
    ("add(1)", "add: expected 2 arguments (lhs, rhs), got 1"),
    ("fn (%x) { %x }", "cannot infer the type of %x: found _; annotate it"),
    ("fn (%f) { %f(%f) }",
     "call of %f: expected _, got fn (_) -> _ (the type would contain itself)"),
    ("ref_read(1)", "the reference: expected ref(_), got int32"),
    ("let %r = ref(1); ref_write(%r, 1f)", "the value written: expected int32, got float32"),
    ("match (1) { (%a, %b) => %a }", "a tuple pattern: expected (_, _), got int32"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REJECTED, ids=[m for _, m in REJECTED])
def test_rejected_expression_says_expected_and_got(text: str, message: str) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        infer_expr_type(parse_expr(text))
    assert str(caught.value).rpartition(", at ")[0] == message


def test_error_names_the_node_of_the_model() -> None:
    x = var("x", shape=(2,))
    call = op.add(x, const(1)).with_fields(span=Span("Add 'layer1/add'"))
    with pytest.raises(
        TypeInferenceError, match="^add: arguments must have one dtype.*, at Add 'layer1/add'$"
    ):
        infer_type(IRModule.from_expr(Function((x,), call, None)))


def test_expression_with_a_type_is_not_inferred_again() -> None:
    x = var("x", shape=(2,))
    call = op.exp(x)
    known = TensorType(x.type_annotation.shape, "float32")  # type: ignore[union-attr]
    call.set_checked_type(known)
    outer = op.exp(call)
    infer_type(IRModule.from_expr(Function((x,), outer, None)))
    assert call.checked_type is known


def test_inference_adds_no_nodes_to_a_program_with_all_types() -> None:
    x = var("x", shape=(SizeVar("n"),))
    module = IRModule.from_expr(Function((x,), op.exp(x), x.type_annotation))
    function = module["main"]
    assert infer_type(module)["main"] is function


def test_open_projection_waits_for_its_tuple() -> None:
    p = var("p")
    f = Function((p,), op.add(TupleGetItem(p, 0), TupleGetItem(p, 1)), None)
    assert type_text(infer_expr_type(Call(f, (Tuple((const(1.0), const(2.0))),)))) == "float32"


def test_let_variable_takes_the_type_of_a_new_value() -> None:
    v = var("v")
    v.set_checked_type(tensor_type((9,)))
    assert type_text(infer_expr_type(Let(v, const(1), v))) == "int32"
