"""One compiled artifact runs every batch size: make a small ONNX model, compile, save, run it.

python examples/dynamic_shapes.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekiden


def two_layer_model(features: int = 16, hidden: int = 32, classes: int = 4) -> onnx.ModelProto:
    """Return softmax(relu(x @ w1) @ w2) in ONNX, for x of shape (batch, features)."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((features, hidden)).astype("float32"),
        "w2": random.standard_normal((hidden, classes)).astype("float32"),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["y"], axis=-1),
        ],
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def main() -> None:
    """Compile, save, load, and run with three batch sizes."""
    exe = ekiden.compile(two_layer_model())
    print("input: ", *exe.inputs)
    print("output:", *exe.outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two_layers.eki"
        exe.save(path)
        print(f"saved:  {path.stat().st_size} bytes")
        exe = ekiden.load(path)
    for batch in (1, 3, 8):
        y = exe(np.ones((batch, 16), "float32"))
        print(f"batch {batch}: shape {y.shape}, row sums {y.numpy().sum(axis=1)}")


if __name__ == "__main__":
    main()
