"""Time, step and thread limits of runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import make_instruction
from ekiden.runtime.errors import RunError, RunLimitError

pytestmark = pytest.mark.quick

LOOP = """
def @loop(%n: Tensor[(), int64]) -> Tensor[(), int64] {
  if (greater(%n, 0i64)) { @loop(subtract(%n, 1i64)) } else { %n }
}
def @main(%n: Tensor[(), int64]) -> Tensor[(), int64] { @loop(%n) }
"""
FOREVER = np.int64(2**62)


def forever() -> runtime.Executable:
    """Hostile bytecode: a jump to itself, by way of another instruction."""
    code = (make_instruction("LoadConsti", dst=0, value=1), make_instruction("Goto", offset=-1))
    return runtime.Executable.from_bytes(
        write_executable([VMFunction("main", (), 1, code)], [], [], b"", {})
    )


@pytest.mark.parametrize("executor", ["vm", "async"])
def test_hostile_bytecode_is_stopped_by_steps(executor: str) -> None:
    machine = runtime.VirtualMachine(forever(), executor)
    machine.limit(steps=1000)
    for _ in range(2):  # the machine is as it was
        with pytest.raises(RunLimitError) as caught:
            machine.invoke("main")
        assert str(caught.value) == "run: its limit of 1000 steps is reached, in 'main'"
    assert isinstance(caught.value, RunError) and isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("executor", ["vm", "async"])
def test_hostile_bytecode_is_stopped_by_time(executor: str) -> None:
    machine = runtime.VirtualMachine(forever(), executor)
    machine.limit(seconds=0.02)
    start = time.monotonic()
    with pytest.raises(RunLimitError) as caught:
        machine.invoke("main")
    assert str(caught.value) == "run: its limit of 0.02 s is reached, in 'main'"
    assert time.monotonic() - start >= 0.02


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_run_with_a_timeout(executor: str) -> None:
    exe = ekiden.compile(relay.parse(LOOP), executor=executor)
    message = (
        "^run: its limit of 0.05 s is reached, in '(loop|main)'$"  # where a busy machine stopped
    )
    with pytest.raises(RunLimitError, match=message):
        exe(FOREVER, timeout=0.05)
    assert exe(np.int64(50)).numpy() == 0  # without one, and after it
    assert exe(np.int64(50), timeout=600).numpy() == 0


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_step_counts_are_equal_across_executors(executor: str) -> None:
    """The least limit that lets a program end is one and the same."""
    exe = ekiden.compile(relay.parse(LOOP), executor=executor)
    machine = runtime.VirtualMachine(exe.raw, "async" if executor == "async" else "vm")

    def ends(steps: int) -> bool:
        machine.limit(steps=steps)
        try:
            machine.invoke("main", np.array(3))
        except RunLimitError:
            return False
        return True

    least = next(steps for steps in range(1, 1000) if ends(steps))
    assert 20 < least < 200 and not ends(least - 1) and ends(least + 1)
    machine.limit()
    machine.invoke("main", np.array(10_000))


def test_tvm_vm_api_respects_limits() -> None:
    machine = runtime.vm.VirtualMachine(forever())
    machine.limit(steps=10)
    with pytest.raises(RunLimitError, match="limit of 10 steps"):
        machine.run()


def test_input_that_is_named_timeout() -> None:
    exe = ekiden.compile(relay.parse("def @main(%timeout: Tensor[(2,), float32]) { %timeout }"))
    assert exe(timeout=np.ones(2, np.float32)).shape == (2,)


@pytest.mark.parametrize(
    ("timeout", "kind", "message"),
    [
        (0, ValueError, "timeout: a positive number of seconds expected, got 0"),
        (-1.5, ValueError, "timeout: a positive number of seconds expected, got -1.5"),
        (float("nan"), ValueError, "timeout: a positive number of seconds expected, got nan"),
        (float("inf"), ValueError, "timeout: a positive number of seconds expected, got inf"),
        ("1", TypeError, "timeout: a number of seconds expected, got str"),
    ],
)
def test_invalid_timeouts_are_refused(timeout: object, kind: type[Exception], message: str) -> None:
    exe = ekiden.compile(relay.parse("def @main(%x: Tensor[(2,), float32]) { exp(%x) }"))
    with pytest.raises(kind) as caught:
        exe(np.ones(2, np.float32), timeout=timeout)
    assert str(caught.value) == message
    assert exe(np.ones(2, np.float32)).shape == (2,)


RUN = """
import sys, ekiden
machine = ekiden.runtime.VirtualMachine(ekiden.runtime.Executable.load(sys.argv[1]))
machine.invoke("main")
"""


def run_with(path: Path, **variables: str) -> str:
    command = [sys.executable, "-c", RUN, str(path)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_environment_limits_every_run(tmp_path: Path) -> None:
    path = tmp_path / "forever.eki"
    path.write_bytes(forever().to_bytes())
    expected = (
        "ekiden.runtime.errors.RunLimitError: run: its limit of 500 steps is reached, in 'main'"
    )
    assert run_with(path, EKIDEN_MAX_STEPS="500") == expected
    expected = (
        "ValueError: EKIDEN_MAX_STEPS: a number from 1 to 9223372036854775806 expected, got '5e3'"
    )
    assert run_with(path, EKIDEN_MAX_STEPS="5e3") == expected
    expected = "ValueError: EKIDEN_MAX_DEPTH: a number from 1 to 2147483646 expected, got '0'"
    assert run_with(path, EKIDEN_MAX_DEPTH="0") == expected


def test_limit_of_an_executable_is_that_of_its_modules() -> None:
    raw = forever()
    runtime.get_global_func("ek.executable.limit")(raw, 100, 0)
    for call in (
        runtime.get_global_func("ek.executable.module")(raw)["main"],
        lambda: runtime.VirtualMachine(raw).invoke("main"),
    ):
        with pytest.raises(RunLimitError, match="limit of 100 steps"):
            call()


# Threads -----------------------------------------------------------------------------------------


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = runtime.num_threads()
    runtime.num_threads(2)
    yield
    runtime.num_threads(before)


def wide() -> ekiden.Executable:
    """A program whose loop is long enough for any number of threads."""
    return ekiden.compile(relay.parse("def @main(%x: Tensor[(n, 64), float32]) { exp(%x) }"))


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_executables_with_different_numbers_of_threads() -> None:
    first, second = wide(), wide()
    assert (first.num_threads, second.num_threads) == (2, 2)
    first.num_threads, second.num_threads = 1, 5
    assert (first.num_threads, second.num_threads, runtime.num_threads()) == (1, 5, 2)
    x = np.random.default_rng(0).random((1000, 64), np.float32)
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (0, ValueError, "num_threads: a number from 1 to 256 expected, got 0"),
        (-2, ValueError, "num_threads: a number from 1 to 256 expected, got -2"),
        (257, ValueError, "num_threads: a number from 1 to 256 expected, got 257"),
        (1.5, TypeError, "'float' object cannot be interpreted as an integer"),
    ],
)
def test_invalid_thread_counts_are_refused(
    number: object, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    exe = wide()
    exe.save(tmp_path / "wide.eki")
    module = relay.parse("def @main(%x: Tensor[(2,), float32]) { exp(%x) }")
    for ask in (
        lambda: setattr(exe, "num_threads", number),
        lambda: ekiden.load(tmp_path / "wide.eki", num_threads=number),  # type: ignore[arg-type]
        lambda: ekiden.compile(module, num_threads=number),  # type: ignore[arg-type]
    ):
        with pytest.raises(kind) as caught:
            ask()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    "ask", [runtime.num_threads, runtime.get_global_func("ek.runtime.num_threads")]
)
def test_more_threads_than_there_can_be_are_refused(ask: Callable[[int], object]) -> None:
    with pytest.raises(ValueError, match="num_threads: a number from 1 to 256 expected, got 257"):
        ask(257)


def test_thread_count_is_applied_at_load(tmp_path: Path) -> None:
    exe = wide()
    exe.save(tmp_path / "wide.eki")
    assert ekiden.load(tmp_path / "wide.eki", num_threads=1).num_threads == 1
    assert ekiden.load((tmp_path / "wide.eki").read_bytes(), num_threads=3).num_threads == 3
    module = relay.parse("def @main(%x: Tensor[(2,), float32]) { exp(%x) }")
    assert ekiden.compile(module, num_threads=2).num_threads == 2


@pytest.mark.slow
def test_concurrent_runs_keep_their_thread_counts() -> None:
    one, three = wide(), wide()
    one.num_threads, three.num_threads = 1, 3
    x = np.random.default_rng(0).random((400, 64), np.float32)
    expected = one(x).numpy()
    failures: list[str] = []

    def work(exe: ekiden.Executable) -> None:
        for _ in range(50):
            if not np.array_equal(exe(x).numpy(), expected):
                failures.append("differs")

    workers = [threading.Thread(target=work, args=(exe,)) for exe in (one, three, one, three)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
