"""Quantized convolutions and matrix products in every form that quantizers write (QDQ, QLinear,
integer operators), compared with ONNX Runtime.

    python benchmarks/quantized_operators.py [--only REGEX] [--seconds 0.15] [--target TARGET]
        [--threads 1]

The grid: signs of data and weights, zero points, per-channel scales, strides, dilations, groups,
borders, sizes that only the run knows; as ConvInteger and MatMulInteger (DynamicQuantizeLinear and
the scales behind, as dynamic quantisation writes them), as QLinearConv and QLinearMatMul, as nodes
of floats between QuantizeLinear and DequantizeLinear, whose weights are bytes or become bytes by
QuantizeLinear. The least of runs taken in turns: thread CPU time of one thread, elapsed time of
more. `peak` is the share of what the class's instructions multiply bytes at, of all that a run
does; pairs of int16 are added by an instruction of their own, which that peak leaves out, so half
of it (512 bits) to three quarters (256) is the most that exact sums reach without dot products.
`family` are the families of kernels that multiply. ONNX Runtime takes what the processor has:
compare it with other classes as on their processors,

    python benchmarks/emulate_cpu.py x86-64-v3 python benchmarks/quantized_operators.py

Where there are no dot products of bytes, its sums of uint8 and int8 saturate; `exact` is its time
where it is told that they shall not, which holds for weights that are known. Results are compared
with those: integers exactly, quantised ones to one step, floats to its size.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ekiden
from ekiden.compiler.machine_peak import dot_product_loop
from ekiden.runtime import num_threads
from ekiden.target import Target

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from int8_matmul import build_kernel

from integer_grid import Case, families_of, grid
from onnx_runtime import EXACT

Run = Callable[[], object]
MIN_TURNS, RUNS_PER_TURN = 5, 3
"""The second and third run of a turn find their own data in the caches."""


@dataclass(frozen=True)
class IntegerCaseResult:
    """Result of one case: microseconds of both engines, and of ONNX Runtime told to be exact, share
    of the peak, kernel families.
    """

    case: Case
    ours: float
    theirs: float
    exact: float
    share: float
    family: str
    is_close: bool

    def __str__(self) -> str:
        mark = "" if self.is_close else "  DIFFERS"
        times = f"{self.ours:9.1f} {self.theirs:9.1f} {self.exact:9.1f}"
        ratios = f"{self.theirs / self.ours:7.2f} {self.exact / self.ours:7.2f}"
        return f"{self.case.name:60}{times} {ratios} {self.share:6.1%}  {self.family}{mark}"


def measure_byte_peak(target: Target) -> float:
    """Return one thread's peak rate of int8 dot products, in operations per second."""
    loop = dot_product_loop(target, "int8")
    assert loop is not None, target
    func, work = loop
    (out,) = func.buffers
    kernel = build_kernel(func, target)
    result = ekiden.runtime.tensor(np.zeros(out.shape[0].value, np.int32))  # type: ignore[attr-defined]
    kernel(result)
    times = []
    for _ in range(7):
        begin = time.thread_time()
        kernel(result)
        times.append(time.thread_time() - begin)
    return work / min(times)


def onnxruntime_session(
    model: onnx.ModelProto, exact: bool, threads: int
) -> onnxruntime.InferenceSession | None:
    """Return a session; None for types without a kernel. Without `exact`, uint8 x int8 products may
    saturate on processors without VNNI.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if exact:
        options.add_session_config_entry(EXACT, "1")
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None


def interleaved_least(
    runs: list[Run], seconds: float, clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Return the least duration of each run in microseconds, measured alternately."""
    durations, num_turns = [float("inf")] * len(runs), 0
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or num_turns < MIN_TURNS:
        num_turns += 1
        for n, run in enumerate(runs):
            for _ in range(RUNS_PER_TURN):
                begin = clock()
                run()
                durations[n] = min(durations[n], clock() - begin)
    return [duration * 1e6 for duration in durations]


def measure_case(
    case: Case, target: Target, peak: float, options: argparse.Namespace
) -> IntegerCaseResult:
    """Measure both engines on a case."""
    model, feed = case.model(), case.feed()
    exe = ekiden.compile(model, target)
    sessions = [onnxruntime_session(model, exact, options.threads) for exact in (False, True)]
    runs: list[Run] = [
        partial(exe, **feed),
        *(partial(session.run, None, feed) for session in sessions if session is not None),
    ]
    result, exact = exe(**feed).numpy(), sessions[1] and sessions[1].run(None, feed)[0]
    is_close = exact is None or bool(
        np.all(np.abs(result.astype(np.float64) - exact) <= case.tolerance(exact))
    )
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    times = interleaved_least(runs, options.seconds, clock)
    ours, default, unsaturated = (*times, float("nan"), float("nan"))[:3]
    share = case.operations / (ours * 1e-6) / (peak * options.threads)
    families = "+".join(families_of(model, target))
    return IntegerCaseResult(case, ours, default, unsaturated, share, families, is_close)


def main() -> None:
    """Print a row for each case, and what is slower."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose names match")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each engine and case")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    num_threads(options.threads)
    target = Target.parse(options.target)
    best = measure_byte_peak(target)
    print(
        f"{target.cpu}: {best / 1e9:.0f} GOP/s a thread, {options.threads} thread(s), "
        f"ONNX Runtime {onnxruntime.__version__}"
    )
    print(
        f"{'':60}{'ekiden us':>9} {'ort us':>9} {'exact us':>9} {'times':>7} {'exact':>7}"
        f" {'peak':>6}"
    )
    slower = []
    for case in grid():
        if not re.search(options.only, case.name):
            continue
        row = measure_case(case, target, best, options)
        print(row, flush=True)
        if row.ours > row.theirs:
            slower.append(row)
    print(f"slower: {len(slower)}")
    for row in slower:
        print(row)


if __name__ == "__main__":
    main()
