"""Call overhead from Python into native code, compared with the published `apache-tvm-ffi`.

Both sides call the functions of one shared library, built here, in one process and in turns, so
that the noise of the machine meets both. Every figure is the median over the rounds.

    python benchmarks/call_overhead.py [--rounds N]

Needs a C compiler, `apache-tvm-ffi` and `torch`. Exits with 1 if a row costs more than TVM-FFI's.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from timeit import Timer

import numpy as np
import torch
import tvm_ffi

from ekiden import runtime

NOOP_SOURCE = r"""
#include <ekiden/runtime.h>

EK_API int __tvm_ffi_noop(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs, (void)ret;
  return 0;
}

EK_API int __tvm_ffi_call_back(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  return ek_function_call(args[0].v.obj, args + 1, nargs - 1, ret);
}
"""
CALLS_PER_ROUND = 1000


def build_noop_library(folder: Path) -> Path:
    """Build the library whose functions both sides call."""
    (folder / "calls.c").write_text(NOOP_SOURCE)
    output = folder / "calls.so"
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    subprocess.run([*command, str(folder / "calls.c"), "-o", str(output)], check=True)
    return output


def make_timer_pair(
    text: str, ours: dict[str, object], theirs: dict[str, object]
) -> tuple[Timer, Timer]:
    """Return two timers of one statement."""
    return Timer(text, globals=ours), Timer(text, globals=theirs)


def build_timers(library: Path) -> dict[str, tuple[Timer, Timer]]:
    """Return the timers of both packages for each kind of call, by label."""
    our_module, their_module = runtime.load_module(library), tvm_ffi.load_module(str(library))
    ours: dict[str, object] = {"f": our_module["noop"], "call_back": our_module["call_back"]}
    theirs: dict[str, object] = {"f": their_module["noop"], "call_back": their_module["call_back"]}
    array, tensor = np.zeros((4, 8), "float32"), torch.zeros((4, 8))

    def callback(x: object) -> object:
        return x

    def fail() -> None:
        raise ValueError("no")

    def catch(call: Callable[[object], object], function: object) -> None:
        with suppress(ValueError):
            call(function)

    ours |= {"x": runtime.tensor(array), "from_dlpack": runtime.from_dlpack}
    theirs |= {"x": tvm_ffi.from_dlpack(array), "from_dlpack": tvm_ffi.from_dlpack}
    ours["back"], theirs["back"] = runtime.convert(callback), tvm_ffi.convert(callback)
    ours["fail"], theirs["fail"] = runtime.convert(fail), tvm_ffi.convert(fail)
    for names in (ours, theirs):
        names |= {"t": tensor, "a": array, "catch": catch}
    return {
        "no argument": make_timer_pair("f()", ours, theirs),
        "two ints": make_timer_pair("f(1, 2)", ours, theirs),
        "three tensors of its own": make_timer_pair("f(x, x, x)", ours, theirs),
        "three torch tensors": make_timer_pair("f(t, t, t)", ours, theirs),
        "three NumPy arrays": make_timer_pair("f(a, a, a)", ours, theirs),
        "from_dlpack of a torch tensor": make_timer_pair("from_dlpack(t)", ours, theirs),
        "Python callback, called from C": make_timer_pair("call_back(back, 1)", ours, theirs),
        "exception of a callback through C": make_timer_pair(
            "catch(call_back, fail)", ours, theirs
        ),
    }


def min_call_nanoseconds(timers: tuple[Timer, Timer], rounds: int) -> tuple[float, float]:
    """Return the minimum nanoseconds of one call in both packages."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for timer, times in zip(timers, samples, strict=True):
            times.append(timer.timeit(CALLS_PER_ROUND) / CALLS_PER_ROUND * 1e9)
    return median(samples[0]), median(samples[1])


def main(arguments: list[str]) -> int:
    """Print the table; 1 if Ekiden loses a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args(arguments).rounds
    result = 0
    print(f"{'median of ' + str(rounds) + ' rounds, ns':34}{'ekiden':>8}{'tvm-ffi':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for label, timers in build_timers(build_noop_library(Path(folder))).items():
            ours, theirs = min_call_nanoseconds(timers, rounds)
            print(f"{label:34}{ours:8.1f}{theirs:9.1f}{ours / theirs:7.2f}")
            result |= ours > theirs
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
