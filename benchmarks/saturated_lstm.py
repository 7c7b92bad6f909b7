"""An LSTM with saturated gates, compared with one without: states that decay pass through subnormal
numbers, which cost 100 cycles each where they are computed with.

    python benchmarks/saturated_lstm.py [--target "llvm -mcpu=x86-64-v3"] [--rounds 40]

One thread, thread CPU time, the least of the rounds, both in turn.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.runtime import num_threads

HIDDEN, STEPS = 256, 100


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    num_threads(1)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4 * HIDDEN, HIDDEN)).astype("float32") / np.sqrt(np.float32(HIDDEN))
    x = relay.var("x", relay.tensor_type((STEPS, 1, 4 * HIDDEN)))
    layer = op.nn.recurrent(x, relay.const(weight), "lstm")
    run = ekiden.compile(relay.IRModule.from_expr(relay.Function((x,), layer)), options.target)
    free = rng.normal(size=(STEPS, 1, 4 * HIDDEN)).astype("float32")
    shut = free.copy()
    shut[5:, :, :HIDDEN] -= 95  # gates of the input: what is added is subnormal at every step
    best = [float("inf")] * 2
    for _ in range(options.rounds):
        for which, data in enumerate((free, shut)):
            start = time.thread_time()
            run(data)
            best[which] = min(best[which], time.thread_time() - start)
    print(f"{best[0] * 1e6:.0f} us, saturated {best[1] * 1e6:.0f} us: {best[1] / best[0]:.2f}")


if __name__ == "__main__":
    main()
