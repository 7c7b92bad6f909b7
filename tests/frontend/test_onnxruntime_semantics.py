"""What ONNX Runtime runs and its results: tails of activations, scales that broadcast, vectors of
ai.onnx.ml, resizing before opset 11, keys with room behind them, sparse constants, operators that
ONNX dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Array, compare, graph_model, interpret, ints, normal

import ekiden
from ekiden.runtime.errors import InputError, RunError, UnsupportedError
from long_runs import share
from onnx_runtime import run_onnx_runtime

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def node(op_type: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    names = ["" if n == "-" else n for n in inputs.split()]
    return helper.make_node(op_type, names, outputs.split(), **attributes)


# Tails.


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _below_0(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
TAILS: Mapping[str, Callable[[Array], Array]] = {
    "Softplus": _softplus,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Elu": lambda x: _below_0(x, 1.0),
    "Celu": lambda x: _below_0(x, 1.0),
    "Selu": lambda x: SELU_GAMMA * _below_0(x, SELU_ALPHA),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op_type", TAILS)
def test_activations_are_accurate_in_the_tails(op_type: str, dtype: str) -> None:
    if op_type == "Celu":
        dtype = "float32"  # ONNX has it of no other
    kind = np.dtype(dtype)
    least = {2: -9.0, 4: -60.0, 8: -300.0}[kind.itemsize]
    x = np.concatenate([np.linspace(least, 4, 97), [-1e-3, 1e-3, 0.0, 11.0]]).astype(kind)
    model = graph_model([node(op_type, "x", "y")], {"x": x}, ["y"], opset=22)
    expected = TAILS[op_type](x.astype(np.float64))
    tolerance = 8 * float(np.finfo(kind).eps)
    smallest = float(np.finfo(kind).smallest_normal)
    results = [interpret(model, [x])[0]]
    if dtype == "float32":
        results.append(ekiden.compile(model)(x).numpy())
    for actual in results:
        np.testing.assert_allclose(actual.astype(np.float64), expected, tolerance, smallest)


@pytest.mark.parametrize("name", ["Softplus", "Elu"])
def test_recurrent_activations_are_accurate_in_the_tails(name: str) -> None:
    x = floats(-12.5, -16, -20, -30, -1e-4, -1e-6).reshape(6, 1, 1)
    one, none = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    layer = node("RNN", "x w r", "y", hidden_size=1, activations=[name])
    model = graph_model([layer], {"x": x}, ["y"], {"w": one, "r": none})
    expected = TAILS[name](x.astype(np.float64)).ravel()
    for actual in (interpret(model, [x])[0], ekiden.compile(model)(x).numpy()):
        np.testing.assert_allclose(actual.ravel(), expected, 1e-5)


# Scales that broadcast.


@share(2)
@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("axis", "shape"),
    [(-1, (1, 1, 4)), (-1, (3, 4)), (-1, (2, 1, 4)), (-1, (2, 3, 4)), (1, (2, 1, 1)),
     (1, (1, 3, 4)), (-1, ()), (1, (4,))],
)  # fmt: skip
def test_scales_of_norms_broadcast(
    op_type: str, dtype: type, axis: int, shape: tuple[int, ...]
) -> None:
    x, scale, bias = (normal(*s).astype(dtype) for s in ((2, 3, 4), shape, shape))
    wide = x.astype(np.float64)
    axes = tuple(range(axis % 3, 3))
    if op_type == "LayerNormalization":
        centred = wide - wide.mean(axes, keepdims=True)
        expected = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5) * scale + bias
        argument = node(op_type, "x s b", "y", axis=axis)
    else:
        expected = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-5) * scale
        argument = node(op_type, "x s", "y", axis=axis)
    weights = {n: a for n, a in (("s", scale), ("b", bias)) if n in argument.input}
    for symbolic in (False, True):
        model = graph_model([argument], {"x": x}, ["y"], weights, 23, symbolic)
        (actual,) = interpret(model, [x])
        assert actual.dtype == dtype and actual.shape == x.shape
        tolerance = 1e-5 if dtype == np.float32 else 1e-2
        np.testing.assert_allclose(actual, expected, tolerance, tolerance)


def test_scale_with_more_axes_than_the_data_is_refused() -> None:
    x = normal(3, 4)
    argument = node("LayerNormalization", "x s", "y")
    model = graph_model([argument], {"x": x}, ["y"], {"s": normal(2, 3, 4)}, 21)
    with pytest.raises(UnsupportedError, match="does not broadcast"):
        ekiden.compile(model)


def test_misspelt_epsilon_is_the_default() -> None:
    feed = {"x": normal(2, 4), "s": normal(4)}
    compare(graph_model([node("LayerNormalization", "x s", "y", epsion=1e-1)], feed, ["y"]), feed)


# Vectors of ai.onnx.ml are one row.

TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
VECTORS: Mapping[str, dict[str, object]] = {
    "Scaler": {"offset": [1.0, 2.0, 3.0], "scale": [1.0, 2.0, 0.5]},
    "Normalizer": {"norm": "L2"},
    "Binarizer": {"threshold": 0.5},
    "Imputer": {"imputed_value_floats": [9.0, 8.0, 7.0], "replaced_value_float": 3.0},
    "FeatureVectorizer": {"inputdimensions": [3]},
    "LinearRegressor": {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]},
    "LinearClassifier": {
        "coefficients": [1.0, 2.0, 3.0, -1.0, 0.0, 1.0], "intercepts": [0.5, 0.0],
        "classlabels_ints": [4, 5], "post_transform": "SOFTMAX",
    },
    "SVMRegressor": {
        "kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 3.0], "coefficients": [1.0, -1.0],
        "support_vectors": [1.0, 2.0, 3.0, 0.0, 1.0, 0.0], "n_supports": 2, "rho": [0.5],
    },
    "SVMClassifier": {
        "kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 3.0], "coefficients": [1.0, -1.0],
        "support_vectors": [1.0, 2.0, 3.0, 0.0, 1.0, 0.0], "vectors_per_class": [1, 1],
        "rho": [0.5], "classlabels_ints": [0, 1],
    },
    "TreeEnsembleRegressor": {
        "n_targets": 1, "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [5.0, 6.0], **TREE,
    },
    "TreeEnsembleClassifier": {
        "classlabels_int64s": [0, 1], "class_treeids": [0] * 4, "class_nodeids": [1, 1, 2, 2],
        "class_ids": [0, 1, 0, 1], "class_weights": [0.3, 0.7, 0.6, 0.4], **TREE,
    },
}  # fmt: skip
"""Operator -> attributes for three features."""


@pytest.mark.parametrize("op_type", VECTORS)
def test_vector_is_treated_as_a_row(op_type: str) -> None:
    x = floats(1, -2, 3)
    outputs = ["l", "y"] if op_type.endswith("Classifier") else ["y"]
    argument = helper.make_node(op_type, ["x"], outputs, domain=ML, **VECTORS[op_type])
    vector, row = (graph_model([argument], {"x": a}, outputs, domains=[ML]) for a in (x, x[None]))
    actual, expected = interpret(vector, [x]), interpret(row, [x[None]])
    is_alike = op_type in ("Scaler", "Normalizer", "Binarizer", "Imputer")
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b[0] if is_alike else b)
    if not op_type.startswith("Tree"):  # of which ONNX Runtime counts the columns as the rows
        compare(vector, {"x": x})


def test_vectors_and_rows_are_joined() -> None:
    feed = {"x": floats(1, -2, 3), "z": np.ones((1, 2), np.float32)}
    joined = node("FeatureVectorizer", "x z", "y", domain=ML, inputdimensions=[3, 2])
    compare(graph_model([joined], feed, ["y"], domains=[ML]), feed)


# Resizing.


@pytest.mark.parametrize(
    "scales", [(0.6, 0.6), (0.75, 0.75), (0.3, 0.3), (0.7, 1.0), (2, 0.4), (0.1, 3.0), (1.3, 1.3)]
)
def test_opset_10_nearest_downsampling_rounds_up(scales: tuple[float, float]) -> None:
    x = np.arange(21 * 30, dtype=np.float32).reshape(1, 1, 21, 30)
    whole = {"x": x, "s": floats(1, 1, *scales)}
    resize = node("Resize", "x s", "y", mode="nearest")
    (expected,) = run_onnx_runtime(graph_model([resize], whole, ["y"], None, 10), whole)
    for feed, weights in ((whole, {}), ({"x": x}, {"s": whole["s"]})):
        model = graph_model([resize], feed, ["y"], weights, 10, symbolic="s" not in feed)
        (actual,) = interpret(model, list(feed.values()))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_scales_from_data_change_batch_and_channels(mode: str) -> None:
    x = normal(2, 2, 4, 3)
    feed = {"x": x, "s": floats(1, 1, 2, 2)}
    exe = ekiden.compile(graph_model([node("Resize", "x - s", "y", mode=mode)], feed, ["y"]))
    for scales in ((1, 1, 2, 2), (2, 1, 2, 2), (1, 3, 1.5, 2), (0.5, 0.5, 0.5, 0.7)):
        whole = {"x": x, "s": floats(*scales)}
        actual = exe(**whole).numpy()
        if mode == "nearest" or scales[:2] == (1, 1):
            (expected,) = run_onnx_runtime(
                graph_model([node("Resize", "x - s", "y", mode=mode)], whole, ["y"]), whole
            )
            np.testing.assert_allclose(actual, expected, 1e-6, 1e-6)
        shape = tuple(
            int(np.floor(np.float32(d) * s)) for d, s in zip(x.shape, whole["s"], strict=True)
        )
        assert actual.shape == shape
    with pytest.raises((InputError, RunError), match="negative"):
        exe(x, floats(1, 1, -2, 2))


# Attention with room behind the past.


def attention_by_definition(
    feed: Mapping[str, Array], heads: int, past: int, beams: Array | None = None
) -> list[Array]:
    """The result, and the keys and values with the new ones behind those of the past."""
    q, k, v = (feed[n].astype(np.float64) for n in "qkv")
    batch, rows, width = q.shape

    def split(t: Array) -> Array:
        return t.reshape(batch, -1, heads, width // heads).transpose(0, 2, 1, 3)

    sides, whole = [], []
    for cached, new in ((feed["pk"], split(k)), (feed["pv"], split(v))):
        old = cached[:, :, :past].astype(np.float64)
        if beams is not None:
            count = beams.shape[1]
            source = (np.arange(batch) // count * count)[:, None] + beams.reshape(batch, -1)
            old = cached[source[:, :past], :, np.arange(past)].transpose(0, 2, 1, 3)
        sides.append(np.concatenate([old, new], axis=2))
        filled = cached.copy()
        filled[:, :, past : past + rows] = new
        whole.append(filled)
    scores = split(q) @ sides[0].transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return [(weights @ sides[1]).transpose(0, 2, 1, 3).reshape(batch, rows, -1), *whole]


@pytest.mark.parametrize("op_type", ["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"])
@pytest.mark.parametrize("with_beams", [False, True])
def test_past_keys_have_capacity(op_type: str, with_beams: bool) -> None:
    heads, depth, room, batch = 2, 4, 8, 4
    feed = {
        **{n: normal(batch, 1, heads * depth) for n in "qkv"},
        **{n: normal(batch, heads, room, depth) for n in ("pk", "pv")},
        "n": np.array([3], np.int32),
    }
    beams = None
    if with_beams:
        beams = np.random.default_rng(0).integers(0, 2, (2, 2, room)).astype(np.int32)
        feed["c"] = beams
    if op_type == "MultiHeadAttention":
        names, more = f"q k v - - - pk pv n{' c' if with_beams else ''}", {}
    else:
        names, more = "q k v - - pk pv n", {"past_present_share_buffer": 1}
        if with_beams:
            feed["w"] = np.array([2], np.int32)
            names += " w c"
    argument = node(op_type, names, "y k1 v1", domain=MICROSOFT, num_heads=heads, **more)
    model = graph_model([argument], feed, ["y", "k1", "v1"], domains=[MICROSOFT])
    exe = ekiden.compile(model)
    for past in (3, 0, 7):
        feed["n"] = np.array([past], np.int32)
        results = [t.numpy() for t in exe(**feed)]
        expected = attention_by_definition(feed, heads, past, beams)
        for a, b, c in zip(results, expected, run_onnx_runtime(model, feed), strict=True):
            np.testing.assert_allclose(a, b, 1e-4, 1e-5)
            np.testing.assert_allclose(a, c, 1e-4, 1e-5)
    feed["n"] = np.array([8], np.int32)
    with pytest.raises((InputError, RunError), match="has no room"):
        exe(**feed)


def test_attention_returns_scores() -> None:
    feed = {"q": normal(2, 3, 8), "k": normal(2, 5, 8), "v": normal(2, 5, 8)}
    argument = node("MultiHeadAttention", "q k v", "y - - s", domain=MICROSOFT, num_heads=2)
    argument.output[1] = argument.output[2] = ""
    model = graph_model([argument], feed, ["y", "s"], domains=[MICROSOFT])
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.FLOAT
    compare(model, feed)


def test_skip_layer_norm_gives_mean_and_deviation() -> None:
    feed = {"x": normal(2, 3, 8), "k": normal(2, 3, 8), "g": normal(8)}
    argument = node("SkipLayerNormalization", "x k g", "y m d", domain=MICROSOFT)
    result = interpret(graph_model([argument], feed, ["y", "m", "d"], domains=[MICROSOFT]),
                      list(feed.values()))  # fmt: skip
    total = (feed["x"] + feed["k"]).astype(np.float64)
    np.testing.assert_allclose(result[1], total.mean(-1, keepdims=True), 1e-4, 1e-6)
    np.testing.assert_allclose(result[2], 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-12), 1e-4)


@pytest.mark.parametrize("constant", [(), ("b", "s"), ("b", "s", "g")])
@pytest.mark.parametrize("with_groups", [False, True])
def test_block_quantized_weights_with_g_idx_or_at_run_time(
    constant: Sequence[str], with_groups: bool
) -> None:
    rng = np.random.default_rng(0)
    columns, rows, block = 32, 4, 16
    feed: dict[str, Array] = {
        "a": normal(2, columns),
        "b": rng.integers(0, 256, (rows, columns // block, block // 2)).astype(np.uint8),
        "s": normal(rows * columns // block),
        "z": rng.integers(0, 256, rows).astype(np.uint8),
    }
    names = "a b s z"
    if with_groups:
        names += " g"
        feed["g"] = rng.permutation(np.repeat([0, 1], block)).astype(np.int32)
    levels = np.stack([feed["b"] & 15, feed["b"] >> 4], -1).reshape(rows, columns)
    points = np.stack([feed["z"] & 15, feed["z"] >> 4], -1)
    groups = feed["g"] if with_groups else np.arange(columns) // block
    scales = feed["s"].reshape(rows, -1)[:, groups]
    expected = feed["a"] @ ((levels - points[:, groups].astype(np.float32)) * scales).T
    weights = {n: feed.pop(n) for n in constant if n in feed}
    argument = node("MatMulNBits", names, "y", domain=MICROSOFT, K=columns, N=rows, bits=4,
                 block_size=block)  # fmt: skip
    model = graph_model([argument], feed, ["y"], weights, domains=[MICROSOFT])
    (actual,) = interpret(model, list(feed.values()))
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-4)


# Constants and files.


def sparse_tensor(name: str, is_linear: bool) -> onnx.SparseTensorProto:
    tensor = onnx.SparseTensorProto(dims=[3, 4])
    tensor.values.CopyFrom(helper.make_tensor(name, TensorProto.FLOAT, [3], [1, 2, 3]))
    places = ints(2, 5, 11) if is_linear else np.array([[0, 2], [1, 1], [2, 3]])
    tensor.indices.CopyFrom(numpy_helper.from_array(places, f"{name}_places"))
    return tensor


@pytest.mark.parametrize("is_linear", [True, False])
@pytest.mark.parametrize("is_initializer", [True, False])
def test_sparse_tensors_are_constants(is_linear: bool, is_initializer: bool) -> None:
    x = normal(3, 4)
    nodes = [node("Add", "x c", "y")]
    if not is_initializer:
        nodes.insert(0, node("Constant", "", "c", sparse_value=sparse_tensor("c", is_linear)))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    if is_initializer:
        graph.sparse_initializer.append(sparse_tensor("c", is_linear))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    dense = np.zeros((3, 4), np.float32)
    dense[0, 2], dense[1, 1], dense[2, 3] = 1, 2, 3
    np.testing.assert_array_equal(interpret(model, [x])[0], x + dense)
    np.testing.assert_array_equal(run_onnx_runtime(model, {"x": x})[0], x + dense)


def test_sparse_tensors_that_are_broken_are_refused() -> None:
    x = normal(3, 4)
    for places in (ints(2, 5, 12), ints(2, 5), ints(-1, 5, 7)):
        sparse = sparse_tensor("c", True)
        sparse.indices.CopyFrom(numpy_helper.from_array(places, "i"))
        model = graph_model([node("Add", "x c", "y")], {"x": x}, ["y"], {"d": x})
        model.graph.sparse_initializer.append(sparse)
        with pytest.raises(ekiden.ImportModelError, match="initializer 'c' is broken"):
            ekiden.compile(model)


def test_weights_beside_a_model_have_the_bytes_of_their_shape(tmp_path: Path) -> None:
    """Without a length, though others stand behind them in the file."""
    x, first, second = normal(3), normal(3), normal(3)
    (tmp_path / "w.bin").write_bytes(first.tobytes() + second.tobytes())
    model = graph_model([node("Add", "x a", "t"), node("Add", "t b", "y")], {"x": x}, ["y"],
                        {"a": first, "b": second})  # fmt: skip
    for tensor, offset in zip(model.graph.initializer, (None, 12), strict=True):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        if offset is not None:
            tensor.external_data.add(key="offset", value=str(offset))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    np.testing.assert_array_equal(ekiden.compile(path)(x).numpy(), x + first + second)


# Operators and forms of old versions.


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 3.0}),
        ("Affine", {}),
        ("ImageScaler", {"bias": [1.0, 2.0, 3.0], "scale": 0.5}),
        ("Crop", {"border": [1, 2, 3, 1]}),
        ("Crop", {"border": [1, 2, 3, 1], "scale": [4, 5]}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}),
        ("MeanVarianceNormalization", {}),
        ("MeanVarianceNormalization", {"across_channels": 1}),
        ("MeanVarianceNormalization", {"normalize_variance": 0}),
    ],
)
def test_removed_experimental_operators_match_onnxruntime(
    op_type: str, attributes: dict[str, object]
) -> None:
    feed = {"x": normal(2, 3, 8, 9)}
    argument = node(op_type, "x", "y", **attributes)
    for symbolic in (False, True):
        compare(graph_model([argument], feed, ["y"], None, 7, symbolic), feed, rtol=1e-4)


def test_crop_larger_than_image_is_refused() -> None:
    model = graph_model([node("Crop", "x", "y", border=[0, 0, 0, 0], scale=[40, 5])],
                        {"x": normal(1, 3, 8, 9)}, ["y"], None, 7)  # fmt: skip
    with pytest.raises(UnsupportedError, match="Crop 'y': 'border' and 'scale' leave nothing"):
        ekiden.compile(model)


@pytest.mark.parametrize("shape", [[0, -1], [4, 6]])
def test_reshape_with_shape_attribute(shape: list[int]) -> None:
    feed = {"x": normal(2, 3, 4)}
    compare(graph_model([node("Reshape", "x", "y", shape=shape)], feed, ["y"], None, 1), feed)


def test_empty_auto_pad_means_notset() -> None:
    feed = {"x": normal(1, 2, 6, 6)}
    conv = node("Conv", "x w", "c", auto_pad="", pads=[1, 1, 1, 1])
    pool = node("MaxPool", "c", "y", auto_pad="", kernel_shape=[2, 2])
    compare(graph_model([conv, pool], feed, ["y"], {"w": normal(3, 2, 3, 3)}), feed)


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [(r"\p{L}+", ["abc", "äß", "漢字"]), (r"\pL\pN", ["a1", "ä٣"]), (r"[^\p{Lu}]+", ["abc", "1"]),
     (r"\P{L}", ["1", "-"]), (r"\p{^L}\p{Any}", ["1é"])],
)  # fmt: skip
def test_regex_unicode_categories_match_onnxruntime(pattern: str, accepted: list[str]) -> None:
    words = ["abc", "äß", "漢字", "a1", "ä٣", "1", "-", "1é", "ABC", ""]
    infos = [helper.make_tensor_value_info("x", TensorProto.STRING, [None]),
             helper.make_tensor_value_info("y", TensorProto.BOOL, [None])]  # fmt: skip
    graph = helper.make_graph([node("RegexFullMatch", "x", "y", pattern=pattern)], "g",
                              infos[:1], infos[1:])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    result = ekiden.compile(model)(np.array(words, object)).numpy()
    (peer,) = run_onnx_runtime(model, {"x": np.array(words, object)})
    assert result.tolist() == peer.tolist()
    assert {w for w, is_match in zip(words, result, strict=True) if is_match} >= set(accepted)


# Inputs with a value of their own, and sequences of nothing.


def test_initializer_listed_as_input_can_be_overridden() -> None:
    x, w = normal(2, 3), normal(3)
    model = graph_model([node("Mul", "x w", "y")], {"x": x, "w": w}, ["y"])
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    np.testing.assert_allclose(ekiden.compile(model)(x).numpy(), x * w)
    exe = ekiden.compile(model, shape={"w": (3,)})
    assert [i.name for i in exe.inputs] == ["x", "w"]
    np.testing.assert_allclose(exe(x=x, w=w + 1).numpy(), x * (w + 1))
    (peer,) = run_onnx_runtime(model, {"x": x, "w": w + 1})
    np.testing.assert_allclose(exe(x, w + 1).numpy(), peer)
    with pytest.raises(
        ekiden.ImportModelError, match="'v'; the inputs are 'x'; with a value .* 'w'"
    ):
        ekiden.compile(model, shape={"v": (3,)})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_of_sequences_without_steps(op_type: str, direction: str) -> None:
    """Last states are 0 there, whatever the layer begins with."""
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], 4
    sides = 2 if direction == "bidirectional" else 1
    weights = {"w": normal(sides, gates * hidden, 2), "r": normal(sides, gates * hidden, hidden)}
    for steps, lengths in ((3, [3, 0]), (3, [0, 0]), (0, None)):
        feed = {"x": normal(steps, 2, 2), "h": normal(sides, 2, hidden)}
        names = "x w r - - h"
        if lengths is not None:
            feed["n"], names = np.array(lengths, np.int32), "x w r - n h"
        layer = node(op_type, names, "y last", hidden_size=hidden, direction=direction)
        for symbolic in (False, True):
            model = graph_model([layer], feed, ["y", "last"], weights, symbolic=symbolic)
            every, last = interpret(model, list(feed.values()))
            assert every.shape == (steps, sides, 2, hidden)
            empty = np.array(lengths or [0, 0]) == 0
            assert not last[:, empty].any() and last[:, ~empty].all()
        if lengths is not None:  # ONNX Runtime ends its process where there are no steps
            compare(model, feed, rtol=1e-4)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0)])
def test_recurrent_layers_without_batch_compile(op_type: str, steps: int, batch: int) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    weights = {"w": normal(1, gates * 4, 2), "r": normal(1, gates * 4, 4)}
    feed = {"x": normal(steps, batch, 2)}
    layer = node(op_type, "x w r", "y last", hidden_size=4)
    every, last = ekiden.compile(graph_model([layer], feed, ["y", "last"], weights))(**feed)
    assert every.shape == (steps, 1, batch, 4) and last.shape == (1, batch, 4)
    assert not last.numpy().any()
