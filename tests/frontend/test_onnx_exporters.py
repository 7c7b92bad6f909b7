"""Libraries whose models are imported through their ONNX exporters, against the library."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ekiden

pytestmark = pytest.mark.filterwarnings("ignore")  # converters warn of their own deprecations


def need(*names: str) -> list[ModuleType]:
    """Packages; a test without them is skipped, and says which is missing."""
    return [pytest.importorskip(n, reason=f"the package {n} is not installed") for n in names]


def samples() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """120 rows of 6 numbers, and their class of three."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 6)).astype(np.float32)
    return x, (np.argmax(x[:, :3] + 0.3 * x[:, 3:], axis=1)).astype(np.int64)


def agree(model: Any, x: Any, labels: Any, chances: Any) -> None:  # noqa: ANN401
    """A classifier as ONNX: labels and chances, for a batch of any size."""
    made = ekiden.compile(model)
    for rows in (slice(0, 1), slice(0, 120, 7)):
        result, data = made(x[rows])
        np.testing.assert_array_equal(result.numpy().ravel(), labels[rows])
        if isinstance(data, list):  # dictionaries of classes
            data = np.array([[row[k] for k in sorted(row)] for row in data])
        np.testing.assert_allclose(np.asarray(data), chances[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["forest", "pipeline", "neighbours", "support vectors"])
def test_scikit_learn_models_match_onnx_import(name: str) -> None:
    need("sklearn", "skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler
    from sklearn.svm import SVC

    x, y = samples()
    model = {
        "forest": RandomForestClassifier(10, random_state=0),
        "pipeline": make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression()),
        "neighbours": KNeighborsClassifier(3),
        "support vectors": SVC(probability=True, random_state=0),
    }[name].fit(x, y)
    options = {"zipmap": False}
    result = to_onnx(model, x[:1], options={id(model): options}, target_opset=17)
    agree(result, x, model.predict(x), model.predict_proba(x))


def test_knn_imputer_matches_scikit_learn() -> None:
    """A branch inside another one, whose values have ranks of their own: its other side is taken
    where the first one does not fit the rest.
    """
    need("sklearn", "skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.impute import KNNImputer

    x = samples()[0][:, :2].copy()
    x[::4, 0] = x[1::4, 1] = np.nan
    model = KNNImputer(n_neighbors=3).fit(x)
    made = ekiden.compile(to_onnx(model, x[:1], target_opset=18))
    for rows in (slice(0, 40), slice(5, 6)):
        expected = model.transform(x[rows])
        np.testing.assert_allclose(made(x[rows]).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_column_transformer_matches_scikit_learn() -> None:
    """A pipeline over a table, each column of which is an input."""
    (_, _, pandas) = need("sklearn", "skl2onnx", "pandas")
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, _y = samples()
    colours = np.array(["red", "green", "blue"])[np.arange(120) % 3]
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": colours})
    known = np.where((x[:, 0] > 0) & (colours == "red"), "yes", "no")
    parts = [("n", StandardScaler(), ["a", "b"]), ("s", OneHotEncoder(), ["c"])]
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(table, known)
    types = [(n, FloatTensorType([None, 1])) for n in "ab"] + [("c", StringTensorType([None, 1]))]
    actual = convert_sklearn(model, initial_types=types, options={id(model): {"zipmap": False}})
    inputs = [x[:9, :1], x[:9, 1:2], colours[:9, None].astype(object)]
    labels, chances = ekiden.compile(actual)(*inputs)
    assert np.asarray(labels).ravel().tolist() == model.predict(table[:9]).tolist()
    expected = model.predict_proba(table[:9])
    np.testing.assert_allclose(np.asarray(chances), expected, rtol=1e-4, atol=1e-5)


def test_lightgbm_models_match_onnx_import() -> None:
    (lightgbm, _) = need("lightgbm", "onnxmltools")
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = samples()
    model = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1, random_state=0).fit(x, y)
    types = [("x", FloatTensorType([None, 6]))]
    result = convert_lightgbm(model, initial_types=types, zipmap=False, target_opset=15)
    agree(result, x, model.predict(x), model.predict_proba(x))


def test_xgboost_models_match_onnx_import() -> None:
    (xgboost, _) = need("xgboost", "onnxmltools")
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = samples()
    model = xgboost.XGBClassifier(n_estimators=8, max_depth=3, random_state=0).fit(x, y)
    result = convert_xgboost(model, initial_types=[("x", FloatTensorType([None, 6]))])
    agree(result, x, model.predict(x), model.predict_proba(x))


def test_paddle_models_match_onnx_import(tmp_path: Path) -> None:
    (paddle, _) = need("paddle", "paddle2onnx")
    model = paddle.nn.Sequential(paddle.nn.Linear(6, 4), paddle.nn.ReLU(), paddle.nn.Linear(4, 3))
    model.eval()
    spec = [paddle.static.InputSpec([None, 6], "float32", "x")]
    paddle.onnx.export(model, str(tmp_path / "model"), input_spec=spec, opset_version=15)
    x, _y = samples()
    expected = model(paddle.to_tensor(x)).numpy()
    actual = ekiden.compile(tmp_path / "model.onnx")(x)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_mxnet_models_match_onnx_import(tmp_path: Path) -> None:
    (mxnet,) = need("mxnet")
    net = mxnet.gluon.nn.HybridSequential()
    net.add(mxnet.gluon.nn.Dense(4, activation="relu"), mxnet.gluon.nn.Dense(3))
    net.add_initializer()
    net.hybridize()
    x, _y = samples()
    expected = net(mxnet.nd.array(x)).asnumpy()
    net.export(str(tmp_path / "model"))
    files = [str(tmp_path / name) for name in ("model-symbol.json", "model-0000.params")]
    mxnet.onnx.export_model(*files, [x.shape], [np.float32], str(tmp_path / "model.onnx"))
    actual = ekiden.compile(tmp_path / "model.onnx")(x)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_coreml_models_match_onnx_import() -> None:
    need("coremltools", "onnxmltools")
    pytest.importorskip(
        "onnxmltools.convert.coreml.convert",
        reason="this version of onnxmltools cannot import its converter of CoreML",
        exc_type=ImportError,
    )
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder
    from onnxmltools import convert_coreml

    ends = [(n, datatypes.Array(s)) for n, s in (("x", 6), ("y", 3))]
    builder = NeuralNetworkBuilder(ends[:1], ends[1:])
    weight = np.arange(18, dtype=np.float32).reshape(3, 6) / 9
    builder.add_inner_product("product", weight, None, 6, 3, False, "x", "y")
    x, _y = samples()
    result = ekiden.compile(convert_coreml(builder.spec, target_opset=11))(x)
    np.testing.assert_allclose(result.numpy().reshape(120, 3), x @ weight.T, rtol=1e-5, atol=1e-5)
