"""Engines in separate processes, for nimble.py: each workload gives one `Run` per engine."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
ForeignModule: TypeAlias = Any
"""What belongs to another engine."""
Run = Callable[[int], list[Array]]
"""A case, by its number, to its results."""
MakeRun = Callable[[int], Run]
"""The number of threads to an engine that is ready."""

WEIGHT_SEED = 0
WEIGHT_SCALE = np.float32(0.05)


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """Times of a request's cases, and their results if requested."""

    seconds: list[float]
    cpu_seconds: list[float]
    """Of these, the seconds that the calling thread ran: less where others had the core."""
    results: list[Array]


class EngineWorker:
    """Engine in a separate process, so that thread pools of engines do not disturb each other."""

    def __init__(self, make: MakeRun, threads: int) -> None:
        """Start the process; it is no daemon, as it may start processes that compile: close it."""
        os.environ["OMP_NUM_THREADS"] = os.environ["EKIDEN_NUM_THREADS"] = str(threads)
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve_requests, args=(make, threads, theirs))
        self.process.start()
        theirs.close()  # so that the end of the process ends the wait
        self.ready = float(self.pipe.recv())

    def run_cases(self, cases: Sequence[int], keep: bool = False) -> WorkerReply:
        """Run cases one after the other; `keep` the results of the last."""
        self.pipe.send((cases, keep))
        reply = self.pipe.recv()
        assert isinstance(reply, WorkerReply)
        return reply

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


def _serve_requests(make: MakeRun, threads: int, pipe: Connection) -> None:
    start = time.perf_counter()
    run = make(threads)
    pipe.send(time.perf_counter() - start)
    while True:
        cases, keep = pipe.recv()
        seconds, busy, results = [], [], []
        for case in cases:
            start, began = time.perf_counter(), time.thread_time()
            results = run(case)
            busy.append(time.thread_time() - began)
            seconds.append(time.perf_counter() - start)
        pipe.send(WorkerReply(seconds, busy, [np.array(r) for r in results] if keep else []))


class SeededWeights:
    """Seeded random weights, equal for all engines that draw them in the same order."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(WEIGHT_SEED)

    def __call__(self, *shape: int) -> Array:
        """Return the next weight."""
        return self.rng.standard_normal(shape, dtype=np.float32) * WEIGHT_SCALE


def import_torch(threads: int) -> ForeignModule:
    """Import torch with a number of threads and without gradients."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


class OnnxGraph:
    """Builder of an ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add_initializer(self, value: Array) -> str:
        """Add an initializer."""
        from onnx import numpy_helper  # noqa: PLC0415

        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add_node(self, kind: str, *inputs: str, outputs: int = 1, **attrs: object) -> str:
        """Add a node, and return the name of its first output; further ones have the suffixes _1,
        _2, ...
        """
        from onnx import helper  # noqa: PLC0415

        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attrs))
        return name

    def create_session(
        self, threads: int, inputs: dict[str, tuple[int, list[Any]]], *out: str
    ) -> ForeignModule:
        """Return an ONNX Runtime session with the model; `inputs` are element types and shapes by
        name.
        """
        import onnxruntime  # noqa: PLC0415
        from onnx import helper  # noqa: PLC0415

        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(n, *kind) for n, kind in inputs.items()],
            [helper.make_tensor_value_info(n, 1, None) for n in out],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(model.SerializeToString(), options)
