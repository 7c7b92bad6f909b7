"""Tuned speed of the ten computations of TVM's te_workload: by default, tuned, in PyTorch and in
ONNX Runtime.

    python benchmarks/tune_workloads.py --trials 64 -o records.json [GMM C1D ...]
    python benchmarks/tune_workloads.py --trials 64 --search guided -o others.json [GMM C1D ...]
    python benchmarks/tune_workloads.py --compare -o records.json

One thread. Kernels are timed in turns in one process by the thread's own time; a line for each has
GFLOP/s by default and tuned, PyTorch's and ONNX Runtime's, and how many trials found what is within
5 % of the best. With `--compare` nothing is tuned: the records' best is compared.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import torch

import ekiden
from ekiden.target import Target
from ekiden.tune import Candidate, Records, Session, Task, te_task
from ekiden.tune.candidate_code import load_candidate_code
from ekiden.tune.cost_model import BoostedTrees
from ekiden.tune.program import CANDIDATE_KERNEL_NAME, build_candidate
from ekiden.tune.run_job import make_arrays
from ekiden.tune.search import Evolution, Random, Search
from ekiden.tune.te_workload import WORKLOADS

INTERLEAVED_ROUNDS = 15
SEARCH_STRATEGIES: dict[str, Search] = {
    "random": Random(),
    "evolution": Evolution(),
    "guided": Evolution(model=BoostedTrees),
}
"""At equal trials, with a file of records for each; `guided` is by a model of costs."""


def make_torch_call(
    name: str, x: torch.Tensor, w: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    """Return the computation in PyTorch, channels last where possible and with prepacked
    weights.
    """
    f = torch.nn.functional
    if name == "GMM":
        assert w is not None
        return lambda: torch.bmm(x, w)
    if name == "NRM":
        return lambda: torch.linalg.matrix_norm(x)
    if name == "SFM":
        return lambda: torch.softmax(x, dim=1)
    assert w is not None
    moved = x.movedim(-1, 1)
    if name == "C1D":
        channels_last_weight = w.permute(2, 1, 0).contiguous()
        return lambda: f.conv1d(moved, channels_last_weight, stride=2, padding=1)
    if name == "C3D":
        channels_last_weight = w.permute(4, 3, 0, 1, 2).contiguous(
            memory_format=torch.channels_last_3d
        )
        return lambda: f.conv3d(moved, channels_last_weight, stride=2, padding=3)
    if name == "DEP":
        channels_last_weight = w.permute(2, 0, 1)[:, None].contiguous(
            memory_format=torch.channels_last
        )
        return lambda: f.conv2d(moved, channels_last_weight, padding=1, groups=32)
    if name == "T2D":
        channels_last_weight = w.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
        return lambda: f.conv_transpose2d(moved, channels_last_weight, stride=2, padding=1)
    channels_last_weight = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    stride, padding, dilation, groups = {
        "C2D": (2, 3, 1, 1), "DIL": (2, 3, 2, 1), "GRP": (2, 1, 1, 4),
    }[name]  # fmt: skip
    return lambda: f.conv2d(moved, channels_last_weight, None, stride, padding, dilation, groups)


def make_onnxruntime_call(name: str, x: np.ndarray, w: np.ndarray | None) -> Callable[[], object]:
    """Return the computation in ONNX Runtime, channels first and with constant weights."""
    attrs: dict[str, object] = {}
    if name in ONNX_CONVOLUTIONS:
        assert w is not None
        op, order, attrs = ONNX_CONVOLUTIONS[name]
        x, w = np.moveaxis(x, -1, 1), w.transpose(order)
        w = w[:, None] if name == "DEP" else w
        rank = x.ndim - 2
        attrs = {k: v if k == "group" else [v] * (2 * rank if k == "pads" else rank)
                 for k, v in attrs.items()}  # fmt: skip
    else:
        op = {"GMM": "MatMul", "NRM": "ReduceL2", "SFM": "Softmax"}[name]
        other_attrs: dict[str, dict[str, object]] = {
            "GMM": {}, "NRM": {"axes": [1, 2], "keepdims": 0}, "SFM": {"axis": 1},
        }  # fmt: skip
        attrs = other_attrs[name]
    weights = [] if w is None else [onnx.numpy_helper.from_array(np.ascontiguousarray(w), "w")]
    node = onnx.helper.make_node(op, ["x", *(["w"] if w is not None else [])], ["y"], **attrs)
    feeds = {"x": np.ascontiguousarray(x)}
    if name == "GMM":  # both are computed
        weights, feeds = [], {**feeds, "w": np.ascontiguousarray(w)}
    inputs = [onnx.helper.make_tensor_value_info(n, 1, v.shape) for n, v in feeds.items()]
    outputs = [onnx.helper.make_tensor_value_info("y", 1, None)]
    graph = onnx.helper.make_graph([node], name, inputs, outputs, weights)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=9
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for key, value in feeds.items():
        binding.bind_cpu_input(key, value)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


ONNX_CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], dict[str, object]]] = {
    "C1D": ("Conv", (2, 1, 0), {"strides": 2, "pads": 1}),
    "C2D": ("Conv", (3, 2, 0, 1), {"strides": 2, "pads": 3}),
    "C3D": ("Conv", (4, 3, 0, 1, 2), {"strides": 2, "pads": 3}),
    "DEP": ("Conv", (2, 0, 1), {"pads": 1, "group": 32}),
    "DIL": ("Conv", (3, 2, 0, 1), {"strides": 2, "pads": 3, "dilations": 2}),
    "GRP": ("Conv", (3, 2, 0, 1), {"strides": 2, "pads": 1, "group": 4}),
    "T2D": ("ConvTranspose", (2, 3, 0, 1), {"strides": 2, "pads": 1}),
}
"""Operator, order of the weight's axes, attributes of each axis."""


def compile_candidate(
    task: Task, candidate: Candidate, tensors: list[ekiden.runtime.Tensor]
) -> Callable[[], object]:
    """Return a call of a candidate."""
    built = build_candidate(task.source, candidate, task.target, [{}])
    function = load_candidate_code(built.code)[CANDIDATE_KERNEL_NAME]
    return lambda: function(*tensors)


def interleaved_min_times(calls: list[Callable[[], object]]) -> list[float]:
    """Return the minimum thread CPU time of each call, after one that warms the caches."""
    best = [math.inf] * len(calls)
    for _ in range(INTERLEAVED_ROUNDS):
        for n, call in enumerate(calls):
            call()
            count = 0
            started = time.thread_time()
            while count == 0 or time.thread_time() - started < 2e-3:
                call()
                count += 1
            best[n] = min(best[n], (time.thread_time() - started) / count)
    return best


def main() -> None:
    """Tune, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--search", choices=SEARCH_STRATEGIES, default="evolution")
    parser.add_argument("-o", "--output")
    parser.add_argument("--compare", action="store_true", help="what stands in the records")
    options = parser.parse_args()
    ekiden.runtime.num_threads(1)
    torch.set_num_threads(1)
    search = SEARCH_STRATEGIES[options.search]
    ratios = []
    for name in options.names:
        task = te_task(WORKLOADS[name](), Target("llvm"), name)
        records = Records.open(options.output) if options.output else Records()
        session = Session([task], records, search=search)
        started = time.perf_counter()
        if not options.compare:
            session.run(options.trials)
        took = time.perf_counter() - started
        (state,) = session.states
        best = state.best
        chosen = Candidate(best.rule, best.choice) if best else task.space.default
        built = build_candidate(task.source, task.space.default, task.target, [{}])
        data = make_arrays(built.args, built.outputs, seed=0)  # aligned to lines, as theirs are
        arrays, tensors = [*data.inputs, *data.outputs], data.tensors()
        x = torch.from_numpy(arrays[0])
        w = torch.from_numpy(arrays[1]) if len(arrays) > 2 else None
        calls = [
            compile_candidate(task, task.space.default, tensors),
            compile_candidate(task, chosen, tensors),
        ]
        with torch.inference_mode():
            peers = [
                make_torch_call(name, x, w),
                make_onnxruntime_call(
                    name, *arrays[: len(arrays) - 1], *[None] * (3 - len(arrays))
                ),
            ]
            default, tuned, theirs, ort = interleaved_min_times([*calls, *peers])
        near = (n for n, r in enumerate(state.curve) if r <= 1.05 * state.curve[-1])
        soon = next(near, 0) + 1
        speeds = "  ".join(f"{task.flops / t / 1e9:8.1f}" for t in (default, tuned, theirs, ort))
        print(
            f"{name}  default, tuned, torch, ort GFLOP/s {speeds}  "
            f" tuned/default {default / tuned:5.2f}  tuned/torch {theirs / tuned:5.2f}"
            f"  tuned/ort {ort / tuned:5.2f}  near at {soon} of {state.trials}, {took:.0f} s"
            f"  {chosen.rule} {state.failures_by_status or ''}",
            flush=True,
        )
        ratios.append((theirs / tuned, ort / tuned, min(theirs, ort) / tuned, default / tuned))
    means = np.exp(np.log(np.array(ratios)).mean(axis=0))
    for of, mean in zip(("torch", "ort", "the faster", "default"), means, strict=True):
        print(f"to {of}, geometric mean: {mean:.2f}")


if __name__ == "__main__":
    main()
