"""Compiling where processes cannot be made, and beside threads that hold locks."""

from __future__ import annotations

import errno
import importlib
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
from ekiden.codegen.parallel import Task, compile_tasks
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


def importing(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **names: object
) -> tuple[threading.Thread, Callable[[], object]]:
    """A thread that is importing a module, which has begun, and what imports it as well."""
    name = f"half_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"import sys\nhooks = sys._half_made\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    begun = threading.Event()
    monkeypatch.setattr(sys, "_half_made", {"begun": begun, **names}, raising=False)
    thread = threading.Thread(target=lambda: importlib.import_module(name))
    thread.start()
    assert begun.wait(20)
    return thread, lambda: importlib.import_module(name)


def test_workers_are_forked_when_other_threads_have_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork at any other time leaves the lock of a module closed in the child, which hangs."""
    body = "import time\nhooks['begun'].set()\ntime.sleep(0.2)\nwhole = b'whole'"
    thread, get = importing(body, tmp_path, monkeypatch)

    def compiled() -> bytes:
        return f"{os.getpid()} {get().whole}".encode()  # type: ignore[attr-defined]

    made = compile_tasks(
        [Task(str(i), f"kernel {i}", compiled) for i in range(4)], KernelCache(None)
    )
    thread.join()
    assert all(each.endswith(b"b'whole'") for each in made.values())
    assert not any(each.startswith(b"%d " % os.getpid()) for each in made.values())


def test_no_worker_is_forked_while_an_import_waits_for_the_one_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ekiden.runtime.forks.PATIENCE", 0.05)
    done = threading.Event()
    body = "hooks['begun'].set()\nhooks['done'].wait(60)"
    thread, _ = importing(body, tmp_path, monkeypatch, done=done)
    with caplog.at_level(logging.INFO, "ekiden"):
        assert kernels()
    done.set()
    thread.join()
    name = f"half_{tmp_path.name}"
    assert f"in this process: [Errno 11] no fork while another thread imports {name}" in caplog.text
