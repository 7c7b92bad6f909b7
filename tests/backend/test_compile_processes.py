"""Compilation without worker processes, and in forks while other threads hold locks."""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llvmlite.binding as llvmlite
import pytest
from test_kernels import TARGET, primitive

import ekiden
from ekiden._lazy import load_module
from ekiden.backend.kernels.build import build_kernels
from ekiden.codegen import parallel, worker_process
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import CompileTask, compile_tasks
from ekiden.compiler import relaxed_gc
from ekiden.runtime.executable import vm_pool

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
def test_worker_of_a_pool_compiles() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(kernels) == kernels()


def _no_process(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "instead", "reason"),
    [
        (
            subprocess, "Popen", _no_process,
            f"[Errno {errno.ENOSYS}] Function not implemented",
        ),
        (
            sys, "executable", "",
            "this program cannot start Python in another process: sys.executable is ''",
        ),
    ],
)  # fmt: skip
def test_compiles_in_process_without_fork(
    place: object,
    name: str,
    instead: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = kernels()
    worker_process.end_server()
    monkeypatch.setattr(place, name, instead)
    with caplog.at_level(logging.INFO, "ekiden"):
        assert kernels() == expected
    assert f"kernels are compiled in this process: {reason}" in caplog.messages


@contextmanager
def inside_llvm() -> Iterator[list[str]]:
    """While another thread is inside LLVM, for 0.3 s; then the list has a word."""
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
        yield names
    finally:
        user.join()
        releasing.join()
        llvmlite.ffi.unregister_lock_callback(acquired, released)


@pytest.mark.slow
def test_fork_compiles_while_parent_thread_is_inside_llvm() -> None:
    with inside_llvm():
        assert in_child(lambda: bool(kernels())) == 0


@pytest.mark.parametrize("package", ["ekiden.", ""])
def test_fork_imports_module_being_imported_by_parent_thread(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that forks waits for modules of Ekiden's, and for those of others that are imported
    late for Ekiden, which its children hang at otherwise."""
    monkeypatch.setattr(ekiden, "__path__", [*ekiden.__path__, str(tmp_path)])
    body = "import time\nhooks['begun'].set()\ntime.sleep(0.2)\nwhole = True"
    thread, get = importing(body, tmp_path, monkeypatch, package)
    assert in_child(lambda: get().whole) == 0  # type: ignore[attr-defined]
    thread.join()


def test_forked_child_keeps_gc_thresholds() -> None:
    before = gc.get_threshold()
    inside, done = threading.Event(), threading.Event()

    def compiling() -> None:
        with relaxed_gc.RELAXED_GC:
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=compiling)
    thread.start()
    assert inside.wait(20)
    assert in_child(lambda: gc.get_threshold() == before) == 0
    done.set()
    thread.join()
    assert gc.get_threshold() == before


CLOSED = """
import os, sys
import test_compile_processes
from ekiden import relay
x = relay.var("x", shape=(4, 8))
y = x
for each in (relay.nn.relu, relay.nn.softmax, relay.tanh, relay.exp, relay.sigmoid):
    y = relay.sum(each(y), axis=1, keepdims=True)
os.environ["EKIDEN_COMPILE_JOBS"] = "2"
with open(sys.argv[1], "wb") as file:
    file.write(test_compile_processes.kernels())
    test_compile_processes.ekiden.compile(relay.Function([x], y))
    file.write(b"compiled")
"""


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_program_without_standard_error_compiles(closed: str, tmp_path: Path) -> None:
    """As daemons are started. Numbers of what is closed are those of the next files."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EKIDEN_CACHE_DIR": ""}
    result = tmp_path / "made"
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", CLOSED, str(result)]
    ran = subprocess.run(command, env=environment, capture_output=True)
    assert ran.returncode == 0 and result.read_bytes() == kernels() + b"compiled"


@pytest.mark.slow
def test_fork_compiles_while_parent_thread_compiles() -> None:
    with parallel.LOCAL_COMPILE_LOCK:
        done: list[int] = []
        forking = threading.Thread(target=lambda: done.append(in_child(lambda: bool(kernels()))))
        forking.start()
        forking.join()
    assert done == [0]


def test_forked_child_has_async_call_threads() -> None:
    assert vm_pool.submit(lambda: 3).result() == 3
    assert in_child(lambda: vm_pool.submit(lambda: 4).result() == 4) == 0


ORPHANS = """
import os, sys, threading, time
from ekiden.codegen import parallel, worker_process
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import CancellationToken, CompileTask, compile_tasks

start, cancellation = parallel.start_workers, CancellationToken()

def start_workers(count, setup):
    workers = start(count, setup)
    os.write(1, "".join(f"{worker.pid} " for worker in workers).encode())
    return workers

def work():
    tasks = [CompileTask(str(i), f"kernel {i}", time.sleep, (300,)) for i in range(4)]
    compile_tasks(tasks, KernelCache(None), cancellation=background)

parallel.start_workers = start_workers
background = cancellation if sys.argv[1] == "background" else None
thread = threading.Thread(target=work, daemon=True)
thread.start()
if background is None:
    thread.join()
sys.stdin.read(1)
cancellation.cancel()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, "background"])
def test_workers_end_with_their_parent(how: signal.Signals | str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "EKIDEN_COMPILE_JOBS": "2"}
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
        waiting.wait()
    for pid in begun.split():
        while is_running(int(pid)):
            time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def importing(
    body: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str = "",
    **names: object,
) -> tuple[threading.Thread, Callable[[], object]]:
    """A thread that is importing a module, which has begun, and what imports it as well."""
    name = f"half_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"import sys\nhooks = sys._half_made\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    begun = threading.Event()
    monkeypatch.setattr(sys, "_half_made", {"begun": begun, **names}, raising=False)
    thread = threading.Thread(target=lambda: load_module(package + name))
    thread.start()
    assert begun.wait(20)
    return thread, lambda: importlib.import_module(package + name)


def test_workers_begin_while_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no forks of this process, whose child would find the lock of a module closed."""
    tasks = [CompileTask(str(i), f"kernel {i}", os.readlink, (b"/proc/self",)) for i in range(4)]
    # Loads what compiling needs first: imports of this process wait for each other.
    compile_tasks(tasks, KernelCache(None))
    done = threading.Event()
    body = "hooks['begun'].set()\nhooks['done'].wait(60)"
    thread, _ = importing(body, tmp_path, monkeypatch, done=done)
    codes = compile_tasks(tasks, KernelCache(None)).values()
    assert thread.is_alive()
    done.set()
    thread.join()
    assert not any(int(code) == os.getpid() for code in codes)


FIRST = """
import os, signal, sys, threading, time
import ekiden

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("ekiden.runtime.binding._core", "ekiden.ir.dtype"):
            begun.set()
            time.sleep(0.3)

begun = threading.Event()
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: ekiden.IRModule)
thread.start()
begun.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    ekiden.IRModule
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_fork_has_runtime_being_imported_by_parent_thread() -> None:
    """And what the thread imported next."""
    assert subprocess.run([sys.executable, "-c", FIRST]).returncode == 0
