"""Operators on quantised tensors give the bits of LiteRT's reference kernels.

Its optimised kernels round once, or in floating point, where the reference ones round twice, and
differ from them in one number of a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from tflite_models import Array, Op, Spec, litert, model

import ekiden
from ekiden.runtime.errors import UnsupportedError
from long_runs import share

RNG = np.random.default_rng(11)
BYTES = ("int8", "uint8")
Table: TypeAlias = Any


def numbers(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def every(dtype: str) -> Array:
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


def spec(shape: Sequence[int], dtype: str, scale: float = 0.0, point: int | None = None) -> Spec:
    middle = 0 if dtype == "int8" else 128
    point = int(RNG.integers(-20, 20)) + middle if point is None else point
    return Spec(shape, dtype, scale=[scale or float(RNG.uniform(0.01, 0.1))], point=[point])


def check(code: str, ins: list[Spec], out: Spec, table: Table, inputs: list[Array]) -> None:
    """One operator, whose inputs without data are parameters."""
    free = [i for i, s in enumerate(ins) if s.data is None]
    ops = [Op(code, range(len(ins)), [len(ins)], table)]
    data = model([*ins, out], ops, free, [len(ins)])
    (expected,) = litert(data, *inputs)
    actual = ekiden.compile(data)(*inputs).numpy()
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@share(6)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("code", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("activation", [0, 1, 2, 3])
def test_quantized_arithmetic_matches_litert(code: str, dtype: str, activation: int) -> None:
    table = (f"{code.title()}Options", {"FusedActivationFunction": activation})
    ins = [spec((3, 999), dtype), spec((1, 999), dtype)]
    check(code, ins, spec((3, 999), dtype), table, [numbers(dtype, *s.shape) for s in ins])


@share(4)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("code", ["MAXIMUM", "MINIMUM", "EQUAL", "NOT_EQUAL", "LESS",
                                  "LESS_EQUAL", "GREATER", "GREATER_EQUAL"])  # fmt: skip
def test_quantized_select_and_comparisons_match_litert(code: str, dtype: str) -> None:
    a = spec((3, 99), dtype)
    is_choice = code.endswith("IMUM")
    b, out = (a, a) if is_choice else (spec((3, 99), dtype), Spec((3, 99), "bool"))
    table = ("MaximumMinimumOptions", {}) if is_choice else None
    check(code, [a, b], out, table, [numbers(dtype, 3, 99) for _ in range(2)])


UNARY = ("LOGISTIC", "TANH", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU",
         "HARD_SWISH", "GELU", "ABS", "EXP", "LOG", "QUANTIZE")  # fmt: skip
INT8_ALONE = ("ABS", "EXP", "LOG")
FIXED = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
"""What LiteRT demands of the output."""


@share(4)
@pytest.mark.parametrize("code", UNARY)
@pytest.mark.parametrize("dtype", BYTES)
def test_unary_operators_match_litert_on_all_levels(code: str, dtype: str) -> None:
    if dtype == "uint8" and code in INT8_ALONE:
        pytest.skip(f"LiteRT has no kernel of uint8 for {code}")
    table = {"LEAKY_RELU": ("LeakyReluOptions", {"Alpha": 0.3}),
             "GELU": ("GeluOptions", {"Approximate": True})}.get(code)  # fmt: skip
    out = spec((256,), dtype)
    if code in FIXED:
        scale, point = FIXED[code]
        out = spec((256,), dtype, scale, point + 128 * (dtype == "uint8"))
    check(code, [spec((256,), dtype)], out, table, [every(dtype)])


def test_requantising_changes_the_dtype() -> None:
    for source, result in (("int8", "uint8"), ("uint8", "int8")):
        check("QUANTIZE", [spec((256,), source)], spec((256,), result), None, [every(source)])


@pytest.mark.parametrize(
    "source,result", [("int32", "int8"), ("int32", "int16"), ("int16", "int32")]
)
def test_requantising_int32(source: str, result: str) -> None:
    data = (np.random.default_rng(3).standard_normal((7, 33)) * 2e4).astype(source)
    data[0, :2] = np.iinfo(source).min // 2, np.iinfo(source).max // 2
    scale, step = (3e-4, 0.04) if source == "int32" else (0.04, 3e-4)
    point = -5 if result == "int8" else 0
    ins = [Spec(data.shape, source, scale=[scale], point=[0])]
    check("QUANTIZE", ins, Spec(data.shape, result, scale=[step], point=[point]), None, [data])


def test_uint8_concatenation_requantizes() -> None:
    ins = [spec((5, 51), "uint8", s) for s in (0.03, 0.07, 0.05)]
    out = spec((5, 153), "uint8", 0.05, ins[2].point[0])
    table = ("ConcatenationOptions", {"Axis": 1})
    check("CONCATENATION", ins, out, table, [numbers("uint8", 5, 51) for _ in ins])


@pytest.mark.parametrize("dtype", [*BYTES, "int16"])
def test_equal_scale_concatenation_keeps_levels(dtype: str) -> None:
    same = spec((5, 51), dtype, 0.03, 0)
    out = spec((10, 51), dtype, 0.03, 0)
    table = ("ConcatenationOptions", {"Axis": 0})
    check("CONCATENATION", [same, same], out, table, [numbers(dtype, 5, 51) for _ in range(2)])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("activation", [0, 1, 3])
def test_quantized_division_matches_litert_on_all_levels(dtype: str, activation: int) -> None:
    middle = 128 * (dtype == "uint8")
    ins = [spec((256, 1), dtype, 0.03, 7 + middle), spec((255,), dtype, 0.05, 1 + middle)]
    out = spec((256, 255), dtype, 0.1, middle - 9)
    above, below = every(dtype)[:, None], every(dtype)
    below = below[below != ins[1].point[0]]  # LiteRT has no quotient by 0
    table = ("DivOptions", {"FusedActivationFunction": activation})
    data = model([*ins, out], [Op("DIV", [0, 1], [2], table)], [0, 1], [2])
    (expected,) = litert(data, above, below)
    real = 0.3 * (above - float(ins[0].point[0])) / (0.05 * (below - float(ins[1].point[0])))
    tiny = abs(real) < 0.5  # where LiteRT shifts by more than 31 bits, which C does not define
    zero = np.array(out.point[0], dtype)
    np.testing.assert_array_equal(
        ekiden.compile(data)(above, below).numpy(), np.where(tiny, zero, expected)
    )


@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_division_by_zero_saturates(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    ins = [spec((3,), dtype, 0.1, 5), spec((3,), dtype, 0.1, 7)]
    data = model([*ins, spec((3,), dtype, 0.1, 9)], [Op("DIV", [0, 1], [2])], [0, 1], [2])
    result = ekiden.compile(data)(np.array([4, 5, 6], dtype), np.array([7, 7, 7], dtype))
    np.testing.assert_array_equal(result.numpy(), [low, 9, high])


@share(3)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("width", [1, 2, 37, 1500])
@pytest.mark.parametrize("scale", [0.01, 0.08, 0.7])
def test_quantized_log_softmax_matches_litert(dtype: str, width: int, scale: float) -> None:
    out = spec((50, width), dtype, 16 / 256, 127 + 128 * (dtype == "uint8"))
    data = numbers(dtype, 50, width)
    data[0], data[1] = data[0, 0], np.iinfo(dtype).min
    data[1, 0] = np.iinfo(dtype).max
    check("LOG_SOFTMAX", [spec((50, width), dtype, scale)], out, None, [data])


@share(2)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("width", [1, 37])
def test_quantized_l2_normalization_matches_litert(dtype: str, width: int) -> None:
    data = numbers(dtype, 40, width)
    source = spec((40, width), dtype)
    data[0], data[1] = source.point[0], np.iinfo(dtype).max
    data[2:10] = np.clip(source.point[0] + RNG.integers(-2, 3, (8, width)), 0, 127).astype(dtype)
    out = spec((40, width), dtype, 1 / 128, 128 * (dtype == "uint8"))
    table = ("L2NormOptions", {"FusedActivationFunction": 0})
    check("L2_NORMALIZATION", [source], out, table, [data])


@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_prelu_matches_litert(dtype: str) -> None:
    alpha = Spec(data=numbers(dtype, 1, 1, 8), scale=[0.02], point=[3])
    ins = [spec((1, 5, 5, 8), dtype), alpha]
    check("PRELU", ins, spec((1, 5, 5, 8), dtype), None, [numbers(dtype, 1, 5, 5, 8)])


@share(4)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("code", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("padding", [0, 1])
def test_quantized_pooling_matches_litert(code: str, dtype: str, padding: int) -> None:
    source = spec((2, 11, 12, 5), dtype)
    shape = (2, 6, 6, 5) if padding == 0 else (2, 5, 5, 5)
    table = ("Pool2DOptions", {
        "Padding": padding, "StrideW": 2, "StrideH": 2, "FilterWidth": 3, "FilterHeight": 2,
        "FusedActivationFunction": 3 * padding,
    })  # fmt: skip
    out = spec(shape, dtype, source.scale[0], source.point[0])
    check(code, [source], out, table, [numbers(dtype, 2, 11, 12, 5)])


@share(6)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("width", [1, 7, 300])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_quantized_softmax_matches_litert(dtype: str, width: int, beta: float) -> None:
    out = spec((50, width), dtype, 1 / 256, -128 if dtype == "int8" else 0)
    table = ("SoftmaxOptions", {"Beta": beta})
    check("SOFTMAX", [spec((50, width), dtype)], out, table, [numbers(dtype, 50, width)])


@share(6)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("axes", [(1, 2), (3,), (0, -1)])
@pytest.mark.parametrize("keep", [False, True])
def test_quantized_mean_matches_litert(dtype: str, axes: tuple[int, ...], keep: bool) -> None:
    shape = (4, 5, 6, 7)
    gone = [a % 4 for a in axes]
    left = [1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone]
    ins = [spec(shape, dtype), Spec(data=np.array(axes, np.int32))]
    table = ("ReducerOptions", {"KeepDims": keep})
    check("MEAN", ins, spec(left, dtype), table, [numbers(dtype, *shape)])


@pytest.mark.parametrize("scale", [0.05, 0.13, 0.0131])
@pytest.mark.parametrize("point", [131, 121])
def test_sum_of_bytes(scale: float, point: int) -> None:
    ins = [spec((4, 5, 600), "uint8", 0.05, 131), Spec(data=np.array([1], np.int32))]
    table = ("ReducerOptions", {"KeepDims": False})
    out, data = spec((4, 600), "uint8", scale, point), numbers("uint8", 4, 5, 600)
    op = [Op("SUM", [0, 1], [2], table)]
    (expected,) = litert(model([*ins, out], op, [0], [2]), data)
    np.testing.assert_array_equal(
        ekiden.compile(model([*ins, out], op, [0], [2]))(data).numpy(), expected
    )
    # LiteRT 2.3's reference kernel reads int8 as if it were uint8: the same numbers stand in
    ins[0], out = spec((4, 5, 600), "int8", 0.05, 3), spec((4, 600), "int8", scale, point - 128)
    made = ekiden.compile(model([*ins, out], op, [0], [2]))((data ^ 128).view(np.int8))
    np.testing.assert_array_equal(made.numpy(), (expected ^ 128).view(np.int8))


def test_sum_of_int16() -> None:
    ins = [spec((3, 8, 5), "int16", 0.25, 0), Spec(data=np.array([1], np.int32))]
    out, data = spec((3, 5), "int16", 0.5, 0), RNG.integers(-999, 999, (3, 8, 5)).astype(np.int16)
    op = [Op("SUM", [0, 1], [2], ("ReducerOptions", {"KeepDims": False}))]
    result = ekiden.compile(model([*ins, out], op, [0], [2]))(data).numpy()
    np.testing.assert_array_equal(result, (data.sum(1) + 1) // 2)  # a half goes up


@share(4)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("axes", [(1,), (0, 2), (2, 1), (-3,)])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("scales", [(0.05, 0.13), (0.02, 0.02), (0.3, 0.01)])
def test_quantized_reduce_prod_matches_litert(
    dtype: str, axes: tuple[int, ...], keep: bool, scales: tuple[float, float]
) -> None:
    shape, gone = (4, 3, 60), [a % 3 for a in axes]
    left = [1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone]
    points = (0, 0) if dtype == "int16" else (3, 5)
    first, last = (item for item in zip(scales, points, strict=True))
    ins = [spec(shape, dtype, *first), Spec(data=np.array(axes, np.int32))]
    table = ("ReducerOptions", {"KeepDims": keep})
    data = np.clip(numbers(dtype, *shape), -300, 300)  # of int16: products that are not all clipped
    check("REDUCE_PROD", ins, spec(left, dtype, *last), table, [data])


def test_product_of_uint8_is_refused() -> None:
    ins = [spec((4, 3), "uint8"), Spec(data=np.array([1], np.int32))]
    op = [Op("REDUCE_PROD", [0, 1], [2], ("ReducerOptions", {"KeepDims": False}))]
    with pytest.raises(UnsupportedError, match="kernels of int8 and int16 are here"):
        ekiden.compile(model([*ins, spec((4,), "uint8")], op, [0], [2]))


@share(4)
@pytest.mark.parametrize("aligned,half", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(11, 9), (3, 2)])
def test_quantized_resize_matches_litert(aligned: bool, half: bool, size: tuple[int, int]) -> None:
    source = spec((1, 5, 6, 3), "int8")
    out = spec((1, *size, 3), "int8", source.scale[0], source.point[0])
    fields = {"AlignCorners": aligned, "HalfPixelCenters": half}
    ins = [source, Spec(data=np.array(size, np.int32))]
    for code, name in (("RESIZE_BILINEAR", "ResizeBilinear"),
                       ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor")):  # fmt: skip
        check(code, ins, out, (f"{name}Options", fields), [numbers("int8", 1, 5, 6, 3)])


@pytest.mark.parametrize("dtype", ["int16", "uint8"])
@pytest.mark.parametrize("aligned,half", [(False, False), (True, False), (False, True)])
def test_quantized_resize_of_other_dtypes_matches_litert(
    dtype: str, aligned: bool, half: bool
) -> None:
    fields = {"AlignCorners": aligned, "HalfPixelCenters": half}
    point = 0 if dtype == "int16" else 7
    ins = [spec((1, 5, 6, 3), dtype, 1e-3, point), Spec(data=np.array((11, 9), np.int32))]
    table, out = ("ResizeBilinearOptions", fields), spec((1, 11, 9, 3), dtype, 1e-3, point)
    check("RESIZE_BILINEAR", ins, out, table, [numbers(dtype, 1, 5, 6, 3)])


@pytest.mark.parametrize("scale", [0.003, 0.05, 1.7])
def test_quantized_rsqrt_matches_litert(scale: float) -> None:
    ins, out = [spec((256,), "int8", scale, -128)], spec((256,), "int8", 0.11 / scale**0.5, -120)
    check("RSQRT", ins, out, None, [every("int8")])


def weights(dtype: str, shape: tuple[int, ...], scales: int, axis: int) -> tuple[Spec, list[float]]:
    result = [float(s) for s in RNG.uniform(0.001, 0.04, scales)]
    least = -127 if dtype == "int8" else 0
    data = RNG.integers(least, 128 if dtype == "int8" else 256, shape).astype(dtype)
    point = [0 if dtype == "int8" else 130] * scales
    return Spec(data=data, scale=result, point=point, axis=axis), result


KINDS = [("int8", 1), ("int8", 6), ("uint8", 1)]
"""(dtype, number of scales of the weights)"""


@share(4)
@pytest.mark.parametrize("dtype,scales", KINDS)
@pytest.mark.parametrize("activation", [0, 3])
@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_quantized_convolutions_match_litert(
    code: str, dtype: str, scales: int, activation: int
) -> None:
    is_deep = code.startswith("D")
    weight, item = weights(dtype, (1, 3, 3, 6) if is_deep else (6, 3, 3, 6), scales, 3 * is_deep)
    bias = Spec(data=RNG.integers(-9000, 9000, 6).astype(np.int32),
                scale=[0.047 * s for s in item], point=[0] * scales)  # fmt: skip
    fields = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": activation,
              "DilationHFactor": 1, "DilationWFactor": 1}  # fmt: skip
    fields |= {"DepthMultiplier": 1} if is_deep else {}
    ins = [spec((2, 39, 40, 6), dtype, 0.047), weight, bias]
    table = (f"{'Depthwise' if is_deep else ''}Conv2DOptions", fields)
    check(code, ins, spec((2, 20, 20, 6), dtype, 0.21), table, [numbers(dtype, 2, 39, 40, 6)])


@pytest.mark.parametrize("dtype,scales", KINDS)
def test_quantized_transposed_convolution_matches_litert(dtype: str, scales: int) -> None:
    weight, item = weights(dtype, (6, 3, 3, 6), scales, 0)
    bias = Spec(data=RNG.integers(-9000, 9000, 6).astype(np.int32),
                scale=[0.047 * s for s in item], point=[0] * scales)  # fmt: skip
    shape = Spec(data=np.array([2, 40, 40, 6], np.int32))
    ins = [shape, weight, spec((2, 20, 20, 6), dtype, 0.047), bias]
    table = ("TransposeConvOptions", {"Padding": 0, "StrideH": 2, "StrideW": 2})
    out = spec((2, 40, 40, 6), dtype, 0.21)
    check("TRANSPOSE_CONV", ins, out, table, [numbers(dtype, 2, 20, 20, 6)])


@pytest.mark.parametrize("dtype,scales", KINDS)
def test_fully_connected_rounds_once(dtype: str, scales: int) -> None:
    weight, _ = weights(dtype, (6, 50), scales, 0)
    bias = Spec(data=RNG.integers(-9000, 9000, 6).astype(np.int32))
    table = ("FullyConnectedOptions", {"FusedActivationFunction": 1})
    ins = [spec((3000, 50), dtype), weight, bias]
    out = spec((3000, 6), dtype, 0.31)
    check("FULLY_CONNECTED", ins, out, table, [numbers(dtype, 3000, 50)])


def test_quantized_batch_matmul_matches_litert() -> None:
    ins = [spec((3, 20, 30), "int8"), spec((3, 30, 20), "int8")]
    table = ("BatchMatMulOptions", {"AdjX": False})
    inputs = [numbers("int8", 3, 20, 30), numbers("int8", 3, 30, 20)]
    check("BATCH_MATMUL", ins, spec((3, 20, 20), "int8", 1.1), table, inputs)


def wide(*shape: int, scale: float = 0.0) -> Spec:
    """int16, whose zero point is 0."""
    return spec(shape, "int16", scale, 0)


@pytest.mark.parametrize("code", ["ADD", "SUB", "MUL"])
def test_arithmetic_of_int16(code: str) -> None:
    fields = {"FusedActivationFunction": 3}
    table = (
        f"{code.title()}Options",
        fields if code == "MUL" else {**fields, "PotScaleInt16": False},
    )
    ins = [wide(3, 999, scale=3e-4), wide(1, 999, scale=2e-4)]
    inputs = [numbers("int16", *s.shape) for s in ins]
    check(code, ins, wide(3, 999, scale=3e-3 if code == "MUL" else 5e-4), table, inputs)


@pytest.mark.parametrize("code", ["LOGISTIC", "TANH"])
@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-11, 3.7e-4, 1e-5, 0.002])
def test_int16_functions_match_litert_on_all_levels(code: str, scale: float) -> None:
    every_one = np.arange(-(2**15), 2**15).astype(np.int16)
    check(code, [wide(2**16, scale=scale)], wide(2**16, scale=2.0**-15), None, [every_one])


@pytest.mark.parametrize("code", ["RELU", "RELU6", "LEAKY_RELU", "ABS"])
def test_int16_relu_variants_match_litert(code: str) -> None:
    every_one = np.arange(-(2**15), 2**15).astype(np.int16)
    table = ("LeakyReluOptions", {"Alpha": 0.3}) if code == "LEAKY_RELU" else None
    out = wide(2**16, scale=4e-4 if code == "ABS" else 3e-4)
    check(code, [wide(2**16, scale=4e-4)], out, table, [every_one])


@pytest.mark.parametrize("width,scale", [(1, 1e-3), (7, 2e-4), (1000, 3e-4)])
def test_softmax_of_int16(width: int, scale: float) -> None:
    table = ("SoftmaxOptions", {"Beta": 1.0})
    ins, out = [wide(99, width, scale=scale)], wide(99, width, scale=2.0**-15)
    check("SOFTMAX", ins, out, table, [numbers("int16", 99, width)])


def test_int16_mean_and_select_match_litert() -> None:
    axes = Spec(data=np.array([1, 2], np.int32))
    table = ("ReducerOptions", {"KeepDims": False})
    data = numbers("int16", 2, 7, 7, 5)
    ins = [wide(2, 7, 7, 5, scale=1e-3), axes]
    check("MEAN", ins, wide(2, 5, scale=7e-4), table, [data])
    same = wide(2, 7, 7, 5, scale=1e-3)
    check("MAXIMUM", [same, same], same, ("MaximumMinimumOptions", {}), [data, data[::-1].copy()])


@pytest.mark.parametrize("code", ["EQUAL", "LESS", "GREATER_EQUAL"])
def test_comparisons_of_int16(code: str) -> None:
    sides = [wide(3, 99, scale=1e-3)] * 2
    check(code, sides, Spec((3, 99), "bool"), None, [numbers("int16", 3, 99) >> 10] * 2)
    check(code, sides, Spec((3, 99), "bool"), None,
          [numbers("int16", 3, 99), numbers("int16", 3, 99)])  # fmt: skip


@pytest.mark.parametrize("code", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_pools_of_int16(code: str) -> None:
    fields = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 3}
    data = wide(2, 9, 10, 5, scale=1e-3)
    table = ("Pool2DOptions", fields)
    check(code, [data], wide(2, 5, 5, 5, scale=1e-3), table, [numbers("int16", 2, 9, 10, 5)])


def wide_bias(count: int, is_wide: bool = True) -> Spec:
    """Of sums of int16, which are int64."""
    data = RNG.integers(-(10**7), 10**7, count).astype(np.int64 if is_wide else np.int32)
    return Spec(data=data, scale=[1e-5] * count, point=[0] * count)


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_convolutions_of_int16(code: str) -> None:
    is_deep = code.startswith("D")
    weight, _ = weights("int8", (1, 3, 3, 6) if is_deep else (6, 3, 3, 6), 6, 3 * is_deep)
    fields = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": 1,
              "DilationHFactor": 1, "DilationWFactor": 1}  # fmt: skip
    fields |= {"DepthMultiplier": 1} if is_deep else {}
    table = (f"{'Depthwise' if is_deep else ''}Conv2DOptions", fields)
    ins = [wide(2, 19, 20, 6, scale=2e-4), weight, wide_bias(6)]
    check(code, ins, wide(2, 10, 10, 6, scale=1e-3), table, [numbers("int16", 2, 19, 20, 6)])


def test_transposed_convolution_of_int16() -> None:
    weight, _ = weights("int8", (6, 3, 3, 6), 6, 0)
    shape = Spec(data=np.array([2, 20, 20, 6], np.int32))
    ins = [shape, weight, wide(2, 10, 10, 6, scale=2e-4), wide_bias(6)]
    table = ("TransposeConvOptions", {"Padding": 0, "StrideH": 2, "StrideW": 2})
    out = wide(2, 20, 20, 6, scale=1e-3)
    check("TRANSPOSE_CONV", ins, out, table, [numbers("int16", 2, 10, 10, 6)])


def test_sums_of_int16_are_int64() -> None:
    """Weights and data at their ends: 3000 products are beyond int32."""
    weight = Spec(data=np.full((4, 3000), 127, np.int8), scale=[0.01], point=[0])
    data = np.full((2, 3000), 2**15 - 1, np.int16)
    data[1] = numbers("int16", 3000)
    table = ("FullyConnectedOptions", {"FusedActivationFunction": 0})
    ins = [wide(2, 3000, scale=1e-4), weight, wide_bias(4)]
    check("FULLY_CONNECTED", ins, wide(2, 4, scale=0.9), table, [data])


def test_product_of_matrices_of_int16() -> None:
    ins = [wide(3, 20, 300, scale=1e-3), wide(3, 300, 20, scale=1e-3)]
    table = ("BatchMatMulOptions", {"AdjX": False})
    inputs = [numbers("int16", 3, 20, 300), numbers("int16", 3, 300, 20)]
    check("BATCH_MATMUL", ins, wide(3, 20, 20, scale=1e1), table, inputs)


@pytest.mark.parametrize("scales,bias", [(1, "int64"), (1, "int32"), (64, "int64"), (64, "")])
def test_fully_connected_of_int16(scales: int, bias: str) -> None:
    weight, _ = weights("int8", (64, 50), scales, 0)
    ins = [wide(300, 50, scale=1.2e-4), weight]
    ins += [wide_bias(64, bias == "int64")] if bias else []
    fields = {"FusedActivationFunction": 0, "QuantizedBiasType": 2 if bias == "int32" else 4}
    table = ("FullyConnectedOptions", fields)
    check(
        "FULLY_CONNECTED", ins, wide(300, 64, scale=6e-4), table, [numbers("int16", 300, 50) >> 2]
    )


def test_quantized_squared_difference_matches_litert() -> None:
    ins = [spec((3, 999), "int8", 0.03), spec((1, 999), "int8", 0.05)]
    out = spec((3, 999), "int8", 0.4)
    check("SQUARED_DIFFERENCE", ins, out, None, [numbers("int8", *s.shape) for s in ins])


def refused(code: str, ins: list[Spec], out: Spec, table: Table, message: str) -> None:
    free = [i for i, s in enumerate(ins) if s.data is None]
    ops = [Op(code, range(len(ins)), [len(ins)], table)]
    with pytest.raises(UnsupportedError, match=message):
        ekiden.compile(model([*ins, out], ops, free, [len(ins)]))


def test_unsupported_quantized_operators_are_refused() -> None:
    scale = {"scale": [0.1], "point": [0]}
    short = Spec((2, 5), "int16", **scale)  # type: ignore[arg-type]
    other = Spec((2, 5), "int16", scale=[0.2], point=[0])
    refused("GREATER", [short, other], Spec((2, 5), "bool"), None,
            "GREATER #0 't2': .*of int16, have other scales")  # fmt: skip
    refused("PRELU", [short, short], short, None, "PRELU #0 't2': tensor 0 't0' is int16: kernels")
    byte = Spec((2, 5), "int8", **scale)  # type: ignore[arg-type]
    refused("SIN", [byte], byte, None, "SIN #0 't1': tensor 0 't0' is quantised: int8")
    floats = Spec((2, 4))
    weight = Spec(data=np.ones((4, 5), np.uint8), **scale)  # type: ignore[arg-type]
    hybrid = [Spec((2, 5)), weight]
    table = ("FullyConnectedOptions", {})
    refused("FULLY_CONNECTED", hybrid, floats, table, "tensor 0 't0' is float32: kernels of")
