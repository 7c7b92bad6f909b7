"""Type inference: results, rejections and messages."""

from __future__ import annotations

import pytest
from relay_programs import LIST, PROGRAMS

from ekiden import relay
from ekiden.ir.expr_text import format_type
from ekiden.ir.span import Span
from ekiden.ir.structural import structural_equal
from ekiden.relay import (
    Call,
    Clause,
    Constructor,
    Function,
    FuncType,
    IRModule,
    Let,
    Match,
    PatternConstructor,
    PatternVar,
    PatternWildcard,
    SizeVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TypeVar,
    Var,
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
from ekiden.relay.transform import InferType
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
def test_main_type_is_inferred(name: str) -> None:
    assert format_type(parse(PROGRAMS[name])["main"].checked_type) == TYPES[name]


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
def test_expression_type_is_inferred(text: str, expected: str) -> None:
    assert format_type(infer_expr_type(parse_expr(text))) == expected


def test_callee_dimensions_are_instantiated_per_call() -> None:
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
    fields = format_type(module["main"].checked_type).partition(" -> ")[2]
    assert (
        fields
        == "(Tensor[(n * 2, 2), float32], Tensor[(n * 4, 2), float32], Tensor[(6, 2), float32])"
    )


def test_function_without_result_annotation_is_inferred_before_its_callers() -> None:
    module = parse(
        "def @main(%x: int32) { @f(%x) }\ndef @f(%x: int32) { (@g(), %x) }\ndef @g() { True }"
    )
    assert format_type(module["main"].checked_type) == "fn (int32) -> (bool, int32)"


def test_pattern_variables_have_the_types_of_fields() -> None:
    module = parse(
        LIST + "def @main(%l: List[(int32, bool)]) {"
        " match (%l) { Cons((%a, %b), _) => %b, Nil => False } }"
    )
    assert format_type(module["main"].checked_type) == "fn (List[(int32, bool)]) -> bool"


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
    assert format_type(infer_expr_type(Call(f, (Tuple((const(1.0), const(2.0))),)))) == "float32"


def test_let_variable_takes_the_type_of_a_new_value() -> None:
    v = var("v")
    v.set_checked_type(tensor_type((9,)))
    assert format_type(infer_expr_type(Let(v, const(1), v))) == "int32"


# Polymorphism

POLYMORPHIC = """
def @id[A](%x: A) -> A { %x }
def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C {
  fn (%x: A) -> C { %f(%g(%x)) }
}
def @iterate[A](%f: fn (A) -> A, %n: int32) -> fn (A) -> A {
  if (%n == 0) { @id } else { @compose(%f, @iterate(%f, %n - 1)) }
}
"""


def typed(text: str) -> IRModule:
    return InferType()(parse(LIST + POLYMORPHIC + text))


USES = [
    ("@map(@length, Cons(Cons(1, Nil), Nil))", "List[int32]"),
    ("@map(@id, Cons(1f, Nil))", "List[float32]"),
    ("(@id(@id))(1)", "int32"),
    ("let %f = if (True) { @id } else { fn (%x: int32) { %x } }; %f", "fn (int32) -> int32"),
    ("let %c = @compose(@length, fn (%x: int32) { Cons(%x, Nil) }); %c(1)", "int32"),
    ("let %pair = fn [A](%x: A) { (%x, %x) }; (%pair(1), %pair(2f))", ""),
    ("@iterate(fn (%x: float32) { %x * 2f }, 3)(1f)", "float32"),
]


@pytest.mark.parametrize(("body", "expected"), USES, ids=[t for t, _ in USES])
def test_polymorphic_value_is_instantiated_at_its_use(body: str, expected: str) -> None:
    main = typed("def @main() { " + body + " }")["main"]
    assert isinstance(main, Function) and main.ret_type is not None
    assert format_type(main.ret_type) == (expected or "((int32, int32), (float32, float32))")


def test_left_out_types_are_filled_in() -> None:
    module = typed(
        """
        def @f(%x: _, %n) { if (%n == 0) { %x } else { @f(%x + 1f, %n - 1) } }
        def @main() { let %y: (_, int32) = (@id(1f), 2); @id(@f(%y.0, %y.1)) }
        """
    )
    text = str(module)
    assert "def @f(%x: float32, %n: int32) -> float32 {" in text
    assert "def @main() -> float32 {" in text
    assert "@id[float32](1f)" in text
    assert "let %y: (float32, int32)" in text
    assert InferType()(module) is module
    assert structural_equal(parse(text), module)


def test_constructor_is_a_polymorphic_function() -> None:
    module = parse(LIST)
    _, cons, nil = module.get_type("List")
    assert isinstance(cons, Constructor) and isinstance(nil, Constructor)
    a = TypeVar("a")
    header = module.get_global_type_var("List")
    assert infer_expr_type(nil, module) == FuncType([], header(a), [a])
    assert infer_expr_type(cons(const(1), nil()), module) == header(tensor_type((), "int32"))


def test_pattern_annotation_is_enough() -> None:
    """fn (%x) { match (Cons(%x, Nil)) { Cons(%v: Tensor[(2, 2)], _) => (), _ => () } }"""
    module = parse(LIST)
    _, cons, nil = module.get_type("List")
    assert isinstance(cons, Constructor) and isinstance(nil, Constructor)
    square = tensor_type((2, 2))
    x, v = var("x"), Var("v", square)
    inside = PatternConstructor(cons, (PatternVar(v), PatternWildcard()))
    clauses = [Clause(inside, Tuple(())), Clause(PatternWildcard(), Tuple(()))]
    function = Function((x,), Match(cons(x, nil()), clauses), None)
    assert infer_expr_type(function, module) == FuncType([square], TupleType([]))


def test_unknown_function_type_is_inferred_from_its_call() -> None:
    x, f = var("x", "int32"), var("f")
    number = tensor_type((), "int32")
    function = Function((x, f), Call(f, (x,)), number)
    expected = FuncType([number, FuncType([number], number)], number)
    assert infer_expr_type(function) == expected


def test_mutual_recursion_without_annotations() -> None:
    module = typed(
        """
        def @even(%n: int32) { if (%n == 0) { True } else { @odd(%n - 1) } }
        def @odd(%n) { if (%n == 0) { False } else { @even(%n - 1) } }
        def @main() { @odd(3) }
        """
    )
    odd = module["odd"]
    assert format_type(odd.checked_type) == "fn (int32) -> bool"


@pytest.mark.slow
def test_chain_of_holes_is_solved() -> None:
    """let %f0 = fn (%x) { %x }; let %f1 = fn (%x) { %f0(%x) }; ... %f2000(1)"""
    text = "let %f0 = fn (%x) { %x };"
    text += "".join(f"let %f{i} = fn (%x) {{ %f{i - 1}(%x) }};" for i in range(1, 2_001))
    assert format_type(infer_expr_type(parse_expr(text + "%f2000(1)"))) == "int32"


PARAMETERS = [
    ("nn.dense(%x, %w, units=5)", (2, 8), "Tensor[(5, 8), float32]"),
    ("nn.matmul(%x, %w, units=5)", (2, 8), "Tensor[(8, 5), float32]"),
    ("nn.bias_add(%x, %w)", (2, 8), "Tensor[(8,), float32]"),
    ("nn.prelu(%x, %w)", (2, 8), "Tensor[(8,), float32]"),
    (
        "nn.conv2d(%x, %w, channels=6, kernel_size=[3, 5], groups=2)",
        (1, 4, 9, 9),
        "Tensor[(6, 2, 3, 5), float32]",
    ),
    (
        'nn.conv2d(%x, %w, channels=6, kernel_size=[3, 5], data_layout="NHWC",'
        ' kernel_layout="HWIO")',
        (1, 9, 9, 4),
        "Tensor[(3, 5, 4, 6), float32]",
    ),
    ("nn.conv1d(%x, %w, channels=6, kernel_size=[3])", (1, 4, 9), "Tensor[(6, 4, 3), float32]"),
    (
        "nn.conv2d_transpose(%x, %w, channels=6, kernel_size=[2, 2], groups=2)",
        (1, 4, 9, 9),
        "Tensor[(4, 3, 2, 2), float32]",
    ),
]


@pytest.mark.parametrize(("body", "shape", "expected"), PARAMETERS, ids=[p[0] for p in PARAMETERS])
def test_parameter_has_the_type_that_its_layer_needs(
    body: str, shape: tuple[int, ...], expected: str
) -> None:
    data = format_type(tensor_type(shape))
    module = InferType()(parse(f"def @main(%x: {data}, %w) {{ {body} }}"))
    main = module["main"]
    assert isinstance(main, Function)
    assert format_type(main.params[1].checked_type) == expected
    assert main.params[1].type_annotation == main.params[1].checked_type


def test_every_vector_of_a_norm_has_the_type_of_its_axis() -> None:
    text = "def @main(%x: Tensor[(n, 6), float32], %a, %b, %c, %d) {"
    module = InferType()(
        parse(text + " nn.layer_norm(nn.batch_norm(%x, %a, %b, %c, %d).0, %a, %b) }")
    )
    kind = module["main"].checked_type
    assert isinstance(kind, FuncType)
    assert [format_type(t) for t in kind.arg_types[1:]] == ["Tensor[(6,), float32]"] * 4


def test_weight_without_a_size_stays_unknown() -> None:
    with pytest.raises(TypeInferenceError, match="^the type of %w: expected enough to infer it"):
        parse("def @main(%x: Tensor[(2, 8), float32], %w) { nn.dense(%x, %w) }")


def test_types_are_equal_where_their_sizes_are() -> None:
    n, m = relay.SizeVar("n"), relay.SizeVar("m")

    def row(size: object) -> relay.TensorType:
        return relay.TensorType((size, 4))

    for one, other in ((n + n, n * 2), (n * 10 * 10, n * 100), (2 * m * 3, m * 6), (n + m, m + n)):
        assert row(one) == row(other) and hash(row(one)) == hash(row(other))
    for one, other in ((n, m), (n + 1, n), (n * 2, m * 2), (n // 2 * 2, n), (relay.Any(), n)):
        assert row(one) != row(other)
    assert row(relay.Any()) == row(relay.Any())
    data = relay.var("x", shape=(n, 4))
    both = relay.testing.run_infer_type(relay.concatenate([data, data], 0))
    assert both.checked_type == row(n + n)
