"""Scaled dot-product attention of 12 heads of depth 64: as one kernel, as separate operators, and
in PyTorch.

    python benchmarks/attention.py [--lengths 16 40 128 512] [--seconds 2]

One thread. Tensors are [1, length, heads, depth], as the layers before make them. Prints the least
time in which the calling thread ran, of turns that all take, and the rate of the two products.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import ekiden
from ekiden import relay
from ekiden.ir.transform import PassContext
from ekiden.relay import op
from ekiden.runtime import num_threads

HEADS, DEPTH = 12, 64
Array = np.ndarray
Run = Callable[[], object]


def attention_module() -> relay.IRModule:
    """Return multi-head attention of a dynamic sequence length as single operators."""
    length = relay.SizeVar("length", "int64")
    params = [relay.var(n, shape=(1, length, HEADS, DEPTH)) for n in ("query", "key", "value")]
    query, key, value = (
        op.reshape(op.transpose(p, (0, 2, 1, 3)), (HEADS, length, DEPTH)) for p in params
    )
    scores = op.multiply(op.nn.batch_matmul(query, key), relay.const(np.float32(DEPTH**-0.5)))
    mixed = op.nn.batch_matmul(op.nn.softmax(scores), value, transpose_b=False)
    split = op.reshape(mixed, (1, HEADS, length, DEPTH))
    body = op.transpose(split, (0, 2, 1, 3))
    return relay.IRModule.from_expr(relay.Function(params, body))


def build_engines(arrays: list[Array]) -> dict[str, Run]:
    """Return one run per engine by name, Ekiden's first."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    fused = ekiden.compile(attention_module())
    with PassContext(opt_level=3, disabled_pass=["FuseAttention"]):
        single = ekiden.compile(attention_module())
    heads = [torch.from_numpy(a).transpose(1, 2) for a in arrays]
    attend = torch.nn.functional.scaled_dot_product_attention
    return {
        "one kernel": lambda: fused(*arrays),
        "operators": lambda: single(*arrays),
        "torch": lambda: attend(*heads),
    }


def interleaved_min_times(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """Return the minimum duration of each run in seconds, measured alternately."""
    best = dict.fromkeys(runs, float("inf"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, run in runs.items():
            start = time.thread_time()
            run()
            best[name] = min(best[name], time.thread_time() - start)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="*", type=int, default=[16, 40, 128, 512])
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    num_threads(1)
    rng = np.random.default_rng(0)
    for length in options.lengths:
        shape = (1, length, HEADS, DEPTH)
        runs = build_engines([rng.standard_normal(shape, np.float32) for _ in range(3)])
        for name, seconds in interleaved_min_times(runs, options.seconds).items():
            rate = 4 * length * length * DEPTH * HEADS / seconds / 1e9
            print(f"{length:5} {name:11}{seconds * 1e6:10.1f} us {rate:8.1f} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
