"""Bandwidth of gathers and scatters of rows and of elements, compared with a copy of as many rows.

    python benchmarks/gather_scatter.py [--rounds 8]

One thread, thread CPU time, the least of the rounds, turn by turn. GB/s counts what has to be read
and written, indices among them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.runtime import num_threads

NODES, WIDTH, EDGES = 10_000, 64, 40_000
"""Rows, their elements, and how many are taken: a layer of a graph network."""


def compile_call(body: Callable[..., relay.Expr], *arrays: np.ndarray) -> Callable[[], object]:
    """Return a function that runs a compiled operator on its arrays."""
    params = [
        relay.var(f"p{n}", relay.tensor_type(a.shape, str(a.dtype))) for n, a in enumerate(arrays)
    ]
    function = relay.Function(tuple(params), body(*params))
    run = ekiden.compile(relay.IRModule.from_expr(function))
    return lambda: run(*arrays)


def main() -> None:
    """Print a line for each operator."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NODES, WIDTH), np.float32)
    rows = rng.integers(0, NODES, EDGES)
    updates = rng.standard_normal((EDGES, WIDTH), np.float32)
    element_rows = np.ascontiguousarray(np.broadcast_to(rows[:, None], updates.shape))
    copy, size = np.empty_like(updates), updates.nbytes
    take, scatter = op.take, op.scatter_elements
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "copy": (lambda: np.copyto(copy, updates), 2 * size),
        "take": (compile_call(lambda d, i: take(d, i, axis=0), x, rows), 2 * size),
        "gather": (
            compile_call(lambda d, i: op.gather(d, 0, i), x, element_rows),
            4 * size,
        ),
        "scatter_nd": (
            compile_call(lambda d, i, u: op.scatter_nd(d, i, u, "add"), x, rows[None], updates),
            3 * size,
        ),
        "scatter_elements": (
            compile_call(
                lambda d, i, u: scatter(d, i, u, axis=0, reduction="add"), x, element_rows, updates
            ),
            5 * size,
        ),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(options.rounds):
        for name, (call, _) in calls.items():
            start = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - start)
    for name, (_, moved) in calls.items():
        print(f"{name:>18} {best[name] * 1e6:8.0f} us {moved / best[name] / 1e9:6.1f} GB/s")


if __name__ == "__main__":
    main()
