"""Compiling where processes cannot be made, and beside threads that hold locks."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import llvmlite.binding as llvmlite
import pytest
from test_kernels import TARGET, primitive

from ekiden.backend.kernels.build import build_kernels
from ekiden.codegen import parallel
from ekiden.codegen.background import Background
from ekiden.codegen.cache import KernelCache
from ekiden.runtime import callers

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "2")


def kernels() -> bytes:
    """An image of five, from no cache: enough that processes would be started."""
    functions = [primitive(float(s)) for s in range(1, 6)]
    return build_kernels(functions, TARGET, cache=KernelCache(None)).link(TARGET)


def in_child(work: Callable[[], bool]) -> int:
    """The exit status of a forked process: 0 if `work` was true within 20 s; -14 if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_worker_of_a_pool_compiles() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(kernels) == kernels()


def _no_semaphores(*_: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def _shutting_down(*_: object) -> None:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "instead", "reason"),
    [
        (multiprocessing, "get_all_start_methods", lambda: ["spawn"], "this system cannot fork"),
        (
            futures, "ProcessPoolExecutor", _no_semaphores,
            f"[Errno {errno.ENOSYS}] Function not implemented",
        ),
        (
            futures.ProcessPoolExecutor, "submit", _shutting_down,
            "cannot schedule new futures after interpreter shutdown",
        ),
    ],
)  # fmt: skip
def test_where_there_are_no_processes_this_one_compiles(
    place: object,
    name: str,
    instead: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = kernels()
    monkeypatch.setattr(place, name, instead)
    with caplog.at_level(logging.INFO, "ekiden"):
        assert kernels() == expected
    assert f"kernels are compiled in this process: {reason}" in caplog.messages


@pytest.mark.slow
def test_no_process_is_forked_while_another_thread_is_inside_llvm() -> None:
    """Its lock would be closed in the child, for ever."""
    inside, go_on = threading.Event(), threading.Event()
    names: list[str] = []

    def acquired() -> None:
        if threading.current_thread() is user:
            inside.set()
            go_on.wait(60)

    def released() -> None:
        return

    def use() -> None:
        llvmlite.parse_assembly("define void @f() { ret void }")
        names.append("parsed")

    user = threading.Thread(target=use)
    llvmlite.ffi.register_lock_callback(acquired, released)
    try:
        user.start()
        inside.wait(60)
        releasing = threading.Timer(0.3, go_on.set)
        releasing.start()
        assert kernels()
        assert names == ["parsed"]
    finally:
        llvmlite.ffi.unregister_lock_callback(acquired, released)
        user.join()
        releasing.join()


@pytest.mark.slow
def test_a_child_compiles_though_a_thread_did_when_it_was_forked() -> None:
    with parallel.LOCK:
        done: list[int] = []
        forking = threading.Thread(target=lambda: done.append(in_child(lambda: bool(kernels()))))
        forking.start()
        forking.join()
    assert done == [0]


def test_a_child_has_threads_for_calls_that_are_waited_for() -> None:
    assert callers.start(lambda: 3).result() == 3
    assert in_child(lambda: callers.start(lambda: 4).result() == 4) == 0


ORPHANS = """
import os, sys, time
from ekiden.codegen.background import Background
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import Task, compile_tasks

def slow():
    os.write(1, f"{os.getpid()} ".encode())
    time.sleep(300)

def work():
    compile_tasks([Task(str(i), f"kernel {i}", slow) for i in range(4)], KernelCache(None))

if sys.argv[1] == "background":
    job = Background.begin()
    if not job.is_child:
        sys.stdin.read(1)
        job.close()
        os._exit(0)
work()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, "background"])
def test_workers_go_with_the_process_that_waits_and_leave_nothing(
    how: signal.Signals | str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS, str(how)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as waiting:
        assert waiting.stdin is not None and waiting.stdout is not None
        begun = b""
        while begun.count(b" ") < 2:
            begun += os.read(waiting.stdout.fileno(), 99)
        if isinstance(how, signal.Signals):
            waiting.send_signal(how)
        else:
            waiting.stdin.write(b"x")
            waiting.stdin.flush()
        waiting.stdout.read()  # until the last of them has ended
    assert list(tmp_path.iterdir()) == []


def test_a_background_that_cannot_be_forked_leaves_no_files_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_process() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", no_process)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no more processes"):
        Background.begin()
    assert set(os.listdir("/proc/self/fd")) <= before  # what tests before this one left may close
