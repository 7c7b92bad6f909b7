"""Constants that passes merge keep their range: x * 1e30 * 1e30 is no x * inf."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, evaluate, program

from ekiden.ir.pass_context import PassContext
from ekiden.ir.transform import Pass
from ekiden.relay.transform import (
    BackwardFoldScaleAxis,
    DivToMul,
    FoldScaleAxis,
    ForwardFoldScaleAxis,
    SimplifyExpr,
)
from ekiden.relay.transform.graph.constant_arithmetic import (
    fold_product,
    fold_quotient,
    fold_sum,
    scale_weights,
)

pytestmark = pytest.mark.quick

CHAINS = [  # an expression of x, of x where the merged constant would give another number
    ("multiply(multiply(%x, 1e30f), 1e30f)", [1e-30, 0.0, -1e-25]),
    ("multiply(multiply(%x, 1e-30f), 1e-30f)", [1e38, 1.0, 0.0]),
    ("multiply(multiply(%x, 1e-30f), 1e-12f)", [1e38, 1.0, 0.0]),
    ("add(add(%x, 3e38f), 3e38f)", [-3e38, 0.0, 1.0]),
    ("subtract(subtract(%x, 3e38f), 3e38f)", [3e38, 0.0, 1.0]),
    ("multiply(add(%x, 1e30f), 1e30f)", [-1e30, 0.0, 1.0]),
    ("multiply(add(%x, 1e7f), 0.1f)", [-1e7, 1.0 - 1e7, 1.0]),
    ("multiply(multiply(%x, 1e30f), 1e-30f)", [1e10, 0.0, 1.0]),
    ("multiply(multiply(%x, 1e-30f), 1e30f)", [1e-20, 0.0, 1.0]),
    ("subtract(add(%x, 12582912f), 12582912f)", [0.3, 1.5, 7.7]),
    ("add(subtract(%x, 12582912f), 12582912f)", [0.3, 1.5, 7.7]),
    ("add(-12582912f, add(12582912f, %x))", [0.3, 1.5, 7.7]),
    ("add(add(%x, 1e8f), -99999992f)", [0.3, 1.5, 7.7]),
    ("add(add(add(%x, 1f), 12582911f), -12582912f)", [0.3, 1.5, 7.7]),
    ("add(%x, 0f)", [-0.0, 0.0, 1.0]),
    ("subtract(%x, -0f)", [-0.0, 0.0, 1.0]),
]


@pytest.mark.parametrize("make", [FoldScaleAxis, SimplifyExpr])
@pytest.mark.parametrize(("text", "values"), CHAINS)
def test_chain_keeps_its_values(text: str, values: list[float], make: Callable[[], Pass]) -> None:
    before = program(f"def @main(%x: Tensor[(3,), float32]) {{ {text} }}")
    after, args = make()(before), [np.array(values, np.float32)]
    assert_same_meaning(before, after, args)
    (old,), (new,) = evaluate(before, args), evaluate(after, args)
    np.testing.assert_array_equal(np.signbit(new), np.signbit(old))


@pytest.mark.parametrize("make", [FoldScaleAxis, SimplifyExpr])
@pytest.mark.parametrize(
    ("body", "tier"),
    [
        ("multiply(multiply(%x, 1e20f), 1e10f)", "rounded"),
        ("multiply(multiply(%x, 0.5f), 0.1f)", "rounded"),
        ("add(subtract(%x, -1f), 3f)", "rounded"),
        ("multiply(multiply(%x, 1e30f), 1e-30f)", "free"),
        ("add(subtract(%x, 12582912f), 12582912f)", "free"),
    ],
)
def test_constants_in_range_are_merged(make: Callable[[], Pass], body: str, tier: str) -> None:
    before = program(f"def @main(%x: Tensor[(3,), float32]) {{ {body} }}")
    with PassContext(config={"relay.float_rewrites": tier}):
        assert len(calls(make()(before))) < 2
    with PassContext(config={"relay.float_rewrites": "exact"}):
        assert len(calls(make()(before))) == 2


@pytest.mark.parametrize("divisor", ["1e-40f", "3e38f"])
def test_division_without_an_inverse_stays(divisor: str) -> None:
    before = program(f"def @main(%x: Tensor[(2,), float32]) {{ divide(%x, {divisor}) }}")
    after = DivToMul()(before)
    assert calls(after) == ["divide"]


CONV = """def @main(%x: Tensor[(1, 2, 4, 4), float16], %w: Tensor[(3, 2, 1, 1), float16],
                    %s: Tensor[(C, 1, 1), float16], %b: Tensor[(C, 1, 1), float16]) { BODY }"""

FOLDS = [  # pass, body, channels of the scale, weight, scale, bias, x
    (FoldScaleAxis, "multiply(nn.conv2d(%x, %w), %s)", 3, 3e4, 8, 1, 2**-14),
    (BackwardFoldScaleAxis, "multiply(nn.conv2d(%x, %w), %s)", 3, 3e4, 8, 1, 2**-14),
    (BackwardFoldScaleAxis, "multiply(nn.conv2d(%x, %w), %s)", 3, 2**-13, 2**-13, 1, 2**13),
    (BackwardFoldScaleAxis, "multiply(nn.relu(nn.conv2d(%x, %w)), %s)", 3, 3e4, 8, 1, 2**-14),
    (FoldScaleAxis, "multiply(add(nn.conv2d(%x, %w), %b), %s)", 3, 2, 8, -3e4, 7500),
    (BackwardFoldScaleAxis, "multiply(add(nn.conv2d(%x, %w), %b), %s)", 3, 2, 8, -3e4, 7500),
    (ForwardFoldScaleAxis, "nn.conv2d(multiply(%x, %s), %w)", 2, 3e4, 8, 1, 2**-14),
    (ForwardFoldScaleAxis, "nn.conv2d(nn.relu(multiply(%x, %s)), %w)", 2, 3e4, 8, 1, 2**-14),
    (ForwardFoldScaleAxis, "nn.conv2d(add(multiply(%x, %s), %b), %w)", 2, 1, 2**-8, 1e4, 2),
    (ForwardFoldScaleAxis, "nn.conv2d(add(multiply(%x, %s), %b), %w)", 2, 1, 1e4, 2**-8, 2),
]


@pytest.mark.parametrize(("make", "body", "channels", "w", "s", "b", "x"), FOLDS)
def test_weight_keeps_its_values(
    make: Callable[[], Pass], body: str, channels: int, w: float, s: float, b: float, x: float
) -> None:
    text = CONV.replace("C,", f"{channels},").replace("BODY", body)
    scale = np.full((channels, 1, 1), s, np.float16)
    shift = np.full((channels, 1, 1), b, np.float16)
    before = program(text, w=np.full((3, 2, 1, 1), w, np.float16), s=scale, b=shift)
    after = make()(before)
    assert "multiply" in calls(after)
    assert_same_meaning(before, after, [np.full((1, 2, 4, 4), x, np.float16)])


def test_zero_channel_does_not_block_scale_folding() -> None:
    text = CONV.replace("C,", "3,").replace("float16", "float32")
    weight = np.ones((3, 2, 1, 1), np.float32)
    weight[1] = 1e-25
    scale = np.array([1, 1e-20, 1], np.float32).reshape(3, 1, 1)
    body = text.replace("BODY", "multiply(nn.conv2d(%x, %w), %s)")
    assert calls(FoldScaleAxis()(program(body, w=weight, s=scale, b=scale))) == ["nn.conv2d"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_merged_constants_at_dtype_limits(dtype: str) -> None:
    ends = ml_dtypes.finfo(dtype)
    top, tiny, one = (np.asarray(v, dtype) for v in (ends.max, ends.tiny, 1))
    half, zero = np.asarray(0.5, dtype), np.asarray(0, dtype)
    assert fold_sum(top, top) is None and fold_sum(top, -top) is None
    assert fold_sum(top, -top / 2) is None and fold_sum(one, one) == 2
    assert fold_sum(one, -one, terms=one) == 0 and fold_sum(top, -top, terms=one) is None
    assert fold_product(top, top) is None and fold_product(tiny, tiny) is None
    assert fold_product(tiny, half) is None and fold_product(tiny, one) == tiny
    assert fold_product(tiny, zero) == 0 and fold_product(np.asarray(np.inf, dtype), one) == np.inf
    assert fold_quotient(tiny, top) is None and fold_quotient(top, tiny) is None
    assert scale_weights(np.asarray([1, ends.tiny], dtype), half) is not None


def test_merged_integer_constants_wrap() -> None:
    top = np.asarray(127, np.int8)
    assert fold_sum(top, top) == -2 and fold_product(top, top) == 1
