"""Executables that answer by general kernels until their own are compiled."""

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
from ekiden.backend.kernels import build
from ekiden.codegen.background import Background
from ekiden.driver.executable import Executable
from ekiden.ir import IRModule
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import CompileError
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


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Kernels are not compiled in the background before this is called."""
    waits, goes = os.pipe()
    parent, compile_one = os.getpid(), build._compile

    def wait(*args: object) -> bytes:
        if os.getpid() != parent:
            os.close(goes) if not closed else None
            closed.append(1)
            os.read(waits, 1)
        return compile_one(*args)  # type: ignore[arg-type]

    closed: list[int] = []
    monkeypatch.setattr(build, "_compile", wait)
    done: list[int] = []

    def go() -> None:
        if not done:
            done.append(1)
            os.close(goes)

    yield go
    go()
    os.close(waits)


def quick(module: IRModule | None = None, **options: object) -> Executable:
    made = ekiden.compile(module or network(), tier="quick", **options)  # type: ignore[arg-type]
    return made


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executor", ["vm", "async", "aot"])
def test_general_kernels_answer_and_the_whole_is_as_without_tiers(
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


def test_saving_waits(held: Callable[[], None], tmp_path: Path) -> None:
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
            found = exe(X).numpy()
            if not close(found, expected):
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    begun.wait()
    held()
    exe.wait(NEVER)
    for each in threads:
        each.join()
    assert not wrong


def test_results_go_where_they_were_bound(held: Callable[[], None]) -> None:
    exe = quick()
    expected, given, out = exe(X).numpy(), X.copy(), np.zeros((2, 16), "float32")
    run = exe.bind(given, out=out)
    run()
    assert close(out, expected)
    held()
    exe.wait(NEVER)
    out[:] = 0
    run()
    assert close(out, expected)
    exe(X, out=out)
    assert close(out, expected)


def test_the_profile_marks_general_kernels(held: Callable[[], None]) -> None:
    exe = quick()
    assert any(call.is_general for call in exe.profile(X, peak=False).calls)
    assert "general" in str(exe.profile(X, peak=False))
    held()
    exe.wait(NEVER)
    assert not any(call.is_general for call in exe.profile(X, peak=False).calls)


def test_a_number_of_threads_stays(held: Callable[[], None]) -> None:
    exe = quick(num_threads=1)
    held()
    exe.wait(NEVER)
    assert exe.num_threads == 1


def test_sessions_get_what_the_executable_gets(held: Callable[[], None]) -> None:
    exe = quick()
    session = exe.session()
    held()
    session.wait(NEVER)
    assert session.raw is exe.raw
    assert close(session(X).numpy(), exe(X).numpy())


def test_a_wait_may_end_before(held: Callable[[], None]) -> None:
    exe = quick()
    with pytest.raises(TimeoutError, match=r"wait: \d+ kernels are not compiled after 0\.01 s"):
        exe.wait(0.01)


def test_what_has_no_general_form_is_compiled_before() -> None:
    x = relay.var("x", shape=(3, 4), dtype="float32")
    exe = quick(IRModule.from_expr(relay.Function([x], relay.cumsum(x, axis=1))))
    assert set(exe.tiers.values()) == {"compiled"}
    given = np.arange(12, dtype="float32").reshape(3, 4)
    assert np.array_equal(exe(given).numpy(), given.cumsum(1))


def test_an_error_is_told_by_its_class(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bytes:
        raise CompileError("no code today")

    monkeypatch.setattr(build, "_compile", fail)
    with caplog.at_level(logging.ERROR):
        exe = quick()
        with pytest.raises(CompileError, match="no code today"):
            exe.wait(NEVER)
    assert "kernels stay general: CompileError: no code today" in caplog.text
    with pytest.raises(CompileError, match="no code today"):
        exe.save()
    assert exe(X).shape == (2, 16)


def test_a_killed_process_is_told_of(held: Callable[[], None]) -> None:
    exe = quick()
    os.kill(_child(exe), signal.SIGKILL)
    with pytest.raises(CompileError, match="its process ended by SIGKILL"):
        exe.wait(NEVER)
    assert exe(X).shape == (2, 16)


def _child(exe: Executable) -> int:
    assert exe._upgrade is not None
    return exe._upgrade._job._pid


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


def test_nothing_is_compiled_for_what_is_gone(held: Callable[[], None]) -> None:
    exe = quick()
    child = _child(exe)
    del exe
    assert _is_gone(child)


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_a_process_may_end_while_kernels_are_compiled(end: str) -> None:
    program = f"""
        import os, time
        import numpy as np
        import ekiden
        from ekiden import relay
        from ekiden.backend.kernels import build
        parent, compile_one = os.getpid(), build._compile
        def slow(*args):
            if os.getpid() != parent:
                time.sleep({NEVER})
            return compile_one(*args)
        build._compile = slow
        x = relay.var("x", shape=(3,))
        exe = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], relay.exp(x))),
                             tier="quick")
        print(exe._upgrade._job._pid, exe(np.zeros(3, "float32")).numpy()[0], flush=True)
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


def test_a_fork_of_the_process_has_the_kernels_as_they_are(held: Callable[[], None]) -> None:
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


def test_what_was_compiled_before_is_whole_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    exe = quick()
    exe.wait(NEVER)
    assert set(quick().tiers.values()) == {"compiled"}


def test_what_cannot_be_loaded_leaves_no_process(
    held: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Background] = []
    begin = Background.begin
    monkeypatch.setattr(Background, "begin", lambda: begun.append(begin()) or begun[0])
    with pytest.raises(ValueError, match="num_threads"):
        quick(num_threads=0)
    assert len(begun) == 1 and _is_gone(begun[0]._pid)


def test_tiers_that_are_none() -> None:
    with pytest.raises(CompileError, match="compile: tier 'full' or 'quick' expected, got 'fast'"):
        ekiden.compile(network(), tier="fast")
    targets = ["llvm", "llvm -mcpu=x86-64"]
    with pytest.raises(CompileError, match="tier 'quick' takes one target, got 2"):
        quick(target=targets)
    machine = "aarch64" if Target.host().architecture != "aarch64" else "riscv64"
    with pytest.raises(CompileError, match="answers on this machine, which cannot run code for"):
        quick(target=f"llvm -mtriple={machine}-linux-gnu")


def test_where_no_process_can_be_forked_own_code_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_process() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    monkeypatch.setattr(os, "fork", no_process)
    with caplog.at_level(logging.INFO, "ekiden"):
        exe = quick()
    assert set(exe.tiers.values()) == {"compiled"}
    assert close(exe(X).numpy(), np.asarray(Interpreter(network()).evaluate("main", X)))
    assert "own code is made at once: [Errno 11] no more processes" in caplog.text
