"""Small passes: canonicalization, combination, defusion, legalization, mixed precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_checks import Array, assert_same_meaning, calls, check, evaluate, main_of, program

from ekiden import relay
from ekiden.ir.op import OP_ATTRS, get
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import PassContext, Sequential
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.analysis import check_basic_block_normal_form, verify
from ekiden.relay.expr import Call, Let
from ekiden.relay.transform import (
    BatchingOps,
    CanonicalizeCast,
    CanonicalizeOps,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
    DefuseOps,
    DivToMul,
    FastMath,
    FoldExplicitPadding,
    FuseOps,
    InferType,
    Legalize,
    ToBasicBlockNormalForm,
    ToMixedPrecision,
    register_legalize,
)
from ekiden.runtime.errors import PassError

pytestmark = pytest.mark.quick

X = "%x: Tensor[(2, 3), float32]"
IMAGE = "%x: Tensor[(1, 4, 6, 6), float32]"


def random(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


# Canonical forms.


def test_bias_add_becomes_an_addition() -> None:
    check(
        CanonicalizeOps(),
        f"def @main({IMAGE}, %b: Tensor[(4,), float32]) {{ nn.bias_add(%x, %b) }}",
        f"""def @main({IMAGE}, %b: Tensor[(4,), float32]) {{
              add(%x, expand_dims(%b, axis=1, num_newaxis=2)) }}""",
    )
    check(
        CanonicalizeOps(),
        f"def @main({X}, %b: Tensor[(3,), float32]) {{ nn.bias_add(%x, %b, axis=-1) }}",
        f"def @main({X}, %b: Tensor[(3,), float32]) {{ add(%x, %b) }}",
    )


def test_each_user_of_a_widening_cast_gets_its_own() -> None:
    text = """def @main(%x: Tensor[(2, 3), int8]) {
      %0 = cast(%x, dtype="int32"); (add(%0, 1), multiply(%0, 2)) }"""
    transformed = CanonicalizeCast()(program(text))
    verify(transformed)
    assert calls(transformed).count("cast") == 2
    assert_same_meaning(program(text), transformed, [np.ones((2, 3), np.int8)])
    text = f"""def @main({X}) {{ %0 = cast(%x, dtype="float16");
               (exp(%0), tanh(%0)) }}"""
    assert calls(CanonicalizeCast()(program(text))).count("cast") == 1


def test_division_by_a_constant() -> None:
    check(
        DivToMul(),
        f"def @main({X}) {{ divide(%x, 4f) }}",
        f"def @main({X}) {{ multiply(%x, 0.25f) }}",
    )
    for body in ("divide(%x, 0f)", "divide(1f, %x)"):
        text = f"def @main({X}) {{ {body} }}"
        check(DivToMul(), text, text)


@pytest.mark.parametrize(
    "before, after",
    [
        (
            "nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 2], [0, 3]]), %w)",
            "nn.conv2d(%x, %w, padding=[1, 0, 2, 3])",
        ),
        (
            "nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w, "
            "padding=[1, 1, 1, 1])",
            "nn.conv2d(%x, %w, padding=[2, 2, 2, 2])",
        ),
        (
            "nn.avg_pool2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), "
            "pool_size=[2, 2], count_include_pad=True)",
            "nn.avg_pool2d(%x, pool_size=[2, 2], padding=[1, 1, 1, 1], count_include_pad=True)",
        ),
        (
            "nn.max_pool2d(nn.pad(%x, -3.4028234663852886e38f, "
            "pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), pool_size=[2, 2])",
            "nn.max_pool2d(%x, pool_size=[2, 2], padding=[1, 1, 1, 1])",
        ),
    ],
)
def test_padding_moves_into_what_reads_it(before: str, after: str) -> None:
    head = f"def @main({IMAGE}, %w: Tensor[(2, 4, 3, 3), float32])"
    check(FoldExplicitPadding(), f"{head} {{ {before} }}", f"{head} {{ {after} }}")


@pytest.mark.parametrize(("value", "moves"), [("3f", True), ("0f", False)])
def test_borders_of_the_zero_point_move_into_a_quantised_convolution(
    value: str, moves: bool
) -> None:
    head = "def @main(%x: Tensor[(1, 4, 6, 6), int8], %w: Tensor[(2, 4, 3, 3), int8])"
    points = '3, 0, 1f, 1f, channels=2, kernel_size=[3, 3], out_dtype="int32"'
    pad = f"nn.pad(%x, {value}, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]])"
    before = f"{head} {{ qnn.conv2d({pad}, %w, {points}) }}"
    after = f"{head} {{ qnn.conv2d(%x, %w, {points}, padding=[1, 1, 1, 1]) }}"
    check(FoldExplicitPadding(), before, after if moves else before)


@pytest.mark.parametrize(
    "body",
    [
        "nn.max_pool2d(nn.pad(%x, -3.4028234663852886e38f, pad_width=[[0, 0], [0, 0], [1, 1], "
        "[1, 1]]), pool_size=[2, 2], padding=[1, 1, 1, 1])",
        "nn.conv2d(nn.pad(%x, 1f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)",
        "nn.conv2d(nn.pad(%x, 0f, pad_width=[[1, 0], [0, 0], [1, 1], [1, 1]]), %w)",
        "nn.max_pool2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]))",
        "nn.avg_pool2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]))",
        "nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [-1, 1], [1, 1]]), %w)",
    ],
)
def test_padding_that_cannot_move_stays(body: str) -> None:
    text = f"def @main({IMAGE}, %w: Tensor[(2, 4, 3, 3), float32]) {{ {body} }}"
    check(FoldExplicitPadding(), text, text)


@pytest.mark.parametrize(
    ("dtype", "read"),
    [
        ("float32", "nn.conv2d({}, %w, strides=[2, 2], kernel_size=[3, 3])"),
        ("int8", 'qnn.conv2d({}, %w, 0, 0, 1f, 1f, kernel_size=[3, 3], out_dtype="int32")'),
    ],
)
def test_separate_padding_kernel_is_avoided(dtype: str, read: str) -> None:
    head = f"def @main(%x: Tensor[(1, 4, 6, 6), {dtype}], %w: Tensor[(2, 4, 3, 3), {dtype}])"
    zero = "0f" if dtype == "float32" else "0"
    pad = f"nn.pad(%x, {zero}, pad_width=[[0, 0], [0, 0], [0, 1], [0, 1]])"  # TensorFlow's "SAME"
    module = program(f"{head} {{ {read.format(pad)} }}")
    assert "nn.pad" not in relay.optimize(module, "llvm")[0].astext()


def test_fast_forms_are_used_at_level_4() -> None:
    text = f"def @main({X}) {{ nn.softmax(tanh(exp(%x))) }}"
    assert calls(Sequential([FastMath()])(program(text))) == ["exp", "tanh", "nn.softmax"]
    with PassContext(opt_level=4):
        transformed = Sequential([FastMath()])(program(text))
    assert calls(transformed) == ["fast_exp", "fast_tanh", "nn.fast_softmax"]
    assert_same_meaning(program(text), transformed, random((2, 3)), rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "fast"),
    [({}, False), ({"opt_level": 4}, True), ({"required_pass": ["FastMath"]}, True)],
)
def test_fast_forms_are_compiled_where_they_are_asked_for(
    options: dict[str, Any], fast: bool
) -> None:
    module = program(f"def @main({X}) {{ exp(%x) }}")
    with PassContext(**options):
        text = relay.optimize(module, "llvm")[0].astext()
    assert ("fast_exp" in text) == fast


# Fusion undone, legalisation, basic blocks.


def test_defusing_undoes_fusing() -> None:
    text = f"""def @main({X}) {{ %0 = exp(tanh(%x)); let %s = sum(%0, axis=[1], keepdims=True);
               divide(%0, %s) }}"""
    fused = FuseOps()(program(text))
    assert structural_equal(DefuseOps()(fused), program(text))


def test_legalisation_may_be_set_as_an_attribute() -> None:
    text = f"def @main({X}) {{ exp(%x) }}"
    try:
        get("exp").set_attr("FTVMLegalize", lambda attrs, inputs, types: op.tanh(inputs[0]))
        assert calls(Legalize()(program(text))) == ["tanh"]
    finally:
        get("exp").reset_attr("FTVMLegalize")
    assert calls(Legalize()(program(text))) == ["exp"]


def test_legalisation_is_a_table_of_the_user() -> None:
    @register_legalize("floor_mod", table="test")
    def by_division(attrs: object, inputs: tuple, types: tuple) -> Call | None:
        if types[2].dtype != "float32":
            return None
        a, b = inputs
        return op.subtract(a, op.multiply(op.floor(op.divide(a, b)), b))

    try:
        text = f"def @main({X}, %n: int32) {{ (floor_mod(%x, 2f), floor_mod(%n, 2)) }}"
        transformed = Legalize("test")(program(text))
        assert calls(transformed) == ["divide", "floor", "multiply", "subtract", "floor_mod"]
        assert_same_meaning(program(text), transformed, [*random((2, 3)), np.int32(3)])
        assert Legalize("no such table")(program(text)) is not None
    finally:
        del OP_ATTRS["test"]
    with pytest.raises(KeyError, match="no operator 'nothing'"):
        register_legalize("nothing", by_division)


def test_shared_branch_values_are_bound_outside() -> None:
    text = f"""def @main({X}) {{ %0 = exp(%x);
      if (greater(sum(%x), 0f)) {{ add(%0, %0) }} else {{ tanh(%0) }} }}"""
    check(
        ToBasicBlockNormalForm(),
        text,
        f"""def @main({X}) {{ let %v = exp(%x);
          if (greater(sum(%x), 0f)) {{ add(%v, %v) }} else {{ tanh(%v) }} }}""",
    )


@pytest.mark.parametrize(
    "body",
    [
        "%0 = exp(%x); add(%0, %0)",
        "%0 = exp(%x); if (%c) { if (%c) { %0 } else { add(%0, %0) } } else { %0 }",
        "if (%c) { %0 = exp(%x); if (%c) { %0 } else { add(%0, %0) } } else { %x }",
        "%0 = { let %a = exp(%x); add(%a, %a) }; if (%c) { %0 } else { add(%0, %0) }",
        "%0 = exp(%x); let %f = fn (%y: Tensor[(2, 3), float32]) { add(%0, %y) }; %f(%f(%0))",
        "%0 = if (%c) { exp(%x) } else { %x }; if (%c) { add(%0, %0) } else { %0 }",
    ],
)
def test_basic_block_normal_form_keeps_the_meaning(body: str) -> None:
    text = f"def @main({X}, %c: bool) {{ {body} }}"
    transformed = ToBasicBlockNormalForm()(program(text))
    verify(transformed)
    assert check_basic_block_normal_form(main_of(transformed))
    for flag in (True, False):
        assert_same_meaning(program(text), transformed, [*random((2, 3)), np.bool_(flag)])


# Combined operators.

DENSE = f"""def @main({X}, %u: Tensor[(4, 3), float32], %v: Tensor[(4, 3), float32],
                      %w: Tensor[(4, 3), float32]) {{
  (nn.relu(nn.dense(%x, %u)), nn.dense(%x, %v), tanh(nn.dense(%x, %w))) }}"""


def test_dense_side_by_side_is_one_batch() -> None:
    with PassContext(opt_level=4):
        transformed = CombineParallelDense()(program(DENSE))
    verify(transformed)
    assert "nn.dense" not in calls(transformed) and calls(transformed).count("nn.batch_matmul") == 1
    assert_same_meaning(program(DENSE), transformed, random((2, 3), (4, 3), (4, 3), (4, 3)))


def test_dense_side_by_side_is_one_wide_product() -> None:
    text = DENSE.replace("%v: Tensor[(4", "%v: Tensor[(5")
    with PassContext(opt_level=4):
        transformed = CombineParallelDense(to_batch=False)(program(text))
        assert calls(CombineParallelDense()(program(text))).count("nn.dense") == 3
        assert calls(CombineParallelDense(4, to_batch=False)(program(text))).count("nn.dense") == 3
    verify(transformed)
    assert calls(transformed).count("nn.dense") == 1
    assert_same_meaning(program(text), transformed, random((2, 3), (4, 3), (5, 3), (4, 3)))


@pytest.mark.parametrize("to_batch", [True, False])
def test_weights_of_other_types_are_not_side_by_side(to_batch: bool) -> None:
    params = ", ".join(f"%w{i}: Tensor[(4, 3), {t}]" for i, t in enumerate(["int8", "uint8"]))
    text = f"""def @main(%x: Tensor[(2, 3), uint8], {params}) {{
      (nn.dense(%x, %w0, out_dtype="int32"), nn.dense(%x, %w1, out_dtype="int32")) }}"""
    with PassContext(opt_level=4):
        transformed = CombineParallelDense(2, to_batch)(program(text))
    assert calls(transformed) == ["nn.dense", "nn.dense"]


def test_convolutions_side_by_side() -> None:
    text = f"""def @main({IMAGE}, %u: Tensor[(2, 4, 3, 3), float32],
        %v: Tensor[(3, 4, 3, 3), float32], %w: Tensor[(2, 4, 1, 1), float32]) {{
      (nn.conv2d(%x, %u, padding=[1, 1, 1, 1]),
       nn.relu(nn.conv2d(%x, %v, padding=[1, 1, 1, 1], channels=3)), nn.conv2d(%x, %w)) }}"""
    with PassContext(opt_level=4):
        transformed = CombineParallelConv2D(2)(program(text))
    verify(transformed)
    assert calls(transformed).count("nn.conv2d") == 2  # the 1 x 1 stays alone
    args = random((1, 4, 6, 6), (2, 4, 3, 3), (3, 4, 3, 3), (2, 4, 1, 1))
    assert_same_meaning(program(text), transformed, args)


def test_convolutions_whose_results_lie_otherwise_stay_apart() -> None:
    text = """def @main(%x: Tensor[(1, 4, 6, 6), float32], %u: Tensor[(2, 4, 3, 3), float32],
                        %v: Tensor[(3, 4, 3, 3), float32]) {
      (nn.conv2d(%x, %u, out_layout="NHWC"), nn.conv2d(%x, %v, out_layout="NHWC")) }"""
    with PassContext(opt_level=4):
        transformed = InferType()(CombineParallelConv2D(2)(program(text)))
    args = random((1, 4, 6, 6), (2, 4, 3, 3), (3, 4, 3, 3))
    assert_same_meaning(program(text), transformed, args)


@pytest.mark.parametrize("flag, shapes", [("True", [(2, 5, 3), (2, 4, 3)]),
                                          ("False", [(2, 3, 5), (2, 3, 4)])])  # fmt: skip
def test_batch_matmul_side_by_side(flag: str, shapes: list[tuple[int, ...]]) -> None:
    params = ", ".join(f"%w{i}: Tensor[{s}, float32]" for i, s in enumerate(shapes))
    text = f"""def @main(%x: Tensor[(2, 4, 3), float32], {params}) {{
      (nn.batch_matmul(%x, %w0, transpose_b={flag}), nn.batch_matmul(%x, %w1, transpose_b={flag}))
    }}"""
    with PassContext(opt_level=4):
        transformed = CombineParallelBatchMatmul(2)(program(text))
    verify(transformed)
    assert calls(transformed).count("nn.batch_matmul") == 1
    assert_same_meaning(program(text), transformed, random((2, 4, 3), *shapes))


def test_what_depends_on_another_is_not_combined() -> None:
    text = f"""def @main({X}, %w: Tensor[(3, 3), float32]) {{
      %0 = nn.dense(%x, %w); %1 = nn.dense(%x, transpose(nn.dense(%w, %w))); add(%0, %1) }}"""
    with PassContext(opt_level=4):
        transformed = BatchingOps()(program(text))
    assert structural_equal(transformed, program(text))


# Mixed precision.

NETWORK = f"""def @main({X}, %w: Tensor[(4, 3), float32], %b: Tensor[(4,), float32]) {{
  %0 = nn.relu(nn.bias_add(nn.dense(%x, %w), %b, axis=-1));
  (nn.softmax(%0), multiply(%0, 2f)) }}"""


@pytest.mark.parametrize("small", ["float16", "bfloat16"])
def test_products_take_the_smaller_type(small: str) -> None:
    check(
        ToMixedPrecision(small),
        NETWORK,
        f"""def @main({X}, %w: Tensor[(4, 3), float32], %b: Tensor[(4,), float32]) {{
          %0 = nn.dense(cast(%x, dtype="{small}"), cast(%w, dtype="{small}"), out_dtype="{small}");
          %1 = nn.relu(nn.bias_add(%0, cast(%b, dtype="{small}"), axis=-1));
          (nn.softmax(cast(%1, dtype="float32")), multiply(%1, cast(2f, dtype="{small}"))) }}""",
    )


@pytest.mark.parametrize(
    "data, weight, result",
    [("int32", "int32", "int32"), ("uint8", "int8", "int32"), ("float64", "float64", "float64")],
)
def test_mixed_precision_leaves_other_products(data: str, weight: str, result: str) -> None:
    text = f"""def @main(%x: Tensor[(2, 3), {data}], %w: Tensor[(4, 3), {weight}]) {{
      nn.dense(%x, %w, out_dtype="{result}") }}"""
    assert structural_equal(ToMixedPrecision()(program(text)), program(text))


def test_mixed_precision_stays_close() -> None:
    module = program(NETWORK)
    args = random((2, 3), (4, 3), (4,))
    transformed = ToMixedPrecision()(module)
    for exact, result in zip(evaluate(module, args), evaluate(transformed, args), strict=True):
        np.testing.assert_allclose(result.astype(np.float32), exact, rtol=1e-2, atol=1e-2)
    assert evaluate(transformed, args)[1].dtype == np.float16


def test_results_keep_their_type_where_asked_for() -> None:
    with PassContext(config={"relay.ToMixedPrecision.keep_orig_output_dtype": True}):
        transformed = ToMixedPrecision()(program(NETWORK))
    assert [a.dtype for a in evaluate(transformed, random((2, 3), (4, 3), (4,)))] == [
        np.float32
    ] * 2


def test_branches_keep_their_types() -> None:
    text = f"""def @main({X}, %w: Tensor[(3, 3), float32]) {{
      %0 = nn.dense(%x, %w);
      if (greater(sum(%0), 0f)) {{ (%0, exp(%0)) }} else {{ (exp(%0), %0) }} }}"""
    transformed = ToMixedPrecision()(program(text))
    verify(transformed)
    args = random((2, 3), (3, 3))
    for exact, result in zip(
        evaluate(program(text), args), evaluate(transformed, args), strict=True
    ):
        np.testing.assert_allclose(result, exact, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("mode, expected", [(0, "float16"), (1, "float32")])
def test_mixed_precision_operators_without_a_category(mode: int, expected: str) -> None:
    text = f"def @main({X}) {{ cos(%x) }}"
    transformed = InferType()(ToMixedPrecision("float16", mode)(program(text)))
    assert evaluate(transformed, random((2, 3)))[0].dtype == expected
    with pytest.raises(PassError, match="operator 'cos' has no colour"):
        ToMixedPrecision("float16", 2)(program(text))


def test_products_in_the_smaller_type_round_their_sums_once() -> None:
    text = """def @main(%x: Tensor[(1, 4096), float16], %w: Tensor[(2, 4096), float16]) {
      nn.dense(%x, %w, out_dtype="float16") }"""
    x, w = np.full((1, 4096), 0.1, np.float16), np.full((2, 4096), 0.1, np.float16)
    exact = 4096 * float(np.float16(0.1)) ** 2
    for kind in ("debug", "vm"):
        result = relay.create_executor(kind, program(text)).evaluate()(x, w)
        np.testing.assert_array_equal(result.numpy(), np.full((1, 2), exact, np.float16))


@pytest.mark.parametrize("small, is_cast", [("float16", False), ("bfloat16", True)])
def test_bounds_that_the_smaller_type_lacks_stay(small: str, is_cast: bool) -> None:
    text = f"def @main({X}) {{ clip(%x, a_min=-128000f, a_max=128000f) }}"
    transformed = InferType()(ToMixedPrecision(small)(program(text)))
    assert main_of(transformed).ret_type == TensorType((2, 3), small if is_cast else "float32")


def test_variables_of_a_let_have_the_type_of_their_value() -> None:
    text = f"""def @main({X}, %w: Tensor[(3, 3), float32]) {{
      let %a = nn.dense(%x, %w);
      let %b = (nn.relu(%a), exp(%a));
      add(%b.0, %b.1) }}"""
    transformed = ToMixedPrecision()(program(text))
    verify(transformed)
    let = main_of(transformed).body
    assert isinstance(let, Let) and let.var.type_annotation == TensorType((2, 3), "float16")
    args = random((2, 3), (3, 3))
    for exact, result in zip(
        evaluate(program(text), args), evaluate(transformed, args), strict=True
    ):
        np.testing.assert_allclose(result, exact, rtol=2e-2, atol=1e-2)


def test_user_mixed_precision_rule_decides() -> None:
    relay.op.register_mixed_precision_conversion(
        "nn.dense", lambda call, small: [2, "float32", "float32"]
    )
    try:
        check(ToMixedPrecision(), NETWORK, NETWORK)
    finally:
        relay.op.get("nn.dense").reset_attr("FTVMMixedPrecisionConversionType")


def test_integers_are_left_alone() -> None:
    text = "def @main(%x: Tensor[(2, 3), int32]) { add(multiply(%x, %x), 1) }"
    check(ToMixedPrecision(), text, text)


def test_mixed_precision_keeps_lets() -> None:
    text = f"def @main({X}) {{ let %a = exp(%x); add(%a, %x) }}"
    transformed = ToMixedPrecision()(program(text))
    assert isinstance(main_of(transformed).body, Let)
    assert_same_meaning(program(text), transformed, random((2, 3)))


BIASED = {
    "wide": (CombineParallelDense(2, to_batch=False), "nn.dense", (2, 3), [(4, 3), (5, 3)]),
    "batch": (CombineParallelDense(2), "nn.dense", (2, 3), [(4, 3), (4, 3)]),
    "equal": (CombineParallelDense(2, to_batch=False), "nn.dense", (3, 3), [(3, 3), (3, 3)]),
    "conv2d": (CombineParallelConv2D(2), "nn.conv2d", (1, 3, 4, 4), [(4, 3, 1, 1), (5, 3, 1, 1)]),
    "matmul": (CombineParallelBatchMatmul(2), "nn.batch_matmul", (2, 2, 3), [(2, 4, 3), (2, 5, 3)]),
}
WIDTHS = {"conv2d": [(4, 1, 1), (5, 1, 1)]}


@pytest.mark.parametrize("biases", ["each", "numbers", "ones", "rows", "mixed"])
@pytest.mark.parametrize("kind", BIASED)
def test_combined_convolutions_share_epilogue(kind: str, biases: str) -> None:
    """Additions that fit are one; whatever is done, the meaning is the same."""
    combine, name, data, weights = BIASED[kind]
    wide = [(w[1] if kind == "matmul" else w[0],) for w in weights]
    shapes = {
        "each": WIDTHS.get(kind, wide),
        "numbers": [(), ()],
        "ones": [(1,), (1,)],
        "rows": [(data[-2], 1), (data[-2], 1)],
        "mixed": [(1,), wide[1] if kind != "conv2d" else (5, 1, 1)],
    }[biases]
    inputs = [*weights, *shapes]
    params = ", ".join(f"%p{i}: Tensor[{shape}, float32]" for i, shape in enumerate(inputs))
    text = f"""def @main(%x: Tensor[{data}, float32], {params}) {{
      (nn.relu(add(%p2, {name}(%x, %p0))), exp(nn.relu(add(%p3, {name}(%x, %p1))))) }}"""
    with PassContext(opt_level=4):
        result = combine(program(text))
    verify(result)
    fits = biases == "each" or (kind in ("wide", "equal", "batch") and biases != "mixed")
    assert calls(result).count("nn.relu") == (1 if fits or kind in ("wide", "equal") else 2)
    assert_same_meaning(program(text), result, random(data, *inputs))


def test_bias_from_later_value_is_not_combined() -> None:
    text = f"""def @main({X}, %v: Tensor[(4, 3), float32], %w: Tensor[(4, 3), float32]) {{
      %0 = nn.dense(%x, %v); (exp(%0), add(nn.dense(%x, %w), exp(%0))) }}"""
    transformed = CombineParallelDense(2, to_batch=False)(program(text))
    assert_same_meaning(program(text), transformed, random((2, 3), (4, 3), (4, 3)))


def test_axis_in_attributes_is_not_taken_for_another() -> None:
    """A bias along the rows, of as many as there are channels, is none along the channels."""
    text = """def @main(%x: Tensor[(3, 3), float32], %v: Tensor[(3, 3), float32],
                        %w: Tensor[(3, 3), float32], %b: Tensor[(3), float32]) {
      (nn.bias_add(nn.dense(%x, %v), %b, axis=0), nn.bias_add(nn.dense(%x, %w), %b, axis=0)) }"""
    for to_batch in (False, True):
        transformed = CombineParallelDense(2, to_batch)(program(text))
        assert_same_meaning(program(text), transformed, random((3, 3), (3, 3), (3, 3), (3,)))


def test_parts_of_what_was_combined_are_cut_in_the_form_of_tvm() -> None:
    text = f"""def @main({X}, %v: Tensor[(4, 3), float32], %w: Tensor[(5, 3), float32]) {{
      (nn.dense(%x, %v), nn.dense(%x, %w)) }}"""
    parts = main_of(CombineParallelDense(2, to_batch=False)(program(text))).body.fields
    result = [(p.attrs.begin, p.attrs.end, p.attrs.slice_mode, p.attrs.axes) for p in parts]
    assert result == [((0, 0), (-1, 4), "size", None), ((0, 4), (-1, 5), "size", None)]
