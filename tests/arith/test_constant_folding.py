"""Constant folding and evaluation give the machine's results for each dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ekiden.arith import evaluate
from ekiden.ir.prim import (
    Add,
    Cast,
    FloatImm,
    FloorDiv,
    IntImm,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    cast,
    const,
    fold_binary,
)

pytestmark = pytest.mark.quick

X = Var("x", "int32")


def test_sizes_do_not_wrap() -> None:
    """Those of int64: what is too large is to be found, not to begin anew."""
    n = Var("n", "int64")
    assert evaluate(Add(n, const(1)), {n: 2**63 - 1}) == 2**63
    assert evaluate(FloorDiv(Mul(n, const(2**62)), const(2**61)), {n: 4}) == 8


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint64"])
def test_integers_wrap_around(dtype: str) -> None:
    x, ends = Var("x", dtype), np.iinfo(dtype)
    assert evaluate(Add(x, const(1, dtype)), {x: int(ends.max)}) == ends.min
    assert evaluate(Sub(x, const(1, dtype)), {x: int(ends.min)}) == ends.max
    wide = 123456789123456789
    n = Var("n", "int64")
    assert evaluate(Cast(n, dtype), {n: wide}) == np.int64(wide).astype(dtype)


def test_nan_and_infinity_do_not_fold_to_integers() -> None:
    big = Mul(Cast(X, "float32"), const(1e38, "float32"))
    with pytest.raises(ValueError, match="inf has no value as int32"):
        evaluate(Cast(big, "int32"), {X: 100})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_folds_in_its_dtype(dtype: str) -> None:
    kind = np.dtype(dtype).type
    a, b, c = kind(0.1), kind(0.2), kind(1e-3)
    result = const(0.1, dtype) + const(0.2, dtype) + const(1e-3, dtype)
    assert isinstance(result, FloatImm) and result.value == float(a + b + c)
    product = const(0.1, dtype) * const(0.7, dtype)
    assert isinstance(product, FloatImm) and product.value == float(kind(0.1) * kind(0.7))


def test_float_that_leaves_its_dtype_is_infinite() -> None:
    result = const(1e30, "float32") * const(1e30, "float32")
    assert isinstance(result, FloatImm) and result.value == math.inf


def test_casts_round_like_the_machine() -> None:
    result = cast(cast(const(0.1, "float64"), "float32"), "float64")
    assert isinstance(result, FloatImm) and result.value == float(np.float32(0.1))
    compared = const(0.1, "float32").equal(cast(const(0.1, "float64"), "float32"))
    assert isinstance(compared, IntImm) and compared.value == 1


@pytest.mark.parametrize("kind", [Min, Max])
@pytest.mark.parametrize("pair", [(math.nan, 1.0), (1.0, math.nan)])
def test_min_and_max_propagate_nan(kind: type[Min | Max], pair: tuple[float, float]) -> None:
    result = fold_binary(kind, const(pair[0], "float32"), const(pair[1], "float32"))
    assert isinstance(result, FloatImm) and math.isnan(result.value)


def test_untaken_select_branch_may_divide_by_zero() -> None:
    chosen = Select(X > 0, const(8, "int32") // X, const(-1, "int32"))
    assert evaluate(chosen, {X: 0}) == -1 and evaluate(chosen, {X: 3}) == 2
