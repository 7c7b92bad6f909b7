"""Printer and parser: round trips, and locations in errors."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest
from relay_programs import PROGRAMS

from ekiden.ir.dtype import to_numpy
from ekiden.ir.structural import structural_equal
from ekiden.relay import (
    Call,
    Constant,
    Function,
    If,
    IRModule,
    Let,
    astext,
    op,
    parse,
    parse_expr,
    var,
)
from ekiden.relay.op import vm
from ekiden.runtime.errors import ParseError, TypeInferenceError
from ekiden.tir import interpreter
from ekiden.tir.stmt import PrimFunc

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_program_reads_back_the_same(name: str) -> None:
    module = parse(PROGRAMS[name])
    text = module.astext()
    again = parse(text)
    assert structural_equal(again, module), text
    assert again.astext() == text


def test_graph_is_printed_in_tvms_format() -> None:
    module = parse(PROGRAMS["choice"])
    assert str(module) == (
        '#[version = "0.0.5"]\n'
        "def @main(%c: bool, %x: Tensor[(4,), float32]) {\n"
        "  %0 = nn.relu(%x) /* ty=Tensor[(4,), float32] */;\n"
        "  if (%c) {\n"
        "    add(%0, 1f) /* ty=Tensor[(4,), float32] */\n"
        "  } else {\n"
        "    %1 = negative(%0) /* ty=Tensor[(4,), float32] */;\n"
        "    multiply(%1, %1) /* ty=Tensor[(4,), float32] */\n"
        "  }\n"
        "}\n"
    )


def test_only_attributes_that_differ_from_defaults_are_printed() -> None:
    x = var("x", shape=(1, 3, 8, 8))
    w = var("w", shape=(4, 3, 3, 3))
    text = astext(
        op.nn.conv2d(x, w, padding=1, channels=4, kernel_size=(3, 3)), show_meta_data=False
    )
    assert "padding=[1, 1, 1, 1]" in text
    assert "groups" not in text and "strides" not in text
    assert structural_equal(
        parse_expr(text), op.nn.conv2d(x, w, padding=1, channels=4, kernel_size=(3, 3)), True
    )


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64", "bool", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_constants_keep_their_bits(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(int(np.prod(shape)) or 0).reshape(shape) if shape else np.asarray(1)
    constant = Constant(values.astype(to_numpy(dtype)))
    again = parse_expr(astext(constant))
    assert isinstance(again, Constant)
    assert again.data.dtype == constant.data.dtype and again.data.shape == shape
    assert again.data.tobytes() == constant.data.tobytes()


def test_constant_used_twice_is_stored_once() -> None:
    c = Constant(np.ones(1000, np.float32))
    text = astext(op.add(c, c))
    assert text.count('"type_key":"relay.Constant"') == 1
    again = parse_expr(text)
    assert isinstance(again, Call) and again.args[0] is again.args[1]


def test_two_variables_of_one_name_stay_two() -> None:
    x, y = var("x", shape=(2,)), var("x", shape=(2,))
    module = IRModule.from_expr(Function((x, y), op.subtract(y, x), None))
    assert "subtract(%x_1, %x)" in str(module)
    assert structural_equal(parse(str(module)), module)


def test_value_shared_by_branches_is_bound_before_them() -> None:
    c, x = var("c", shape=(), dtype="bool"), var("x", shape=(2,))
    shared = op.exp(x)
    module = IRModule.from_expr(Function((c, x), If(c, op.negative(shared), shared), None))
    assert structural_equal(parse(str(module)), module)
    assert str(module).index("exp") < str(module).index("if")


def test_module_attributes_read_back() -> None:
    module = IRModule(
        {"main": Function((), parse_expr("1f"), None)},
        attrs={"input_names": ("a", 'b"'), "n": 3, "x": 0.5},
    )
    assert parse(str(module)).attrs == module.attrs


def test_let_that_is_an_argument_is_printed_as_a_block() -> None:
    x, y = var("x", shape=()), var("y")
    module = IRModule.from_expr(Function((x,), op.add(Let(y, op.exp(x), op.add(y, y)), x), None))
    assert structural_equal(parse(str(module)), module)


def test_comments_nest_and_are_skipped() -> None:
    assert structural_equal(parse_expr("/* a /* b */ c */ 1f // d\n + 2f"), parse_expr("1f+2f"))


def test_operators_bind_as_in_arithmetic() -> None:
    assert structural_equal(
        parse_expr("1 + 2 * 3 - 4 < 5 == True"), parse_expr("(((1 + (2 * 3)) - 4) < 5) == True")
    )


@pytest.mark.slow
def test_deep_nesting_in_the_text_is_no_problem() -> None:
    depth = 20_000
    assert structural_equal(parse_expr("(" * depth + "1f" + ")" * depth), parse_expr("1f"))


def test_spans_name_the_place_in_the_text() -> None:
    expr = parse_expr("  nn.relu(1f)", src_name="model.relay")
    assert str(expr.span) == "model.relay:1:3"


REJECTED = [
    (
        "def @main(%x: float32) {\n  add(%x, %y)\n}",
        "text:2:11: %y is not bound here\n  add(%x, %y)\n          ^",
    ),
    ("def @f() { %0 }", "text:1:12: %0 is not bound here\ndef @f() { %0 }\n           ^"),
    ("def @f() { @g() }", "text:1:12: no function @g\ndef @f() { @g() }\n           ^"),
    (
        "def @f() { nn.relux(1f) }",
        "text:1:12: no operator, constructor or keyword 'nn.relux'; did you mean nn.relu or "
        "nn.prelu?",
    ),
    (
        "def @f() { relu(1f) }",
        "text:1:12: no operator, constructor or keyword 'relu'; did you mean nn.relu?",
    ),
    ("def @f() { add(1f 2f) }", "text:1:19: expected ',', got '2f'"),
    ("def @f() { 1.5 }", "text:1:12: 1.5 needs a suffix: f (float32), f16 or f64"),
    ("def @f() { 40000i16 }", "text:1:12: 40000 is out of the range of int16"),
    (
        "def @f() { nn.softmax(1f, axs=1) }",
        "text:1:27: SoftmaxAttrs has no attribute 'axs'; it has axis",
    ),
    ("def @f() { add(1f, 2f, axis=1) }", "text:1:24: this call takes no attributes"),
    (
        "def @f(%x: Tensor[(3), float33]) { %x }",
        "text:1:24: no dtype 'float33'; there are bool, int8",
    ),
    ("def @f(%x: Tensor[(3, -4), int8]) { %x }", "text:1:23: no dimension may be below 0, got -4"),
    ("def @f(%x: Strange) { %x }", "text:1:12: no type 'Strange'"),
    ("def @f() { /* x }", "text:1:12: comment without an end"),
    ("def @f() { 1 }\ndef @f() { 2 }", "text:2:5: function @f is defined twice"),
    ("type T { A, A, }", "text:1:13: constructor A is defined twice"),
    ("type T { A, }\ntype T { B, }", "text:2:6: type T is defined twice"),
    ("def @f() { let %x = 1; }", "text:1:24: expected an expression, got '}'"),
    ("def @f() { 1 ", "text:1:1: 'def' has no body that ends with '}'"),
    ("def @f() { (1, 2 }", "text:1:18: expected ',', got '}'"),
    ("let %x = 1; %x", "text:1:1: expected 'def', 'prim_func', 'type' or 'extern type', got 'let'"),
    ('"a\\x"', "text:1:1: the string has an escape that JSON does not know"),
    ("1" * 200, "text:1:1: the number has more than 100 digits"),
    ("def @f() { (1, 2).1e5 }", "text:1:19: expected the number of a field, got '1e5'"),
    ("def @f() { 1e9f16 }", "text:1:12: 1000000000.0 is out of the range of float16"),
    ("def @f() { nn.softmax(1f, axis=n) }", "text:1:27: SoftmaxAttrs: axis cannot be n"),
    ('def @f() { nn.softmax(1f, axis="n") }', "text:1:27: SoftmaxAttrs: axis cannot be 'n'"),
    ("$", "text:1:1: unexpected character '$'"),
    ('#[version = "9"]', "text:1:1: expected version 0.0.5, got 9"),
    (
        "def @f() { meta[relay.Constant][0] }",
        "text:1:12: meta[relay.Constant][0]: the text has no such meta data",
    ),
    ("def @f() { 1 }\n#[metadata]\n{", "text:2:12: the meta data cannot be read: "),
    ("def @f(%x: int32) { match (%x) { Foo => 1 } }", "text:1:34: expected a pattern, got 'Foo'"),
    ("def @f(%x: Tensor[(foo(n),), int32]) { %x }", "text:1:20: no function 'foo' of 1 dimensions"),
]


@pytest.mark.parametrize(("text", "message"), REJECTED, ids=[m.split("\n")[0] for _, m in REJECTED])
def test_rejected_text_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_type_errors_name_the_place_in_the_text() -> None:
    with pytest.raises(TypeInferenceError) as caught:
        parse("def @f() {\n  add(1f, 2)\n}", src_name="f.relay")
    assert (
        str(caught.value)
        == "add: arguments must have one dtype, got float32, int32, at f.relay:2:3\n"
        "  add(1f, 2)\n"
        "  ^"
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_truncated_text_error_has_a_location(name: str) -> None:
    """What is left is refused with a place, or is the program's first definitions, whole."""
    whole = parse(PROGRAMS[name])
    text, refused = whole.astext(), 0
    for end in range(0, len(text), 7):
        try:
            left = parse(text[:end])
        except (ParseError, TypeInferenceError) as error:
            assert re.search(r"\btext:\d+:\d+", str(error)), error
            refused += 1
        else:
            for function in left.get_global_vars():
                assert structural_equal(left[function], whole[function.name_hint])
    assert refused > 0


def test_missing_attribute_is_named() -> None:
    assert vm is not None  # imported for its operators
    with pytest.raises(ParseError, match="^text:1:1: ReshapeTensorAttrs: the call lacks 'shape'\n"):
        parse_expr("vm.reshape_tensor(1f)")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["(" * 50_000, "[" * 50_000, "Tensor[(" + "(" * 50_000])
def test_types_nested_without_end_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="^text:1:"):
        parse(f"def @f(%x: {text}")
    with pytest.raises(ParseError, match="^text:1:"):
        parse_expr(f"fn (%x: {text}")


@pytest.mark.slow
def test_mutated_text_gives_only_parse_errors() -> None:
    random = np.random.default_rng(7)
    words = [
        "%x",
        "%0",
        "(",
        ")",
        "{",
        "]",
        ",",
        "1",
        '"s"',
        "=",
        "->",
        "fn",
        "let",
        "_",
        "@main",
        "?",
        "n",
        "9" * 30,
    ]
    for program in PROGRAMS.values():
        text = parse(program).astext()
        for _ in range(30):
            at, cut = int(random.integers(len(text))), int(random.integers(10))
            with contextlib.suppress(ParseError, TypeInferenceError):
                parse(text[:at] + str(random.choice(words)) + text[at + cut :])


LOOPS = """#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) -> Tensor[(4), float32] {
  exp(%x)
}
prim_func @"twice and more" {
  @T.prim_func
  def twice(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
      T.func_attr({"tags": {"a": 1}})
      for i in range(4):
          b[i] = a[i] + a[i]
}
def @other(%x: float32) { @helper(%x) }
prim_func @nothing {
  @T.prim_func
  def nothing(a: T.Buffer((4,), "float32")):
      T.evaluate(0)
}
def @helper(%x: float32) { %x }
"""


def test_loop_programs_stand_beside_functions() -> None:
    """In any order; each is a PrimFunc under its name."""
    module = parse(LOOPS)
    assert [g.name_hint for g in module.functions] == [
        "main", "twice and more", "other", "nothing", "helper",
    ]  # fmt: skip
    twice = module["twice and more"]
    assert isinstance(twice, PrimFunc)
    assert twice.name == "twice"
    source = np.arange(4, dtype="float32")
    out = np.zeros(4, "float32")
    interpreter.run_prim_func(twice, source, out)
    np.testing.assert_array_equal(out, source * 2)
    text = astext(module)
    again = parse(text)
    assert structural_equal(again, module) and astext(again) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a[i] + a[i]", "a[i] + c[i]", "text:10:23: undefined name 'c'"),
        ("nothing {", "main {", "text:13:11: function @main is defined twice"),
        (
            "(0)\n}",
            "(0)\n  }",
            "text:13:21: the loop program has no '}' at the beginning of a line",
        ),
        ("def nothing", "x = 1\n  def nothing", "text:15:1: invalid syntax"),
    ],
)
def test_wrong_loop_programs_name_their_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse(LOOPS.replace(old, new))
