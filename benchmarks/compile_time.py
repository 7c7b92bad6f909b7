"""Compile time, depending on what was compiled before, and load time of saved artifacts.

    python benchmarks/compile_time.py [MODEL.onnx ...]

    cold      nothing was compiled before
    kernels   the kernels were, for a model with other weights, say
    again     the same in a process that has compiled already
    artifact  the model was: it is mapped from the cache of artifacts
    load      `ekiden.load` of what was saved

Every figure is the median over processes of their own, the time in one of them that `compile` or
`load` takes, and with it, but for `again`, the import of all it needs. Without a model, a network
of the convolutions of ResNet-50 and BERT-base are made, with random weights.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COLD, WARM, LOADS = 3, 5, 7
COMPILE_PROGRAM = """
import sys, time, ekiden
for _ in range(int(sys.argv[3])):
    started = time.perf_counter()
    executable = ekiden.compile(sys.argv[1])
    print(time.perf_counter() - started)
executable.save(sys.argv[2])
"""
LOAD_PROGRAM = """
import sys, time, ekiden
started = time.perf_counter()
ekiden.load(sys.argv[1])
print(time.perf_counter() - started)
"""
RESNET_STAGES = ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3))
"""(inner channels, side, blocks) of the stages of ResNet-50."""
LAYERS, WIDTH, HEADS, WORDS = 12, 768, 12, 30522
"""Of BERT-base."""
TIME_COLUMNS = ("cold", "kernels", "again", "artifact", "load")


def run_program_seconds(program: str, *args: str, cache: str, limit: str = "0") -> list[float]:
    """Return the numbers that `program` prints in a fresh process with this cache folder and size
    limit.
    """
    environment = dict(os.environ, EKIDEN_CACHE_DIR=cache, EKIDEN_CACHE_LIMIT=limit)
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(map(float, done.stdout.split()))


class OnnxModelBuilder:
    """Builder of an ONNX model with random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add_random_weight(self, *shape: int) -> str:
        """Add a small random weight, and return its name."""
        values = self.rng.standard_normal(shape, np.float32) / np.float32(shape[-1])
        return self.add_constant(values)

    def add_constant(self, values: np.ndarray) -> str:
        """Add a constant, and return its name."""
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add_node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node, and return the name of its result."""
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def save(self, path: Path, input_info: onnx.ValueInfoProto, result: str) -> Path:
        """Write the model that computes `result` to a file."""
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, [input_info], [y], self.weights)
        opset = helper.make_opsetid("", 20)
        onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
        return path


def write_resnet_bottlenecks(path: Path) -> Path:
    """Write ResNet-50's bottlenecks as an ONNX file."""
    net = OnnxModelBuilder()

    def add_conv(data: str, out: int, into: int, side: int, stride: int = 1) -> str:
        weight, pads = net.add_random_weight(out, into, side, side), [side // 2] * 4
        return net.add_node(
            "Relu", net.add_node("Conv", data, weight, pads=pads, strides=[stride] * 2)
        )

    position, width = "x", 64
    for inner, side, blocks in RESNET_STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and side < 56 else 1
            body = add_conv(
                add_conv(add_conv(position, inner, width, 1), inner, inner, 3, stride),
                4 * inner,
                inner,
                1,
            )
            skip = position if block else add_conv(position, 4 * inner, width, 1, stride)
            position, width = net.add_node("Add", body, skip), 4 * inner
    return net.save(
        path, helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 56, 56]), position
    )


def write_bert_base(path: Path) -> Path:
    """Write BERT-base as an ONNX file, for any batch and length."""
    net = OnnxModelBuilder()
    split = net.add_constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
    join, scale = net.add_constant(np.array([0, 0, WIDTH])), net.add_constant(np.float32(64**-0.5))

    def add_dense(data: str, out: int, into: int) -> str:
        return net.add_node(
            "Add",
            net.add_node("MatMul", data, net.add_random_weight(into, out)),
            net.add_random_weight(out),
        )

    def add_layer_norm(data: str) -> str:
        return net.add_node(
            "LayerNormalization",
            data,
            net.add_random_weight(WIDTH),
            net.add_random_weight(WIDTH),
            axis=-1,
        )

    def add_split_heads(data: str, perm: list[int]) -> str:
        return net.add_node(
            "Transpose", net.add_node("Reshape", add_dense(data, WIDTH, WIDTH), split), perm=perm
        )

    position = add_layer_norm(net.add_node("Gather", net.add_random_weight(WORDS, WIDTH), "words"))
    for _ in range(LAYERS):
        q, k, v = (
            add_split_heads(position, [0, 2, 1, 3]),
            add_split_heads(position, [0, 2, 3, 1]),
            add_split_heads(position, [0, 2, 1, 3]),
        )
        scores = net.add_node(
            "Softmax", net.add_node("Mul", net.add_node("MatMul", q, k), scale), axis=-1
        )
        mixed = net.add_node("Transpose", net.add_node("MatMul", scores, v), perm=[0, 2, 1, 3])
        position = add_layer_norm(
            net.add_node(
                "Add", position, add_dense(net.add_node("Reshape", mixed, join), WIDTH, WIDTH)
            )
        )
        inner = net.add_node("Gelu", add_dense(position, 4 * WIDTH, WIDTH))
        position = add_layer_norm(net.add_node("Add", position, add_dense(inner, WIDTH, 4 * WIDTH)))
    input_info = helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", "length"])
    return net.save(path, input_info, position)


def print_compile_times(model: Path, scratch: Path) -> None:
    """Print a row of median compile and load times for a model."""
    saved, args = str(scratch / "model.eki"), (str(model), str(scratch / "model.eki"))
    caches = [str(scratch / f"{model.stem}{run}") for run in range(COLD)]
    cold = [
        run_program_seconds(COMPILE_PROGRAM, *args, "1", cache=cache_dir) for cache_dir in caches
    ]
    warm = [run_program_seconds(COMPILE_PROGRAM, *args, "2", cache=caches[0]) for _ in range(WARM)]
    # One run more than is counted: the first fills the artifact cache.
    cached = [
        run_program_seconds(COMPILE_PROGRAM, *args, "1", cache=caches[0], limit="4G")
        for _ in range(1 + WARM)
    ]
    load = [run_program_seconds(LOAD_PROGRAM, saved, cache=caches[0]) for _ in range(LOADS)]
    size = Path(saved).stat().st_size / 1e6
    columns = (cold, [w[:1] for w in warm], [w[1:] for w in warm], cached[1:], load)
    row = (statistics.median(times for (times,) in runs) for runs in columns)
    print(f"{model.stem:28}", *(f"{median:8.3f} s" for median in row), f"{size:8.1f} MB")


def main() -> None:
    """Measure the named models, or those built here."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = [Path(a) for a in sys.argv[1:]]
        if not models:
            models = [
                write_resnet_bottlenecks(scratch / "bottlenecks.onnx"),
                write_bert_base(scratch / "bert.onnx"),
            ]
        print(f"{'model':28}", *(f"{name:>10}" for name in TIME_COLUMNS), f"{'artifact':>11}")
        for model in models:
            print_compile_times(model, scratch)


if __name__ == "__main__":
    main()
