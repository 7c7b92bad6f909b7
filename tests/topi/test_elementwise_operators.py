"""Elementwise, broadcasting and reduction operators against NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from ekiden import te, topi
from ekiden.ir.prim import SizeVar
from long_runs import share
from topi_cases import BACKENDS, Case, case, check, every_backend, integers, normal

SHAPES = ((), (0,), (1,), (3, 0, 2), (2, 1, 5), (3, 33))
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.0, 1e-30, 1e30], "float32")
INTS = ("int8", "uint8", "int32", "int64")


def inverse(name: str) -> str:
    """NumPy's name of an inverse function."""
    return name if name in ("tan", "sinh", "cosh") else name.replace("a", "arc", 1)


def elementwise() -> Iterator[Case]:
    """Functions of one argument."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x.astype("float64")))  # noqa: E731
    erf = np.vectorize(math.erf, otypes=["float64"])
    functions = {
        "exp": np.exp, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "sigmoid": sigmoid,
        "erf": erf, "fast_exp": np.exp, "fast_tanh": np.tanh, "fast_erf": erf, "abs": np.abs,
        "negative": np.negative, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
        "round": np.round, "trunc": np.trunc, "copy": np.array, "identity": np.array,
        "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
        "logical_not": np.logical_not,
    }  # fmt: skip
    for name, function in functions.items():
        for shape in SHAPES if name in ("exp", "abs", "trunc") else ((3, 33),):
            x = normal(*shape)
            result = np.asarray(function(x))
            yield case(
                name, x, expected=result if result.dtype == bool else result.astype("float32")
            )
    for name in ("isnan", "isinf", "isfinite", "sign", "floor", "trunc", "abs", "tanh"):
        yield case(name, SPECIAL, expected=np.asarray(functions[name](SPECIAL)))
    for name in ("log", "sqrt"):
        yield case(name, np.abs(normal(3, 9)), expected=getattr(np, name))
    yield case("rsqrt", np.abs(normal(3, 9)) + 1, expected=lambda x: 1 / np.sqrt(x))
    for dtype in (*INTS, "float64"):
        for name in ("abs", "negative", "sign", "floor", "round", "copy"):
            x = normal(3, 5, dtype=dtype)
            yield case(name, x, expected=np.asarray(functions[name](x)).astype(dtype))
    for dtype in (*INTS, "bool", "uint32"):
        yield case("bitwise_not", normal(3, 5, dtype=dtype), expected=np.invert)
    for target in ("int32", "float64", "bool", "uint8"):
        x = np.abs(normal(4, 6)) * 3
        yield case("cast", x, dtype=target, expected=x.astype(target))
    for source, target in (("float32", "int32"), ("int8", "uint8"), ("int64", "float64")):
        x = normal(3, 5, dtype=source)
        yield case("reinterpret", x, dtype=target, expected=x.view(target))
    for bounds in ((-0.5, 0.5), (-math.inf, 0.25), (0, math.inf)):
        low, high = bounds
        yield case(
            "clip", normal(3, 9), a_min=low, a_max=high, expected=lambda x, b=bounds: x.clip(*b)
        )
    yield case("clip", normal(9, dtype="int8"), a_min=-3, a_max=200, expected=lambda x: x.clip(-3))


def transcendental() -> Iterator[Case]:
    """Compositions, near zeros and poles too."""
    tiny = np.array([0.0, -0.0, 1e-12, -1e-6, 1e-3, -0.1], "float64")
    ranges = {
        "tan": np.linspace(-20, 20, 41), "sinh": np.linspace(-80, 80, 41),
        "cosh": np.linspace(-80, 80, 41), "asinh": np.linspace(-1e12, 1e12, 41),
        "atan": np.linspace(-30, 30, 41), "asin": np.linspace(-1, 1, 41),
        "acos": np.linspace(-1, 1, 41), "atanh": np.linspace(-0.999, 0.999, 41),
        "acosh": np.linspace(1, 1e12, 41), "log1p": np.linspace(-0.999, 100, 41),
        "log2": 10.0 ** np.linspace(-30, 30, 41), "log10": 10.0 ** np.linspace(-30, 30, 41),
    }  # fmt: skip
    for name, values in ranges.items():
        function = getattr(np, name if name[:3] == "log" else inverse(name))
        near = np.abs(tiny) + 1 if name == "acosh" else tiny
        every = values if name in ("log2", "log10") else np.concatenate([values, near])
        for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-14)):
            x = every.astype(dtype)
            with np.errstate(all="ignore"):
                expected = np.asarray(function(x.astype("longdouble"))).astype(dtype)
            yield case(name, x, expected=expected, tolerance=tolerance)
    whole = np.array([0, 1, 5], "int32")
    yield case("log1p", whole, expected=np.log1p(whole).astype("float32"))
    half = np.array([0.5, -0.25], "float16")
    yield case("atan", half, expected=np.arctan, tolerance=1e-3)


def broadcasting() -> Iterator[Case]:
    """Functions of two arguments."""
    truncated = lambda a, b: np.trunc(a / b)  # noqa: E731
    arithmetic = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
        "maximum": np.maximum, "minimum": np.minimum, "floor_divide": np.floor_divide,
        "floor_mod": np.mod, "mod": np.fmod, "trunc_mod": np.fmod, "trunc_divide": truncated,
        "atan2": np.arctan2,
    }  # fmt: skip
    comparisons = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    logic = ("logical_and", "logical_or", "logical_xor")
    pairs = (((), ()), ((), (3, 4)), ((5,), (3, 5)), ((3, 1), (1, 4)), ((2, 0), (1, 0)))
    for a, b in pairs:
        for name, function in arithmetic.items():
            if name in ("add", "divide", "mod") or a == (5,):
                yield case(name, normal(*a), np.abs(normal(*b)) + 0.5, expected=function)
        for name in (*comparisons, *logic) if a in ((5,), ()) else ():
            yield case(name, normal(*a), normal(*b), expected=getattr(np, name))
    yield case("power", np.abs(normal(3, 4)), normal(4), expected=np.power, tolerance=1e-4)
    for dtype in INTS:
        x, y = normal(5, 7, dtype=dtype), integers(1, 4, 7, dtype=dtype)
        for name in ("add", "multiply", "floor_divide", "floor_mod", "maximum", "less"):
            function = arithmetic.get(name, getattr(np, name, None))
            yield case(name, x, y, expected=function)
        yield case("trunc_mod", x, y, expected=np.fmod)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
            yield case(name, x, y, expected=getattr(np, name))
    x = normal(3, 4)
    yield case("add", x, build=lambda a: topi.add(a, 2.5), expected=x + np.float32(2.5))
    yield case("subtract", x, build=lambda a: 1 - a * 2, expected=1 - x * 2)
    yield case("less", x, build=lambda a: a < 0.25, expected=x < 0.25)
    for condition in ((4, 1), (), (3, 4, 5)):
        yield case(
            "where", normal(*condition, dtype="bool"), normal(3, 4, 5), normal(5), expected=np.where
        )
    yield case("broadcast_to", normal(3, 1), shape=(2, 3, 4), symbolic=False,
               expected=lambda x: np.broadcast_to(x, (2, 3, 4)))  # fmt: skip
    three = [normal(3, 4) for _ in range(3)]
    yield case(
        "elemwise_sum",
        *three,
        build=lambda *x: topi.elemwise_sum(x),
        expected=three[0] + three[1] + three[2],
    )
    yield case("full_like", normal(3, 4), fill_value=2.5, expected=lambda x: np.full_like(x, 2.5))
    yield case("full_like", normal(3, dtype="int8"), fill_value=3, expected=np.full(3, 3, "int8"))
    bias = normal(3)
    yield case("nn.bias_add", normal(2, 3, 4), bias, axis=1, expected=lambda x, b: x + b[:, None])
    yield case("nn.prelu", normal(2, 3, 4), bias, axis=-2,
               expected=lambda x, b: np.where(x > 0, x, x * b[:, None]))  # fmt: skip
    yield case(
        "nn.leaky_relu",
        normal(2, 9),
        alpha=0.1,
        expected=lambda x: np.where(x > 0, x, x * np.float32(0.1)),
    )
    yield case("nn.relu", normal(2, 9), expected=lambda x: np.maximum(x, 0))


def fixed_point() -> Iterator[Case]:
    """Scaling of integers."""
    x = integers(-(2**20), 2**20, 4, 6, dtype="int32")
    for multiplier, shift in ((2**30, 0), (1395864371, 3), (1288490189, -4)):
        scaled = np.floor(x.astype("float64") * multiplier * 2.0 ** (shift - 31) + 0.5)
        yield case(
            "fixed_point_multiply",
            x,
            multiplier=multiplier,
            shift=shift,
            expected=scaled.astype("int32"),
        )
    m = integers(2**29, 2**31 - 1, 6, dtype="int32")
    wide = x.astype("int64") * m
    yield case("widening_multiply", x, m, expected=wide)
    left, right = integers(0, 3, 6, dtype="int32"), integers(0, 5, 6, dtype="int32")
    scaled = np.floor(x * m.astype("float64") * 2.0 ** (left.astype("float64") - right - 31) + 0.5)
    yield case(
        "fixed_point_multiply_per_axis",
        x,
        m,
        left,
        right,
        axes=(1,),
        expected=scaled.astype("int32"),
    )


def reductions() -> Iterator[Case]:
    """Reductions over axes, of nothing, of every dtype."""
    functions = ("sum", "mean", "max", "min", "prod", "all", "any")
    for axis, keep in ((None, False), (0, True), (-1, False), ((0, 2), False), ((1, -1), True)):
        for name in functions:
            x = normal(3, 4, 17)
            if name in ("all", "any"):
                x = np.asarray(x > -1.5)
            result = getattr(np, name)(x, axis=axis, keepdims=keep)
            yield case(name, x, axis=axis, keepdims=keep, expected=result)
    for axis in (0, 1, None):
        x = integers(0, 5, 6, 17, dtype="float32")
        yield case("argmax", x, axis=axis, expected=np.asarray(x.argmax(axis), "int32"))
        yield case("argmin", x, axis=axis, expected=np.asarray(x.argmin(axis), "int32"))
        backwards = x.ravel()[::-1].argmax() if axis is None else np.flip(x, axis).argmax(axis)
        size = x.size if axis is None else x.shape[axis]
        yield case("argmax", x, axis=axis, select_last_index=True,
                   expected=np.asarray(size - 1 - backwards, "int32"))  # fmt: skip
    for dtype in INTS:
        x = integers(0, 3, 4, 9, dtype=dtype)
        for name in ("sum", "max", "prod"):
            yield case(name, x, axis=1, expected=np.asarray(getattr(np, name)(x, 1)).astype(dtype))
    for shape in ((0, 3), (3, 0)):
        yield case("sum", normal(*shape), axis=1, expected=lambda x: x.sum(1))
        yield case("max", normal(*shape), axis=1, expected=np.full(shape[0], -np.inf, "float32"))
    for unbiased in (False, True):
        yield case("variance", normal(4, 9), axis=1, unbiased=unbiased,
                   expected=lambda x, u=unbiased: x.var(1, ddof=int(u)))  # fmt: skip
    yield case(
        "variance",
        normal(4, 5, 6),
        axis=(0, 2),
        keepdims=True,
        expected=lambda x: x.var((0, 2), keepdims=True),
    )
    yield case("collapse_sum", normal(2, 3, 4), target_shape=(3, 1), symbolic=(2, 4),
               expected=lambda x: x.sum((0, 2))[:, None])  # fmt: skip


def created() -> Iterator[Case]:
    """Tensors of no input."""
    x = normal(3, 4)
    yield case("full", np.asarray(2.5, "float32"), expected=np.full((2, 3), 2, "int32"),
               build=lambda v: topi.full((2, 3), "int32", v))  # fmt: skip
    yield case(
        "constant",
        x,
        build=lambda t: topi.constant(3, t.shape, "int8"),
        expected=np.full((3, 4), 3, "int8"),
    )
    yield case(
        "zeros", x, build=lambda t: topi.zeros(t.shape, "int32"), expected=np.zeros((3, 4), "int32")
    )
    yield case(
        "ones", x, build=lambda t: topi.ones(t.shape, "bool"), expected=np.ones((3, 4), bool)
    )
    for bounds in ((5,), (2, 9), (9, 2, -3), (0.5, 3, 0.25), (3, 3)):
        yield case(
            "arange",
            x,
            build=lambda t, b=bounds: topi.arange(*b),
            expected=np.arange(*bounds).astype("float32"),
        )
    yield case(
        "arange",
        x,
        build=lambda t: topi.arange(0, t.shape[1], 2, "int32"),
        expected=np.arange(0, 4, 2, "int32"),
    )
    yield case("shape", x, expected=np.array([3, 4], "int32"))
    yield case("shape", np.asarray(1.0, "float32"), dtype="int64", expected=np.zeros(0, "int64"))
    yield case("ndarray_size", x, dtype="int64", expected=np.asarray(12))
    for indexing in ("ij", "xy"):
        grid = np.meshgrid([0.0, 1, 2], [5.0, 6], indexing=indexing)
        arrays = np.array([0, 1, 2], "float32"), np.array([5, 6], "float32")
        yield case("meshgrid", *arrays, build=lambda *t, i=indexing: topi.meshgrid(t, i),
                   expected=[g.astype("float32") for g in grid])  # fmt: skip


CASES: dict[str, list[Case]] = {
    f.__name__: list(f())
    for f in (elementwise, transcendental, broadcasting, fixed_point, reductions, created)
}


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_elementwise_operators_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_arithmetic_of_tensors_broadcasts() -> None:
    n = SizeVar("n")
    a, b = te.placeholder((n, 1)), te.placeholder((4,))
    assert [t.op.name for t in (a + b, -a, a // 2, 2 % a, a.astype("int8"))] == [
        "add", "negative", "floor_divide", "floor_mod", "cast",
    ]  # fmt: skip
    assert (a * b).shape[0] is n


def test_elementwise_operators_refuse_invalid_arguments() -> None:
    a, b = te.placeholder((3,)), te.placeholder((4,))
    for make, message in (
        (lambda: topi.add(a, b), "do not broadcast"),
        (lambda: topi.sum(a, 1), r"sum: axis must be in \[-1, 1\), got 1"),
        (lambda: topi.elemwise_sum([]), "expected at least one tensor"),
        (lambda: topi.broadcast_to(a, (4,)), "does not broadcast to"),
        (lambda: topi.collapse_sum(a, (4,)), "does not broadcast to"),
        (lambda: topi.arange(0, 4, 0), "step must not be 0"),
        (lambda: topi.meshgrid([a], "yx"), "indexing must be 'ij' or 'xy', got 'yx'"),
        (lambda: topi.fixed_point_multiply(a, 1, 1), "expected int32, got float32"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_values_near_zero_keep_their_precision() -> None:
    """Relative, not absolute, error: what cancels in the textbook formulas."""
    x = np.array([1e-20, -1e-10, 1e-5], "float64")
    for name in ("sinh", "asinh", "atanh", "atan", "asin", "log1p", "tan"):
        actual = np.empty_like(x)
        BACKENDS["llvm"]([case(name, x, expected=actual, symbolic=False)])[0](x, actual)
        expected = getattr(np, name if name == "log1p" else inverse(name))(x)
        np.testing.assert_allclose(actual, expected, rtol=4e-16)


def test_wrong_result_is_named() -> None:
    with pytest.raises(AssertionError, match=r"1 of 1 cases\nadd\(float32\[3\]"):
        check([case("add", normal(3), normal(3), expected=np.subtract, symbolic=False)], "llvm")
