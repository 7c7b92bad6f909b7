"""Signals that come during a run: their handlers are called, and what they raise ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import make_instruction

LOOP = """
def @loop(%n: Tensor[(), int64]) -> Tensor[(), int64] {
  if (greater(%n, 0i64)) { @loop(subtract(%n, 1i64)) } else { %n }
}
def @main(%n: Tensor[(), int64]) -> Tensor[(), int64] { @loop(%n) }
"""
FOREVER = np.int64(2**62)


def count_down(exe: ekiden.Executable, start: int) -> int:
    """Run the loop from a number to its end."""
    result = exe(np.int64(start))
    assert isinstance(result, runtime.Tensor)
    return int(result.numpy())


class Interrupted(Exception):
    """What the handler of these tests raises."""


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    raise Interrupted


@contextmanager
def signal_during() -> Iterator[Callable[[], None]]:
    """Send SIGUSR1 to the main thread once it waits in C, after the yielded function was called.

    Threads of Python change places only where one lets go of the lock, so that the sender goes on
    when the run does.
    """
    ready, before = threading.Event(), sys.getswitchinterval()
    handler = signal.signal(signal.SIGUSR1, _raise_interrupted)
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        ready.wait()
        signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    sys.setswitchinterval(1000)
    try:
        yield ready.set
    finally:
        ready.set()
        sender.join()
        sys.setswitchinterval(before)
        signal.signal(signal.SIGUSR1, handler)


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_signal_ends_a_run_that_loops(executor: str) -> None:
    exe = ekiden.compile(relay.parse(LOOP), executor=executor)
    assert count_down(exe, 3) == 0
    with pytest.raises(Interrupted), signal_during() as begin:
        begin()
        exe(FOREVER)
    assert count_down(exe, 50) == 0  # the machine is as it was


@pytest.mark.parametrize("executor", ["vm", "async"])
def test_signal_ends_hostile_bytecode(executor: str) -> None:
    code = (make_instruction("LoadConsti", dst=0, value=1), make_instruction("Goto", offset=-1))
    data = write_executable([VMFunction("main", (), 1, code)], [], [], b"", {})
    machine = runtime.VirtualMachine(runtime.Executable.from_bytes(data), executor)
    for _ in range(2):
        with pytest.raises(Interrupted), signal_during() as begin:
            begin()
            machine.invoke("main")


def test_signal_ends_a_run_under_a_limit() -> None:
    exe = ekiden.compile(relay.parse(LOOP))
    exe(np.int64(3), timeout=10_000)  # imports what limited runs need: the signal meets the run
    with pytest.raises(Interrupted), signal_during() as begin:
        begin()
        exe(FOREVER, timeout=10_000)
    assert count_down(exe, 50) == 0


def test_run_continues_after_signal_handler_returns() -> None:
    exe = ekiden.compile(relay.parse(LOOP))
    calls: list[int] = []
    handler = signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR2)
    try:
        assert count_down(exe, 1000) == 0
    finally:
        signal.signal(signal.SIGUSR2, handler)
    assert calls == [signal.SIGUSR2]


def test_signal_does_not_end_other_threads_runs() -> None:
    """Handlers are the main thread's; a limit ends what another one runs."""
    exe = ekiden.compile(relay.parse(LOOP))
    errors: list[str] = []
    ended = threading.Event()

    def run() -> None:
        try:
            exe(FOREVER, timeout=0.2)
        except BaseException as error:
            errors.append(type(error).__name__)
        ended.set()

    threading.Thread(target=run).start()
    with pytest.raises(Interrupted), signal_during() as begin:
        begin()
        while True:  # a signal before the main thread sleeps does not wake it: sleep in turns
            time.sleep(0.001)
    ended.wait()
    assert errors == ["RunLimitError"]


CHILD = """
import os, signal, sys, threading
import numpy as np
import ekiden
from ekiden import relay
exe = ekiden.compile(relay.parse(sys.argv[1]))
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
if len(sys.argv) > 2 and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
ready = threading.Event()
def send():
    ready.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send).start()
sys.setswitchinterval(1000)
try:
    ready.set()
    exe(np.int64(2**62))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("fork", [(), ("fork",)])
def test_control_c_ends_a_run(fork: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, LOOP, *fork],
        capture_output=True, text=True, timeout=120, env={**os.environ, "EKIDEN_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr
