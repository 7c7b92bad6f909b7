"""What a process of `first_answer.py` does: an engine's way from a file to its first answer.

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
ENOUGH_S = 0.4
"""How long a speed is measured."""


def onnx_runtime(path: str, threads: int) -> tuple[Callable[[], Run], None]:
    """By ONNX Runtime."""
    import onnxruntime

    def load() -> Run:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        return lambda feed: list(session.run(None, dict(feed)))

    return load, None


def open_vino(path: str, threads: int) -> tuple[Callable[[], Run], None]:
    """By OpenVINO in float32: it would take bfloat16 where the processor has that."""
    import openvino

    def load() -> Run:
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                  "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
        made = openvino.Core().compile_model(path, "CPU", config)
        request = made.create_infer_request()

        def run(feed: Feed) -> list[np.ndarray]:
            found = request.infer(dict(feed))
            return [found[port] for port in made.outputs]

        return run

    return load, None


def ekiden_tier(tier: str) -> Callable[[str, int], tuple[Callable[[], Run], Callable[[], object]]]:
    """By Ekiden: the second function waits until every kernel has its own code."""

    def engine(path: str, threads: int) -> tuple[Callable[[], Run], Callable[[], object]]:
        os.environ["EKIDEN_NUM_THREADS"] = str(threads)
        import numpy as np

        import ekiden

        made: list[ekiden.Executable] = []

        def load() -> Run:
            exe = ekiden.compile(path, tier=tier)
            made.append(exe)

            def run(feed: Feed) -> list[np.ndarray]:
                found = exe(**feed)
                return [np.asarray(o) for o in (found if isinstance(found, tuple) else (found,))]

            return run

        return load, lambda: made[0].wait()

    return engine


ENGINES: Mapping[str, Callable[[str, int], tuple[Callable[[], Run], Any]]] = {
    "quick": ekiden_tier("quick"),
    "full": ekiden_tier("full"),
    "onnxruntime": onnx_runtime,
    "openvino": open_vino,
}


def children() -> list[int]:
    """The processes that this one has started: what compiles."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def tell(kind: signal.Signals) -> None:
    """Send a signal to what compiles and its workers, which are a group."""
    for pid in children():
        os.killpg(pid, kind)


def milliseconds(run: Run, feed: Feed, threads: int) -> float:
    """Of one call, the median; the first of them is not counted. On one thread time of the
    processor in this thread: neither other programs nor what compiles count."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    run(feed)
    found: list[float] = []
    deadline = time.perf_counter() + ENOUGH_S
    while len(found) < 3 or time.perf_counter() < deadline:
        started = clock()
        run(feed)
        found.append((clock() - started) * 1e3)
    return sorted(found)[len(found) // 2]


def work(
    engine: str, path: str, threads: int, feed_file: str, begun: float, is_second: bool
) -> None:
    """Print the figures of this process, which was begun at a time of the system's clock, and write
    its answer beside the feed.
    """
    with open(feed_file, "rb") as file:
        feed: Feed = pickle.load(file)
    started = time.perf_counter()
    load, wait = ENGINES[engine](path, threads)
    imported = time.perf_counter()
    run = load()
    ready = time.perf_counter()
    answer = run(feed)
    done, until = time.perf_counter(), time.monotonic()
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    found: Figures = {
        "import": imported - started,
        "ready": ready - imported,
        "first": done - imported,
        "process": until - begun,
        "cpu": sum(each.ru_utime + each.ru_stime for each in used),
        "peak_mb": max(each.ru_maxrss for each in used) / 1e3,
    }
    if wait is not None and not is_second:
        tell(signal.SIGSTOP)
        found["early_ms"] = milliseconds(run, feed, threads)
        tell(signal.SIGCONT)
        continued = time.perf_counter()
        wait()
        found["full"] = time.perf_counter() - continued
        found["ms"] = milliseconds(run, feed, threads)
    with open(feed_file + ".answer", "wb") as file:
        pickle.dump(answer, file)
    print(json.dumps(found))


if __name__ == "__main__":
    name, file_name, count, feed_name, started_at, second = sys.argv[1:]
    work(name, file_name, int(count), feed_name, float(started_at), second == "1")
