"""How long compiling takes with a cold and with a warm kernel cache, and loading what was saved.

    python benchmarks/compile_time.py [MODEL.onnx ...]

Every figure is the median over processes of their own, the time in one of them that `compile` or
`load` takes, the import of the compiler included. Without a model, a network of the convolutions of
ResNet-50 is made.
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
COMPILE = """
import sys, time, ekiden
started = time.perf_counter()
executable = ekiden.compile(sys.argv[1])
print(time.perf_counter() - started)
executable.save(sys.argv[2])
"""
LOAD = """
import sys, time, ekiden
started = time.perf_counter()
ekiden.load(sys.argv[1])
print(time.perf_counter() - started)
"""
STAGES = ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3))
"""(inner channels, side, blocks) of the stages of ResNet-50."""


def seconds(program: str, *args: str, cache: str) -> float:
    """What a fresh process that runs `program` prints."""
    environment = dict(os.environ, EKIDEN_CACHE_DIR=cache)
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def network(path: Path) -> Path:
    """The bottlenecks of ResNet-50 as an ONNX file, with random weights."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def conv(data: str, out: int, into: int, side: int, stride: int = 1) -> str:
        name = f"conv{len(weights)}"
        values = rng.standard_normal((out, into, side, side)).astype(np.float32) / into
        weights.append(numpy_helper.from_array(values, f"{name}_w"))
        pads = [side // 2] * 4
        attributes = {"pads": pads, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [data, f"{name}_w"], [name], name, **attributes))
        nodes.append(helper.make_node("Relu", [name], [f"{name}_r"], f"{name}_r"))
        return f"{name}_r"

    at, width = "x", 64
    for inner, side, blocks in STAGES:
        for block in range(blocks):
            stride = 2 if block == 0 and side < 56 else 1
            body = conv(
                conv(conv(at, inner, width, 1), inner, inner, 3, stride), 4 * inner, inner, 1
            )
            skip = at if block else conv(at, 4 * inner, width, 1, stride)
            nodes.append(helper.make_node("Add", [body, skip], [f"{body}_sum"], f"{body}_sum"))
            at, width = f"{body}_sum", 4 * inner
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 56, 56])
    y = helper.make_tensor_value_info(at, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "bottlenecks", [x], [y], weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def measure(model: Path, scratch: Path) -> None:
    """Print a row of medians for a model."""
    saved = str(scratch / "model.eki")
    cold = []
    for run in range(COLD):
        cache = str(scratch / f"{model.stem}{run}")
        cold.append(seconds(COMPILE, str(model), saved, cache=cache))
    warm = [seconds(COMPILE, str(model), saved, cache=cache) for _ in range(WARM)]
    load = [seconds(LOAD, saved, cache=cache) for _ in range(LOADS)]
    size = Path(saved).stat().st_size / 1e6
    row = (statistics.median(times) for times in (cold, warm, load))
    print("{:28} {:8.2f} s {:8.2f} s {:8.3f} s {:8.1f} MB".format(model.stem, *row, size))


def main() -> None:
    """Measure the models named, or the network made here."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = [Path(a) for a in sys.argv[1:]] or [network(scratch / "bottlenecks.onnx")]
        print(f"{'model':28} {'cold':>10} {'warm':>10} {'load':>10} {'artifact':>11}")
        for model in models:
            measure(model, scratch)


if __name__ == "__main__":
    main()
