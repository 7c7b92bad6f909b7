"""SimplifyExpr: each rewrite rule, and near matches that must stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, evaluate, program

import ekiden
from ekiden import relay
from ekiden.ir.float_tier import FloatTier
from ekiden.ir.pass_context import PassContext
from ekiden.relay.dataflow_pattern import DFPattern, is_op, wildcard
from ekiden.relay.dataflow_pattern.matcher import NodeMap
from ekiden.relay.transform import InferType, SimplifyExpr
from ekiden.relay.transform.graph.simplify_expr import simplify_expr
from ekiden.relay.transform.graph.simplify_rules import (
    CALL_RULES,
    EXACT_EQUATIONS,
    FREE_EQUATIONS,
    ROUNDED_EQUATIONS,
    SHAPE_RULES,
    SIMPLIFY_RULES,
    RewriteRule,
)

pytestmark = pytest.mark.quick

X = "%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]"
T = "Tensor[(2, 3), float32]"

# (equation of the rule, program before, program after)
CASES = [
    ("add(x, -0.0) = x", "exp(add(%x, -0f))", "exp(%x)"),
    ("add(x, -0.0) = x", "add(-0f, %x)", "%x"),
    ("subtract(x, 0.0) = x", "subtract(%x, 0f)", "%x"),
    ("subtract(x, 0.0) = x", 'subtract(%x, zeros(shape=[2, 3], dtype="float32"))', "%x"),
    ("add(x, 0) = x", "exp(add(%x, 0f))", "exp(%x)"),
    ("add(x, 0) = x", "add(0f, %x)", "%x"),
    ("subtract(x, 0) = x", "subtract(%x, -0f)", "%x"),
    ("multiply(x, 1) = x", "multiply(1f, %x)", "%x"),
    ("divide(x, 1) = x", "divide(%x, 1f)", "%x"),
    ("power(x, 1) = x", "power(%x, 1f)", "%x"),
    ("negative(negative(x)) = x", "negative(negative(%x))", "%x"),
    ("subtract(x, negative(y)) = add(x, y)", "subtract(%x, negative(%y))", "add(%x, %y)"),
    ("add(x, negative(y)) = subtract(x, y)", "add(negative(%y), %x)", "subtract(%x, %y)"),
    ("abs(abs(x)) = abs(x)", "abs(abs(%x))", "abs(%x)"),
    ("abs(negative(x)) = abs(x)", "abs(negative(%x))", "abs(%x)"),
    ("maximum(x, x) = x", "maximum(%x, %x)", "%x"),
    ("minimum(x, x) = x", "minimum(%x, %x)", "%x"),
    ("nn.relu(nn.relu(x)) = nn.relu(x)", "nn.relu(nn.relu(%x))", "nn.relu(%x)"),
    ("logical_not(logical_not(x)) = x", "logical_not(logical_not(less(%x, %y)))", "less(%x, %y)"),
    ("logical_and(x, x) = x", "%0 = less(%x, %y); logical_and(%0, %0)", "less(%x, %y)"),
    ("logical_or(x, x) = x", "%0 = less(%x, %y); logical_or(%0, %0)", "less(%x, %y)"),
    ("where(x, y, y) = y", "where(less(%x, 0f), %y, %y)", "%y"),
    ("floor(floor(x)) = floor(x)", "floor(floor(%x))", "floor(%x)"),
    ("ceil(ceil(x)) = ceil(x)", "ceil(ceil(%x))", "ceil(%x)"),
    ("round(round(x)) = round(x)", "round(round(%x))", "round(%x)"),
    ("copy(x) = x", "copy(%x)", "%x"),
    ("add(x, x) = multiply(x, 2)", "add(%x, %x)", "multiply(%x, 2f)"),
    ("divide(1, sqrt(x)) = rsqrt(x)", "divide(1f, sqrt(%x))", "rsqrt(%x)"),
    ("divide(x, sqrt(y)) = multiply(x, rsqrt(y))", "divide(%x, sqrt(%y))",
     "multiply(%x, rsqrt(%y))"),
    ("power(x, 0.5) = sqrt(x)", "power(%x, 0.5f)", "sqrt(%x)"),
    ("power(x, -0.5) = rsqrt(x)", "power(%x, -0.5f)", "rsqrt(%x)"),
    ("power(x, 2) = multiply(x, x)", "power(%x, 2f)", "multiply(%x, %x)"),
    ("divide(1, add(1, exp(negative(x)))) = sigmoid(x)",
     "divide(1f, add(1f, exp(negative(%x))))", "sigmoid(%x)"),
    ("add(add(x, c1), c2) = add(x, add(c1, c2))", "add(add(%x, 1f), 2f)", "add(%x, 3f)"),
    ("add(subtract(x, c1), c2) = add(x, subtract(c2, c1))", "add(subtract(%x, 1f), -3f)",
     "add(%x, -4f)"),
    ("multiply(multiply(x, c1), c2) = multiply(x, multiply(c1, c2))",
     "multiply(multiply(%x, 3f), 2f)", "multiply(%x, 6f)"),
    ("multiply(add(x, c1), c2) = add(multiply(x, c2), multiply(c1, c2))",
     "multiply(add(%x, 3f), 2f)", "add(multiply(%x, 2f), 6f)"),
    ("add(add(multiply(x, x), multiply(multiply(x, y), 2)), multiply(y, y))"
     " = multiply(add(x, y), add(x, y))",
     "add(add(multiply(%x, %x), multiply(multiply(%x, %y), 2f)), multiply(%y, %y))",
     "multiply(add(%x, %y), add(%x, %y))"),
    ("gather(x, broadcast_to(i), axis) = take(x, i, axis)",
     "gather(%x, broadcast_to(argmax(%y, axis=[1]), shape=[2, 2]), axis=1)",
     'take(%x, argmax(%y, axis=[1]), axis=1, mode="raise")'),
    ("scatter_elements(x, broadcast_to(i), u) = scatter_nd(x, i, u)",
     "scatter_elements(%x, broadcast_to(expand_dims(argmax(%y, axis=[0]), axis=1), shape=[3, 3]),"
     ' broadcast_to(exp(max(%x, axis=[0])), shape=[3, 3]), reduction="add")',
     "scatter_nd(%x, reshape(argmax(%y, axis=[0]), newshape=[1, 3]),"
     ' broadcast_to(exp(max(%x, axis=[0])), shape=[3, 3]), mode="add")'),
    ("log(exp(x)) = x", "log(exp(%x))", "%x"),
    ("cast(x, dtype of x) = x", 'cast(%x, dtype="float32")', "%x"),
    ("cast(cast(x, wider), dtype) = cast(x, dtype)",
     'cast(cast(%x, dtype="float64"), dtype="int32")', 'cast(%x, dtype="int32")'),
    ("reshape(x, shape of x) = x", "exp(reshape(%x, newshape=[2, 3]))", "exp(%x)"),
    ("reshape(reshape(x, s), t) = reshape(x, t)",
     "reshape(reshape(%x, newshape=[6]), newshape=[3, 2])",
     "reshape(%x, newshape=[3, 2])"),
    ("reshape(squeeze(x), t) = reshape(x, t)",
     "reshape(squeeze(expand_dims(exp(%x), axis=0), axis=[0]), newshape=[3, 2])",
     "reshape(exp(%x), newshape=[3, 2])"),
    ("reshape(expand_dims(x), t) = reshape(x, t)",
     "reshape(expand_dims(%x, axis=1), newshape=[3, 2])",
     "reshape(%x, newshape=[3, 2])"),
    ("squeeze(expand_dims(x)) = x", "squeeze(expand_dims(%x, axis=0), axis=[0])", "%x"),
    ("squeeze(x, nothing) = x", "squeeze(%x)", "%x"),
    ("broadcast_to(x, shape of x) = x", "broadcast_to(%x, shape=[2, 3])", "%x"),
    ("transpose(x, identity) = x", "transpose(%x, axes=[0, 1])", "%x"),
    ("transpose(transpose(x, p), q) = transpose(x, p q)",
     "transpose(transpose(expand_dims(exp(%x), axis=0), axes=[2, 0, 1]), axes=[1, 0, 2])",
     "transpose(expand_dims(exp(%x), axis=0), axes=[0, 2, 1])"),
    ("clip(clip(x, a, b), c, d) = clip(x, max(a, c), min(b, d))",
     "clip(clip(%x, a_min=0f, a_max=6f), a_min=-1f, a_max=4f)", "clip(%x, a_min=0f, a_max=4f)"),
    ("strided_slice(x, all of x) = x", "strided_slice(%x, begin=[0, 0], end=[2, 3])", "%x"),
    ("nn.pad(x, nothing) = x", "nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0]])", "%x"),
    ("tile(x, once) = x", "tile(%x, reps=[1, 1])", "%x"),
    ("repeat(x, once) = x", "repeat(%x, repeats=1, axis=0)", "%x"),
    ("layout_transform(x, same layout) = x",
     'layout_transform(%x, src_layout="NC", dst_layout="NC")', "%x"),
    ("reverse(reverse(x, axis), axis) = x", "reverse(reverse(%x, axis=[1]), axis=[1])", "%x"),
    ("zeros_like(x) = zeros(shape of x)", "zeros_like(%x)",
     'zeros(shape=[2, 3], dtype="float32")'),
    ("ones_like(x) = ones(shape of x)", "ones_like(%x)", 'ones(shape=[2, 3], dtype="float32")'),
    ("reshape(contrib_reverse_reshape(x, s), t) = reshape(x, t)",
     "reshape(contrib_reverse_reshape(%x, newshape=[3, -1]), newshape=[6])",
     "reshape(%x, newshape=[6])"),
    ("contrib_reverse_reshape(x, s) = reshape(x, t)",
     "contrib_reverse_reshape(%x, newshape=[3, -1])", "reshape(%x, newshape=[3, 2])"),
    ("clip(x, all of its integers) = x",
     'clip(cast(less(%x, %y), dtype="uint8"), a_min=0f, a_max=255f)',
     'cast(less(%x, %y), dtype="uint8")'),
    ("layout_transform(layout_transform(x, a, b), b, c) = layout_transform(x, a, c)",
     'layout_transform(layout_transform(expand_dims(%x, axis=0), src_layout="NCW",'
     ' dst_layout="NCW3w"), src_layout="NCW3w", dst_layout="NWC")',
     'layout_transform(expand_dims(%x, axis=0), src_layout="NCW", dst_layout="NWC")'),
    ("cast_like(x, y) = cast(x, dtype of y)", "cast_like(%x, less(%x, %y))",
     'cast(%x, dtype="bool")'),
    ("reshape_like(x, y) = reshape(x, shape of y)", "reshape_like(%x, transpose(%y))",
     "reshape(%x, newshape=[3, 2])"),
    ("broadcast_to_like(x, y) = broadcast_to(x, shape of y)",
     "broadcast_to_like(max(%x, axis=[0]), %y)", "broadcast_to(max(%x, axis=[0]), shape=[2, 3])"),
    ("collapse_sum_like(x, y) = collapse_sum_to(x, shape of y)",
     "collapse_sum_like(%x, max(%y, axis=[0]))", "collapse_sum_to(%x, shape=[3])"),
    ("full_like(x, number) = full(number, shape of x)", "full_like(%x, max(%y))",
     'full(max(%y), shape=[2, 3], dtype="float32")'),
    *((f"{name}(qnn.dequantize(x, scale, zero)) = {name}(x)",
       f'{name}(qnn.dequantize(cast(less(%x, %y), dtype="int8"), 2f, 0), axis={axis})',
       f'{name}(cast(less(%x, %y), dtype="int8"), axis={axis})')
      for name, axis in (("argmax", "[1]"), ("argmin", "[0]"), ("argsort", "1"))),
    *((f"{name}(x, copies of number) = {name}(x, number)",
       f"{name}(%x, full_like(%y, 3f))", f"{name}(%x, 3f)")
      for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")),
    *(("minimum(min(x), 0) = minimum(maximum(max(x), 0), 0)", f"minimum(min({x}), 0f)",
       f"minimum(maximum(max({x}), 0f), 0f)")
      for x in ("nn.relu(%x)", "reshape(clip(%x, a_min=1f, a_max=6f), newshape=[6])",
                "transpose(sigmoid(%x))")),
    *(("minimum(min(x), 0) = minimum(maximum(max(x), 0), 0)", body, body)
      for body in ("minimum(min(%x), 0f)", "minimum(min(nn.relu(%x)), 1f)",
                   "minimum(min(clip(%x, a_min=0f, a_max=-1f)), 0f)",
                   "minimum(min(nn.pad(nn.relu(%x), -1f, pad_width=[[0, 1], [0, 0]])), 0f)")),
    ("add(x, copies of number) = add(x, number)",
     'add(zeros(shape=[3], dtype="float32"), %x)', "add(0f, %x)"),
    ("add(x, copies of number) = add(x, number)",
     'add(%x, ones(shape=[4, 2, 3], dtype="float32"))',
     'add(%x, ones(shape=[4, 2, 3], dtype="float32"))'),
    ("cast(cast(x, wider), dtype) = cast(x, dtype)",
     'cast(cast(clip(cast(%x, dtype="int32"), a_min=0f, a_max=255f), dtype="uint8"),'
     ' dtype="float32")',
     'cast(clip(cast(%x, dtype="int32"), a_min=0f, a_max=255f), dtype="float32")'),
    ("cast(cast(x, wider), dtype) = cast(x, dtype)",
     'cast(cast(clip(%x, a_min=0f, a_max=255f), dtype="int8"), dtype="int32")',
     'cast(cast(clip(%x, a_min=0f, a_max=255f), dtype="int8"), dtype="int32")'),
    ("multiply(add(x, c1), c2) = add(multiply(x, c2), multiply(c1, c2))",
     "multiply(2f, add(multiply(4f, %x), 3f))", "add(multiply(%x, 8f), 6f)"),
    ("concatenate((x,)) = x", "concatenate((%x,), axis=0)", "%x"),
]  # fmt: skip


def _main(body: str) -> str:
    return f"def @main({X}) {{ {body} }}"


def _allowing(tier: FloatTier) -> PassContext:
    return PassContext(config={"relay.float_rewrites": tier.name.lower()})


TIERS = {rule.equation: rule.tier for rule in SIMPLIFY_RULES}


@pytest.mark.parametrize("equation, before, after", CASES)
def test_simplify_rule_rewrites(equation: str, before: str, after: str) -> None:
    with _allowing(TIERS[equation]):
        check(SimplifyExpr(), _main(before), _main(after))


@pytest.mark.parametrize("equation, before, after", CASES)
def test_rule_does_nothing_below_its_tier(equation: str, before: str, after: str) -> None:
    others = {e for e, b, _ in CASES if b == before and TIERS[e] < TIERS[equation]}
    if TIERS[equation] is FloatTier.EXACT or others:
        return
    with _allowing(FloatTier(TIERS[equation] - 1)):
        assert calls(SimplifyExpr()(program(_main(before)))) == calls(program(_main(before)))


def test_every_rule_is_tested() -> None:
    assert {rule.equation for rule in SIMPLIFY_RULES} == {equation for equation, _, _ in CASES}
    assert (
        len(SIMPLIFY_RULES)
        == len(EXACT_EQUATIONS)
        + len(ROUNDED_EQUATIONS)
        + len(FREE_EQUATIONS)
        + len(SHAPE_RULES)
        + len(CALL_RULES)
        + 1
    )


def test_rule_is_written_once_when_a_call_of_its_operator_comes() -> None:
    """A program without such calls loads no operator that the rule names."""
    x, written = relay.var("x", shape=(2,)), []

    def write() -> tuple[DFPattern, Callable[[NodeMap], relay.Expr | None]]:
        written.append("negative")
        inner = wildcard()
        return is_op("negative")(inner), lambda result: result[inner][0]

    rule = RewriteRule("negative(x) = x", "negative", write)
    other = InferType()(ekiden.IRModule.from_expr(relay.exp(x)))["main"].body
    assert simplify_expr(other, [rule]) is other
    assert written == []
    call = relay.negative(x)
    assert rule.apply(call) is x and rule.apply(call) is x
    assert rule.apply(relay.exp(x)) is None
    assert written == ["negative"]


@pytest.mark.parametrize("equation, before, after", CASES)
def test_rule_keeps_the_meaning(equation: str, before: str, after: str) -> None:
    module = program(_main(before))
    rng = np.random.default_rng(0)
    args = [rng.uniform(0.5, 2, (2, 3)).astype(np.float32) for _ in "xy"]
    tier = TIERS[equation]
    with _allowing(tier):
        after = SimplifyExpr()(module)
    assert_same_meaning(module, after, args, rtol=0 if tier is FloatTier.EXACT else 1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "add(%x, zeros(shape=[4, 2, 3], dtype=\"float32\"))",  # the zeros give the result its shape
        "add(%x, meta)",
        "multiply(%x, 2f)",
        # some columns of rows, not all; other indices in each column; updates that are longer
        "scatter_elements(%x, broadcast_to(expand_dims(argmax(%y, axis=[0]), axis=1),"
        " shape=[3, 2]), zeros(shape=[3, 2], dtype=\"float32\"))",
        "gather(%x, broadcast_to(argmax(%y, axis=[0]), shape=[2, 3]), axis=0)",
        "scatter_elements(%x, broadcast_to(expand_dims(argmax(%y, axis=[0]), axis=1),"
        " shape=[3, 3]), zeros(shape=[4, 3], dtype=\"float32\"))",
        'cast(cast(%x, dtype="int32"), dtype="float32")',
        'cast(cast(%x, dtype="float16"), dtype="float32")',
        "transpose(%x, axes=[1, 0])",
        "strided_slice(%x, begin=[1, 0], end=[2, 3])",
        "reverse(reverse(%x, axis=[0]), axis=[1])",
        "where(less(%x, 0f), %x, %y)",
    ],
)  # fmt: skip
def test_unmatched_expressions_are_unchanged(body: str) -> None:
    text = _main(body.replace("meta", "broadcast_to(0f, shape=[4, 2, 3])"))
    module = program(text)
    assert SimplifyExpr()(module)["main"] is module["main"]


# What looks like a rule and is none: (parameters, body, arguments).
TRAPS = [
    ("%x: Tensor[(3,), uint8]", "abs(negative(%x))", [np.array([0, 1, 200], "uint8")]),
    ("%x: Tensor[(2,), int64]", 'cast(cast(%x, dtype="float64"), dtype="int64")',
     [np.array([2**53 + 1, -5])]),
    ("%x: Tensor[(3,), float32]", "nn.pad(%x, 0f, pad_width=[[1, -1]])",
     [np.array([1, 2, 3], "float32")]),
    ("%x: Tensor[(1, 2), int8], %z: Tensor[(2,), int32]",
     "argmax(qnn.dequantize(%x, 1f, %z), axis=[1])",
     [np.array([[1, 2]], "int8"), np.array([0, 50], "int32")]),
    ("%x: Tensor[(2,), int16]",
     'argmax(qnn.dequantize(%x, 1f, 0, out_dtype="float16"), axis=[0])',
     [np.array([32766, 32767], "int16")]),
    ("%x: Tensor[(2,), float32]", "qnn.dequantize(qnn.quantize(%x, 0.5f, 3), 0.5f, 3)",
     [np.array([np.nan, 1], "float32")]),
    ("%x: Tensor[(2,), float32]",
     'cast(cast(clip(%x, a_min=-128f, a_max=127f), dtype="int8"), dtype="int32")',
     [np.array([np.nan, 1], "float32")]),
]  # fmt: skip


@pytest.mark.parametrize("params, body, args", TRAPS)
def test_near_matches_keep_their_meaning(params: str, body: str, args: list[np.ndarray]) -> None:
    before = program(f"def @main({params}) {{ {body} }}")
    for one, other in zip(
        evaluate(before, args), evaluate(SimplifyExpr()(before), args), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_integers_of_few_bits_are_clipped_to_their_ends() -> None:
    text = "def @main(%x: Tensor[(4,), int4]) { clip(%x, a_min=-8f, a_max=HIGHf) }"
    assert calls(SimplifyExpr()(program(text.replace("HIGH", "7")))) == []
    assert calls(SimplifyExpr()(program(text.replace("HIGH", "6")))) == ["clip"]


def test_exact_leaves_rounding_alone() -> None:
    text = _main("add(add(divide(%x, sqrt(add(%y, -0f))), 1f), 2f)")
    assert calls(SimplifyExpr(exact=True)(program(text))) == ["sqrt", "divide", "add", "add"]
    assert calls(SimplifyExpr()(program(text))) == ["rsqrt", "multiply", "add"]


def test_rewrite_rules_compose() -> None:
    check(
        SimplifyExpr(),
        _main("negative(subtract(negative(multiply(transpose(transpose(%x)), 1f)), 0f))"),
        _main("%x"),
    )


@pytest.mark.slow
def test_long_chain() -> None:
    body = "%x"
    text = "\n".join(f"%{i} = add({f'%{i - 1}' if i else body}, 1f);" for i in range(2000))
    transformed = SimplifyExpr()(program(_main(text + "%1999")))
    assert calls(transformed) == ["add"]


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0, 1.0])
def test_maximum_with_zero_of_nonnegative_is_exact(special: float) -> None:
    module = program(_main("minimum(min(nn.relu(%x)), 0f)"))
    after = SimplifyExpr(exact=True)(module)
    assert "min(" not in str(after).replace("minimum(", "")
    x = np.full((2, 3), special, np.float32)
    assert_same_meaning(module, after, [x, x], rtol=0)
