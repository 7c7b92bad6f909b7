"""The ten computations of TVM's te_workload: by default, tuned, and in PyTorch.

    python benchmarks/tune_workloads.py --trials 64 -o records.json [GMM C1D ...]

One thread. Kernels are timed in turns in one process by the thread's own time; a line for each has
GFLOP/s by default and tuned, PyTorch's, and how many trials found what is within 5 % of the best.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

import ekiden
from ekiden.runtime import tensor
from ekiden.target import Target
from ekiden.tune import Candidate, Records, Session, Task, te_task
from ekiden.tune.code import load
from ekiden.tune.program import NAME, build
from ekiden.tune.search import Evolution, Random, Search
from ekiden.tune.te_workload import WORKLOADS

TURNS = 15


def in_torch(name: str, x: torch.Tensor, w: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    """The same in PyTorch, which has channels last where it can, and weights in its own order."""
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
        own = w.permute(2, 1, 0).contiguous()
        return lambda: f.conv1d(moved, own, stride=2, padding=1)
    if name == "C3D":
        own = w.permute(4, 3, 0, 1, 2).contiguous(memory_format=torch.channels_last_3d)
        return lambda: f.conv3d(moved, own, stride=2, padding=3)
    if name == "DEP":
        own = w.permute(2, 0, 1)[:, None].contiguous(memory_format=torch.channels_last)
        return lambda: f.conv2d(moved, own, padding=1, groups=32)
    if name == "T2D":
        own = w.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
        return lambda: f.conv_transpose2d(moved, own, stride=2, padding=1)
    own = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    stride, padding, dilation, groups = {
        "C2D": (2, 3, 1, 1), "DIL": (2, 3, 2, 1), "GRP": (2, 1, 1, 4),
    }[name]  # fmt: skip
    return lambda: f.conv2d(moved, own, None, stride, padding, dilation, groups)


def compiled(task: Task, candidate: Candidate, arrays: list[np.ndarray]) -> Callable[[], object]:
    """A call of a candidate."""
    made = build(task.source, candidate, task.target, [{}])
    function = load(made.code)[NAME]
    tensors = [tensor(a) for a in arrays]
    return lambda: function(*tensors)


def in_turns(calls: list[Callable[[], object]]) -> list[float]:
    """The least thread time of each."""
    best = [math.inf] * len(calls)
    for call in calls:
        call()
    for _ in range(TURNS):
        for n, call in enumerate(calls):
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
    parser.add_argument("--search", choices=("evolution", "random"), default="evolution")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    ekiden.runtime.num_threads(1)
    torch.set_num_threads(1)
    search: Search = Evolution() if options.search == "evolution" else Random()
    ratios = []
    for name in options.names:
        task = te_task(WORKLOADS[name](), Target("llvm"), name)
        records = Records.open(options.output) if options.output else Records()
        session = Session([task], records, search=search)
        started = time.perf_counter()
        session.run(options.trials)
        took = time.perf_counter() - started
        (state,) = session.states
        best = state.best
        chosen = Candidate(best.rule, best.choice) if best else task.space.default
        made = build(task.source, task.space.default, task.target, [{}])
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape, np.float32) for shape, _ in made.args]
        x = torch.from_numpy(arrays[0])
        w = torch.from_numpy(arrays[1]) if len(arrays) > 2 else None
        calls = [compiled(task, task.space.default, arrays), compiled(task, chosen, arrays)]
        with torch.inference_mode():
            default, tuned, theirs = in_turns([*calls, in_torch(name, x, w)])
        soon = next((n for n, r in enumerate(state.curve) if r <= 1.05 * state.curve[-1]), 0) + 1
        speeds = "  ".join(f"{task.flops / t / 1e9:8.1f}" for t in (default, tuned, theirs))
        print(
            f"{name}  default, tuned, torch GFLOP/s {speeds}   tuned/default {default / tuned:5.2f}"
            f"  tuned/torch {theirs / tuned:5.2f}  near at {soon} of {state.trials}, {took:.0f} s"
            f"  {chosen.rule} {state.failed or ''}",
            flush=True,
        )
        ratios.append(theirs / tuned)
    print(f"to torch, geometric mean: {math.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
