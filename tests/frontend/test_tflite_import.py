"""Models of TensorFlow Lite against LiteRT, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from tflite_models import Array, Op, Spec, litert, model

import ekiden
from ekiden import relay
from ekiden.relay.frontend.tflite import OperatorConverter
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError
from long_runs import share

RNG = np.random.default_rng(7)
SAME, VALID = 0, 1
Options: TypeAlias = Any
Table: TypeAlias = Any


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Options) -> Array:
    return np.array(values, np.int32)


def one(code: str, args: list[Array], out: Spec | list[Spec], table: Table = None,
        constant: tuple[int, ...] = ()) -> tuple[bytes, list[Array]]:  # fmt: skip
    """A model of one operator, whose inputs are parameters but for those at `constant`."""
    outs = out if isinstance(out, list) else [out]
    specs = [
        Spec(data=a) if i in constant else Spec(a.shape, str(a.dtype)) for i, a in enumerate(args)
    ]
    free = [i for i in range(len(args)) if i not in constant]
    results = list(range(len(args), len(args) + len(outs)))
    data = model([*specs, *outs], [Op(code, range(len(args)), results, table)], free, results)
    return data, [args[i] for i in free]


def run(data: bytes, *inputs: Array, **options: Options) -> list[Array]:
    made = ekiden.compile(data, **options)(*inputs)
    return [r.numpy() for r in (made if isinstance(made, (tuple, list)) else [made])]


def check(data: bytes, inputs: list[Array], exact: bool = False) -> None:
    expected, actual = litert(data, *inputs), run(data, *inputs)
    assert len(actual) == len(expected)
    for have, want in zip(actual, expected, strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        if exact:
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


UNARY = ("ABS", "NEG", "CEIL", "FLOOR", "ROUND", "EXP", "SIN", "COS", "TANH", "LOGISTIC", "SQUARE",
         "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "HARD_SWISH", "SIGN",
         "LOG_SOFTMAX")  # fmt: skip


@pytest.mark.parametrize("code", UNARY)
def test_unary_operators_match_litert(code: str) -> None:
    x = np.concatenate([np.array([-2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5], np.float32), floats(5) * 4])
    check(*one(code, [x.reshape(3, 4)], Spec((3, 4))))


@pytest.mark.parametrize("code", ["SQRT", "RSQRT", "LOG"])
def test_unary_of_positive_numbers(code: str) -> None:
    check(*one(code, [np.abs(floats(3, 4)) + 0.1], Spec((3, 4))))


@share(6)
@pytest.mark.parametrize("code", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("activation", [0, 1, 2, 3])
def test_arithmetic_with_fused_activations(code: str, activation: int) -> None:
    table = (f"{code.title()}Options", {"FusedActivationFunction": activation})
    check(*one(code, [floats(2, 3, 4) * 4, floats(3, 1)], Spec((2, 3, 4)), table))


@share(4)
@pytest.mark.parametrize(
    "code", ["MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD"]
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_binary_operators_match_litert(code: str, dtype: str) -> None:
    a, b = (floats(2, 3) * 9).astype(dtype), (np.sign(floats(3)) * 4).astype(dtype)
    check(*one(code, [a, b], Spec((2, 3), dtype)))


def test_integers_are_divided_towards_zero() -> None:
    table = ("DivOptions", {"FusedActivationFunction": 0})
    data, args = one("DIV", [ints(-7, 7, -8), ints(2, -2, 3)], Spec((3,), "int32"), table)
    check(data, args, exact=True)


@pytest.mark.parametrize(
    "code", ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]
)
def test_comparisons_match_litert(code: str) -> None:
    check(*one(code, [ints(1, 2, 3), ints(2)], Spec((3,), "bool")), exact=True)


@share(6)
@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv2d_matches_litert(padding: int, stride: int, dilation: int) -> None:
    if dilation > 1 and stride > 1:
        stride = 2
    table = ("Conv2DOptions", {
        "Padding": padding, "StrideH": stride, "StrideW": 1, "DilationHFactor": dilation,
        "DilationWFactor": 1, "FusedActivationFunction": 1,
    })  # fmt: skip
    reach = 2 * dilation + 1
    height = -(-9 // stride) if padding == SAME else (9 - reach) // stride + 1
    width = 8 if padding == SAME else 7
    args = [floats(2, 9, 8, 3), floats(5, 3, 2, 3), floats(5)]
    check(*one("CONV_2D", args, Spec((2, height, width, 5)), table, constant=(1, 2)))


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_conv2d_matches_litert(multiplier: int) -> None:
    table = ("DepthwiseConv2DOptions", {
        "Padding": SAME, "StrideH": 2, "StrideW": 2, "DepthMultiplier": multiplier,
        "DilationHFactor": 1, "DilationWFactor": 1,
    })  # fmt: skip
    args = [floats(1, 7, 8, 3), floats(1, 3, 3, 3 * multiplier), floats(3 * multiplier)]
    out = Spec((1, 4, 4, 3 * multiplier))
    check(*one("DEPTHWISE_CONV_2D", args, out, table, constant=(1, 2)))


@pytest.mark.parametrize(("padding", "size"), [(SAME, 8), (VALID, 9), (SAME, 7)])
def test_transpose_conv_matches_litert(padding: int, size: int) -> None:
    table = ("TransposeConvOptions", {"Padding": padding, "StrideH": 2, "StrideW": 2})
    args = [ints(1, size, size, 2), floats(2, 3, 3, 3), floats(1, 4, 4, 3)]
    out = Spec((1, size, size, 2))
    check(*one("TRANSPOSE_CONV", args, out, table, constant=(0, 1)))


@pytest.mark.parametrize("code", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("padding", [SAME, VALID])
def test_pooling_matches_litert(code: str, padding: int) -> None:
    table = ("Pool2DOptions", {
        "Padding": padding, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2,
    })  # fmt: skip
    height, width = (4, 4) if padding == SAME else (3, 4)
    check(*one(code, [floats(2, 7, 8, 3)], Spec((2, height, width, 3)), table))


def test_same_padding_of_strides_over_images_of_any_size() -> None:
    steps = {"Padding": SAME, "StrideH": 2, "StrideW": 2}
    pool = ("Pool2DOptions", {**steps, "FilterHeight": 3, "FilterWidth": 2})
    conv = ("Conv2DOptions", {**steps, "DilationHFactor": 1, "DilationWFactor": 1})
    image, weights = Spec((1, -1, -1, 3)), [Spec(data=floats(5, 3, 2, 3)), Spec(data=floats(5))]
    specs = [image, *weights, image, image, Spec((1, -1, -1, 5))]
    ops = [Op("AVERAGE_POOL_2D", [0], [3], pool), Op("MAX_POOL_2D", [0], [4], pool),
           Op("CONV_2D", [0, 1, 2], [5], conv)]  # fmt: skip
    exe = ekiden.compile(model(specs, ops, [0], [3, 4, 5]))
    for x in (floats(1, 7, 8, 3), floats(1, 4, 5, 3)):
        shapes = [Spec((1, -(-x.shape[1] // 2), -(-x.shape[2] // 2), n)) for n in (3, 3, 5)]
        fixed = model([Spec(x.shape), *weights, *shapes], ops, [0], [3, 4, 5])
        for have, want in zip(exe(x), litert(fixed, x), strict=True):
            np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", [False, True])
def test_fully_connected_matches_litert(keep: bool) -> None:
    table = ("FullyConnectedOptions", {"FusedActivationFunction": 3, "KeepNumDims": keep})
    out = Spec((2, 3, 4) if keep else (6, 4))
    args = [floats(2, 3, 5), floats(4, 5), floats(4)]
    check(*one("FULLY_CONNECTED", args, out, table, constant=(1, 2)))


@pytest.mark.parametrize(("adj_x", "adj_y"), [(False, False), (True, False), (False, True)])
def test_batch_matmul_matches_litert(adj_x: bool, adj_y: bool) -> None:
    a = floats(2, 5, 3) if adj_x else floats(2, 3, 5)
    b = floats(2, 4, 5) if adj_y else floats(2, 5, 4)
    table = ("BatchMatMulOptions", {"AdjX": adj_x, "AdjY": adj_y})
    check(*one("BATCH_MATMUL", [a, b], Spec((2, 3, 4)), table))


@share(4)
@pytest.mark.parametrize("code", ["MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_match_litert(code: str, keep: bool) -> None:
    out = Spec((2, 1, 4, 1) if keep else (2, 4))
    table = ("ReducerOptions", {"KeepDims": keep})
    check(*one(code, [floats(2, 3, 4, 5), ints(1, -1)], out, table, constant=(1,)))


def test_argmax_and_softmax_match_litert() -> None:
    table = ("ArgMaxOptions", {"OutputType": 4})
    args = [floats(3, 5), ints(-1)]
    check(*one("ARG_MAX", args, Spec((3,), "int64"), table, constant=(1,)), exact=True)
    check(*one("SOFTMAX", [floats(3, 5)], Spec((3, 5)), ("SoftmaxOptions", {"Beta": 2.0})))


@pytest.mark.parametrize(("begin", "end", "step", "masks", "shape"), [
    ((1, 0, 0), (4, 3, 4), (2, 1, 1), {}, (2, 3, 4)),
    ((-1, 2, 0), (0, -5, 0), (-1, -1, 1), {"EndMask": 4}, (4, 3, 4)),
    ((1, 0, 2), (0, 0, 0), (1, 1, 1), {"ShrinkAxisMask": 5, "EndMask": 2}, (3,)),
    ((0, 0, 1), (0, 0, 3), (1, 1, 1), {"EllipsisMask": 1, "NewAxisMask": 2}, (5, 3, 1, 2)),
    ((-1,), (0,), (1,), {"ShrinkAxisMask": 1}, (3, 4)),
])  # fmt: skip
def test_strided_slice_matches_litert(
    begin: Options, end: Options, step: Options, masks: Options, shape: Options
) -> None:
    args = [floats(5, 3, 4), ints(*begin), ints(*end), ints(*step)]
    data = one("STRIDED_SLICE", args, Spec(shape), ("StridedSliceOptions", masks), (1, 2, 3))
    check(*data, exact=True)


@pytest.mark.parametrize(("code", "args", "shape", "table"), [
    ("RESHAPE", [floats(2, 6), ints(3, -1)], (3, 4), None),
    ("TRANSPOSE", [floats(2, 3, 4), ints(2, 0, 1)], (4, 2, 3), None),
    ("SLICE", [floats(4, 5), ints(1, 2), ints(2, -1)], (2, 3), None),
    ("PAD", [floats(2, 3), ints((1, 0), (0, 2))], (3, 5), None),
    ("MIRROR_PAD", [floats(3, 3), ints((1, 0), (0, 2))], (4, 5), ("MirrorPadOptions", {"Mode": 0})),
    ("MIRROR_PAD", [floats(3, 3), ints((1, 0), (0, 2))], (4, 5), ("MirrorPadOptions", {"Mode": 1})),
    ("PADV2", [floats(2, 3), ints((1, 0), (0, 2)), np.float32(7)], (3, 5), None),
    ("GATHER", [floats(4, 5), ints(3, 0, 3)], (4, 3), ("GatherOptions", {"Axis": 1})),
    ("GATHER_ND", [floats(4, 5), ints((3, 0), (1, 4))], (2,), None),
    ("TILE", [floats(2, 3), ints(2, 3)], (4, 9), None),
    ("BROADCAST_TO", [floats(3, 1), ints(2, 3, 4)], (2, 3, 4), None),
    ("EXPAND_DIMS", [floats(2, 3), np.int32(-1)], (2, 3, 1), None),
    ("SQUEEZE", [floats(2, 1, 3, 1)], (2, 3), None),
    ("SQUEEZE", [floats(2, 1, 3, 1)], (2, 3, 1), ("SqueezeOptions", {"SqueezeDims": [1]})),
    ("REVERSE_V2", [floats(2, 3), ints(1)], (2, 3), None),
    ("SPACE_TO_DEPTH", [floats(1, 4, 6, 2)], (1, 2, 3, 8),
     ("SpaceToDepthOptions", {"BlockSize": 2})),
    ("DEPTH_TO_SPACE", [floats(1, 2, 3, 8)], (1, 4, 6, 2),
     ("DepthToSpaceOptions", {"BlockSize": 2})),
    ("SPACE_TO_BATCH_ND", [floats(1, 3, 4, 2), ints(2, 2), ints((1, 0), (0, 0))], (4, 2, 2, 2),
     None),
    ("BATCH_TO_SPACE_ND", [floats(4, 2, 2, 2), ints(2, 2), ints((0, 1), (0, 0))], (1, 3, 4, 2),
     None),
    ("RESIZE_BILINEAR", [floats(1, 4, 5, 2), ints(7, 3)], (1, 7, 3, 2),
     ("ResizeBilinearOptions", {"HalfPixelCenters": True})),
    ("RESIZE_BILINEAR", [floats(1, 4, 5, 2), ints(7, 3)], (1, 7, 3, 2),
     ("ResizeBilinearOptions", {"AlignCorners": True})),
    ("RESIZE_NEAREST_NEIGHBOR", [floats(1, 4, 5, 2), ints(7, 3)], (1, 7, 3, 2),
     ("ResizeNearestNeighborOptions", {"HalfPixelCenters": True})),
    ("RESIZE_NEAREST_NEIGHBOR", [floats(1, 4, 5, 2), ints(7, 3)], (1, 7, 3, 2),
     ("ResizeNearestNeighborOptions", {})),
    ("LEAKY_RELU", [floats(3, 4)], (3, 4), ("LeakyReluOptions", {"Alpha": 0.25})),
    ("GELU", [floats(3, 4)], (3, 4), ("GeluOptions", {"Approximate": True})),
    ("GELU", [floats(3, 4)], (3, 4), ("GeluOptions", {"Approximate": False})),
    ("L2_NORMALIZATION", [floats(3, 4)], (3, 4), ("L2NormOptions", {})),
    ("CUMSUM", [floats(3, 4), np.int32(1)], (3, 4),
     ("CumsumOptions", {"Exclusive": True, "Reverse": True})),
])  # fmt: skip
def test_single_operator_models_match_litert(
    code: str, args: list[Any], shape: Options, table: Options
) -> None:
    constant = tuple(range(1, len(args)))
    check(*one(code, [np.asarray(a) for a in args], Spec(shape), table, constant))


def test_local_response_normalization() -> None:
    """TensorFlow's definition; LiteRT's kernel leaves the last channel of a window out."""
    fields = {"Radius": 2, "Bias": 1.5, "Alpha": 0.3, "Beta": 0.5}
    x = floats(1, 2, 2, 7)
    table = ("LocalResponseNormalizationOptions", fields)
    data, _ = one("LOCAL_RESPONSE_NORMALIZATION", [x], Spec(x.shape), table)
    total = sum(np.pad(x * x, [(0, 0)] * 3 + [(2, 2)])[..., i : i + 7] for i in range(5))
    np.testing.assert_allclose(run(data, x)[0], x / np.sqrt(1.5 + 0.3 * total), rtol=1e-5)


def test_variadic_operators_match_litert() -> None:
    a, b = floats(2, 3), floats(2, 3)
    check(*one("CONCATENATION", [a, b], Spec((2, 6)), ("ConcatenationOptions", {"Axis": -1})))
    check(*one("PACK", [a, b], Spec((2, 2, 3)), ("PackOptions", {"Axis": 1, "ValuesCount": 2})))
    outs = [Spec((2,)) for _ in range(3)]
    check(*one("UNPACK", [a], outs, ("UnpackOptions", {"Axis": 1, "Num": 3})))
    outs = [Spec((2, 2)), Spec((2, 2))]
    check(
        *one(
            "SPLIT",
            [np.array(1, np.int32), floats(2, 4)],
            outs,
            ("SplitOptions", {"NumSplits": 2}),
            (0,),
        )
    )
    outs = [Spec((2, 1)), Spec((2, 3))]
    args = [floats(2, 4), ints(1, -1), np.array(1, np.int32)]
    check(*one("SPLIT_V", args, outs, ("SplitVOptions", {"NumSplits": 2}), (1, 2)))
    check(
        *one(
            "TOPK_V2",
            [floats(3, 6), np.array(2, np.int32)],
            [Spec((3, 2)), Spec((3, 2), "int32")],
            None,
            (1,),
        )
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quantize_and_dequantize_match_litert(dtype: str) -> None:
    point = 0 if dtype == "int16" else 3
    levels = Spec((3, 7), dtype, scale=[0.05], point=[point])
    data, args = one("QUANTIZE", [floats(3, 7) * 9], levels)
    check(data, args, exact=True)
    tensors = [levels, Spec((3, 7))]
    data = model(tensors, [Op("DEQUANTIZE", [0], [1])], [0], [1])
    check(data, [np.arange(21).reshape(3, 7).astype(dtype)], exact=True)


def test_movement_of_quantised_tensors_keeps_the_numbers() -> None:
    x = np.arange(12, dtype=np.int8).reshape(3, 4)
    kinds = {"scale": [0.5], "point": [-3]}
    tensors = [
        Spec((3, 4), "int8", **kinds),
        Spec(data=ints((1, 0), (0, 2))),
        Spec((4, 6), "int8", **kinds),
    ]
    check(model(tensors, [Op("PAD", [0, 1], [2])], [0], [2]), [x], exact=True)


def flatten() -> bytes:
    """Data of an open batch as rows: Keras's Flatten."""
    tensors = [
        Spec((-1, 2, 3), name="image"), Spec((3,), "int32"), Spec(data=ints(0)), Spec(data=ints(1)),
        Spec(data=ints(1)), Spec((), "int32"), Spec(data=np.array(-1, np.int32)),
        Spec((2,), "int32"), Spec((-1, 6)), Spec(data=floats(4, 6)), Spec((-1, 4), name="rows"),
    ]  # fmt: skip
    ops = [
        Op("SHAPE", [0], [1], ("ShapeOptions", {"OutType": 2})),
        Op("STRIDED_SLICE", [1, 2, 3, 4], [5], ("StridedSliceOptions", {"ShrinkAxisMask": 1})),
        Op("PACK", [5, 6], [7], ("PackOptions", {"ValuesCount": 2, "Axis": 0})),
        Op("RESHAPE", [0, 7], [8]),
        Op("FULLY_CONNECTED", [8, 9, -1], [10], ("FullyConnectedOptions", {})),
    ]
    return model(tensors, ops, [0], [10], ["serve"])


def test_one_executable_for_every_batch() -> None:
    data = flatten()
    exe = ekiden.compile(data)
    for batch in (1, 2, 5):
        x = floats(batch, 2, 3)
        np.testing.assert_allclose(exe(x).numpy(), litert(data, x)[0], rtol=1e-5, atol=1e-5)


def test_signatures_and_shapes(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(flatten())
    exe = ekiden.compile(tmp_path / "m.tflite", signature="serve", shape={"in0": [2, 2, 3]})
    assert exe(in0=floats(2, 2, 3)).numpy().shape == (2, 4)
    with pytest.raises(CompileError, match="no signature 'other'; it has 'serve'"):
        ekiden.compile(flatten(), signature="other")
    with pytest.raises(CompileError, match="no input 'x'; it has 'in0'"):
        ekiden.compile(flatten(), shape={"x": [1]})
    with pytest.raises(CompileError, match="expected 3 dimensions, got 1"):
        ekiden.compile(flatten(), shape={"in0": [1]})


def test_several_signatures_must_be_chosen() -> None:
    tensors = [Spec((2,)), Spec((2,))]
    data = model(tensors, [Op("EXP", [0], [1])], [0], [1], ["one", "two"])
    with pytest.raises(CompileError, match="it has the signatures 'one', 'two': choose one"):
        ekiden.compile(data)
    x = floats(2)
    np.testing.assert_allclose(run(data, x, signature="two")[0], np.exp(x), rtol=1e-6)


def test_unsupported_operators_are_listed_together() -> None:
    levels = {"dtype": "int8", "scale": [0.1], "point": [0]}
    tensors = [
        Spec((2,)),
        Spec((2,), name="odd"),
        Spec((2,), **levels),
        Spec((2,), name="sum", **levels),
    ]
    ops = [Op("CUSTOM Odd", [0], [1]), Op("EXP", [1], [1]), Op("SIN", [2], [3])]
    with pytest.raises(UnsupportedError) as caught:
        ekiden.compile(model(tensors, ops, [0, 2], [1, 3]))
    text = str(caught.value)
    assert "CUSTOM Odd #0 'odd': the operator is not supported" in text
    assert "SIN #2 'sum': tensor 2 't2' is quantised: int8" in text
    assert "EXP" not in text


def test_data_movement_of_two_scales_is_refused() -> None:
    tensors = [
        Spec((2,), "int8", scale=[0.1], point=[0]), Spec(data=ints(0)),
        Spec((2,), "int8", scale=[0.2], point=[0]),
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match="REVERSE_V2 #0 't2': .* different scales"):
        ekiden.compile(model(tensors, [Op("REVERSE_V2", [0, 1], [2])], [0], [2]))


def test_broken_files_are_refused(tmp_path: Path) -> None:
    whole = flatten()
    for size in range(8, len(whole), 97):
        with pytest.raises((ImportModelError, UnsupportedError)):
            ekiden.compile(whole[:size])
    with pytest.raises(ImportModelError, match=r"cannot read .*gone\.tflite"):
        ekiden.compile(tmp_path / "gone.tflite")
    (tmp_path / "odd.tflite").write_bytes(b"no flatbuffer at all")
    with pytest.raises(ImportModelError, match="got 20 bytes that are none"):
        ekiden.compile(tmp_path / "odd.tflite")


def test_from_tflite_has_tvms_signature() -> None:
    data, args = one("EXP", [floats(2, 3)], Spec((2, 3)))
    parsed = pytest.importorskip("tflite", reason="the package 'tflite' is missing")
    shapes, dtypes = {"t0": (2, 3)}, {"t0": "float32"}
    module, params = relay.frontend.from_tflite(
        parsed.Model.GetRootAsModel(data, 0), shape_dict=shapes, dtype_dict=dtypes
    )
    assert not params
    np.testing.assert_allclose(ekiden.compile(module)(*args).numpy(), np.exp(args[0]), rtol=1e-6)
    with pytest.raises(CompileError, match="dtype_dict: 't0' is float32, not int8"):
        relay.frontend.from_tflite(data, dtype_dict={"t0": "int8"})
    with pytest.raises(CompileError, match="op_converter: classes of converters are not taken"):
        relay.frontend.from_tflite(data, op_converter=int)
    same, _ = relay.frontend.from_tflite(data, op_converter=OperatorConverter)
    assert ekiden.structural_equal(same, module)


def test_from_tflite_input_names_are_tensor_names() -> None:
    """Whatever signatures call them, and however many there are."""
    tensors = [Spec((2,)), Spec((2,))]
    for names in ([], ["one"], ["one", "two"]):
        data = model(tensors, [Op("EXP", [0], [1])], [0], [1], names)
        module, _ = relay.frontend.from_tflite(data, shape_dict={"t0": (3,)})
        main = module["main"]
        assert isinstance(main, relay.Function)
        assert [(p.name_hint, str(p.checked_type)) for p in main.params] == [
            ("t0", "Tensor[(3,), float32]")
        ]


EDGES = np.array([-np.inf, -1e30, -100, -3, -0.5, -1e-8, 0, 0.1, 1, 7, 100], np.float32)


@pytest.mark.parametrize("code", ["ELU", "SIGN", "TANH"])
def test_functions_match_litert_at_special_values(code: str) -> None:
    data, args = one(code, [EDGES], Spec(EDGES.shape))
    np.testing.assert_allclose(run(data, *args)[0], litert(data, *args)[0], rtol=1e-6)


def test_rounding_keeps_the_sign_of_zero() -> None:
    data, args = one("ROUND", [np.array([-0.3, -0.5, 0.5, 0.3], np.float32)], Spec((4,)))
    assert np.signbit(run(data, *args)[0]).tolist() == [True, True, False, False]


def test_erf_saturates_at_one() -> None:
    data, args = one("GELU", [EDGES[1:]], Spec((10,)), ("GeluOptions", {"Approximate": False}))
    np.testing.assert_allclose(run(data, *args)[0], litert(data, *args)[0], rtol=1e-6, atol=1e-6)


def test_quotients_of_floats_are_rounded_down() -> None:
    a, b = np.array([1, -1, 7, -7, 3], np.float32), np.array([0.1, np.inf, -2, 2, 0.3], np.float32)
    check(*one("FLOOR_DIV", [a, b], Spec((5,))), exact=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_float_to_integer_casts_match_litert(dtype: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 300, -129, -1.5, 127.9], np.float32)
    kinds = {"int8": 9, "uint8": 3, "int16": 7, "int32": 2}
    table = ("CastOptions", {"InDataType": 0, "OutDataType": kinds[dtype]})
    check(*one("CAST", [x], Spec(x.shape, dtype), table), exact=True)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integer_means_match_litert(dtype: str) -> None:
    x = np.array([[-3, 4, 2**30, 2**30], [-4, 1, 0, -8]], dtype)
    table = ("ReducerOptions", {"KeepDims": 0})
    check(*one("MEAN", [x, ints(1)], Spec((2,), dtype), table, (1,)), exact=True)


def test_argmax_with_nan_matches_litert() -> None:
    x = np.array([[1, np.nan, 3], [2, -1, np.nan]], np.float32)
    table = {"OutputType": 2}
    check(*one("ARG_MAX", [x, ints(1)], Spec((2,), "int32"), ("ArgMaxOptions", table), (1,)))
    check(*one("ARG_MIN", [x, ints(1)], Spec((2,), "int32"), ("ArgMinOptions", table), (1,)))


def test_batched_gather_matches_litert() -> None:
    x, i = floats(2, 5, 6, 3), np.array([[1, 0], [2, 4]], np.int32)
    for axis, shape in ((1, (2, 2, 6, 3)), (2, (2, 5, 2, 3)), (-1, (2, 5, 6, 2))):
        table = ("GatherOptions", {"Axis": axis, "BatchDims": 1})
        check(*one("GATHER", [x, i % 3 if axis == -1 else i], Spec(shape), table), exact=True)


def test_reshape_to_zero_extent_matches_litert() -> None:
    x = np.zeros((3, 0), np.float32)
    check(*one("RESHAPE", [x, ints(0, 5)], Spec((0, 5)), None, (1,)), exact=True)
