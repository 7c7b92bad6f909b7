"""EliminateCommonSubexpr: equal pure calls are computed once."""

import pytest
from pass_checks import check

from ekiden.ir.op import get
from ekiden.relay.transform import EliminateCommonSubexpr

pytestmark = pytest.mark.quick


def test_equal_calls_are_shared() -> None:
    check(
        EliminateCommonSubexpr(),
        "def @main(%x: float32) { add(tanh(%x), tanh(%x)) }",
        "def @main(%x: float32) { %0 = tanh(%x); add(%0, %0) }",
    )


def test_sharing_works_upwards() -> None:
    check(
        EliminateCommonSubexpr(),
        "def @main(%x: float32) { add(exp(tanh(%x)), exp(tanh(%x))) }",
        "def @main(%x: float32) { %0 = tanh(%x); %1 = exp(%0); add(%1, %1) }",
    )


def test_equal_small_constants_are_one() -> None:
    check(
        EliminateCommonSubexpr(),
        "def @main(%x: float32) { multiply(add(%x, 2f), add(%x, 2f)) }",
        "def @main(%x: float32) { %0 = add(%x, 2f); multiply(%0, %0) }",
    )


def test_attributes_tell_calls_apart() -> None:
    text = """def @main(%x: Tensor[(2, 3), float32]) {
      (sum(%x, axis=[0]), sum(%x, axis=[1])) }"""
    check(EliminateCommonSubexpr(), text, text)


def test_order_of_operands_counts() -> None:
    text = "def @main(%x: float32, %y: float32) { (subtract(%x, %y), subtract(%y, %x)) }"
    check(EliminateCommonSubexpr(), text, text)


def test_constants_of_another_dtype_are_others() -> None:
    text = """def @main(%x: float32, %y: float64) { (add(%x, 1f), add(%y, 1f64)) }"""
    check(EliminateCommonSubexpr(), text, text)


def test_projections_are_shared() -> None:
    check(
        EliminateCommonSubexpr(),
        "def @main(%t: (float32, float32)) { add(tanh(%t.0), tanh(%t.0)) }",
        "def @main(%t: (float32, float32)) { %0 = %t.0; %1 = tanh(%0); add(%1, %1) }",
    )


def test_equal_tuples_are_one() -> None:
    check(
        EliminateCommonSubexpr(),
        "def @main(%x: float32) { ((%x, tanh(%x)), (%x, tanh(%x))) }",
        "def @main(%x: float32) { %0 = tanh(%x); %1 = (%x, %0); (%1, %1) }",
    )


def test_skipped_calls_are_not_shared() -> None:
    check(
        EliminateCommonSubexpr(lambda expr: getattr(expr, "op", None) == get("add")),
        "def @main(%x: float32) { subtract(add(tanh(%x), %x), add(tanh(%x), %x)) }",
        "def @main(%x: float32) { %0 = tanh(%x); subtract(add(%0, %x), add(%0, %x)) }",
    )


def test_closure_does_not_capture_fused_values() -> None:
    text = """def @main(%x: float32) {
      let %f = fn (%a: float32) -> float32 { multiply(%a, exp(%x)) };
      (exp(%x), %f) }"""
    check(EliminateCommonSubexpr(), text, text)


def test_closure_shares_what_does_not_fuse() -> None:
    check(
        EliminateCommonSubexpr(),
        """def @main(%x: Tensor[(9,), float32]) {
          let %f = fn (%a: Tensor[(9,), float32]) { multiply(%a, sort(%x)) }; (sort(%x), %f) }""",
        """def @main(%x: Tensor[(9,), float32]) {
          %0 = sort(%x);
          let %f = fn (%a: Tensor[(9,), float32]) { multiply(%a, %0) }; (%0, %f) }""",
    )
