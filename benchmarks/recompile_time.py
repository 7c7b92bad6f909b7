"""Recompilation time after an edit of one line of a Relay model, as in a notebook.

    python benchmarks/recompile_time.py [--tier full quick] [--rounds 5] [--size 224]

    again     the same model once more
    head      softmax becomes another function: the kernels of the body are found in the cache
    middle    a relu becomes one of another slope, each time a new one: its kernel is not known

Seconds on the clock and of the processor, workers with it; medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import ekiden
from ekiden import relay
from ekiden.relay.build_module import bind_params_by_name
from ekiden.relay.expr import Call, Expr, Function
from ekiden.relay.testing import resnet

EDITED_RELU_INDEX = 8
"""Which relu is edited."""


class CallEdit(relay.ExprMutator):
    """Expression mutator that rewrites the n-th call of an operator."""

    def __init__(self, name: str, number: int, write: Callable[[Expr], Expr]) -> None:
        super().__init__()
        self.name, self.number, self.write = name, number, write

    def visit_call(self, call: Call) -> Expr:
        """Return the call, or its replacement."""
        new_call = super().visit_call(call)
        assert isinstance(new_call, Call)
        if getattr(call.op, "name", "") != self.name:
            return new_call
        self.number -= 1
        return self.write(new_call.args[0]) if self.number == 0 else new_call


def iter_edits(function: Function) -> Iterator[tuple[str, Function]]:
    """Yield pairs (kind, edited model) endlessly."""
    heads = (relay.nn.log_softmax, relay.tanh, relay.sigmoid, relay.exp, relay.erf)
    edit_index = 0
    while True:
        edit_index += 1
        # A new constant each time, so that no edit is in the compilation cache.
        slope = 0.1 + edit_index * 1e-3
        yield "again", function
        yield "head", CallEdit("nn.softmax", 1, heads[edit_index % len(heads)]).visit(function)
        yield (
            "middle",
            CallEdit(
                "nn.relu", EDITED_RELU_INDEX, lambda x, by=slope: relay.nn.leaky_relu(x, by)
            ).visit(function),
        )


def process_cpu_seconds() -> float:
    """Return the CPU seconds of this process and its terminated children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure_recompile(function: Function, tier: str) -> tuple[float, float]:
    """Return the wall and CPU seconds until the edited model is ready; remaining background work is
    awaited afterwards.
    """
    module = ekiden.IRModule.from_expr(function)
    clock, processor = time.perf_counter(), process_cpu_seconds()
    executable = ekiden.compile(module, tier=tier)
    elapsed = time.perf_counter() - clock, process_cpu_seconds() - processor
    # Background compilation of this edit must not disturb the next measurement.
    executable.wait()
    return elapsed


def main(arguments: list[str]) -> int:
    """Print a row for each tier and kind of edit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tier", nargs="+", default=["full", "quick"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args(arguments)
    shape = (3, options.size, options.size)
    module, params = resnet.get_workload(num_layers=18, image_shape=shape)
    function = bind_params_by_name(module["main"], params)
    print(f"{'tier':8}{'edit':10}{'s':>8}{'cpu s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EKIDEN_CACHE_DIR"] = folder
        for tier in options.tier:
            print(
                f"{tier:8}{'first':10}{'{:8.3f}{:8.3f}'.format(*measure_recompile(function, tier))}"
            )
            rows: dict[str, list[tuple[float, float]]] = {}
            for (kind, edited), _ in zip(
                iter_edits(function), range(3 * options.rounds), strict=False
            ):
                rows.setdefault(kind, []).append(measure_recompile(edited, tier))
            for kind, samples in rows.items():
                clock, processor = map(statistics.median, zip(*samples, strict=True))
                print(f"{tier:8}{kind:10}{clock:8.3f}{processor:8.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
