"""Models on single devices, and on those that devices="auto" selects, measured in turns with
results fetched.

python benchmarks/device_selection.py opencl          the host, opencl(0), and what was chosen
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial

import numpy as np

import ekiden
from ekiden import relay
from ekiden.runtime.profile.timing import min_times_interleaved

MIN_MEASURING_S = 1.0


def dense_module() -> relay.IRModule:
    """Return four dense layers of 1024 units on 64 rows."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(64, 1024))
    y: relay.Expr = x
    for _ in range(4):
        weight = relay.const(rng.standard_normal((1024, 1024), dtype=np.float32) / 32)
        y = relay.nn.relu(relay.nn.dense(y, weight))
    return relay.IRModule.from_expr(relay.Function((x,), y))


def conv_module() -> relay.IRModule:
    """Return three convolutions of 32 channels, a pooling, and a softmax."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(1, 3, 56, 56))
    y: relay.Expr = x
    for n in (3, 32, 32):
        weight = relay.const(rng.standard_normal((32, n, 3, 3), dtype=np.float32) / 16)
        y = relay.nn.relu(relay.nn.conv2d(y, weight, padding=(1, 1), kernel_size=(3, 3)))
    y = relay.nn.softmax(relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y)))
    return relay.IRModule.from_expr(relay.Function((x,), y))


def elementwise_module() -> relay.IRModule:
    """Return transcendental functions of four million elements, and their sum."""
    x = relay.var("x", shape=(1 << 22,))
    y = relay.sum(relay.tanh(relay.exp(x * relay.const(0.5)) - relay.const(1.0)))
    return relay.IRModule.from_expr(relay.Function((x,), y))


DEVICE_WORKLOADS: dict[str, Callable[[], relay.IRModule]] = {
    "dense layers": dense_module,
    "convolutions": conv_module,
    "elements": elementwise_module,
}


def run_and_fetch(executable: ekiden.Executable, x: np.ndarray) -> None:
    """Run an executable, and copy its result to the host."""
    result = executable(x)
    assert isinstance(result, ekiden.runtime.Tensor)
    result.numpy()


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", help="a kind, with a number: opencl:0")
    parser.add_argument("--seconds", type=float, default=MIN_MEASURING_S)
    parser.add_argument("--verbose", action="store_true", help="what was measured of each plan")
    options = parser.parse_args()
    if options.verbose:
        logging.basicConfig(level=logging.INFO)
    host, device = ekiden.cpu(0), ekiden.device(options.device)
    kind = str(device).partition("(")[0]
    for name, make in DEVICE_WORKLOADS.items():
        module = make()
        plans = {
            str(host): ekiden.compile(module),
            str(device): ekiden.compile(module, {device: kind, host: "llvm"}),
            "auto": ekiden.compile(module, [host, device], devices="auto"),
        }
        shape = plans["auto"].inputs[0].shape
        x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        runs = [partial(run_and_fetch, executable, x) for executable in plans.values()]
        times = dict(zip(plans, min_times_interleaved(runs, options.seconds), strict=True))
        chosen = ", ".join(map(str, plans["auto"].raw.devices))
        times_text = "   ".join(f"{plan} {seconds * 1e3:.3f} ms" for plan, seconds in times.items())
        best = min(times[str(host)], times[str(device)])
        print(
            f"{name:14} {times_text}   {times['auto'] / best:.2f} of the best single, on {chosen}"
        )


if __name__ == "__main__":
    main()
