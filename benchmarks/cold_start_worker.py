"""Measured process of `cold_start.py`: an engine's way from a file to its first answer.

It imports little besides: what stands here is in the time of every engine's process.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Feed = Mapping[str, "np.ndarray"]
Run = Callable[[Feed], "list[np.ndarray]"]
Figures = dict[str, float]
MIN_MEASURING_S = 0.4
"""How long a speed is measured."""


def make_onnxruntime_loader(path: str, threads: int) -> tuple[Callable[[], Run], None]:
    """Return an ONNX Runtime loader."""
    import onnxruntime

    def load() -> Run:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        return lambda feed: list(session.run(None, dict(feed)))

    return load, None


def make_openvino_loader(path: str, threads: int) -> tuple[Callable[[], Run], None]:
    """Return an OpenVINO loader pinned to float32, since it defaults to bfloat16 where the
    processor supports it.
    """
    import openvino

    def load() -> Run:
        """Load the model."""
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                  "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
        compiled_model = openvino.Core().compile_model(path, "CPU", config)
        request = compiled_model.create_infer_request()

        def run(feed: Feed) -> list[np.ndarray]:
            """Run the model."""
            result = request.infer(dict(feed))
            return [result[port] for port in compiled_model.outputs]

        return run

    return load, None


def make_ekiden_engine(
    tier: str,
) -> Callable[[str, int], tuple[Callable[[], Run], Callable[[], object]]]:
    """Return a function that makes Ekiden's loader at a tier, and a function that waits for all
    optimized kernels.
    """

    def make_loader(path: str, threads: int) -> tuple[Callable[[], Run], Callable[[], object]]:
        """Return the loader and the wait function."""
        os.environ["EKIDEN_NUM_THREADS"] = str(threads)
        import numpy as np

        import ekiden

        loaded: list[ekiden.Executable] = []

        def load() -> Run:
            exe = ekiden.compile(path, tier=tier)
            loaded.append(exe)

            def run(feed: Feed) -> list[np.ndarray]:
                """Run the model."""
                result = exe(**feed)
                return [np.asarray(o) for o in (result if isinstance(result, tuple) else (result,))]

            return run

        return load, lambda: loaded[0].wait()

    return make_loader


ENGINE_LOADERS: Mapping[str, Callable[[str, int], tuple[Callable[[], Run], Any]]] = {
    "quick": make_ekiden_engine("quick"),
    "full": make_ekiden_engine("full"),
    "onnxruntime": make_onnxruntime_loader,
    "openvino": make_openvino_loader,
}


def child_processes() -> list[int]:
    """Return the ids of the child processes, which compile kernels."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def signal_compilers(kind: signal.Signals) -> None:
    """Send a signal to the compile server and its workers, which form a process group."""
    for pid in child_processes():
        os.killpg(pid, kind)


def median_call_milliseconds(run: Run, feed: Feed, threads: int) -> float:
    """Return the median duration of a call in milliseconds, after one warm-up call. On one thread,
    this thread's CPU time is measured, which excludes other programs and compilation.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    run(feed)
    samples: list[float] = []
    deadline = time.perf_counter() + MIN_MEASURING_S
    while len(samples) < 3 or time.perf_counter() < deadline:
        started = clock()
        run(feed)
        samples.append((clock() - started) * 1e3)
    return sorted(samples)[len(samples) // 2]


def measure_process(
    engine: str, path: str, threads: int, feed_file: str, begun: float, is_second: bool
) -> None:
    """Print this process's figures relative to its start at `begun`, and write its outputs beside
    the feed.
    """
    with open(feed_file, "rb") as file:
        feed: Feed = pickle.load(file)
    started = time.perf_counter()
    load, wait = ENGINE_LOADERS[engine](path, threads)
    imported = time.perf_counter()
    run = load()
    ready = time.perf_counter()
    answer = run(feed)
    done, until = time.perf_counter(), time.monotonic()
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    # Before the speed is measured: CPU time counts the way to the first answer only.
    used = [resource.getrusage(kind) for kind in kinds]
    figures: Figures = {
        "import": imported - started,
        "ready": ready - imported,
        "first": done - imported,
        "process": until - begun,
        "cpu": sum(usage_self.ru_utime + usage_self.ru_stime for usage_self in used),
        "peak_mb": max(usage_children.ru_maxrss for usage_children in used) / 1e3,
    }
    if wait is not None and not is_second:
        # The compile processes are stopped, so that the generic kernels' speed is measured alone.
        signal_compilers(signal.SIGSTOP)
        figures["early_ms"] = median_call_milliseconds(run, feed, threads)
        signal_compilers(signal.SIGCONT)
        continued = time.perf_counter()
        wait()
        figures["full"] = time.perf_counter() - continued
        figures["ms"] = median_call_milliseconds(run, feed, threads)
    with open(feed_file + ".answer", "wb") as file:
        pickle.dump(answer, file)
    print(json.dumps(figures))


if __name__ == "__main__":
    name, file_name, count, feed_name, started_at, second = sys.argv[1:]
    measure_process(name, file_name, int(count), feed_name, float(started_at), second == "1")
