# ruff: noqa: ANN401 - attributes as helper.make_node
"""Operator parameters, constant in most models, as run-time inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import Array, compare, expected, graph_model, interpret, ints, normal

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.runtime.errors import RunError, UnsupportedError


def of_one_node(
    op_type: str, inputs: dict[str, Array], fixed: tuple[str, ...] = (), opset: int = 18,
    symbolic: bool = False, **attributes: Any,
) -> Any:  # fmt: skip
    """A model of one node, an input for each name, "" for one that is absent."""
    names = [n if not n.startswith("-") else "" for n in inputs]
    node = helper.make_node(op_type, names, ["y"], "it", **attributes)
    feed = {n: a for n, a in inputs.items() if not n.startswith("-") and n not in fixed}
    weights = {n: inputs[n] for n in fixed}
    return graph_model([node], feed, ["y"], weights, opset, symbolic), feed


@pytest.mark.parametrize("axes", [(0, 2), (-1, 1), (4, 3)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_unsqueeze_at_runtime_axes(axes: tuple[int, ...], symbolic: bool) -> None:
    feed = {"x": normal(2, 3, 4), "axes": ints(*axes)}
    model, _ = of_one_node("Unsqueeze", feed)
    for dim in model.graph.input[0].type.tensor_type.shape.dim if symbolic else ():
        dim.dim_param = f"n{dim.dim_value}"
    compare(model, feed)


@pytest.mark.parametrize("axes", [(1,), (-1,), (3, 1)])
def test_squeeze_of_runtime_axes(axes: tuple[int, ...]) -> None:
    feed = {"x": normal(2, 1, 3, 1), "axes": ints(*axes)}
    compare(of_one_node("Squeeze", feed)[0], feed)


@pytest.mark.parametrize(
    ("op_type", "axes", "reason"),
    [
        ("Unsqueeze", (0, 0), "Unsqueeze 'it' needs axes that differ"),
        ("Squeeze", (0,), "Squeeze 'it' needs axes of extent 1"),
        ("Squeeze", (7,), "Squeeze 'it'"),
    ],
)
def test_invalid_runtime_axes_are_an_error(
    op_type: str, axes: tuple[int, ...], reason: str
) -> None:
    model, feed = of_one_node(op_type, {"x": normal(2, 1, 3), "axes": ints(*axes)})
    with pytest.raises(RunError, match=reason):
        ekiden.compile(model)(**feed)


def test_runtime_number_of_axes_is_refused() -> None:
    model, _ = of_one_node("Unsqueeze", {"x": normal(2, 3), "axes": ints(0)})
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(UnsupportedError, match="the number of 'axes' must be constant"):
        from_onnx(model)


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((7,), (3,), {}),
        ((5, 6), (2, 3), {}),
        ((5, 5), (2, 2), {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ((4, 5, 3), (2, 2, 1), {"dilations": [2, 1, 1]}),
    ],
)
def test_col2im_into_runtime_image_size(
    image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """As into an image of a constant shape."""
    rank = len(image)
    strides, dilations = (attributes.get(n, [1] * rank) for n in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    steps = [
        (image[i] + pads[i] + pads[i + rank] - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(rank)
    ]
    data = normal(2, 3 * int(np.prod(block)), int(np.prod(steps)))
    inputs = {"x": data, "image": ints(*image), "block": ints(*block)}
    model, feed = of_one_node("Col2Im", inputs, ("block",), **attributes)
    constant, _ = of_one_node("Col2Im", inputs, ("image", "block"), **attributes)
    (result,), (expected_value,) = (
        interpret(model, list(feed.values())),
        interpret(constant, [data]),
    )
    compiled = ekiden.compile(model)(**feed)
    assert isinstance(compiled, ekiden.Tensor)
    for actual in (result, compiled.numpy()):
        assert actual.shape == expected_value.shape
        np.testing.assert_allclose(actual, expected_value, rtol=1e-5, atol=1e-6)


def test_col2im_patch_count_mismatch_is_a_runtime_error() -> None:
    inputs = {"x": normal(1, 4, 12), "image": ints(5, 5), "block": ints(2, 2)}
    model, feed = of_one_node("Col2Im", inputs, ("block",))
    with pytest.raises(RunError, match="Col2Im 'it' with 'image_shape'"):
        ekiden.compile(model)(**feed)


@pytest.mark.parametrize("shape", [(2, 40, 1), (1, 33, 2)])
@pytest.mark.parametrize("window", [False, True])
def test_stft_with_runtime_step(shape: tuple[int, ...], window: bool) -> None:
    inputs = {"x": normal(*shape), "step": np.array(3)}
    inputs |= {"w": normal(8)} if window else {"-": ints(), "length": np.array(8)}
    fixed = () if window else ("length",)
    one_sided = int(shape[-1] == 1)
    model, feed = of_one_node("STFT", inputs, fixed, opset=17, onesided=one_sided)
    (result,), (reference,) = interpret(model, list(feed.values())), expected(model, feed, False)
    assert result.shape == reference.shape and result.dtype == reference.dtype
    np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)
