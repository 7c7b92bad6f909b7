"""Text as TVM 0.16 prints it, and as its users write it, parses."""

# ruff: noqa: E501 - what TVM prints is as long as it is

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.ndarray_format import array_from_bytes, array_to_bytes
from ekiden.ir.structural import structural_equal
from ekiden.relay import astext, parse, parse_expr
from ekiden.relay.metadata import read_metadata
from ekiden.runtime.errors import CompileError, LoadError, ParseError

pytestmark = pytest.mark.quick

# What the printer of TVM 0.16 writes: types behind variables and literals too, spans, `nat[]`.
PRINTED = {
    "a network": """#[version = "0.0.5"]
def @main(%data: Tensor[(1, 1, 28, 28), float32] /* ty=Tensor[(1, 1, 28, 28), float32] */, %fc1_weight: Tensor[(128, 784), float32] /* ty=Tensor[(128, 784), float32] */, %fc1_bias: Tensor[(128), float32] /* ty=Tensor[(128), float32] */) -> Tensor[(1, 128), float32] {
  %0 = nn.batch_flatten(%data) /* ty=Tensor[(1, 784), float32] span=from_string:2:3 */;
  %1 = nn.dense(%0, %fc1_weight, units=128) /* ty=Tensor[(1, 128), float32] */;
  %2 = nn.bias_add(%1, %fc1_bias, axis=-1) /* ty=Tensor[(1, 128), float32] */;
  nn.softmax(%2) /* ty=Tensor[(1, 128), float32] */
}
""",
    "fused functions": """
def @main(%x: Tensor[(10, 20), float32] /* ty=Tensor[(10, 20), float32] */) -> Tensor[(10, 20), float32] {
  %2 = fn (%p0: Tensor[(10, 20), float32] /* ty=Tensor[(10, 20), float32] */, Primitive=1, hash="2ee5b1a2a2b3a2b1") -> Tensor[(10, 20), float32] {
    %0 = add(%p0, 1f /* ty=float32 */) /* ty=Tensor[(10, 20), float32] */;
    %1 = exp(%0) /* ty=Tensor[(10, 20), float32] */;
    nn.relu(%1) /* ty=Tensor[(10, 20), float32] */
  } /* ty=fn (Tensor[(10, 20), float32]) -> Tensor[(10, 20), float32] */;
  %2(%x) /* ty=Tensor[(10, 20), float32] */
}
""",
    "partitioned functions": """
def @main(%x: Tensor[(8), float32]) -> Tensor[(8), float32] {
  @tvmgen_default_dnnl_main_0(%x) /* ty=Tensor[(8), float32] */
}

def @tvmgen_default_dnnl_main_0(%dnnl_0_i0: Tensor[(8), float32], Inline=1, Compiler="dnnl", global_symbol="tvmgen_default_dnnl_main_0", Primitive=1) -> Tensor[(8), float32] {
  %0 = fn (%FunctionVar_0_0: Tensor[(8), float32], PartitionedFromPattern="nn.relu_", Composite="dnnl.relu") -> Tensor[(8), float32] {
    nn.relu(%FunctionVar_0_0)
  };
  %0(%dnnl_0_i0)
}
""",
    "lets and choices": """
def @main(%cond: bool, %x: int32 /* ty=int32 */) -> int32 {
  let %f: fn (int32) -> int32 /* ty=fn (int32) -> int32 */ = fn (%n: int32 /* ty=int32 */) -> int32 {
    %0 = equal(%n, 0 /* ty=int32 */) /* ty=bool */;
    if (%0) {
      0 /* ty=int32 */
    } else {
      %1 = subtract(%n, 1 /* ty=int32 */) /* ty=int32 */;
      let %rec = %f(%1) /* ty=int32 */;
      add(%rec, %n) /* ty=int32 */
    }
  };
  %2 = (
    let %y = %f(%x);
    %y
  );
  if (%cond) {
    %2
  } else {
    add(%2, -3 /* ty=int32 */) /* ty=int32 */
  }
}
""",
    "data types": """
type nat {
  zero,
  succ(nat[]),
}
type List[A] {
  Cons(A, List[A]),
  Nil,
}
def @length[A](%xs: List[A] /* ty=List[A] */) -> nat[] {
  match (%xs) {
    Cons(_, %rest: List[A] /* ty=List[A] */) => {
      %0 = @length(%rest) /* ty=nat[] */;
      succ(%0) /* ty=nat[] */
    },
    Nil => {
      zero /* ty=nat[] */
    },
  }
}
def @main() -> nat[] {
  %1 = Nil /* ty=List[(int32, bool)] */;
  %2 = (1 /* ty=int32 */, True /* ty=bool */) /* ty=(int32, bool) */;
  %3 = Cons(%2, %1) /* ty=List[(int32, bool)] */;
  @length(%3) /* ty=nat[] */
}
""",
    "projections and tuples": """
def @main(%x: Tensor[(2, 6), float32]) -> (Tensor[(2, 3), float32], (Tensor[(2, 3), float32],)) {
  %0 = split(%x, indices_or_sections=2, axis=1) /* ty=(Tensor[(2, 3), float32], Tensor[(2, 3), float32]) */;
  %1 = %0.0 /* ty=Tensor[(2, 3), float32] */;
  %2 = %0.1;
  %3 = (%2,) /* ty=(Tensor[(2, 3), float32],) */;
  (%1, %3) /* ty=(Tensor[(2, 3), float32], (Tensor[(2, 3), float32],)) */
}
""",
    "references": """
def @main(%x: float32) -> float32 {
  %0 = ref(%x);
  let %_ = ref_write(%0, 1f);
  ref_read(%0)
}
""",
    "attributes of every kind": """
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3], out_dtype="float32");
  %1 = clip(%0, a_min=-inff, a_max=6f);
  %2 = nn.max_pool2d(%1, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %3 = reshape(%2, newshape=[1i64, -1i64]);
  %4 = strided_slice(%3, begin=[0, 1], end=[1, 5], strides=[1, 2], axes=None);
  %5 = nn.leaky_relu(%4, alpha=0.1f);
  %6 = mean(%5, axis=[1], keepdims=True);
  %7 = cast(%6, dtype="int8");
  nn.pad(%7, 0i64, pad_width=[[0, 0], [1, 1]])
}
""",
    "devices": """
def @main(%x {virtual_device=VirtualDevice(device_type=1)}: Tensor[(3), float32], virtual_device=VirtualDevice(device_type=1)) {
  nn.relu(%x)
}
""",
    "vectors of small dtypes": """
def @main(%a: int8x4, %b: uint1x4, %c: float16x4, %d: Tensor[(2), uint8]) { (%a, %b, %c, %d) }
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_text_parses(name: str) -> None:
    module = parse(PRINTED[name].replace("nn.pad(%7, 0i64, ", "nn.pad(%7, 0i8, "))
    assert structural_equal(parse(module.astext()), module)


EXPRESSIONS = [
    ("--10", "10"),
    ("---10", "-10"),
    ("-05", "-5"),
    ("-42i", "-42"),
    ("-42i32", "-42"),
    ("3f32", "3f"),
    ("1E-1f", "0.1f"),
    ("1 == 1 < 1 + 1 * 1", "1 == (1 < (1 + (1 * 1)))"),
    ("(); ()", "let %_ = (); ()"),
    ("let %_ : _ = (); ()", "let %_ = (); ()"),
    ("let %x = 1; -%x", "let %x = 1; negative(%x)"),
    ("%1 = (); (%1, %1,)", "%0 = (); (%0, %0)"),
    (
        "let %f = fn (%x) { fn (%y) { %x * %y } }; %f(0); %f(0)(0)",
        "let %f = fn (%x) { fn (%y) { %x * %y } }; let %_ = %f(0); %f(0)(0)",
    ),
    ("free_var %x: float32; %x((%x,).0, %x)", "free_var %y: float32; %y((%y,).0, %y)"),
    (
        "if (True) { free_var %x: int32; %x } else { %x }",
        "free_var %x: int32; if (True) { %x } else { %x }",
    ),
    ("fn [A, B](%x: A, %y: (B, int)) -> A { %x }", "fn [A, B](%x: A, %y: (B, int32)) -> A { %x }"),
    ("(fn (%x) { %x })(0)", "%0 = fn (%x) { %x }; %0(0)"),
    ("let %_: Tensor[(1), float] = 1f; ()", "let %_: Tensor[(1,), float32] = 1f; ()"),
]


@pytest.mark.parametrize(("text", "same"), EXPRESSIONS, ids=[t for t, _ in EXPRESSIONS])
def test_handwritten_tvm_text_parses(text: str, same: str) -> None:
    assert structural_equal(parse_expr(text), parse_expr(same), map_free_vars=True)


def test_expression_may_name_functions_that_are_elsewhere() -> None:
    call = parse_expr("@f(@g)")
    assert isinstance(call, relay.Call) and isinstance(call.op, relay.GlobalVar)
    with pytest.raises(ParseError, match="no function @f"):
        parse("def @main() { @f() }")


REFUSED = [
    "2147483648i32",
    "32768i16",
    "3.40283e+38f32",
    "65505f16",
    "let @x = 1; ()",
    "let x = 1; ()",
    "if (True) { let %x = (); () } else { %x }",
    "meta[type_key][1337]",
]


@pytest.mark.parametrize("text", REFUSED)
def test_text_refused_by_tvm_is_refused(text: str) -> None:
    with pytest.raises(CompileError):
        parse_expr(text)


# Meta data


def meta(nodes: list[dict[str, Any]], arrays: list[np.ndarray[Any, Any]]) -> str:
    result = {
        "root": 1,
        "nodes": [{"type_key": ""}, *nodes],
        "b64ndarrays": [base64.b64encode(array_to_bytes(a)).decode() for a in arrays],
        "attrs": {"tvm_version": "0.16.0"},
    }
    return "#[metadata]\n" + json.dumps(result, indent=2)


def test_constants_and_dimensions_of_tvms_meta_data() -> None:
    text = """
    def @main(%x: Tensor[(meta[tir.SizeVar][0], 2), float32], %y: Tensor[(n), float32]) {
      %0 = add(%x, meta[relay.Constant][0] /* ty=Tensor[(2), float32] */);
      (%0, meta[relay.Constant][1])
    }
    """ + meta(
        [
            {"type_key": "Map", "keys": ["relay.Constant", "tir.SizeVar"], "data": [2, 3]},
            {"type_key": "Array", "data": [4, 5]},
            {"type_key": "Array", "data": [6]},
            {
                "type_key": "relay.Constant",
                "attrs": {"_checked_type_": "9", "data": "0", "span": "0"},
            },
            {
                "type_key": "relay.Constant",
                "attrs": {"_checked_type_": "9", "data": "1", "span": "0"},
            },
            {"type_key": "tir.SizeVar", "attrs": {"dtype": "int32", "name": "7", "span": "0"}},
            {"type_key": "runtime.String", "repr_str": "n"},
            {"type_key": "relay.TensorType", "attrs": {"dtype": "float32"}},
        ],
        [np.array([1, 2], "float32"), np.array([[True]])],
    )
    module = parse(text)
    x, y = module["main"].params
    assert x.type_annotation.shape[0] is y.type_annotation.shape[0]
    run = relay.create_executor("debug", module).evaluate()
    first, second = run(np.zeros((3, 2), "float32"), np.zeros(3, "float32"))
    np.testing.assert_equal(first.numpy(), [[1, 2]] * 3)
    assert second.numpy().tolist() == [[True]]


def test_dimension_that_is_arithmetic_in_meta_data() -> None:
    nodes = [
        {"type_key": "Map", "keys": ["tir.Mul"], "data": [2]},
        {"type_key": "Array", "data": [3]},
        {"type_key": "tir.Mul", "attrs": {"a": "4", "b": "5", "dtype": "int32"}},
        {"type_key": "tir.Var", "attrs": {"dtype": "int32", "name": "n"}},
        {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": "4"}},
    ]
    text = "def @main(%x: Tensor[(n), int8], %y: Tensor[(meta[tir.Mul][0]), int8]) { %y }\n"
    module = parse(text + meta(nodes, []))
    assert "Tensor[(n * 4,), int8]" in str(module)


def test_initial_module_and_meta_data() -> None:
    table = {"relay.Constant": [relay.const(np.ones((2, 3), "float32"))]}
    first = parse(
        "def @f(%y : Tensor[(2, 3), float32]) -> Tensor[(2, 3), float32] { negative(%y) }"
    )
    source = "def @main(%x: Tensor[(2, 3), float32]) { add(@f(%x), meta[relay.Constant][0]) }"
    module = parse(source, "from_string", first, table)
    assert [g.name_hint for g in module.functions] == ["f", "main"]
    run = relay.create_executor("debug", module).evaluate()
    np.testing.assert_equal(run(np.full((2, 3), 3, "float32")).numpy(), np.full((2, 3), -2))
    with pytest.raises(ParseError, match="function @f is defined twice"):
        parse("def @f() { 1 }", init_module=first)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float64"])
def test_arrays_keep_their_bytes(dtype: str) -> None:
    from ekiden.ir.dtype import to_numpy

    array = np.arange(6).reshape(2, 3).astype(to_numpy(dtype))
    data = array_to_bytes(array)
    again, end = array_from_bytes(data)
    assert end == len(data) and again.dtype == array.dtype and again.tobytes() == array.tobytes()
    for length in range(len(data)):
        with pytest.raises(LoadError):
            array_from_bytes(data[:length])


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"root": 9, "nodes": []}', '{"root": 0, "nodes": [{"type_key": "Array"}]}']
)
def test_damaged_meta_data_is_refused(text: str) -> None:
    with pytest.raises(LoadError):
        read_metadata(text)
    with pytest.raises(ParseError, match="the meta data cannot be read: "):
        parse(f"def @main() {{ 1 }}\n#[metadata]\n{text}")


# What is printed


def test_scalars_print_as_in_tvm() -> None:
    for value, dtype, text in (
        (42, "int16", "42i16"), (42, "int32", "42"), (42, "int64", "42i64"),
        (3.0, "float16", "3f16"), (3.0, "float32", "3f"), (3.0, "float64", "3f64"), (0.5, "float32", "0.5f"),
    ):  # fmt: skip
        assert astext(relay.const(value, dtype)) == f'#[version = "0.0.5"]\n{text}'


def test_function_is_printed_beside_its_call() -> None:
    x, y = relay.var("x"), relay.var("y")
    call = relay.Call(
        relay.Function([x], x), [relay.Call(relay.Function([y], y), [relay.const(1)])]
    )
    assert astext(call) == '#[version = "0.0.5"]\n' + (
        "%0 = fn (%y) {\n  %y\n};\n%1 = %0(1);\n%2 = fn (%x) {\n  %x\n};\n%2(%1)"
    )


def test_comment_of_the_caller_and_spans() -> None:
    module = parse("def @main(%x: float32) {\n  add(%x, 1f)\n}", "place")
    shown = module.astext(annotate=lambda e: "/* call */" if isinstance(e, relay.Call) else "")
    assert "  add(%x, 1f) /* call */\n" in shown
    assert "/* ty=float32, span=place:2:3 */" in module.astext(show_spans=True)
    assert "place" not in module.astext()


def test_html_shows_the_program_and_escapes_it() -> None:
    module = parse('def @main(%"<b>": float32) -> float32 { %"<b>" + 1f }')
    html = module._repr_html_()
    assert html is not None and "<b>" not in html and "&lt;b&gt;" in html
    assert '<span class="keyword">def</span> <span class="name">@main</span>' in html
    assert module["main"]._repr_html_() is not None


def test_match_arms_and_fields_bind() -> None:
    """Without brackets, as TVM's users write them."""
    module = parse("""type Box { Full(int32), Empty, }
def @f(%b: Box) -> int32 {
  match (%b) { Full(%x) => %0 = fn(%n: int32) { %n }; %0(%x), Empty => let %y = 2; %y } }
def @g(%x: int32) { (%0 = add(%x, 1); multiply(%0, %0), %x) }""")
    braced = parse("""type Box { Full(int32), Empty, }
def @f(%b: Box) -> int32 {
  match (%b) {
    Full(%x) => { %0 = fn(%n: int32) { %n }; %0(%x) }, Empty => { let %y = 2; %y } } }
def @g(%x: int32) { ({ %0 = add(%x, 1); multiply(%0, %0) }, %x) }""")
    assert structural_equal(module, braced)
    assert structural_equal(parse(astext(module)), module)


def test_scalar_axis_is_accepted_for_axes() -> None:
    x = "%x: Tensor[(2, 3), float32]"
    alone, several = (parse_expr(f"fn ({x}) {{ reverse(%x, axis={a}) }}") for a in ("1", "(1,)"))
    assert structural_equal(alone, several)


def test_short_forms_of_windows_are_read_in_full() -> None:
    x = "%x: Tensor[(1, 2, 8, 8), float32], %w: Tensor[(2, 2, 3, 3), float32]"
    short, full = (
        parse_expr(f"fn ({x}) {{ nn.max_pool2d(nn.conv2d(%x, %w, {conv}), {pool}) }}")
        for conv, pool in (
            ("padding=[1, 0], strides=[2]", "pool_size=[2], padding=[1]"),
            ("padding=[1, 0, 1, 0], strides=[2, 2]", "pool_size=[2, 2], padding=[1, 1, 1, 1]"),
        )
    )
    assert structural_equal(short, full)
