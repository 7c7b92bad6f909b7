"""A program on CUDA whose driver fails in the middle, in each way once: prints what is raised. It
runs in a process of its own, as it loses its device; the library path has the stand-ins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

import ekiden

library = ctypes.CDLL("libcuda.so.1")
rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
weight = onnx.numpy_helper.from_array(np.ones((8, 6), "float32"), "w")
nodes = [
    helper.make_node("MatMul", ["x", "w"], ["h"], name="proj"),
    # over columns: kernels that follow each other, with memory of the device between them
    helper.make_node("Softmax", ["h"], ["y"], name="probs", axis=0),
]
graph = helper.make_graph(nodes, "g", [rows], [result], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
data = model.SerializeToString()
x, more = np.ones((3, 8), "float32"), np.ones((300, 8), "float32")
host, exe = ekiden.compile(data), ekiden.compile(data, "cuda")


def tried(name: str, run: Callable[[], object]) -> None:
    try:
        actual = run()
    except (ekiden.runtime.errors.EkidenError, MemoryError) as error:
        print(f"{name}: {type(error).__name__}: {error}")
        return
    assert isinstance(actual, ekiden.runtime.Tensor)
    value = actual.numpy()
    print(f"{name}: {float(np.abs(value - 1 / len(value)).max()) < 1e-6}")


for what, function, code, skip, given in (
    ("build", b"cuModuleLoadDataEx", 200, 1, x),
    ("memory", b"cuMemAlloc_v2", 2, -3, x),
    ("kept memory", b"cuMemAlloc_v2", 2, 0, more),  # there is enough, of other sizes
    ("launch", b"cuLaunchKernel", 701, 1, x),
    ("lost", b"cuLaunchKernel", 719, 1, x),
):
    if what == "memory":
        ekiden.runtime.trim_pools()
    library.stand_in_fail(function, code, skip)
    tried(what, partial(exe, given))
    library.stand_in_fail(function, 0, 0)
    tried(f"after {what}", partial(exe, given))
tried("host", lambda: host(x))
other = ekiden.compile(data, {ekiden.device("cuda", 1): "cuda"})
tried("other device", lambda: other(x))
