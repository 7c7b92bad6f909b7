"""MergeRequantization: integer sums are requantised by one factor."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import calls, program

import ekiden
from ekiden.relay.analysis import verify
from ekiden.relay.transform import MergeRequantization
from ekiden.runtime import tensor
from processor import processors

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
SUMS = RNG.integers(-(10**6), 10**6, (2, 4, 3, 3)).astype("int32")
BIAS = np.float32([0.5, -1, 3, 0]).reshape(4, 1, 1)


def merged(body: str, **weights: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The calls that are left of a body over `%x`, and how far levels are from those before."""
    argument = "".join(f", %{n}: Tensor[{w.shape}, {w.dtype}]" for n, w in weights.items())
    text = f"def @main(%x: Tensor[(2, 4, 3, 3), int32]{argument}) {{ {body} }}"
    before = program(text, **weights)
    after = MergeRequantization()(before)
    verify(after)
    one, other = (
        np.asarray(ekiden.compile(m, float_rewrites="exact")(tensor(SUMS)).numpy())
        for m in (before, after)
    )
    return calls(after), np.abs(one.astype("float64") - other)


def test_scale_a_bias_and_a_quotient_are_one_factor() -> None:
    left, apart = merged(
        """%0 = multiply(cast(%x, dtype="float32"), 3e-4f);
           round(divide(add(%0, %b), 0.02f))""",
        b=BIAS,
    )
    assert left == ["cast", "multiply", "add", "round"]
    assert apart.max() <= 1
    assert apart.mean() < 0.01


def test_each_term_of_a_residual_is_scaled() -> None:
    left, apart = merged(
        """%0 = multiply(cast(%x, dtype="float32"), 3e-4f);
           %1 = multiply(0.7f, cast(%y, dtype="float32"));
           round(divide(nn.relu(add(%1, add(%0, %b))), 0.02f))""",
        b=BIAS,
        y=RNG.integers(-128, 128, (2, 4, 3, 3)).astype("int8"),
    )
    assert "divide" not in left
    assert left.count("multiply") == 2
    assert apart.max() <= 1


def test_factors_and_quotients_are_merged() -> None:
    left, apart = merged(
        'round(multiply(add(multiply(cast(%x, dtype="float32"), 3e-4f), %b), 50f))', b=BIAS
    )
    assert left == ["cast", "multiply", "add", "round"]
    assert apart.max() <= 1


@pytest.mark.parametrize(
    "body",
    [
        'round(divide(cast(%x, dtype="float32"), 0.02f))',  # no factor that takes it
        'divide(multiply(cast(%x, dtype="float32"), 3e-4f), 0.02f)',  # not rounded to a level
        """%0 = multiply(cast(%x, dtype="float32"), 3e-4f);
           add(round(divide(%0, 0.02f)), %0)""",  # read by another
        'round(divide(nn.relu(multiply(cast(%x, dtype="float32"), 3e-4f)), -0.02f))',
        'round(divide(multiply(cast(%x, dtype="float32"), 1e-30f), 1e30f))',  # out of range
        'round(divide(add(multiply(cast(%x, dtype="float32"), 3f), exp(%y)), 7f))',
    ],
)
def test_values_without_own_scale_are_unchanged(body: str) -> None:
    left, apart = merged(body, y=np.zeros((2, 4, 3, 3), "float32"))
    assert "divide" in left
    assert apart.max() == 0


def test_exact_programs_keep_their_quotient() -> None:
    text = """def @main(%x: Tensor[(4,), int32]) {
      round(divide(multiply(cast(%x, dtype="float32"), 3e-4f), 0.02f)) }"""
    with ekiden.transform.PassContext(config={"relay.float_rewrites": "exact"}):
        assert "divide" in calls(MergeRequantization()(program(text)))


@pytest.mark.parametrize(("point", "dtype"), [(3, "uint8"), (0, "uint8"), (-7, "int8")])
def test_rounding_and_conversion_are_merged(point: int, dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    text = f"""def @main(%x: Tensor[(9, 33), float32]) {{
      cast(clip(add(round(%x), {point}f), a_min={low}f, a_max={high}f), dtype="{dtype}") }}"""
    before = program(text)
    after = MergeRequantization()(before)
    verify(after)
    left = calls(after)
    assert left == ["clip", "round", "cast", *(["add"] if point else []), "cast"]
    x = RNG.standard_normal((9, 33)).astype("float32") * 200
    x[0] = np.arange(33) - 16.5  # halves go to the even neighbour
    x[1, :4] = [np.inf, -np.inf, 3e9, -3e9]
    expected = np.clip(np.round(x) + point, low, high).astype(dtype)
    for text in processors():
        result = ekiden.compile(after, text)(tensor(x)).numpy()
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(ekiden.compile(after, tier="quick")(tensor(x)).numpy(), expected)


@pytest.mark.parametrize(
    "body",
    [
        'cast(clip(add(round(%x), 0.5f), a_min=0f, a_max=255f), dtype="uint8")',
        'cast(clip(round(%x), a_min=0.5f, a_max=255f), dtype="uint8")',
        'cast(clip(round(%x), a_min=0f, a_max=300f), dtype="uint8")',
        'cast(clip(round(%x), a_min=0f, a_max=255f), dtype="int32")',
        '%0 = round(%x); (cast(clip(%0, a_min=0f, a_max=255f), dtype="uint8"), %0)',
    ],
)
def test_non_int8_levels_are_unchanged(body: str) -> None:
    before = program(f"def @main(%x: Tensor[(9,), float32]) {{ {body} }}")
    assert calls(MergeRequantization()(before)) == calls(before)
