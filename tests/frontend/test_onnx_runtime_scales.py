"""Resizing by scales that come at run time, TopK of nothing, and further sizes that are data: as in
ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Array, Feed, graph_model, ints, normal

import ekiden
from ekiden.runtime.errors import IndexRangeError, UnsupportedError
from long_runs import alike, share
from onnx_runtime import run_onnx_runtime

MODES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")


def compare(model: onnx.ModelProto, *feeds: Feed) -> None:
    """One artifact agrees with ONNX Runtime on all of some inputs."""
    exe = ekiden.compile(model)
    for feed in feeds:
        actual = exe(**feed)
        many = actual if isinstance(actual, tuple) else (actual,)
        for result, expected in zip(many, run_onnx_runtime(model, feed), strict=True):
            assert result.shape == expected.shape and result.dtype == str(expected.dtype)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def node(op_type: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    names = ["" if n == "-" else n for n in inputs.split()]
    called = f"{op_type} of {outputs}"
    return helper.make_node(op_type, names, outputs.split(), name=called, **attributes)


@share(4)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", MODES)
def test_resize_by_scales_from_data(mode: str, coordinates: str) -> None:
    x = normal(1, 2, 7, 5)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    feeds = [{"x": x, "s": floats(1, 1, *s)} for s in ((2, 2), (1.5, 1.3), (0.6, 0.45), (1, 3.7))]
    if coordinates == "align_corners":  # ONNX Runtime goes by whole extents: see the next test
        feeds = feeds[:1]
    compare(graph_model([node("Resize", "x - s", "y", **attributes)], feeds[0], ["y"]), *feeds)


@share(4)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("argument", ["data", "constant", "constant, of a dynamic image"])
def test_corners_are_aligned_by_the_scaled_extents_unrounded(mode: str, argument: str) -> None:
    """As in ONNX's reference: 0.6 times 7 has its last pixel at 3.2, and 4 pixels."""
    x = normal(1, 2, 7, 5)
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    resize = node("Resize", "x - s", "y", **attributes)
    for scales in (floats(1, 1, 0.6, 0.45), floats(1, 1, 1.5, 1.3), floats(1, 1, 1, 0.2)):
        whole = {"x": x, "s": scales}
        (expected,) = ReferenceEvaluator(graph_model([resize], whole, ["y"])).run(None, whole)
        feed, weights = (whole, {}) if argument == "data" else ({"x": x}, {"s": scales})
        symbolic = argument.endswith("image")
        exe = ekiden.compile(graph_model([resize], feed, ["y"], weights, 19, symbolic=symbolic))
        np.testing.assert_allclose(exe(**feed).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_resize_by_scales_of_some_axes_of_a_dynamic_image() -> None:
    steps = [
        node("Shape", "x", "shape"),
        node("Gather", "shape three", "width"),
        node("Cast", "width", "w", to=onnx.TensorProto.FLOAT),
        node("Div", "wanted w", "scale"),
        node("Concat", "scale scale", "scales", axis=0),
        node("Resize", "x - scales", "y", mode="linear", axes=[2, 3]),
    ]
    feeds = [{"x": normal(1, 3, h, w)} for h, w in ((6, 9), (4, 4), (17, 30))]
    weights = {"three": ints(3), "wanted": floats(20)}
    compare(graph_model(steps, feeds[0], ["y"], weights, 18, symbolic=True), *feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("argument", ["scales", "data", "sizes"])
def test_volumes_of_any_size(mode: str, argument: str) -> None:
    """Three spatial axes, whatever of the extents is symbolic or the scales are; ONNX Runtime has
    no cubic ones.
    """
    feeds = [{"x": normal(n, 2, *e)} for n, e in ((1, (3, 4, 5)), (2, (2, 7, 2)), (0, (2, 3, 4)))]
    weights = {"s": floats(1, 1, 2, 1.5, 0.6)}
    resize = node("Resize", "x - s", "y", mode=mode)
    if argument == "data":
        feeds, weights = [{**f, **weights} for f in feeds], {}
    elif argument == "sizes":
        feeds = [f for f in feeds if f["x"].shape[0]]
        resize = node("Resize", "x - - s", "y", mode=mode, axes=[2, 3, 4])
        weights = {"s": ints(5, 3, 6)}
    compare(graph_model([resize], feeds[0], ["y"], weights, 18, symbolic=True), *feeds)


def test_volumes_of_bytes_and_halves_are_rounded_once() -> None:
    x = normal(1, 2, 3, 4, 5)
    for data in ((x * 40).astype(np.int8), x.astype(np.float16)):
        weights = {"s": floats(1, 1, 2, 1.5, 0.6)}
        model = graph_model(
            [node("Resize", "x - s", "y", mode="cubic")],
            {"x": data},
            ["y"],
            weights,
            19,
            symbolic=True,
        )
        (expected,) = ReferenceEvaluator(model).run(None, {"x": data})
        actual = ekiden.compile(model)(data).numpy()
        assert actual.dtype == data.dtype
        np.testing.assert_allclose(
            actual.astype(float),
            np.round(expected) if actual.dtype == np.int8 else expected,
            atol=2e-3,
        )


def test_upsample_and_1d_resize_match_onnxruntime() -> None:
    x, s = normal(1, 2, 4, 3), floats(1, 1, 2, 3)
    for op_type, opset in (("Upsample", 9), ("Resize", 10)):
        feed = {"x": x, "s": s}
        model = graph_model([node(op_type, "x s", "y", mode="nearest")], feed, ["y"], None, opset)
        compare(model, feed, {"x": x, "s": floats(1, 1, 1, 2)})
    line = {"x": normal(2, 3, 8), "s": floats(1, 1, 1.75)}
    compare(graph_model([node("Resize", "x - s", "y", mode="linear")], line, ["y"]), line)


@pytest.mark.parametrize("axis", [0, -1])
def test_top_k_of_empty_axis_matches_onnxruntime(axis: int) -> None:
    feed = {"x": normal(3, 5)}
    top = node("TopK", "x k", "v i", axis=axis)
    compare(graph_model([top, node("Add", "v one", "y")], feed, ["y", "i"],
                        {"k": ints(0), "one": floats(1)}), feed)  # fmt: skip
    inputs = {**feed, "k": ints(0)}
    compare(graph_model([top], inputs, ["v", "i"]), inputs, {**feed, "k": ints(2)})
    with pytest.raises(UnsupportedError, match="'K' must not be negative, got -1"):
        ekiden.compile(graph_model([top], feed, ["v", "i"], {"k": ints(-1)}))


CASES: dict[str, tuple[list[onnx.NodeProto], list[Feed], Feed]] = {
    "a range of floats": (
        [node("Range", "a b c", "r"), node("Mul", "r r", "y")],
        [
            {"a": np.asarray(0, "f"), "b": np.asarray(b, "f"), "c": np.asarray(0.5, "f")}
            for b in (2, 0, 3.2)
        ],
        {},
    ),
    "an eye of a size from data": (
        [node("ConstantOfShape", "n", "e"), node("EyeLike", "e", "y", k=1)],
        [{"n": ints(3, 4)}, {"n": ints(0, 2)}],
        {},
    ),
    "one hot of a depth from data, then a product": (
        [node("OneHot", "i d v", "h"), node("ReduceSum", "h", "y", keepdims=0)],
        [{"i": ints(1, 0, 2), "d": np.asarray(d)} for d in (3, 5)],
        {"v": floats(0, 1)},
    ),
    "splits by data": (
        [node("Split", "x s", "a b", axis=1), node("MatMul", "a w", "y"), node("Exp", "b", "z")],
        [{"x": normal(2, 5), "s": ints(3, 2)}],
        {"w": normal(3, 2)},
    ),
    "cumulated lengths, repeated": (
        [
            node("CumSum", "n zero", "ends"),
            node("Gather", "ends last", "total"),
            node("Range", "zero total unit", "at"),
            node("Unsqueeze", "at one", "column"),
            node("GreaterOrEqual", "column ends", "past"),
            node("Cast", "past", "counts", to=onnx.TensorProto.INT64),
            node("ReduceSum", "counts one", "which", keepdims=0),
            node("Gather", "x which", "y"),
        ],
        [{"n": ints(2, 0, 3), "x": normal(3, 4)}, {"n": ints(1, 1, 1), "x": normal(3, 4)}],
        {"zero": np.asarray(0), "unit": np.asarray(1), "last": np.asarray(2), "one": ints(1)},
    ),
    "pads and tiles by data": (
        [node("Pad", "x p", "a"), node("Tile", "a t", "b"), node("Softmax", "b", "y", axis=-1)],
        [
            {"x": normal(2, 3), "p": ints(0, 1, 0, 2), "t": ints(1, 2)},
            {"x": normal(2, 3), "p": ints(1, 0, 0, 0), "t": ints(2, 1)},
        ],
        {},
    ),
    "a pool and a norm over a length from data": (
        [
            node("Slice", "x zero n axis", "s"),
            node("MaxPool", "s", "p", kernel_shape=[2], strides=[2]),
            node("InstanceNormalization", "p g b", "y"),
        ],
        [{"x": normal(1, 2, 12), "n": ints(k)} for k in (8, 12, 5)],
        {"zero": ints(0), "axis": ints(2), "g": floats(1, 2), "b": floats(0, 1)},
    ),
    "a recurrent layer over a length from data": (
        [node("Slice", "x zero n zero", "s"), node("GRU", "s w r", "y h", hidden_size=3)],
        [{"x": normal(6, 1, 2), "n": ints(k)} for k in (6, 2)],
        {"zero": ints(0), "w": normal(1, 9, 2), "r": normal(1, 9, 3)},
    ),
    "grid samples and boxes over sizes from data": (
        [node("Slice", "g zero n one", "s"), node("GridSample", "x s", "y")],
        [{"x": normal(1, 2, 4, 5), "g": np.tanh(normal(1, 6, 3, 2)), "n": ints(k)} for k in (6, 2)],
        {"zero": ints(0), "one": ints(1)},
    ),
    "slices along axes from data": (
        [node("Slice", "x b e a s", "t"), node("Neg", "t", "y")],
        [
            {"x": normal(4, 5, 6), "b": ints(*b), "e": ints(*e), "a": ints(*a), "s": ints(*s)}
            for b, e, a, s in (
                ((1, -4), (3, 2**62), (0, 2), (1, 2)),
                ((3, 0), (0, 9), (-1, -2), (-1, 1)),
            )
        ],
        {},
    ),
    "known bounds along an axis from data": (
        [node("Slice", "x b e a", "y")],
        [{"x": normal(4, 5), "a": ints(a)} for a in (0, 1, -1, -2)],
        {"b": ints(1), "e": ints(-1)},
    ),
    "pads along axes from data": (
        [node("Pad", "x p - a", "t"), node("Neg", "t", "y")],
        [{"x": normal(2, 3, 4), "p": ints(1, 0, 2, 3), "a": ints(*a)} for a in ((0, 2), (-1, 1))],
        {},
    ),
    "sums along an axis from data": (
        [node("CumSum", "x a", "t", exclusive=1, reverse=1), node("Neg", "t", "y")],
        [{"x": normal(2, 3, 4), "a": np.asarray(a)} for a in (0, 1, 2, -1, -3)],
        {},
    ),
    "unique, then a product as large as it": (
        [node("Unique", "x", "u"), node("Unsqueeze", "u one", "c"), node("Mul", "c u", "y")],
        [{"x": floats(1, 3, 1, 2)}, {"x": floats(5, 5, 5, 5)}],
        {"one": ints(1)},
    ),
}


@alike(4)
@pytest.mark.parametrize("name", CASES)
def test_data_dependent_sizes_propagate(name: str) -> None:
    nodes, feeds, weights = CASES[name]
    result = {n for item in nodes for n in item.output}
    used = {n for item in nodes for n in item.input}
    compare(graph_model(nodes, feeds[0], sorted(result - used), weights, 18), *feeds)


@pytest.mark.parametrize("nodes", ["Slice", "Pad", "CumSum"])
def test_out_of_range_runtime_axes_are_errors(nodes: str) -> None:
    arguments = {"x": normal(2, 3), "b": ints(1), "p": ints(1, 1), "a": ints(1)}
    inputs = {"Slice": "x b b a", "Pad": "x p - a", "CumSum": "x a"}[nodes]
    feed = {n: arguments[n] for n in dict.fromkeys(inputs.replace("-", "").split())}
    exe = ekiden.compile(graph_model([node(nodes, inputs, "y")], feed, ["y"], None, 18))
    exe(**feed)
    for axis in (2, -3):
        with pytest.raises(IndexRangeError, match=f"{nodes} '{nodes} of y': index {axis}"):
            exe(**{**feed, "a": ints(axis)})
