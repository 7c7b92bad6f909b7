"""Executables answer by general kernels until their compiled kernels are ready."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.backend.kernels import build as kernels_build
from ekiden.codegen import parallel, worker_process
from ekiden.codegen.compile_task import CompileTask
from ekiden.codegen.worker_process import WorkerProcess
from ekiden.compiler import tiered_execution
from ekiden.compiler.build import GeneralProgram
from ekiden.ir import IRModule
from ekiden.ir.process_transfer import encode
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import CompileError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import Target
from long_runs import sizes

X = np.random.default_rng(0).standard_normal((2, 8, 9, 7)).astype("float32")
NEVER = 120
"""Seconds that nothing here takes."""


def network(channels: int = 16) -> IRModule:
    """A convolution, a pool and a softmax over a batch of any size: kernels with general forms."""
    rng = np.random.default_rng(1)
    weight = relay.const(rng.standard_normal((channels, 8, 3, 3)).astype("float32"))
    x = relay.var("x", shape=(relay.Any(), 8, 9, 7))
    y = relay.nn.conv2d(x, weight, padding=(1, 1), channels=channels, kernel_size=(3, 3))
    y = relay.nn.max_pool2d(relay.nn.relu(y), pool_size=(2, 2), strides=(2, 2))
    return IRModule.from_expr(relay.Function([x], relay.nn.softmax(relay.sum(y, axis=[2, 3]))))


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    for upgrade in list(
        tiered_execution._RUNNING_UPGRADES
    ):  # of tests before this one, whose workers it would count
        upgrade.stop()
        upgrade.join()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Kernels are not compiled in the background before this is called."""
    go, finish = threading.Event(), GeneralProgram.finish

    def wait(self: GeneralProgram, *arguments: object) -> object:
        go.wait(NEVER)
        return finish(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GeneralProgram, "finish", wait)
    yield go.set
    go.set()


@pytest.fixture
def slow_workers(monkeypatch: pytest.MonkeyPatch) -> list[WorkerProcess]:
    """Workers run tasks that take longer than any test, instead of those that they are given; the
    list has them from when they have begun."""
    workers: list[WorkerProcess] = []
    start = worker_process.start_workers

    def start_workers(count: int, setup: bytes) -> list[WorkerProcess]:
        started = start(count, setup)
        workers.extend(started)
        return started

    def sleep(task: CompileTask) -> bytes:
        return encode(CompileTask(task.key, task.name, time.sleep, (NEVER,)))  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "start_workers", start_workers)
    monkeypatch.setattr(parallel, "encode", sleep)
    return workers


def begun(workers: list[WorkerProcess]) -> WorkerProcess:
    """Return a worker that runs a task."""
    while not workers or workers[0].pid is None:
        time.sleep(0.01)
    return workers[0]


def quick(module: IRModule | None = None, **options: object) -> Executable:
    made = ekiden.compile(module or network(), tier="quick", **options)  # type: ignore[arg-type]
    return made


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executor", ["vm", "async", "aot"])
def test_general_kernels_answer_until_compiled_code_replaces_them(
    held: Callable[[], None], executor: str
) -> None:
    exe = quick(executor=executor)
    assert "general" in exe.tiers.values()
    expected = np.asarray(Interpreter(network()).evaluate("main", X))
    for batch in (2, 1):
        assert close(exe(X[:batch]).numpy(), expected[:batch])
    held()
    exe.wait(NEVER)
    assert set(exe.tiers.values()) == {"compiled"}
    assert close(exe(X).numpy(), expected)
    full = ekiden.compile(network(), executor=executor)
    assert exe.raw.to_bytes() == full.raw.to_bytes()


def test_save_waits_for_compiled_kernels(held: Callable[[], None], tmp_path: Path) -> None:
    exe = quick()
    threading.Timer(0.05, held).start()
    exe.save(tmp_path / "model.eki")
    loaded = ekiden.load(tmp_path / "model.eki")
    assert close(loaded(X).numpy(), exe(X).numpy())
    assert set(loaded.tiers.values()) == {"compiled"}
    loaded.wait(0)


@sizes("calls", 50, 25_000)
def test_calls_of_four_threads_while_kernels_are_replaced(
    held: Callable[[], None], calls: int
) -> None:
    exe = quick()
    expected = exe(X).numpy()
    wrong: list[object] = []
    begun = threading.Barrier(5)

    def call() -> None:
        begun.wait()
        for _ in range(calls):
            actual = exe(X).numpy()
            if not close(actual, expected):
                wrong.append(actual)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    held()
    exe.wait(NEVER)
    for thread in threads:
        thread.join()
    assert not wrong


def test_bound_outputs_survive_upgrade(held: Callable[[], None]) -> None:
    exe = quick()
    expected, argument, out = exe(X).numpy(), X.copy(), np.zeros((2, 16), "float32")
    run = exe.bind(argument, out=out)
    run()
    assert close(out, expected)
    held()
    exe.wait(NEVER)
    out[:] = 0
    run()
    assert close(out, expected)
    exe(X, out=out)
    assert close(out, expected)


def test_profile_marks_general_kernels(held: Callable[[], None]) -> None:
    exe = quick()
    assert any(call.is_general for call in exe.profile(X, peak=False).calls)
    assert "general" in str(exe.profile(X, peak=False))
    held()
    exe.wait(NEVER)
    assert not any(call.is_general for call in exe.profile(X, peak=False).calls)


def test_thread_setting_survives_upgrade(held: Callable[[], None]) -> None:
    exe = quick(num_threads=1)
    held()
    exe.wait(NEVER)
    assert exe.num_threads == 1


def test_sessions_share_the_upgrade(held: Callable[[], None]) -> None:
    exe = quick()
    session = exe.session()
    held()
    session.wait(NEVER)
    assert session.raw is exe.raw
    assert close(session(X).numpy(), exe(X).numpy())


def test_wait_may_time_out(held: Callable[[], None]) -> None:
    exe = quick()
    with pytest.raises(TimeoutError, match=r"wait: \d+ kernels are not compiled after 0\.01 s"):
        exe.wait(0.01)


def test_kernels_without_general_form_are_compiled_first() -> None:
    x = relay.var("x", shape=(3, 4), dtype="float32")
    exe = quick(IRModule.from_expr(relay.Function([x], relay.cumsum(x, axis=1))))
    assert set(exe.tiers.values()) == {"compiled"}
    data = np.arange(12, dtype="float32").reshape(3, 4)
    assert np.array_equal(exe(data).numpy(), data.cumsum(1))


def test_upgrade_error_keeps_its_class(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> object:
        raise CompileError("no code today")

    monkeypatch.setattr(kernels_build, "compile_full_tier", fail)
    with caplog.at_level(logging.ERROR):
        exe = quick()
        with pytest.raises(CompileError, match="no code today"):
            exe.wait(NEVER)
    assert "kernels stay general: CompileError: no code today" in caplog.text
    with pytest.raises(CompileError, match="no code today"):
        exe.save()
    assert exe(X).shape == (2, 16)


def test_killed_worker_is_reported_with_its_kernel(slow_workers: list[WorkerProcess]) -> None:
    exe = quick()
    pid = begun(slow_workers).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        CompileError,
        match=r"a worker process was ended by SIGKILL at the kernel fused_nn_\w*conv2d",
    ):
        exe.wait(NEVER)
    assert exe(X).shape == (2, 16)


def test_worker_that_does_not_answer_is_reported_with_its_kernel(
    slow_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_KERNEL_TIMEOUT", "0.05")
    exe = quick()
    with pytest.raises(
        CompileError, match=r"gave no answer within 0\.05 s at the kernel fused_nn_\w*conv2d"
    ):
        exe.wait(NEVER)
    assert exe(X).shape == (2, 16)


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; it has some time to do so."""
    for _ in range(2000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_workers_end_with_the_executable(slow_workers: list[WorkerProcess]) -> None:
    exe = quick()
    pid = begun(slow_workers).pid
    assert pid is not None
    del exe
    assert _is_gone(pid)


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_process_may_end_while_kernels_are_compiled(end: str) -> None:
    program = f"""
        import os, time
        import numpy as np
        import ekiden
        from ekiden import relay
        from ekiden.codegen import parallel
        from ekiden.codegen.compile_task import CompileTask
        workers, start, encode = [], parallel.start_workers, parallel.encode
        def start_workers(count, setup):
            workers.extend(start(count, setup))
            return workers
        parallel.start_workers = start_workers
        parallel.encode = lambda task: encode(CompileTask("", task.name, time.sleep, ({NEVER},)))
        x = relay.var("x", shape=(3,))
        exe = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], relay.exp(x))),
                             tier="quick")
        while not workers:
            time.sleep(0.01)
        print(workers[0].pid, exe(np.zeros(3, "float32")).numpy()[0], flush=True)
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=NEVER, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == (-9 if "kill" in end else 0)
    pid, answer = done.stdout.split()
    assert answer == "1.0"
    assert _is_gone(int(pid))


def test_fork_keeps_current_kernels(held: Callable[[], None]) -> None:
    exe = quick()
    expected = exe(X).numpy()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fits = close(exe(X).numpy(), expected)
            try:
                exe.wait(NEVER)
            except CompileError as error:
                status = 0 if fits and "of which this is a fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held()
    exe.wait(NEVER)


def test_cached_program_needs_no_upgrade(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    exe = quick()
    exe.wait(NEVER)
    assert set(quick().tiers.values()) == {"compiled"}


def test_failed_executable_starts_no_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(parallel, "start_workers", lambda *argument: started.append(argument))
    with pytest.raises(ValueError, match="num_threads"):
        quick(num_threads=0)
    assert not started


def test_unknown_tiers_are_refused() -> None:
    with pytest.raises(CompileError, match="compile: tier 'full' or 'quick' expected, got 'fast'"):
        ekiden.compile(network(), tier="fast")
    targets = ["llvm", "llvm -mcpu=x86-64"]
    with pytest.raises(CompileError, match="tier 'quick' takes one target, got 2"):
        quick(target=targets)
    machine = "aarch64" if Target.host().architecture != "aarch64" else "riscv64"
    with pytest.raises(CompileError, match="answers on this machine, which cannot run code for"):
        quick(target=f"llvm -mtriple={machine}-linux-gnu")


def test_compilation_in_process_without_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    worker_process.end_server()
    monkeypatch.setattr(subprocess, "Popen", no_process)
    with caplog.at_level(logging.INFO, "ekiden"):
        exe = quick()
        exe.wait(NEVER)
    assert set(exe.tiers.values()) == {"compiled"}
    assert close(exe(X).numpy(), np.asarray(Interpreter(network()).evaluate("main", X)))
    assert "compiled in this process: [Errno 11] no more processes" in caplog.text
