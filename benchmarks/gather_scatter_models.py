"""Models whose time is dominated by gathers and scatters, compared with ONNX Runtime.

    python benchmarks/gather_scatter_models.py [--rounds 12] [--threads 1]

deberta: layers of disentangled attention, whose scores take in products with relative positions
through GatherElements. graph: layers of a graph network, which takes the features of the sources of
100,000 edges and adds them up at their targets (ScatterElements of rows, as exporters write it).
Weights are seeded. The least of the rounds, turn by turn: of one thread its CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ekiden

Array = np.ndarray
Attributes = dict[str, object]


class OnnxGraphBuilder:
    """Builder of an ONNX graph."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add_initializer(self, value: Array) -> str:
        """Add a weight."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def add_int_vector(self, *values: int) -> str:
        """Add a vector of integers."""
        return self.add_initializer(np.array(values, np.int64))

    def add_random_weight(self, *shape: int) -> str:
        """Add a seeded random weight scaled to keep the magnitude of its products."""
        scale = np.float32(shape[0] ** -0.5)
        return self.add_initializer(self.rng.standard_normal(shape, np.float32) * scale)

    def add_node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output, and return its name."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def add_dense(self, data: str, depth: int, columns: int) -> str:
        """Add a layer with a bias."""
        bias = self.add_initializer(np.zeros(columns, np.float32))
        return self.add_node(
            "Add", self.add_node("MatMul", data, self.add_random_weight(depth, columns)), bias
        )

    def serialize(
        self, inputs: dict[str, tuple[Sequence[int], int]], output: str, shape: Sequence[int]
    ) -> bytes:
        """Return the serialized model."""
        input_infos = [helper.make_tensor_value_info(n, k, s) for n, (s, k) in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "model", input_infos, [result], self.weights)
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        return bytes(model.SerializeToString())


def relative_position_index(length: int, span: int) -> Array:
    """Return the index of each query-key distance in a table of 2 * span relative positions."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return np.clip(distance + span, 0, 2 * span - 1)[None]


def disentangled_attention(
    length: int = 128, width: int = 384, heads: int = 6, layers: int = 3
) -> bytes:
    """Return DeBERTa's disentangled attention as exporters write it, with one dense layer per
    block.
    """
    m, depth, span = OnnxGraphBuilder(), width // heads, 128
    states = "x"

    def split(data: str, rows: int) -> str:
        shaped = m.add_node("Reshape", data, m.add_int_vector(1, rows, heads, depth))
        turned = m.add_node("Transpose", shaped, perm=[0, 2, 1, 3])
        return m.add_node("Reshape", turned, m.add_int_vector(heads, rows, depth))

    scale = m.add_initializer(np.float32(1 / np.sqrt(3 * depth)))
    mask = m.add_node("Cast", "mask", to=TensorProto.BOOL)
    table = m.add_random_weight(2 * span, width)
    for _ in range(layers):
        query, key, value = (split(m.add_dense(states, width, width), length) for _ in range(3))
        near_key, near_query = (split(m.add_dense(table, width, width), 2 * span) for _ in range(2))
        scores = m.add_node("MatMul", query, m.add_node("Transpose", key, perm=[0, 2, 1]))
        scores = m.add_node("Mul", scores, scale)
        shape = m.add_int_vector(heads, length, length)
        where = m.add_node(
            "Expand", m.add_initializer(relative_position_index(length, span)), shape
        )
        c2p = m.add_node("MatMul", query, m.add_node("Transpose", near_key, perm=[0, 2, 1]))
        c2p = m.add_node("Mul", m.add_node("GatherElements", c2p, where, axis=-1), scale)
        back = m.add_initializer(
            np.clip(2 * span - relative_position_index(length, span), 0, 2 * span - 1)
        )
        p2c = m.add_node("MatMul", key, m.add_node("Transpose", near_query, perm=[0, 2, 1]))
        p2c = m.add_node("GatherElements", p2c, m.add_node("Expand", back, shape), axis=-1)
        p2c = m.add_node("Mul", m.add_node("Transpose", p2c, perm=[0, 2, 1]), scale)
        scores = m.add_node("Add", m.add_node("Add", scores, c2p), p2c)
        scores = m.add_node("Reshape", scores, m.add_int_vector(1, heads, length, length))
        lowest = m.add_initializer(np.float32(np.finfo(np.float32).min))
        scores = m.add_node("Where", mask, scores, lowest)
        shares = m.add_node("Softmax", scores, axis=-1)
        shares = m.add_node("Where", mask, shares, m.add_initializer(np.float32(0)))
        shares = m.add_node("Reshape", shares, m.add_int_vector(heads, length, length))
        mixed = m.add_node(
            "Reshape",
            m.add_node("MatMul", shares, value),
            m.add_int_vector(1, heads, length, depth),
        )
        mixed = m.add_node("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = m.add_node("Reshape", mixed, m.add_int_vector(1, length, width))
        states = m.add_node("Add", states, m.add_dense(mixed, width, width))
    inputs = {
        "x": ((1, length, width), TensorProto.FLOAT),
        "mask": ((1, 1, length, length), TensorProto.INT64),
    }
    return m.serialize(inputs, states, (1, length, width))


def message_passing(
    nodes: int = 10_000, edges: int = 100_000, width: int = 64, layers: int = 3
) -> bytes:
    """Return graph network layers: states = relu(dense(states) + sum over edges of
    dense(states)[source]).
    """
    m, states = OnnxGraphBuilder(), "x"
    source, target = (
        m.add_node(
            "Squeeze",
            m.add_node("Gather", "edges", m.add_int_vector(n), axis=0),
            m.add_int_vector(0),
        )
        for n in range(2)
    )
    for _ in range(layers):
        sent = m.add_dense(states, width, width)
        messages = m.add_node("Gather", sent, source, axis=0)
        where = m.add_node(
            "Expand",
            m.add_node("Unsqueeze", target, m.add_int_vector(1)),
            m.add_int_vector(edges, width),
        )
        zeros = m.add_initializer(np.zeros((nodes, width), np.float32))
        total = m.add_node("ScatterElements", zeros, where, messages, axis=0, reduction="add")
        states = m.add_node("Relu", m.add_node("Add", m.add_dense(states, width, width), total))
    inputs = {"x": ((nodes, width), TensorProto.FLOAT), "edges": ((2, edges), TensorProto.INT64)}
    return m.serialize(inputs, states, (nodes, width))


def build_cases() -> dict[str, tuple[bytes, dict[str, Array]]]:
    """Return models and inputs by name."""
    rng = np.random.default_rng(1)
    mask = np.ones((1, 1, 128, 128), np.int64)
    mask[..., 100:] = 0
    texts = {"x": rng.standard_normal((1, 128, 384), np.float32), "mask": mask}
    edges = rng.integers(0, 10_000, (2, 100_000))
    features = {"x": rng.standard_normal((10_000, 64), np.float32), "edges": edges}
    return {"deberta": (disentangled_attention(), texts), "graph": (message_passing(), features)}


def onnxruntime_session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Return an ONNX Runtime session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def interleaved_min_times(
    runs: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the minimum duration of each run in seconds, measured alternately."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
    return best


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    ekiden.runtime.num_threads(options.threads)
    for name, (model, inputs) in build_cases().items():
        ours, theirs = ekiden.compile(model), onnxruntime_session(model, options.threads)
        actual, expected = ours(**inputs).numpy(), theirs.run(None, inputs)[0]  # type: ignore[union-attr]
        error = float(np.abs(actual - expected).max() / np.abs(expected).max())
        runs = {"ours": lambda: ours(**inputs), "theirs": lambda: theirs.run(None, inputs)}  # noqa: B023
        clock = time.thread_time if options.threads == 1 else time.perf_counter
        times = interleaved_min_times(runs, options.rounds, clock)
        ratio = times["theirs"] / times["ours"]
        milliseconds = " ".join(f"{n} {t * 1e3:.2f} ms" for n, t in times.items())
        print(f"{name:>8} {milliseconds}: {ratio:.2f} times as fast, error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
