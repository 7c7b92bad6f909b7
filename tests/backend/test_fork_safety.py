"""Fork safety: compile workers start while other threads hold locks of importlib, LLVM, logging or
PyTorch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from long_runs import sizes

PROGRAM = """
import importlib, itertools, logging, os, sys, tempfile, threading
from pathlib import Path

import llvmlite.binding as llvmlite
import numpy as np
import torch
from onnx import TensorProto, helper

from ekiden.backend.kernels.build import build_kernels
from ekiden.codegen import parallel
from ekiden.codegen.cache import KernelCache
from ekiden.ir import IRModule
from ekiden import relay
from ekiden.target import Target
from onnx_runtime import session

wanted = int(sys.argv[1])
logging.basicConfig(filename=os.devnull, level=logging.DEBUG)
done = threading.Event()
folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
sys.path.append(str(folder))
ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64])] for n in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", *ends)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
engine = session(model, threads=2)
x = np.ones((64, 64), np.float32)

def imports(number):
    name = f"imported_{number}"
    (folder / f"{name}.py").write_text("import json")
    importlib.invalidate_caches()
    importlib.import_module(name)

WORK = [
    imports,
    lambda _: llvmlite.parse_assembly("define void @f() { ret void }").verify(),
    lambda number: logging.getLogger("ekiden.beside").info("turn %d", number),
    lambda _: engine.run(None, {"x": x}),
    lambda _: torch.ones(64, 64) @ torch.ones(64, 64),
]

def repeat(work):
    for number in itertools.count():
        if done.wait(0.001):
            return
        work(number)

threads = [threading.Thread(target=repeat, args=(work,)) for work in WORK]
for thread in threads:
    thread.start()

started, start = [], parallel.start_workers

def start_workers(count, setup):
    workers = start(count, setup)
    started.extend(worker.pid for worker in workers)
    return workers

parallel.start_workers = start_workers

def primitive(scale):
    v = relay.var("v", shape=(4, 8))
    function = relay.Function([v], relay.multiply(v, relay.const(scale)))
    function = relay.transform.InferType()(IRModule.from_expr(function))["main"]
    return function.with_attr("Primitive", 1)

functions = [primitive(float(n)) for n in range(1, 5)]
images = set()

def compile_kernels():
    while len(started) < wanted:
        kernels = build_kernels(functions, Target("llvm"), cache=KernelCache(None))
        images.add(kernels.link(Target("llvm")))

compiling = [threading.Thread(target=compile_kernels) for _ in range(2)]
for thread in compiling:
    thread.start()
for thread in compiling:
    thread.join()
done.set()
for thread in threads:
    thread.join()
assert len(images) == 1, "every process compiles the same code"
print(len(started))
"""


@pytest.mark.slow
@sizes("processes", 4, 1000)
def test_workers_do_not_hang_when_other_threads_hold_locks(
    processes: int, tmp_path: object
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(processes), str(tmp_path)]
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "EKIDEN_COMPILE_JOBS": "2", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= processes
