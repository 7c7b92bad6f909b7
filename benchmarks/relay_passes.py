"""The time of each pass on BERT-base (12 layers), of type inference and of the whole pipeline.

    python benchmarks/relay_passes.py [LAYERS] [RUNS]

Every figure is the median over the runs, each on a module made anew: types are not kept from one
run to the next. Limits: type inference 0.3 s, the pipeline 3 s.
"""

from __future__ import annotations

import statistics
import sys
import time

from bert import bert_module

from ekiden import relay
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.ir.instrument import PassTimingInstrument
from ekiden.ir.transform import PassContext
from ekiden.target import Target


def time_type_inference(module: relay.IRModule) -> float:
    """Return the seconds of type inference."""
    started = time.perf_counter()
    relay.infer_type(module)
    return time.perf_counter() - started


def time_passes(module: relay.IRModule) -> dict[str, float]:
    """Return the seconds of each pass in the virtual machine's pipeline, and of all."""
    clock = PassTimingInstrument()
    run = vm_pipeline(Target.host())
    started = time.perf_counter()
    with PassContext(instruments=[clock]):
        run(module)
    return {**clock.seconds, "all": time.perf_counter() - started}


def main() -> None:
    """Print a table."""
    layers, runs = (int(a) for a in (*sys.argv[1:], *("12", "3")[len(sys.argv) - 1 :]))
    inferred = [time_type_inference(bert_module(layers)) for _ in range(runs)]
    module = bert_module(layers)
    count = len(relay.post_order(module["main"]))
    print(f"BERT-base, {layers} layers, {count} expressions, median of {runs} runs")
    print(f"{'type inference alone':28} {statistics.median(inferred):8.3f} s")
    pass_times = [time_passes(bert_module(layers)) for _ in range(runs)]
    for name in pass_times[0]:
        print(f"{name:28} {statistics.median(f[name] for f in pass_times):8.3f} s")


if __name__ == "__main__":
    main()
