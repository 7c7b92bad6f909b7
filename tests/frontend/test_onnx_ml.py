"""Operators of ai.onnx.ml against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekiden
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.onnx.tree_ensembles import BranchNodes, build_forest
from ekiden.runtime.errors import UnsupportedError
from long_runs import alike, share, sizes
from onnx_runtime import run_onnx_runtime

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype(np.float32)
WORDS = np.array([["b", "a", "x"], ["c", "", "b"]], object)
KINDS = {"float32": 1, "int64": 7, "object": 8, "float64": 11, "int32": 6}


def model_of(
    op: str,
    x: Array,
    outputs: int,
    version: int,
    attributes: dict[str, Any],
    extra: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    domain = "" if op == "TfIdfVectorizer" else ML
    names = [f"y{i}" for i in range(outputs)]
    result = helper.make_node(
        op, ["x", *(t.name for t in extra)], names, domain=domain, **attributes
    )
    shape = [f"d{i}" for i in range(x.ndim - 1)] + [x.shape[-1]]
    argument = helper.make_tensor_value_info("x", KINDS[str(x.dtype)], shape)
    results = [onnx.ValueInfoProto(name=n) for n in names]
    graph = helper.make_graph([result], "g", [argument], results, list(extra))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_ort(model: onnx.ModelProto, x: Array) -> list[Any]:
    return run_onnx_runtime(model, {"x": x})


def by_reference(model: onnx.ModelProto, x: Array) -> list[Any]:
    return list(ReferenceEvaluator(model).run(None, {"x": x}))


def check(
    op: str,
    x: Array,
    outputs: int = 1,
    version: int = 3,
    reference: bool = False,
    extra: Sequence[onnx.TensorProto] = (),
    **attributes: Any,  # noqa: ANN401 - what ONNX's helper takes
) -> list[Any]:
    """An operator agrees; its outputs."""
    model = model_of(op, x, outputs, version, attributes, extra)
    expected = (by_reference if reference else by_ort)(model, x)
    result = ekiden.compile(model)(x)
    actual = result if isinstance(result, tuple) else (result,)
    for ekiden_result, reference_result in zip(actual, expected, strict=True):
        have = ekiden_result.numpy() if isinstance(ekiden_result, ekiden.Tensor) else ekiden_result
        if isinstance(reference_result, list):
            assert have == reference_result
        elif reference_result.dtype.kind == "f":
            np.testing.assert_allclose(have, reference_result, rtol=1e-4, atol=1e-5)
            assert have.dtype == reference_result.dtype
        else:
            assert (
                have.shape == reference_result.shape and have.tolist() == reference_result.tolist()
            )
    return list(actual)


# Features.


# fmt: off
@pytest.mark.parametrize(("x", "keys", "values"), [
    (WORDS, {"keys_strings": ["a", "b", "c"]}, {"values_int64s": [5, 6, 7], "default_int64": 9}),
    (WORDS, {"keys_strings": ["c", "b", "a"]}, {"values_strings": ["x", "yy", ""]}),
    (WORDS, {"keys_strings": ["b", "a"]}, {"values_floats": [1.5, 2.5], "default_float": -2.0}),
    (np.array([[3, 1, 9]]), {"keys_int64s": [9, 3]}, {"values_strings": ["nine", "three"]}),
    (np.array([[3, 1, 9]]), {"keys_int64s": [9, 3]}, {"values_floats": [0.5, 1.0]}),
    (np.array([[3, np.nan, 9]], np.float32), {"keys_floats": [9.0, np.nan]},
     {"values_floats": [0.5, 1.0], "default_float": 3.0, "version": 4}),
])
def test_label_encoder_matches_onnxruntime(
    x: Array, keys: dict[str, Any], values: dict[str, Any]
) -> None:
    check("LabelEncoder", x, **keys, **values)


@alike(3)
@pytest.mark.parametrize(("op", "x", "attributes"), [
    ("LabelEncoder", WORDS, {"classes_strings": ["a", "b"], "version": 1}),
    ("LabelEncoder", np.array([1, 0, 5]), {"classes_strings": ["a", "b"], "version": 1}),
    ("CategoryMapper", WORDS, {"cats_strings": ["a", "b"], "cats_int64s": [4, 7]}),
    ("CategoryMapper", np.array([7, 4, 1]), {"cats_strings": ["a", "b"], "cats_int64s": [4, 7]}),
    ("OneHotEncoder", WORDS[0], {"cats_strings": ["a", "b", "c"]}),
    ("OneHotEncoder", np.array([[1, 3], [2, 9]]), {"cats_int64s": [3, 2, 1], "zeros": 1}),
    ("OneHotEncoder", np.array([1, 3], np.float32), {"cats_int64s": [3, 2, 1]}),
    ("Scaler", X, {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 1.0, 2.0, 3.0]}),
    ("Scaler", np.arange(8).reshape(2, 4), {"offset": [1.0], "scale": [0.5]}),
    ("Normalizer", X, {"norm": "MAX"}), ("Normalizer", X, {"norm": "L1"}),
    ("Normalizer", X, {"norm": "L2"}),
    ("Binarizer", X, {"threshold": 0.25}),
    ("Imputer", np.where(X > 1, np.nan, X),
     {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": np.nan}),
    ("Imputer", np.array([[0, 2], [3, 0]]), {"imputed_value_int64s": [7]}),
    ("FeatureVectorizer", X, {"inputdimensions": [4]}),
    ("ZipMap", X[:, :3], {"classlabels_strings": ["a", "b", "c"]}),
    ("ZipMap", X[:, :3], {"classlabels_int64s": [4, 2, 1]}),
])  # fmt: skip
def test_feature_operators_match_onnxruntime(op: str, x: Array, attributes: dict[str, Any]) -> None:
    reference = op in ("Normalizer", "Scaler") and attributes.get("norm") == "MAX"
    check(op, x, reference=reference, **attributes)


def test_feature_extractor() -> None:
    places = onnx.numpy_helper.from_array(np.array([2, 0]), "places")
    for x in (X, WORDS, np.arange(5)):
        check("ArrayFeatureExtractor", x, extra=[places])


def grams(mode: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"mode": mode, "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1,
            "ngram_counts": [0, 3], "ngram_indexes": [4, 0, 2, 3, 1],
            "weights": [1.0, 2.0, 3.0, 4.0, 5.0], **more}  # fmt: skip


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_tfidf_vectorizer_matches_onnxruntime(mode: str) -> None:
    x = RNG.integers(0, 4, (3, 9))
    pool = [0, 1, 2, 1, 2, 3, 3]
    more = {} if mode == "TF" else {"ngram_indexes": [0, 1, 2, 3, 4]}
    check("TfIdfVectorizer", x, **grams(mode, pool_int64s=pool, **more))
    words = np.array([*"abcd"], object)[x]
    check("TfIdfVectorizer", words, **grams(mode, pool_strings=[*"abcbcdd"], **more))
    check("TfIdfVectorizer", x[0], **grams(mode, pool_int64s=pool, **more))
    check("TfIdfVectorizer", x[:, :1], **grams(mode, pool_int64s=pool, **more))


# Linear models and support vectors.


@alike(3)
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_linear_models_match_onnxruntime(post: str) -> None:
    weights = RNG.normal(size=12).astype(np.float32).tolist()
    x = X if post != "PROBIT" else X[:0]
    labels: dict[str, Any]
    for labels in ({"classlabels_strings": ["a", "b", "c"]}, {"classlabels_ints": [3, 5, 1]}):
        check("LinearClassifier", x, 2, version=1, coefficients=weights, post_transform=post,
              intercepts=[0.5, -0.5, 0.1], **labels)  # fmt: skip
    check("LinearClassifier", x, 2, version=1, coefficients=weights[:4], intercepts=[0.5],
          post_transform=post, classlabels_ints=[0, 1], reference=True)  # fmt: skip
    if post in ("NONE", "SOFTMAX"):
        check("LinearRegressor", x, version=1, coefficients=weights, intercepts=[1.0, 2.0, 3.0],
              targets=3, post_transform=post)  # fmt: skip


def test_probit_is_the_inverse_of_the_normal_distribution() -> None:
    share = np.array([[0.1], [0.5001], [0.975]], np.float32)
    model = model_of("LinearRegressor", share, 1, 1,
                     {"coefficients": [1.0], "intercepts": [0.0], "post_transform": "PROBIT"})
    result = ekiden.compile(model)(share).numpy().ravel()
    np.testing.assert_allclose(result, [-1.2816, 0.00025, 1.95996], atol=3e-2)


KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


@alike(2)
@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_regressor(kernel: str) -> None:
    vectors, weights = RNG.normal(size=20), RNG.normal(size=5)
    for one_class in (0, 1):
        check("SVMRegressor", X, version=1, kernel_type=kernel, kernel_params=[0.3, 0.5, 3.0],
              support_vectors=vectors, coefficients=weights, rho=[0.25], n_supports=5,
              one_class=one_class)  # fmt: skip
    check("SVMRegressor", X, version=1, coefficients=weights[:4], rho=[0.25],
          kernel_params=[0.3, 0.5, 3.0])  # fmt: skip


@share(6)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("proba", [False, True])
def test_support_vector_classifier(kernel: str, classes: int, proba: bool) -> None:
    pairs, per_class = classes * (classes - 1) // 2, [3, 2, 4][:classes]
    total = sum(per_class)
    chances = {"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs} if proba else {}
    check("SVMClassifier", X, 2, version=1, reference=not proba, kernel_type=kernel,
          kernel_params=[0.3, 0.5, 3.0], support_vectors=RNG.normal(size=total * 4),
          coefficients=RNG.normal(size=total * (classes - 1)), vectors_per_class=per_class,
          rho=RNG.normal(size=pairs), classlabels_ints=list(range(classes)), **chances)  # fmt: skip


# Trees.


def random_trees(modes: Sequence[str], count: int = 3, depth: int = 4) -> dict[str, Any]:
    """Complete trees, as the attributes of TreeEnsembleRegressor."""
    nodes: dict[str, list[Any]] = {n: [] for n in ("treeids", "nodeids", "modes", "featureids",
                                                   "values", "truenodeids", "falsenodeids",
                                                   "missing_value_tracks_true")}  # fmt: skip
    rng, inner = np.random.default_rng(len(modes)), 2**depth - 1
    for tree in range(count):
        for name in range(2 * inner + 1):
            is_leaf = name >= inner
            row = (tree, name, "LEAF" if is_leaf else f"BRANCH_{rng.choice(modes)}",
                   rng.integers(4), float(np.float32(rng.normal() / 2)),
                   0 if is_leaf else 2 * name + 1, 0 if is_leaf else 2 * name + 2,
                   rng.integers(2))  # fmt: skip
            for values, value in zip(nodes.values(), row, strict=True):
                values.append(value)
    return {f"nodes_{n}": v for n, v in nodes.items()}


def leaves(prefix: str, targets: int, sign: float) -> dict[str, Any]:
    """What each leaf of such trees gives."""
    inner = 15
    at = [(t, n) for t in range(3) for n in range(inner, 2 * inner + 1)]
    weights = RNG.normal(size=len(at))
    return {
        f"{prefix}_treeids": [t for t, _ in at],
        f"{prefix}_nodeids": [n for _, n in at],
        f"{prefix}_ids": [int(i) for i in RNG.integers(0, targets, len(at))],
        f"{prefix}_weights": np.abs(weights) if sign > 0 else weights,
    }


ALL = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]
HOLED = np.where(X > 1.2, np.nan, np.round(X, 1)).astype(np.float32)


@share(4)
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [["LEQ"], ALL])
def test_tree_regressor(how: str, modes: list[str]) -> None:
    shared = {**random_trees(modes), **leaves("target", 1, 0)}
    check("TreeEnsembleRegressor", HOLED, aggregate_function=how, n_targets=1, **shared)
    base = {"base_values": [0.5]}
    check("TreeEnsembleRegressor", HOLED, aggregate_function=how, n_targets=1, **shared, **base)


def test_tree_regressor_with_several_targets_and_wide_numbers() -> None:
    shared = {**random_trees(ALL), **leaves("target", 3, 0)}
    check("TreeEnsembleRegressor", HOLED, n_targets=3, **shared)
    wide = HOLED.astype(np.float64)
    check("TreeEnsembleRegressor", wide, n_targets=3, **shared)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_tree_classifier(post: str) -> None:
    trees = random_trees(ALL)
    labels: dict[str, Any]
    for labels in ({"classlabels_strings": ["a", "b", "c"]}, {"classlabels_int64s": [3, 5, 1]}):
        check("TreeEnsembleClassifier", HOLED, 2, post_transform=post, **trees,
              **leaves("class", 3, 1), **labels)  # fmt: skip
    if post != "SOFTMAX":
        sign = 1 if post == "NONE" else -1
        check("TreeEnsembleClassifier", HOLED, 2, post_transform=post, **trees,
              **leaves("class", 1, sign), classlabels_int64s=[0, 1], reference=True)  # fmt: skip


def complete_forest(trees: int, depth: int) -> onnx.ModelProto:
    """A regressor of complete trees over four features, made by arrays; sums are exact."""
    inner, rng = 2**depth - 1, np.random.default_rng(0)
    count = 2 * inner + 1
    names, ids = np.arange(count), np.repeat(np.arange(trees), count)
    is_leaf = np.tile(names >= inner, trees)
    children = {f"nodes_{side}nodeids": np.where(is_leaf, 0, 2 * np.tile(names, trees) + n)
                for n, side in ((1, "true"), (2, "false"))}  # fmt: skip
    modes = ([b"BRANCH_LEQ"] * inner + [b"LEAF"] * (inner + 1)) * trees
    integers = {"nodes_treeids": ids, "nodes_nodeids": np.tile(names, trees),
                "nodes_featureids": rng.integers(0, 4, trees * count), **children,
                "target_treeids": ids[is_leaf], "target_nodeids": np.tile(names[inner:], trees),
                "target_ids": np.zeros(trees * (inner + 1), np.int64)}  # fmt: skip
    floats = {"nodes_values": rng.normal(size=trees * count) / 2,
              "target_weights": rng.integers(-9, 9, trees * (inner + 1)) / 8}  # fmt: skip
    model = model_of("TreeEnsembleRegressor", X, 1, 3, {"n_targets": 1, "nodes_modes": modes})
    for kind, many in ((onnx.AttributeProto.INTS, integers), (onnx.AttributeProto.FLOATS, floats)):
        for name, values in many.items():
            result = model.graph.node[0].attribute.add(name=name, type=kind)
            getattr(result, "ints" if kind == onnx.AttributeProto.INTS else "floats").extend(values)
    return model


@sizes("trees", 3, 2443)
def test_forests_of_five_million_nodes(trees: int) -> None:
    model = complete_forest(trees, 10)
    (expected,) = by_ort(model, X)
    np.testing.assert_array_equal(ekiden.compile(model)(X).numpy(), expected)


def test_tree_ensemble_with_sets() -> None:
    check("TreeEnsemble", np.array([[1.2, 3.4, -0.12], [1.66, 4.14, 1.77]], np.float32), version=5,
          reference=True, n_targets=2, aggregate_function=1, post_transform=0, tree_roots=[0],
          nodes_modes=helper.make_tensor("m", TensorProto.UINT8, (3,), [0, 6, 5]),
          nodes_featureids=[0, 2, 0], nodes_truenodeids=[1, 0, 1], nodes_falsenodeids=[2, 2, 3],
          nodes_splits=helper.make_tensor("s", TensorProto.FLOAT, (3,), [3.14, 1.2, 4.2]),
          nodes_trueleafs=[0, 1, 1], nodes_falseleafs=[0, 1, 1], leaf_targetids=[0, 1, 0, 1],
          membership_values=helper.make_tensor("v", TensorProto.FLOAT, (4,),
                                               [1.2, -0.12, 3.7, float("nan")]),
          leaf_weights=helper.make_tensor("w", TensorProto.FLOAT, (4,), [5.2, 12.1, -12.2, 7.2]),
          )  # fmt: skip


def asked(yes: Sequence[int], no: Sequence[int]) -> BranchNodes:
    """Nodes that ask whether feature 0 is at most 0."""
    zeros, ones = np.zeros(len(yes), np.int64), np.ones(len(yes), np.int64)
    targets = np.array(yes), np.array(no)
    return BranchNodes(zeros, zeros, zeros.astype(np.float32), ones, zeros, *targets)


def test_malformed_trees_are_refused() -> None:
    root = np.array([0])
    with pytest.raises(Unsupported, match="a tree has a cycle"):
        build_forest(asked([1, 0], [-1, -1]), root, 1, np.float32)
    with pytest.raises(Unsupported, match="a node 7 that is not there"):
        build_forest(asked([7], [-1]), root, 1, np.float32)
    with pytest.raises(Unsupported, match="a node 1 that is not there"):
        build_forest(asked([-1], [-1]), np.array([1]), 1, np.float32)
    deep = asked([*range(1, 20_001), -1], [-1] * 20_001)
    assert build_forest(deep, root, 1, np.float32).depth == 20_001
    with pytest.raises(UnsupportedError, match="must be of one length"):
        attributes = {**random_trees(["LEQ"]), **leaves("target", 1, 0), "target_ids": [0]}
        ekiden.compile(model_of("TreeEnsembleRegressor", X, 1, 3, attributes))
    attributes = {**random_trees(["LEQ"]), **leaves("target", 1, 0)}
    attributes["nodes_featureids"] = [9] * len(attributes["nodes_featureids"])
    with pytest.raises(UnsupportedError, match="a tree asks for the column 9 of 4"):
        ekiden.compile(model_of("TreeEnsembleRegressor", X, 1, 3, attributes))
