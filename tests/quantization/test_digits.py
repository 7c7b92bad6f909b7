"""Accuracy of quantised networks on scikit-learn's digits, beside ONNX Runtime's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ekiden
from ekiden.quantization.sensitivity import signal_to_noise_db
from onnx_runtime import session

Array = np.ndarray[Any, np.dtype[Any]]
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""Ours -> that of ONNX Runtime."""


def trained(kind: str, x: Array, y: Array) -> onnx.ModelProto:
    """A network after 200 steps."""
    torch = pytest.importorskip("torch", reason="needs the package torch")
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    nn = torch.nn
    layers = {
        "mlp": [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)],
        "cnn": [
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
        ],
    }  # fmt: skip
    network = nn.Sequential(*layers[kind])
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        chosen = rng.integers(0, len(x), 64)
        loss = nn.functional.cross_entropy(
            network(torch.from_numpy(x[chosen])), torch.from_numpy(y[chosen])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    file = io.BytesIO()
    torch.onnx.export(
        network.eval(), (torch.zeros(2, 1, 8, 8),), file, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False,
    )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def theirs(model: onnx.ModelProto, data: Array, method: str, folder: Path) -> onnx.ModelProto:
    """What onnxruntime.quantization makes of it."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            self.runs = iter(np.split(data, 4))

        def get_next(self) -> dict[str, Array] | None:
            result = next(self.runs, None)
            return None if result is None else {"x": result}

    onnx.save(model, folder / "float.onnx")
    quantization.quantize_static(
        folder / "float.onnx", folder / "theirs.onnx", Reader(), per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        calibrate_method=quantization.CalibrationMethod[method],
    )  # fmt: skip
    return onnx.load(folder / "theirs.onnx")


@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        ("mlp", ["minmax"]),
        pytest.param("mlp", [*METHODS], marks=pytest.mark.long),
        pytest.param("cnn", [*METHODS], marks=pytest.mark.long),
    ],
)
def test_int8_accuracy_is_at_least_onnxruntimes(
    kind: str, methods: list[str], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="needs the package scikit-learn")
    digits = datasets.load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x = (digits.images[order] / 16).astype(np.float32)[:, None]
    y = digits.target[order]
    model = trained(kind, x[:1200], y[:1200])
    fresh, labels, data = x[1200:], y[1200:], x[:200]

    def accuracy(actual: onnx.ModelProto) -> float:
        return float((session(actual).run(None, {"x": fresh})[0].argmax(1) == labels).mean())

    floats = accuracy(model)
    assert floats > 0.95
    one = 1.5 / len(labels)  # which of two digits that are as good is chosen is chance
    for ekiden_result in methods:
        name = METHODS[ekiden_result]
        output = ekiden.quantize(model, data, method=ekiden_result).model
        loss, their_loss = (
            floats - accuracy(item) for item in (output, theirs(model, data, name, tmp_path))
        )
        assert loss <= max(their_loss, 0.0) + one, (ekiden_result, loss, their_loss)
        result = ekiden.compile(output)(fresh).numpy().argmax(1)
        assert abs(float((result == labels).mean()) - accuracy(output)) <= one

    def results(actual: onnx.ModelProto) -> Array:
        return np.asarray(session(actual).run(None, {"x": fresh})[0])

    expected, rough = results(model), results(their_nibbles(model))
    for recipe in RECIPES:
        result = results(ekiden.quantize(model, data, **recipe).model)
        ratios = signal_to_noise_db(expected, result), signal_to_noise_db(expected, rough)
        assert ratios[0] > ratios[1] - 1.0, (recipe, ratios)
        right, their_right = (item.argmax(1) == labels for item in (result, rough))
        chance = 2.0 * np.sqrt((right != their_right).sum())  # of those that only one has right
        assert right.sum() >= their_right.sum() - max(chance, 1.0), recipe


RECIPES: list[dict[str, Any]] = [
    {"kind": "weight", "bits": 4, "group": 32, **more}
    for more in ({}, {"rounding": "gptq"}, {"rounding": "learned"}, {"awq": True})
]
"""Beside ONNX Runtime's weights of 4 bits."""


def their_nibbles(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime.quantization makes of it: groups of 32, to the nearest."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    result = MatMulNBitsQuantizer(_with_products(whole), block_size=32, is_symmetric=True)
    result.process()
    return result.model.model  # type: ignore[no-any-return]  # untyped


def _with_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each Gemm as MatMul and Add, which is what it takes."""
    weights = {item.name: item for item in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type != "Gemm":
            nodes.append(node)
            continue
        data, weight, bias = node.input
        turned = numpy_helper.to_array(weights[weight]).T.copy()
        model.graph.initializer.append(numpy_helper.from_array(turned, f"{weight}_t"))
        product = f"{node.output[0]}_product"
        nodes.append(helper.make_node("MatMul", [data, f"{weight}_t"], [product], product))
        nodes.append(helper.make_node("Add", [product, bias], node.output))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model
