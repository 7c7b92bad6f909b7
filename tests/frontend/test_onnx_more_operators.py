"""Further converters against ONNX Runtime (or ONNX's reference), with constant and with symbolic
shapes. ONNX's own tests (test_onnx_backend.py) have more of each, with constant shapes.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import Array, check_node, graph_model, interpret, ints, normal
from test_onnx_operators import CASES, Case, case, scalar

from ekiden.frontend.onnx.converters import (
    control_flow,
    experimental,
    ml_features,
    recurrent,
    sequence,
    strings,
)
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from long_runs import alike

X = normal(2, 3, 4)
SMALL = np.clip(X, -0.9, 0.9)
POSITIVE = np.abs(X) + np.float32(1.1)
WORDS = np.array([[1, 200, 7], [0, 255, 128]], np.uint8)
WHOLE = np.array([[7, -7, 3], [-8, 5, 2]], np.int32)
VOLUME = normal(1, 2, 5, 6, 4)


def table(*rows: object, dtype: type = np.int64) -> Array:
    return np.array(rows, dtype)


MORE = [
    *[
        case(name, SMALL, rtol=1e-4)
        for name in ("Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh")
    ],
    case("Acosh", POSITIVE, rtol=1e-4),
    case("BitwiseNot", WHOLE, opset=18),
    case("Det", normal(2, 4, 4), reference=True, rtol=1e-4),
    case("Det", np.array([[0, 1], [1, 0]], np.float32), reference=True),
    *[
        case(
            "AffineGrid",
            normal(2, len(size) - 2, len(size) - 1),
            table(*size),
            attrs={"align_corners": corners},
            constants=(1,),
            opset=20,
            reference=True,
        )
        for size in ((2, 1, 4, 5), (2, 1, 3, 4, 5))
        for corners in (0, 1)
    ],
    *[
        case("Unique", np.round(X), attrs={"axis": axis, "sorted": 1}, outputs=4, reference=True)
        for axis in (0, 1, -1)
    ],
    case("BitShift", WORDS, WORDS % 5, attrs={"direction": "LEFT"}),
    case("BitShift", WORDS, WORDS % 5, attrs={"direction": "RIGHT"}),
    case("Mod", X, normal(2, 3, 4, seed=1), attrs={"fmod": 0}, opset=26, reference=True, rtol=1e-4),
    case("BitCast", X, attrs={"to": TensorProto.INT32}, opset=26, reference=True),
    case("Einsum", X, normal(2, 4, 5), attrs={"equation": "bij,bjk->bik"}),
    case("Trilu", normal(3, 4), scalar(1, np.int64), attrs={"upper": 0}),
    case("EyeLike", normal(3, 4), attrs={"k": 1}),
    case(
        "CumProd",
        X,
        scalar(1, np.int64),
        constants=(1,),
        attrs={"reverse": 1, "exclusive": 1},
        opset=26,
        reference=True,
    ),
    case("Hardmax", X, attrs={"axis": 1}),
    case("Hardmax", X, attrs={"axis": 1}, opset=11),
    case(
        "BatchNormalization",
        X,
        *(normal(3, seed=s) for s in (1, 2)),
        normal(3, seed=3),
        np.abs(normal(3, seed=4)),
        attrs={"training_mode": 1},
        outputs=3,
        rtol=1e-4,
        reference=True,
    ),
    case(
        "ScatterElements", X, table([[0, -1, 1, 0]]), normal(1, 1, 4), attrs={"axis": 1}, opset=18
    ),
    case(
        "ScatterElements",
        X,
        table([[0, 0, 1, 0]]),
        normal(1, 1, 4),
        attrs={"axis": 1, "reduction": "add"},
        opset=18,
    ),
    case("Scatter", X, table([[0, 2, 1, 0]]), normal(1, 1, 4), attrs={"axis": 1}, opset=10),
    case("ScatterND", X, table([0, 2], [1, -1]), normal(2, 4), constants=(1,), opset=18),
    case("GatherND", X, table([0, 2], [1, -1]), constants=(1,)),
    case("GatherND", X, table([2], [-1]), constants=(1,), attrs={"batch_dims": 1}),
    case(
        "TensorScatter",
        normal(2, 5, 3),
        normal(2, 2, 3, seed=1),
        ints(1, 3),
        attrs={"axis": 1},
        opset=24,
        reference=True,
    ),
    case(
        "TensorScatter",
        normal(2, 5, 3),
        normal(2, 2, 3, seed=1),
        ints(1, 4),
        attrs={"axis": 1, "mode": "circular"},
        opset=24,
        reference=True,
    ),
    case("TopK", X, ints(2), constants=(1,), outputs=2, attrs={"axis": 1}),
    case("TopK", X, ints(2), constants=(1,), outputs=2, attrs={"largest": 0}),
    case("ReverseSequence", normal(4, 3), ints(1, 4, 2), attrs={"time_axis": 0, "batch_axis": 1}),
    case(
        "MaxUnpool",
        normal(1, 1, 2, 2),
        table([[[5, 7], [13, 15]]]),
        attrs={"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    case("Conv", VOLUME, normal(4, 2, 3, 3, 2, seed=1), constants=(1,), rtol=1e-4),
    case("ConvTranspose", VOLUME, normal(2, 3, 2, 3, 2, seed=1), constants=(1,), rtol=1e-4),
    case("MaxPool", VOLUME, attrs={"kernel_shape": [2, 2, 2]}),
    case("AveragePool", VOLUME, attrs={"kernel_shape": [2, 2, 2]}),
    case("QuantizeLinear", X, scalar(0.1), scalar(3, np.uint8)),
    case(
        "QuantizeLinear",
        X,
        np.array([0.1, 0.2, 0.3], np.float32),
        np.array([1, 2, 3], np.int8),
        attrs={"axis": 1},
    ),
    case("DequantizeLinear", WORDS, scalar(0.1), scalar(3, np.uint8)),
    case(
        "DequantizeLinear",
        WORDS,
        np.full((1, 3), 0.1, np.float32),
        attrs={"axis": 0, "block_size": 2},
        opset=21,
    ),
    # what ONNX Runtime makes of products of bytes depends on the processor
    case(
        "MatMulInteger",
        WORDS,
        WORDS.T.copy(),
        scalar(3, np.uint8),
        scalar(2, np.uint8),
        reference=True,
    ),
    case(
        "ConvInteger",
        np.resize(WORDS, (1, 1, 4, 4)),
        np.resize(WORDS, (1, 1, 2, 2)),
        scalar(3, np.uint8),
        constants=(1,),
        reference=True,
    ),
    case(
        "QLinearMatMul",
        WORDS,
        scalar(0.1),
        scalar(3, np.uint8),
        WORDS.T.copy(),
        scalar(0.2),
        scalar(2, np.uint8),
        scalar(9.5),
        scalar(4, np.uint8),
        reference=True,
    ),
    case(
        "QLinearConv",
        np.resize(WORDS, (1, 1, 4, 4)),
        scalar(0.1),
        scalar(3, np.uint8),
        np.resize(WORDS, (1, 1, 2, 2)),
        scalar(0.2),
        scalar(2, np.uint8),
        scalar(9.5),
        scalar(4, np.uint8),
        constants=(3,),
        reference=True,
    ),
    case("Shrink", WHOLE, attrs={"lambd": 2.5, "bias": 1.5}),
    case("Shrink", np.array([3, 200, 1], np.uint8), attrs={"lambd": 1.5, "bias": 0.5}),
    case("ReduceL2", WHOLE, attrs={"axes": [1]}),
    case("ReduceLogSum", np.abs(WHOLE), attrs={"axes": [0]}),
    case("ReduceLogSumExp", WHOLE, attrs={"axes": [1]}),
    case(
        "LayerNormalization",
        (300 * X).astype(np.float16),
        np.ones(4, np.float16),
        np.zeros(4, np.float16),
        outputs=3,
        rtol=1e-3,
    ),
]


@pytest.mark.parametrize("item", MORE, ids=str)
def test_operator_matches_reference(item: Case) -> None:
    item.run(symbolic=False)


@pytest.mark.parametrize("item", [c for c in MORE if c.symbolic], ids=str)
def test_operator_matches_reference_with_symbolic_shapes(item: Case) -> None:
    item.run(symbolic=True)


NODE_TESTS = frozenset(
    (
        "Cast", "Col2Im", "Compress", "DFT", "DeformConv", "GlobalLpPool", "GridSample", "LpPool",
        "MelWeightMatrix", "NonMaxSuppression", "NonZero", "RoiAlign", "STFT", "Unique",
    )
)  # fmt: skip
"""Operators that ONNX's own tests (test_onnx_backend.py) try in all their forms."""
RANDOM = frozenset(
    (
        "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    )
)  # fmt: skip


@pytest.mark.parametrize("count", [15, 16, 17, 90])
def test_nms_selects_more_boxes_than_a_vector(count: int) -> None:
    """Each box meets all that stay, several at a time."""
    rng = np.random.default_rng(count)
    boxes = rng.uniform(0, 40, (1, count, 4)).astype("float32")
    scores = rng.random((1, 2, count), "float32")
    limits = np.array([count]), np.array([0.3], "float32")
    check_node("NonMaxSuppression", [boxes, scores, *limits], constants=(2, 3))


@alike(2)
@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
def test_random_numbers_follow_from_the_seed(op_type: str) -> None:
    def drawn(seed: float) -> Array:
        node = helper.make_node(op_type, [], ["y"], shape=[2000], seed=seed)
        (result,) = interpret(graph_model([node], {}, ["y"]), [])
        return result

    np.testing.assert_array_equal(drawn(1.0), drawn(1.0))
    assert (drawn(1.0) != drawn(2.0)).any()
    low, high = (-5, 5) if op_type == "RandomNormal" else (0, 1)
    assert (low <= drawn(3.0)).all() and (drawn(3.0) <= high).all()
    assert abs(drawn(3.0).mean() - (0 if op_type == "RandomNormal" else 0.5)) < 0.1


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike"])
def test_random_tensors_take_a_shape(op_type: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"])
    (result,) = interpret(graph_model([node], {"x": X}, ["y"]), [X])
    assert result.shape == X.shape and result.dtype == X.dtype and len(np.unique(result)) > 20


def test_samples_follow_probabilities() -> None:
    weights = np.log(np.array([[1e-9, 1.0, 1e-9]], np.float32))
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=50)
    (result,) = interpret(graph_model([node], {"x": weights}, ["y"]), [weights])
    np.testing.assert_array_equal(result, np.ones((1, 50), np.int32))


def test_dropout_in_training_keeps_the_mean() -> None:
    x = np.ones(4000, np.float32)
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"])
    weights = {"ratio": scalar(0.25), "training": np.asarray(True)}
    result, mask = interpret(graph_model([node], {"x": x}, ["y", "mask"], weights), [x])
    np.testing.assert_allclose(result, np.where(mask, np.float32(1 / 0.75), 0), rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.05


@pytest.mark.parametrize("training", [True, False])
def test_dropout_training_mode_at_run_time(training: bool) -> None:
    x, message = np.ones(4000, np.float32), np.asarray(training)
    node = helper.make_node("Dropout", ["x", "", "training"], ["y", "mask"])
    model = graph_model([node], {"x": x, "training": message}, ["y", "mask"])
    result, mask = interpret(model, [x, message])
    np.testing.assert_array_equal(result, np.where(mask, 2.0 if training else 1.0, 0.0))
    assert abs(mask.mean() - (0.5 if training else 1.0)) < 0.05


@pytest.mark.parametrize(
    ("mode", "more"),
    [("nearest", {}), ("linear", {"extrapolation_value": 3.0}), ("cubic", {"exclude_outside": 1})],
)
def test_resize_roi_at_run_time(mode: str, more: dict[str, float]) -> None:
    region = np.array([0.4, 0.6, 0.6, 1.2], np.float32)  # the second axis first
    check_node(
        "Resize", [normal(1, 2, 5, 6), region, None, ints(3, 4)], opset=18, constants=(3,),
        reference=True, mode=mode, axes=[3, 2],
        coordinate_transformation_mode="tf_crop_and_resize", **more,
    )  # fmt: skip


def test_mel_weight_frequencies_at_run_time() -> None:
    hertz = [np.array(8000), np.array(100.0, np.float32), np.array(3000.0, np.float32)]
    check_node(
        "MelWeightMatrix", [np.array(5), np.array(32), *hertz], constants=(0, 1), reference=True
    )


def test_dft_axis_at_run_time() -> None:
    for axis in (0, 1, -2):
        inputs = [normal(2, 3, 4, 1), None, np.array(axis)]
        check_node("DFT", inputs, opset=20, reference=True)


@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
@pytest.mark.parametrize("dilations", [[1, 1], [2, 1]])
def test_max_pool_indices_point_into_data(strides: list[int], dilations: list[int]) -> None:
    """Also where all of a window is -inf, as its border is."""
    x = np.full((1, 2, 5, 6), -np.inf, np.float32)
    x[0, 1, 2:, 3:] = normal(3, 3)
    options = {"kernel_shape": [3, 2], "strides": strides, "dilations": dilations}
    node = helper.make_node("MaxPool", ["x"], ["y", "at"], pads=[2, 1, 2, 1], **options)
    result, at = interpret(graph_model([node], {"x": x}, ["y", "at"]), [x])
    assert at.min() >= 0 and at.max() < x.size
    np.testing.assert_array_equal(x.ravel()[at], result)


def test_affine_grid_of_runtime_size() -> None:
    maps, size = normal(2, 2, 3), table(2, 1, 4, 5)
    check_node("AffineGrid", [maps, size], opset=20, reference=True, align_corners=1)


def test_every_converter_has_a_case() -> None:
    tested = {c.op_type for c in (*CASES, *MORE)} | {"Constant"} | NODE_TESTS | RANDOM
    families = (
        *experimental.ROWS,
        *control_flow.ROWS,
        *sequence.ROWS,
        *recurrent.ROWS,
        *strings.ROWS,
        *ml_features.ROWS,
    )
    tested |= {r.op_type for r in families if not r.domain}
    tested.add("SimplifiedLayerNormalization")  # ONNX Runtime's: test_onnx_contrib.py
    assert {name for domain, name in CONVERTER_TABLE if domain == ""} == tested
