"""Tiers of floating-point rewrites, in every executor."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from pass_checks import calls, program

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import PassContext
from ekiden.relay.transform import FoldScaleAxis, InferType, SimplifyInference, SumConvolutions
from ekiden.relay.transform.graph.float_rewrites import FLOAT_REWRITES
from ekiden.runtime.errors import CompileError, PassError

VALUES = [0.3, 0.5, 1.5, 2.5, -1.2, 7.7]
SOURCES = Path(ekiden.__file__).parent


def _rounding_constant(dtype: str) -> Array:
    """Return 1.5 * 2**p: numbers of its binade are whole."""
    return np.asarray(1.5 * 2.0 ** ml_dtypes.finfo(dtype).nmant, dtype)


def _rounded_program(dtype: str, build: str) -> IRModule:
    x, c = relay.var("x", shape=(6,), dtype=dtype), relay.const(_rounding_constant(dtype))
    sums = {
        "(x + c) - c": lambda: (x + c) - c,
        "(x - c) + c": lambda: (x - c) + c,
        "-c + (c + x)": lambda: relay.negative(c) + (c + x),
        "bias": lambda: relay.nn.bias_add(relay.nn.bias_add(x, _vector(c), 0), _vector(-c), 0),
    }
    return InferType()(IRModule.from_expr(relay.Function([x], sums[build]())))


def _vector(c: relay.Expr) -> relay.Expr:
    return relay.broadcast_to(c, (6,))


@pytest.mark.parametrize("executor", ["vm", "aot", "graph", "debug"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_constants_that_cancel_round_in_every_executor(executor: str, dtype: str) -> None:
    x, c = np.asarray(VALUES, dtype), _rounding_constant(dtype)
    module = _rounded_program(dtype, "(x + c) - c")
    run = relay.create_executor(executor, module).evaluate()
    np.testing.assert_array_equal(np.asarray(run(x).numpy(), dtype), (x + c) - c)


@pytest.mark.parametrize("build", ["(x - c) + c", "-c + (c + x)", "bias"])
@pytest.mark.parametrize("tier", ["full", "quick"])
def test_constants_that_cancel_round_however_they_are_written(build: str, tier: str) -> None:
    x = np.asarray(VALUES, np.float32)
    exe = ekiden.compile(_rounded_program("float32", build), tier=tier)
    actual = [exe(x).numpy()]
    if tier == "quick":
        exe.wait()
        actual.append(exe(x).numpy())
    c = _rounding_constant("float32")
    expected = (x - c) + c if build.startswith("(x -") else (x + c) - c
    for result in actual:
        np.testing.assert_array_equal(result, expected)


def test_signed_zeros_are_kept_below_tier_free() -> None:
    text = "def @main(%x: Tensor[(2,), float32]) { (add(%x, 0f), subtract(%x, 0f), add(%x, -0f)) }"
    module, x = program(text), np.array([-0.0, 1], np.float32)
    signs = {
        tier: [
            bool(np.signbit(r.numpy()[0])) for r in ekiden.compile(module, float_rewrites=tier)(x)
        ]
        for tier in ("exact", "rounded", "free")
    }
    assert signs["exact"] == signs["rounded"] == [False, True, True]
    assert signs["free"] == [True, True, True]


def test_intermediate_result_that_overflows_does_so() -> None:
    module = program(
        "def @main(%x: Tensor[(2,), float32]) { multiply(multiply(%x, 1e30f), 1e-30f) }"
    )
    x = np.array([1e10, 1], np.float32)
    assert ekiden.compile(module)(x).numpy().tolist() == [np.inf, 1]
    assert ekiden.compile(module, float_rewrites="free")(x).numpy()[0] == pytest.approx(1e10)


CONV = """def @main(%x: Tensor[(1, 2, 3, 3), float32], %w: Tensor[(2, 2, 1, 1), float32],
                    %b: Tensor[(2, 1, 1), float32], %s: Tensor[(2, 1, 1), float32]) {
    BODY }"""


def _conv(body: str, bias: float, scale: float = 1) -> IRModule:
    values = {"b": np.full((2, 1, 1), bias, np.float32), "s": np.full((2, 1, 1), scale, np.float32)}
    weight = np.array([[0.5, -0.25], [0.125, 1]], np.float32).reshape(2, 2, 1, 1)
    return program(CONV.replace("BODY", body), w=weight, **values)


def test_bias_that_rounds_a_convolution_stays() -> None:
    body = "subtract(add(nn.conv2d(%x, %w), %b), %b)"
    assert calls(FoldScaleAxis()(_conv(body, 12582912))) == ["nn.conv2d", "add", "add"]
    x = np.random.default_rng(0).uniform(-9, 9, (1, 2, 3, 3)).astype(np.float32)
    result = ekiden.compile(_conv(body, 12582912))(x).numpy()
    np.testing.assert_array_equal(result, np.round(result))


def test_biases_are_merged_despite_cancellation() -> None:
    body = "subtract(add(nn.conv2d(%x, %w), %b), %b)"
    assert calls(FoldScaleAxis()(_conv(body, 1))) == ["nn.conv2d", "add"]


AFFINE = """def @main(%x: Tensor[(1, 3, 2, 2), float32],
    %a: Tensor[(3, 1, 1), float32], %t: Tensor[(3, 1, 1), float32],
    %b: Tensor[(3, 1, 1), float32], %u: Tensor[(3, 1, 1), float32]) {
    add(multiply(add(multiply(%x, %a), %t), %b), %u) }"""


def _affine(a: float, t: float, b: float, u: float) -> IRModule:
    """Return two affine steps; only the first of three channels has these constants."""
    rows = {"a": (a, 0.5, 2), "t": (t, 1, -1), "b": (b, 0.5, 2), "u": (u, -0.25, 0.5)}
    values = {k: np.array(row, np.float32).reshape(3, 1, 1) for k, row in rows.items()}
    return program(AFFINE, **values)


@pytest.mark.parametrize("factors", [(1.25, 0.8), (0.75, 1.5), (0.25, 0.5), (-1.25, 0), (3, 4)])
def test_two_normalisations_in_a_row_become_one(factors: tuple[float, float]) -> None:
    a, b = factors
    before = _affine(a, 0.3, b, -0.3)
    after = FoldScaleAxis()(before)
    assert calls(after) == ["multiply", "add"]
    x = np.random.default_rng(0).uniform(-9, 9, (1, 3, 2, 2)).astype(np.float32)
    results = [ekiden.compile(m, float_rewrites="exact")(x).numpy() for m in (before, after)]
    # three roundings of terms of at most 9 * 3 * 4
    np.testing.assert_allclose(*results, rtol=0, atol=3 * 108 * 2.0**-24)


@pytest.mark.parametrize("factors", [(1e30, 1e-30), (1e-30, 1e30), (1e6, 0.5)])
def test_out_of_range_affine_steps_are_not_merged(factors: tuple[float, float]) -> None:
    a, b = factors
    module = _affine(a, 0.3, b, 0.3)
    assert calls(FoldScaleAxis()(module)) == ["multiply", "add", "multiply", "add"]


def test_bias_that_rounds_a_normalisation_stays() -> None:
    module = _affine(1, 12582912, 1, -12582912)
    assert calls(FoldScaleAxis()(module)) == ["multiply", "add", "add"]
    x = np.random.default_rng(0).uniform(-9, 9, (1, 3, 2, 2)).astype(np.float32)
    result = ekiden.compile(module)(x).numpy()[:, 0]
    np.testing.assert_array_equal(result, np.round(x[:, 0]))


@pytest.mark.parametrize(("size", "left"), [(1e9, 2), (1, 1)])
def test_weights_that_cancel_are_not_added_up(size: float, left: int) -> None:
    text = """def @main(%x: Tensor[(1, 1, 2, 2), float32], %v: Tensor[(1, 1, 1, 1), float32],
                        %w: Tensor[(1, 1, 1, 1), float32]) {
                add(nn.conv2d(%x, %v), nn.conv2d(%x, %w)) }"""
    v = np.full((1, 1, 1, 1), size, np.float32)
    w = np.full((1, 1, 1, 1), -size + (1 if size == 1 else 64) / 2, np.float32)
    assert calls(SumConvolutions()(program(text, v=v, w=w))).count("nn.conv2d") == left


NORMALISED = """def @main(%x: Tensor[(1, 2, 3), float32], %a: Tensor[(2,), float32],
    %b: Tensor[(2,), float32], %m: Tensor[(2,), float32], %v: Tensor[(2,), float32]) {
    %0 = nn.batch_norm(%x, %a, %b, %m, %v); %0.0 }"""


def test_exact_keeps_operators_as_they_are() -> None:
    scaled = _conv("multiply(nn.conv2d(%x, %w), %s)", 1, 3)
    with PassContext(config={"relay.float_rewrites": "exact"}):
        assert calls(FoldScaleAxis()(scaled)) == ["nn.conv2d", "multiply"]
        assert calls(SimplifyInference()(program(NORMALISED))) == ["nn.batch_norm"]
    assert calls(FoldScaleAxis()(scaled)) == ["nn.conv2d"]


def test_batch_normalisation_compiles_exactly() -> None:
    rng = np.random.default_rng(0)
    parts = {n: rng.uniform(1, 2, 2).astype(np.float32) for n in "abv"}
    mean = np.full(2, 1e6, np.float32)
    module = program(NORMALISED, **parts, m=mean)
    x = (1e6 + rng.integers(-8, 8, (1, 2, 3))).astype(np.float32)
    a, b, v = (parts[n].astype(np.float64)[:, None] for n in "abv")
    expected = (x.astype(np.float64) - 1e6) / np.sqrt(v + 1e-5) * a + b
    result = ekiden.compile(module, float_rewrites="exact")(x).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_unknown_tier_is_refused() -> None:
    module = program("def @main(%x: Tensor[(2,), float32]) { exp(%x) }")
    with pytest.raises(CompileError, match=r"float_rewrites one of 'exact', 'rounded', 'free'"):
        ekiden.compile(module, float_rewrites="fast")
    with (
        PassContext(config={"relay.float_rewrites": "fast"}),
        pytest.raises(PassError, match=r"'relay.float_rewrites' is one of 'exact', .* got 'fast'"),
    ):
        FoldScaleAxis()(module)


def test_every_float_rewrite_is_used_by_a_pass() -> None:
    text = "\n".join(p.read_text() for p in (SOURCES / "relay").rglob("*.py"))
    asked = set(re.findall(r'is_rewrite_allowed\("([^"]+)"', text))
    asked |= set(re.findall(r'call_pass\(\s*"[^"]+",[^"]*lambda: {[^}]*}, "([^"]+)"', text))
    by_name = {"approximate functions"}  # FastMath runs for who names it, or at opt level 4
    assert asked | by_name == {row.name for row in FLOAT_REWRITES}
