"""Compilation time per node of each stage, for let chains and nested adds of growing length.

    python benchmarks/deep_programs.py [LENGTH ...]

The lengths default to 1,000, 10,000 and 100,000. The last column is the time per node (of the
processor, which others on the machine do not slow) at the longest over that at the length before:
the limit is 1.5.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

from ekiden.backend.vm.compile import compile_module
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.ir.instrument import PassTimingInstrument
from ekiden.ir.module import IRModule
from ekiden.ir.transform import PassContext
from ekiden.relay import Expr, Function, Let, Var, infer_type, op, parse, var
from ekiden.relay.transform import FoldConstant, FuseOps, ToANormalForm
from ekiden.target import Target

Stages = dict[str, float]


def nested_adds(length: int) -> IRModule:
    """Return a chain of `length` nested adds. add(%x, %y) ..., %y), %y)`."""
    x, y = var("x", shape=(8,)), var("y", shape=(8,))
    body: Expr = x
    for _ in range(length):
        body = op.add(body, y)
    return IRModule.from_expr(Function((x, y), body, None))


def chained_lets(length: int) -> IRModule:
    """Return a chain of `length` let-bound adds."""
    x, y = var("x", shape=(8,)), var("y", shape=(8,))
    names: list[Var] = [x]
    values: list[Expr] = []
    for _ in range(length):
        values.append(op.add(names[-1], y))
        names.append(var("v"))
    body: Expr = names[-1]
    for name, value in zip(reversed(names[1:]), reversed(values), strict=True):
        body = Let(name, value, body)
    return IRModule.from_expr(Function((x, y), body, None))


class _StageTimer:
    """Timer of compilation stages."""

    def __init__(self) -> None:
        self.stages: Stages = {}

    def run_stage(self, name: str, stage: Callable[[], IRModule]) -> IRModule:
        gc.collect()
        started = time.process_time()
        result = stage()
        self.stages[name] = time.process_time() - started
        return result


def measure_stages(make: Callable[[int], IRModule], length: int) -> Stages:
    """Return the seconds of each compilation stage of a program of this length."""
    clock, module = _StageTimer(), make(length)
    texts: list[str] = []
    clock.run_stage("infer type", lambda: infer_type(module))
    clock.run_stage("print", lambda: texts.append(module.astext()) or module)
    clock.run_stage("parse", lambda: parse(texts[0]))
    clock.run_stage("A-normal form", lambda: ToANormalForm()(module))
    clock.run_stage("fold constants", lambda: FoldConstant()(module))
    clock.run_stage("fuse", lambda: FuseOps()(module))
    target, passes = Target.host(), PassTimingInstrument()
    with PassContext(instruments=[passes]):
        ready = clock.run_stage("pipeline", lambda: vm_pipeline(target)(module))
    clock.stages |= {f"  {name}": seconds for name, seconds in passes.seconds.items()}
    clock.run_stage("to bytecode", lambda: compile_module(ready, target, {}) and ready)
    return clock.stages


def main() -> None:
    """Print a table for each kind of chain."""
    lengths = [int(a) for a in sys.argv[1:]] or [1_000, 10_000, 100_000]
    for make in (chained_lets, nested_adds):
        columns = [measure_stages(make, length) for length in lengths]
        print(f"{make.__name__}: microseconds per node")
        print(f"{'':24}" + "".join(f"{n:10,}" for n in lengths) + f"{'growth':>10}")
        for stage in columns[0]:
            per_node = [c[stage] / n * 1e6 for c, n in zip(columns, lengths, strict=True)]
            growth = f"{per_node[-1] / per_node[-2]:10.2f}" if len(per_node) > 1 else ""
            print(f"{stage:24}" + "".join(f"{t:10.2f}" for t in per_node) + growth)


if __name__ == "__main__":
    main()
