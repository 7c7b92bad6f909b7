"""Elementwise functions and row reductions (softmax, normalisation), compared with ONNX Runtime:
one operator a model, float32, one thread.

    python benchmarks/math_functions.py [Tanh Softmax ...]

Both run in turns in one process and are timed by the thread's own time; a line for each has the
least and the median of both, and ONNX Runtime's time over Ekiden's. ONNX Runtime writes to memory
that it is given, Ekiden's result is new in every call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import ekiden

INTERLEAVED_ROUNDS = 25
ROUND_SECONDS = 2e-3
FUNCTION_CASES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("Exp", (128, 3072)),
    ("Tanh", (128, 3072)),
    ("Sigmoid", (128, 3072)),
    ("Erf", (128, 3072)),
    ("Gelu", (128, 3072)),
    ("Softmax", (256, 256)),
    ("Softmax", (1536, 128)),
    ("Softmax", (6144, 512)),
    ("LayerNormalization", (128, 768)),
)
"""Operators and sizes."""


def single_node_model(op: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return an ONNX model of a single node."""
    inputs, constants = ["x"], []
    if op == "LayerNormalization":
        inputs += ["scale", "bias"]
        ones = np.ones(shape[-1], np.float32)
        constants = [onnx.numpy_helper.from_array(ones, n) for n in inputs[1:]]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node(op, inputs, ["y"])], op, [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def onnxruntime_call(model: onnx.ModelProto, x: np.ndarray) -> Callable[[], object]:
    """Return a function that runs the model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    # Bound inputs and outputs avoid a copy per call.
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


def measure_interleaved(calls: list[Callable[[], object]]) -> list[list[float]]:
    """Return the thread CPU seconds of each call in every round."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(INTERLEAVED_ROUNDS):
        for call, samples in zip(calls, times, strict=True):
            call()
            count, started = 0, time.thread_time()
            while time.thread_time() - started < ROUND_SECONDS:
                call()
                count += 1
            samples.append((time.thread_time() - started) / count)
    return times


def main() -> None:
    """Print a line for each case, and the geometric mean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*", default=[op for op, _ in FUNCTION_CASES])
    options = parser.parse_args()
    ekiden.runtime.num_threads(1)
    ratios = []
    for op, shape in (case for case in FUNCTION_CASES if case[0] in options.operators):
        model = single_node_model(op, shape)
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        compiled = ekiden.compile(model)
        ours, theirs = measure_interleaved(
            [lambda exe=compiled, x=x: exe(x=x), onnxruntime_call(model, x)]
        )  # type: ignore[misc]
        ratios.append(statistics.median(theirs) / statistics.median(ours))
        print(
            f"{op:20}{'x'.join(map(str, shape)):>10}"
            f"  least {min(ours) * 1e6:8.1f} {min(theirs) * 1e6:8.1f} us,"
            f" median {statistics.median(ours) * 1e6:8.1f} {statistics.median(theirs) * 1e6:8.1f};"
            f"  ratio {min(theirs) / min(ours):.2f}, of medians {ratios[-1]:.2f}",
            flush=True,
        )
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
