"""ONNX Runtime and OpenVINO calls of one matrix product, for benchmarks that alternate between
engines.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

try:
    import openvino
except ImportError:  # pip install openvino: no part of what benchmarks need
    openvino = None

Array = np.ndarray
Call = Callable[[], object]


def matmul_model(x: Array, w: Array, is_constant: bool) -> tuple[bytes, dict[str, Array]]:
    """Return x [m, k] times the transpose of w [n, k] as an ONNX model, and its inputs."""
    right = np.ascontiguousarray(w.T)

    def make_value_info(name: str, *dims: int) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    feeds = {"x": x} if is_constant else {"x": x, "w": right}
    inputs = [make_value_info(name, *array.shape) for name, array in feeds.items()]
    weights = [numpy_helper.from_array(right, "w")] if is_constant else []
    result = make_value_info("y", len(x), len(w))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", inputs, [result], weights)
    opset = [helper.make_opsetid("", 17)]
    model: ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return model.SerializeToString(), feeds


def make_onnxruntime_call(x: Array, w: Array, is_constant: bool, threads: int) -> Call:
    """Return a function that runs ONNX Runtime with preallocated outputs."""
    model, feeds = matmul_model(x, w, is_constant)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Spinning workers would take CPU time from the engine measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    result = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((len(x), len(w)), np.float32))
    binding.bind_ortvalue_output("y", result)
    return lambda: session.run_with_iobinding(binding)


def make_openvino_call(x: Array, w: Array, is_constant: bool, threads: int) -> Call:
    """Return a function that runs OpenVINO pinned to float32, since it defaults to bfloat16 where
    the processor supports it.
    """
    model, feeds = matmul_model(x, w, is_constant)
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    compiled_model = core.compile_model(core.read_model(io.BytesIO(model)), "CPU", config)
    request = compiled_model.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array))  # a copy: nothing keeps what is shared
    return lambda: request.infer()


PEER_ENGINES: Mapping[str, Callable[[Array, Array, bool, int], Call]] = {
    "ORT": make_onnxruntime_call,
    **({} if openvino is None else {"OpenVINO": make_openvino_call}),
}
"""Engine -> (x [m, k], w [n, k], whether that is a constant, threads) -> a call of the product."""


def select_clock(threads: int) -> Callable[[], float]:
    """Return the clock for a number of threads: this process's CPU time for one, wall time for
    several. With one thread it is this process's CPU time, since some engines have a thread of
    their own; other programs then do not count.
    """
    return time.process_time if threads == 1 else time.perf_counter


def mean_call_seconds(call: Call, repeat: int, clock: Callable[[], float]) -> float:
    """Return the mean duration of `repeat` calls in seconds, after one that warms the caches."""
    call()
    start = clock()
    for _ in range(repeat):
        call()
    return (clock() - start) / repeat
