"""Resizing with ONNX Runtime's pixel arithmetic."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ekiden.ir.op import OPS, Array
from ekiden.relay import Function, IRModule, create_executor, infer_type
from ekiden.relay.expr import var
from ekiden.relay.op import image
from ekiden.runtime.errors import TypeInferenceError
from long_runs import share
from onnx_runtime import run_onnx_runtime

METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
SIZES = ((8, 12), (3, 5), (2, 3), (7, 6), (1, 1))


def resize_onnx(x: Array, size: tuple[int, int], method: str, mode: str, rounding: str) -> Array:
    """ONNX Runtime's Resize to given sizes."""
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode=METHODS[method],
        coordinate_transformation_mode=mode,
        nearest_mode=rounding or "round_prefer_floor", cubic_coeff_a=-0.75,
    )  # fmt: skip
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [4], [*x.shape[:2], *size])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*x.shape[:2], *size])]
    graph = helper.make_graph([node], "resize", inputs, outputs, [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return np.asarray(run_onnx_runtime(model, {"x": x})[0])


def reference(x: Array, size: tuple[int, int], method: str, mode: str, rounding: str) -> Array:
    """Ekiden's reference."""
    call = image.resize2d(var("x"), size, None, "NCHW", method, mode, rounding, cubic_alpha=-0.75)
    result = OPS["image.resize2d"].reference
    assert result is not None
    return np.asarray(result(call.attrs, x))


@share(6)
@pytest.mark.parametrize(("mode", "method", "size"), list(product(MODES, METHODS, SIZES)))
def test_resize_is_onnx_runtimes(mode: str, method: str, size: tuple[int, int]) -> None:
    """Up, down, and both, in every mode."""
    x = np.random.default_rng(3).normal(size=(1, 2, 4, 6)).astype(np.float32)
    rounding = "round_prefer_floor"
    np.testing.assert_allclose(
        reference(x, size, method, mode, rounding),
        resize_onnx(x, size, method, mode, rounding),
        atol=2e-5,
    )


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("mode", MODES)
def test_nearest_rounds_as_onnx_runtime(mode: str, rounding: str) -> None:
    """Ties and their neighbours."""
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)
    for size in SIZES:
        expected = resize_onnx(x, size, "nearest_neighbor", mode, rounding)
        np.testing.assert_array_equal(
            reference(x, size, "nearest_neighbor", mode, rounding), expected
        )


@pytest.mark.parametrize(
    ("mode", "rounding", "expected"),
    [
        ("asymmetric", "", "0 0 0 1 1 1 2 2 2"),
        ("half_pixel", "", "0 0 0 0 1 1 1 2 2"),
        ("align_corners", "", "0 0 1 1 1 1 2 2 2"),
        ("align_corners", "round_prefer_floor", "0 0 0 1 1 1 1 2 2"),
        ("asymmetric", "round", "0 0 1 1 1 2 2 2 2"),
    ],
)
def test_rounding_that_is_left_open_is_tvms(mode: str, rounding: str, expected: str) -> None:
    """In each of the operators, by the reference and by kernels."""
    places = np.array(expected.split(), np.float32)
    for axes, resize in enumerate((image.resize1d, image.resize2d, image.resize3d), 1):
        x = np.arange(3, dtype=np.float32).reshape(1, 1, *[1] * (axes - 1), 3)
        size = (*[1] * (axes - 1), 9)
        layout = "NC" + "DHW"[3 - axes :]
        data = var("x", shape=x.shape)
        call = resize(data, size, None, layout, "nearest_neighbor", mode, rounding)
        for kind in ("debug", "vm"):
            module = IRModule.from_expr(Function([data], call))
            actual = create_executor(kind, mod=module).evaluate()(x).numpy()
            np.testing.assert_array_equal(actual.reshape(-1), places)


def test_data_of_another_rank_is_refused() -> None:
    data = var("x", shape=(3, 4))
    message = r"image.resize1d: 'data' of layout 'NCW' expected, got shape \(3, 4\)"
    with pytest.raises(TypeInferenceError, match=message):
        infer_type(IRModule.from_expr(Function([data], image.resize1d(data, (9,)))))


def test_rounding_that_there_is_not_is_refused() -> None:
    data = var("x", shape=(1, 1, 4))
    call = image.resize1d(data, (9,), None, "NCW", "nearest_neighbor", "asymmetric", "up")
    message = (
        "image.resize1d: rounding_method must be one of round, round_prefer_floor,"
        " round_prefer_ceil, floor, ceil, got 'up'"
    )
    with pytest.raises(TypeInferenceError, match=message):
        infer_type(IRModule.from_expr(Function([data], call)))
