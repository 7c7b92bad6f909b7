"""Compile workers: fresh processes, independent of the state of this process."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from ekiden.codegen import parallel, worker_process
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import CancellationToken, CancelledError, CompileTask, compile_tasks
from ekiden.codegen.worker_process import compile_isolated, setup_frame, start_workers
from ekiden.compiler.time_limit import call_with_time_limit
from ekiden.ir.pass_context import PassContext, PassInstrument
from ekiden.runtime.errors import CompileError, CompileLimitError

SOURCES = Path(worker_process.__file__).parents[1]
NO_CACHE = KernelCache(None)
COUNT = parallel.MIN_PARALLEL_TASKS


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "2")


def tasks(function: object, *arguments: object) -> list[CompileTask]:
    return [CompileTask(str(i), f"kernel {i}", function, arguments) for i in range(COUNT)]  # type: ignore[arg-type]


def process_numbers(given: list[CompileTask]) -> set[int]:
    return {int(code) for code in compile_tasks(given, NO_CACHE).values()}


PID = (os.readlink, b"/proc/self")
"""A function of Python's library, and its argument, that gives the number of its process as
bytes."""


def test_tasks_run_in_other_processes() -> None:
    assert os.getpid() not in process_numbers(tasks(*PID))


def test_main_module_definitions_compile_in_process() -> None:
    def own() -> bytes:
        return str(os.getpid()).encode()

    assert process_numbers(tasks(own)) == {os.getpid()}
    mixed = [*tasks(*PID), CompileTask("own", "own", own), CompileTask("local", "local", *_local())]
    assert os.getpid() in process_numbers(mixed)


def _local() -> tuple[object, tuple[object, ...], bool]:
    return os.readlink, (b"/proc/self",), True


def test_passes_that_an_instrument_watches_run_in_this_process() -> None:
    class Watch(PassInstrument):
        """Counts phases."""

        phases = 0

        def enter_phase(self, name: str) -> None:
            """Count."""
            Watch.phases += 1

    with PassContext(instruments=[Watch()]):
        assert process_numbers(tasks(*PID)) == {os.getpid()}
    assert Watch.phases == COUNT


def test_worker_gets_current_environment_and_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process_numbers(tasks(*PID))  # the server has begun with others
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EKIDEN_TEST_VARIABLE", "now")
    assert set(compile_tasks(tasks(os.getcwdb), NO_CACHE).values()) == {os.fsencode(tmp_path)}
    code = "import os; os.write(1, os.environ['EKIDEN_TEST_VARIABLE'].encode())"
    printed = compile_tasks(tasks(subprocess.check_output, [sys.executable, "-c", code]), NO_CACHE)
    assert set(printed.values()) == {b"now"}


def test_error_of_a_task_is_raised_with_its_notes() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-file"):
        compile_tasks(tasks(os.readlink, b"/no-such-file"), NO_CACHE)


def test_worker_that_ends_is_reported_with_its_kernel_and_what_it_printed() -> None:
    with pytest.raises(
        CompileError, match=r"a worker process was ended by SIGABRT at the kernel kernel \d"
    ):
        compile_tasks(tasks(os.abort), NO_CACHE)
    with pytest.raises(CompileError, match="a worker process ended with 3 at the kernel kernel"):
        compile_tasks(tasks(os._exit, 3), NO_CACHE)


def test_worker_output_is_forwarded(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "ekiden"):
        compile_tasks(tasks(os.getcwdb), NO_CACHE)
    assert sum("kernel: kernel" in message for message in caplog.messages) == COUNT
    compile_tasks(
        tasks(subprocess.check_output, ["sh", "-c", "echo said by a worker >&2"]), NO_CACHE
    )
    assert "said by a worker" in capsys.readouterr().err


def test_another_thread_can_stop_the_work() -> None:
    cancellation, errors = CancellationToken(), []

    def work() -> None:
        try:
            compile_tasks(tasks(time.sleep, 300), NO_CACHE, cancellation=cancellation)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    cancellation.cancel()
    thread.join()
    assert len(errors) == 1


def test_several_threads_compile_at_once() -> None:
    numbers: list[set[int]] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(process_numbers(tasks(*PID))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 4 and not any(os.getpid() in number for number in numbers)


def server_number() -> int:
    """Return the number of the process that forks workers, once it has imported all it was told."""
    worker_process.preload_modules(["ekiden.backend.kernels.build", "llvmlite.binding"])
    for worker in start_workers(1, setup_frame()):
        worker.close()
    assert worker_process._server is not None
    return worker_process._server._process.pid


def test_process_that_forks_has_no_threads() -> None:
    assert len(os.listdir(f"/proc/{server_number()}/task")) == 1


def test_only_processes_started_fresh_fork() -> None:
    """Another process may have threads, whose locks a child finds closed, or libraries whose exit
    handlers wait for such threads."""
    allowed = {"codegen/worker_server.py", "tune/worker.py"}
    forks = re.compile(r"os\.fork\(|os\.forkpty\(|get_context\(\"fork\"\)")
    result = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if forks.search(path.read_text())
    }
    assert result == allowed


def test_server_that_has_ended_is_started_again() -> None:
    first = server_number()
    os.kill(first, 9)
    while Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert os.getpid() not in process_numbers(tasks(*PID))
    assert server_number() != first


def test_server_ends_when_it_is_idle() -> None:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        "from ekiden.codegen import worker_server as server; "
        "server.SERVER_IDLE_TIMEOUT_S, server.PARENT_POLL_INTERVAL_S = 0.0, 0.01; "
        f"server.serve({other.fileno()})"
    )
    with own, other:
        command = [sys.executable, "-c", code]
        assert subprocess.run(command, pass_fds=(other.fileno(),)).returncode == 0


def test_fork_of_the_program_has_a_server_of_its_own() -> None:
    own = server_number()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if server_number() != own and process_numbers(tasks(*PID)) else 2
            worker_process.end_server()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server_number() == own


def test_isolated_task_may_end_its_process() -> None:
    with pytest.raises(CompileError, match="as code: LLVM gave up: its process was ended by SIGAB"):
        compile_isolated(CompileTask("", "as code", os.abort), 300)
    with pytest.raises(
        CompileError, match="as code: LLVM gave up: .* gave no answer within 0.05 s"
    ):
        compile_isolated(CompileTask("", "as code", time.sleep, (300,)), 0.05)
    assert compile_isolated(CompileTask("", "as code", os.getcwdb), 300) == os.getcwdb()


def test_task_of_a_worker_may_be_isolated_itself() -> None:
    inner = CompileTask("", "inner", os.readlink, (b"/proc/self",))
    numbers = process_numbers(tasks(compile_isolated, inner, 300.0))
    assert len(numbers) == COUNT and os.getpid() not in numbers


EXIT = """
import os, sys
import numpy as np
from onnx import TensorProto, helper
import ekiden
from ekiden import relay

x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
from onnx_runtime import session
engine = session(model, threads=4)
engine.run(None, {"x": np.zeros(4, np.float32)})
v = relay.var("x", shape=(8, 16))
try:
    ekiden.compile(
        ekiden.IRModule.from_expr(relay.Function([v], relay.topk(v, 3)[0])),
        "opencl -mtriple=spirv64 -model=any",
    )
except ekiden.CompileError as error:
    print(error)
"""


def test_llvm_abort_does_not_affect_other_engine() -> None:
    """Its exit handlers wait for threads that a fork of this process would not have."""
    command = [sys.executable, "-c", textwrap.dedent(EXIT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "LLVM gave up: LLVM" in done.stdout


def test_instrument_sees_passes_despite_cache(tmp_path: Path) -> None:
    class Watch(PassInstrument):
        """Remembers phases."""

        def __init__(self) -> None:
            self.phases: list[str] = []

        def enter_phase(self, name: str) -> None:
            """Remember."""
            self.phases.append(name)

    cache = KernelCache(tmp_path)
    seen = []
    for _ in range(2):
        watch = Watch()
        with PassContext(instruments=[watch]):
            compile_tasks(tasks(os.getcwdb), cache)
        seen.append(watch.phases)
    assert seen[0] == seen[1] and len(seen[0]) == COUNT


def test_time_limit_ends_wait_for_workers() -> None:
    with pytest.raises(CompileLimitError, match=r"at its limit of 0\.2 s"):
        call_with_time_limit(0.2, lambda: compile_tasks(tasks(time.sleep, 300), NO_CACHE))
