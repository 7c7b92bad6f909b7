"""Models of the kinds that microcontrollers run, with random weights: float, and int8 by QDQ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feed = dict[str, np.ndarray]


class Net:
    """Nodes one after the other, on the last tensor."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int = 0) -> None:
        self.name, self.shape, self.at = name, shape, "x"
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def add(self, op: str, *inputs: str, domain: str = "", **attrs: object) -> Net:
        result = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, [self.at, *inputs], [result], result, domain=domain, **attrs)
        )
        self.at = result
        return self

    def conv(self, into: int, out: int, kernel: tuple[int, int], group: int = 1, stride: int = 1,
             pads: int = 1) -> Net:  # fmt: skip
        fan = into // group * kernel[0] * kernel[1]
        weight = self.random(out, into // group, *kernel, scale=(2 / fan) ** 0.5)
        bias = self.random(out, scale=0.1)
        self.add("Conv", weight, bias, kernel_shape=kernel, group=group, strides=[stride] * 2,
                 pads=[pads] * 4)  # fmt: skip
        return self.add("Relu")

    def dense(self, into: int, out: int, *, relu: bool = True) -> Net:
        self.add("Gemm", self.random(into, out, scale=(2 / into) ** 0.5), self.random(out))
        return self.add("Relu") if relu else self

    def model(self, out: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
        argument = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        result = helper.make_tensor_value_info(self.at, dtype, out)
        graph = helper.make_graph(self.nodes, self.name, [argument], [result], self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def keyword_spotter(channels: int = 64, blocks: int = 4, size: int = 49) -> onnx.ModelProto:
    """A depthwise-separable network over spectral features (DS-CNN)."""
    net = Net("keyword", (1, 1, size, 10)).conv(1, channels, (10, 4), stride=2, pads=2)
    for _ in range(blocks):
        net.conv(channels, channels, (3, 3), group=channels)
        net.conv(channels, channels, (1, 1), pads=0)
    net.add("GlobalAveragePool").add("Flatten").dense(channels, 12, relu=False)
    return net.add("Softmax").model((1, 12))


def person_detector(size: int = 96, width: int = 8) -> onnx.ModelProto:
    """A MobileNet v1 of a quarter of the width, on grey pictures."""
    net, into = Net("person", (1, 1, size, size)).conv(1, width, (3, 3), stride=2), width
    steps = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *((16, 1),) * 5, (32, 2), (32, 1))
    for times, stride in steps:
        out = times * width
        net.conv(into, into, (3, 3), group=into, stride=stride)
        net.conv(into, out, (1, 1), pads=0)
        into = out
    net.add("GlobalAveragePool").add("Flatten").dense(into, 2, relu=False)
    return net.add("Softmax").model((1, 2))


def autoencoder(wide: int = 640, narrow: int = 128) -> onnx.ModelProto:
    """Dense layers to few numbers and back, as for machines that begin to sound otherwise."""
    sizes = (wide, narrow, narrow, 8, narrow, narrow, wide)
    net = Net("anomaly", (1, wide))
    for index, (into, out) in enumerate(itertools.pairwise(sizes)):
        net.dense(into, out, relu=index + 2 < len(sizes))
    return net.model((1, wide))


def lstm(steps: int = 16, into: int = 16, hidden: int = 32) -> onnx.ModelProto:
    """A recurrent layer and a dense one of its last state."""
    net = Net("gesture", (steps, 1, into))
    weights = [net.random(1, 4 * hidden, n, scale=0.3) for n in (into, hidden)]
    node = helper.make_node(
        "LSTM", ["x", *weights, net.random(1, 8 * hidden, scale=0.1)], ["", "last"],
        hidden_size=hidden,
    )  # fmt: skip
    net.nodes.append(node)
    net.at = "last"
    net.add("Squeeze", net.weight(np.array([0], np.int64)))
    return net.dense(hidden, 4, relu=False).add("Softmax").model((1, 4))


def forest(trees: int = 8, depth: int = 4, features: int = 12) -> onnx.ModelProto:
    """A forest of decision trees, whose votes are added."""
    net = Net("forest", (1, features))
    rng, inner = net.rng, 2**depth - 1
    count = 2 ** (depth + 1) - 1
    nodes = [(tree, node) for tree in range(trees) for node in range(count)]
    leaves = [(t, n) for t, n in nodes if n >= inner]
    net.add(
        "TreeEnsembleRegressor", domain="ai.onnx.ml", n_targets=3, post_transform="NONE",
        nodes_treeids=[t for t, _ in nodes], nodes_nodeids=[n for _, n in nodes],
        nodes_featureids=[int(rng.integers(features)) if n < inner else 0 for _, n in nodes],
        nodes_values=[float(np.float32(rng.standard_normal())) for _ in nodes],
        nodes_modes=["BRANCH_LEQ" if n < inner else "LEAF" for _, n in nodes],
        nodes_truenodeids=[2 * n + 1 if n < inner else 0 for _, n in nodes],
        nodes_falsenodeids=[2 * n + 2 if n < inner else 0 for _, n in nodes],
        target_treeids=[t for t, _ in leaves], target_nodeids=[n for _, n in leaves],
        target_ids=[int(rng.integers(3)) for _ in leaves],
        target_weights=[float(np.float32(rng.standard_normal())) for _ in leaves],
    )  # fmt: skip
    return net.model((1, 3))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "keyword": keyword_spotter,
    "person": person_detector,
    "anomaly": autoencoder,
    "lstm": lstm,
    "forest": forest,
}
SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "keyword": lambda: keyword_spotter(16, 1, 20),
    "person": lambda: person_detector(32, 2),
    "anomaly": lambda: autoencoder(40, 16),
    "lstm": lambda: lstm(4, 5, 7),
    "forest": lambda: forest(3, 2, 5),
}
"""The same, so that tests take no time."""


class _Reader:
    """Random inputs for the ranges of activations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(7)
        self.rows: Iterator[Feed] = iter(
            [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> Feed | None:
        return next(self.rows, None)

    def set_range(self, *_: int) -> None:
        raise NotImplementedError


def quantized(model: onnx.ModelProto, folder: Path) -> Path:
    """The model in int8, weights by channel."""
    from onnxruntime import quantization as quant

    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    source, target = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    quant.quantize_static(
        source, target, _Reader(shape), quant_format=quant.QuantFormat.QDQ, per_channel=True,
        activation_type=quant.QuantType.QInt8, weight_type=quant.QuantType.QInt8,
    )  # fmt: skip
    return target
