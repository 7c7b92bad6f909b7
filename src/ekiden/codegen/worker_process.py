"""Compile workers as the program sees them: started fresh, with their tasks as data.

    (worker,) = start_workers(1, setup_frame())  forks of the server, which the first call starts
    worker.send(encode(task))
    reply = worker.receive(limit_s)        a Reply; WorkerEndedError where the process ended instead

`ekiden.codegen.worker_server` says why the server exists. It ends with the program, and its workers
with it, however the program ends. A fork of the program starts a server of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, cast

from ekiden._lazy import LazyModule
from ekiden._locks import ForkSafeLock
from ekiden.ir.pass_context import DENORMALS_OPTION, PassContext, PassInstrument
from ekiden.ir.process_transfer import NotTransferableError, encode
from ekiden.runtime.errors import CompileError
from ekiden.runtime.python_subprocess import python_subprocess_command

if TYPE_CHECKING:
    import logging
    import select
    import signal
    import socket
    import tempfile

    from ekiden.codegen import worker_loop, worker_server
    from ekiden.codegen.compile_task import CompileTask
else:  # a program that answers from the cache starts no process
    logging = LazyModule("logging")
    select = LazyModule("select")
    signal = LazyModule("signal")
    socket = LazyModule("socket")
    tempfile = LazyModule("tempfile")
    worker_loop = LazyModule("ekiden.codegen.worker_loop")
    worker_server = LazyModule("ekiden.codegen.worker_server")

__all__ = [
    "WorkerEndedError",
    "WorkerProcess",
    "become_worker",
    "compile_isolated",
    "end_server",
    "preload_modules",
    "setup_frame",
    "start_workers",
]  # fmt: skip

WORKER_START_TIMEOUT_S = 300.0
"""Timeout in seconds of a new worker's first reply."""
WORKER_EXIT_TIMEOUT_S = 10.0
"""Seconds after which a server that does not exit is killed."""
MAX_WORKER_OUTPUT_CHARS = 400
"""Maximum number of characters of worker output shown in a message."""
SINGLE_THREAD_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Environment that keeps the fork server single-threaded; workers have the program's environment.
"""


NO_PASS_OPTIONS: Mapping[str, object] = {}


class WorkerEndedError(Exception):
    """Exception for a worker that ended, or did not answer in time: how ("ended with 1"), and the
    beginning of what it printed.
    """

    def __init__(self, how: str, printed: str = "") -> None:
        super().__init__(f"{how}: {printed}" if printed else how)
        self.how, self.printed = how, printed


class _ForkServerHandle:
    """Handle of the process that forks workers."""

    def __init__(self) -> None:
        """Start the process. Raises OSError where there can be none."""
        if not hasattr(os, "fork"):
            raise OSError("this system cannot fork")
        # SOCK_SEQPACKET keeps one request, with its descriptors, in one datagram.
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with client_end, server_end:
            self._process = subprocess.Popen(
                python_subprocess_command(_SERVER_COMMAND, str(server_end.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **SINGLE_THREAD_ENVIRONMENT},
                pass_fds=(server_end.fileno(),),
                start_new_session=True,  # the terminal's signals are for the program
            )
            self._socket = socket.socket(fileno=client_end.detach())

    def send_request(self, modules: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """Have modules imported, or a worker made. Raises OSError where the server has ended."""
        socket.send_fds(self._socket, [json.dumps(list(modules)).encode()], list(descriptors))

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):  # not only this copy of the socket: a process that C code forked
            self._socket.shutdown(socket.SHUT_RDWR)  # may have another
        self._socket.close()
        try:
            self._process.wait(WORKER_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close_after_fork(self) -> None:
        """Close the copy of the socket in a fork of the program."""
        self._socket.close()
        self._process.returncode = 0  # or its finalizer warns that it still runs


_SERVER_COMMAND = "from ekiden.codegen.worker_server import serve; serve(int(sys.argv[1]))"
_SERVER_LOCK = ForkSafeLock()
_server: _ForkServerHandle | None = None
_worker_request_socket: socket.socket | None = None
"""Socket by which a worker requests further workers from the server."""


def become_worker(server: socket.socket) -> None:
    """Record the socket by which a new worker requests further workers from the server."""
    global _worker_request_socket
    _worker_request_socket = server


def _get_server() -> _ForkServerHandle:
    """Return the program's server, which is started where there is none."""
    global _server
    if _server is None:
        _server = _ForkServerHandle()
    return _server


def preload_modules(modules: Sequence[str]) -> None:
    """Start the server and have it import modules, ahead of the first task and beside what the
    program does meanwhile. Where no process can be started the first task says so."""
    with _SERVER_LOCK, suppress(OSError):
        _request_server(modules)


def _request_server(modules: Sequence[str], descriptors: Sequence[int] = ()) -> None:
    """Send the server a request; start another one where it has ended, as it does when idle."""
    # A worker asks the server that it came from, and never starts one of its own.
    if _worker_request_socket is not None:
        socket.send_fds(
            _worker_request_socket, [json.dumps(list(modules)).encode()], list(descriptors)
        )
        return
    try:
        _get_server().send_request(modules, descriptors)
    except (BrokenPipeError, ConnectionResetError):
        end_server()
        _get_server().send_request(modules, descriptors)


@atexit.register
def end_server() -> None:
    """End the server, if there is one, and with it the workers."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.close()


def _drop_server_after_fork() -> None:
    """Drop the server in a fork of the program."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_server_after_fork)


class WorkerProcess:
    """Process that runs compile tasks."""

    def __init__(self) -> None:
        """Ask for a fork of the server. Raises OSError where no process can be started."""
        with ExitStack() as undo:
            parent_end, worker_end = socket.socketpair()
            undo.callback(parent_end.close)
            # The worker is the server's child, so its exit status arrives through a pipe instead of
            # waitpid.
            exit_code, exit_code_writer = os.pipe()
            undo.callback(os.close, exit_code)
            # The write end closes when this process ends, however it ends: the worker's watchdog
            # sees EOF.
            alive_reader, alive = os.pipe()
            undo.callback(os.close, alive)
            self._output = undo.enter_context(tempfile.TemporaryFile())
            for_worker = (
                worker_end.fileno(),
                exit_code_writer,
                alive_reader,
                self._output.fileno(),
            )
            try:
                with _SERVER_LOCK:
                    _request_server((), for_worker)
            finally:
                worker_end.close()
                os.close(exit_code_writer)
                os.close(alive_reader)
            # From here on the object owns the descriptors, and close() gives them back.
            self._undo = undo.pop_all()
        self._connection = worker_loop.FrameConnection(parent_end)
        self._exit_code = exit_code
        self.pid: int | None = None
        """Process id; None before it has started."""

    def send_setup(self, setup: bytes) -> None:
        """Wait for the process and send it its WorkerSetup. Raises WorkerEndedError."""
        self.pid = cast(int, pickle.loads(self._receive(WORKER_START_TIMEOUT_S)))
        self.send(setup)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a reply."""
        return self._connection.fileno()

    def send(self, frame: bytes) -> None:
        """Send a task. Raises WorkerEndedError."""
        try:
            self._connection.send(frame)
        except OSError as error:
            raise self._exit_error() from error

    def receive(self, limit_s: float) -> worker_loop.TaskReply:
        """Return the reply to a task. Raises WorkerEndedError where the process ended, or gave none
        in so many seconds."""
        return cast("worker_loop.TaskReply", pickle.loads(self._receive(limit_s)))

    def _receive(self, limit_s: float) -> bytearray:
        try:
            self._connection.set_timeout(limit_s)
            return self._connection.receive()
        except TimeoutError as error:
            raise WorkerEndedError(f"gave no answer within {limit_s:g} s") from error
        except (OSError, EOFError) as error:
            raise self._exit_error() from error

    def _exit_error(self) -> WorkerEndedError:
        """Build the WorkerEndedError that tells how the process has exited. LLVM prints the reason
        before its stack.
        """
        data = b""
        if select.select([self._exit_code], [], [], WORKER_START_TIMEOUT_S)[0]:
            data = os.read(self._exit_code, worker_server.EXIT_CODE_STRUCT.size)
        how = "ended with its server"
        if data:
            (code,) = worker_server.EXIT_CODE_STRUCT.unpack(data)
            name = signal.Signals(-code).name if code < 0 else ""
            how = f"was ended by {name}" if name else f"ended with {code}"
        return WorkerEndedError(how, self.captured_output()[:MAX_WORKER_OUTPUT_CHARS].strip())

    def captured_output(self) -> str:
        """Return the text that the process has printed so far."""
        descriptor = self._output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """End the process, whatever it is at, and give back the descriptors."""
        self._undo.close()


def setup_frame(niceness: int = 0) -> bytes:
    """Return the encoded WorkerSetup of workers that compile in the current PassContext.

    Raises NotTransferableError where that has something of the program's own: a user's pass, an
    instrument that prints.
    """
    context = PassContext.current()
    copies = [instrument.for_worker() for instrument in context.instruments]
    # A worker's passes would be invisible to an instrument that cannot be copied.
    if context.is_watched:
        raise NotTransferableError("an instrument watches the passes of this process")
    # Only options that lowering reads are sent: others may hold objects that cannot be pickled.
    options = {
        k: v for k, v in context.config.items() if k.startswith("tir.") or k == DENORMALS_OPTION
    }
    passes = sorted(context.required_pass), sorted(context.disabled_pass)
    return _encode_setup(niceness, context.opt_level, *passes, options, copies)


def _encode_setup(
    niceness: int = 0,
    opt_level: int = 2,
    required_passes: Sequence[str] = (),
    disabled_passes: Sequence[str] = (),
    options: Mapping[str, object] = NO_PASS_OPTIONS,
    instruments: Sequence[PassInstrument | None] = (),
) -> bytes:
    level = logging.getLogger("ekiden").getEffectiveLevel()
    return encode(
        worker_loop.WorkerSetup(
            dict(os.environ), _working_directory(), niceness, level,
            opt_level, tuple(required_passes), tuple(disabled_passes), dict(options),
            tuple(copy for copy in instruments if copy is not None),
        )
    )  # fmt: skip


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed
        return "/"


def start_workers(count: int, setup: bytes) -> list[WorkerProcess]:
    """Start `count` workers and wait until they are ready. Raises OSError where the system lets no
    process start.
    """
    try:
        return _start_workers(count, setup)
    except (
        WorkerEndedError
    ):  # with a server that was idle and ended just then: the next is a new one
        pass
    try:
        return _start_workers(count, setup)
    except WorkerEndedError as error:
        raise OSError(f"a worker process {error}") from error


def _start_workers(count: int, setup: bytes) -> list[WorkerProcess]:
    with ExitStack() as undo:
        workers = [
            WorkerProcess() for _ in range(count)
        ]  # all are asked for before one is waited for
        for worker in workers:
            undo.callback(worker.close)
        for worker in workers:
            worker.send_setup(setup)
        # All have answered: the caller owns them now.
        undo.pop_all()
    return workers


def compile_isolated(task: CompileTask, limit_s: float) -> bytes:
    """Return the code of a task from a process of its own: for parts of LLVM that may end the
    process, or work only once in it. The task's name says what for, in messages.

    Raises what the task raises, and CompileError where the process ends or takes longer than
    `time_limit_s`.
    """
    # Encoded first: no process is started for a task that cannot be sent.
    frame = encode(task)
    try:
        (worker,) = start_workers(1, _encode_setup())
    except OSError as error:
        raise CompileError(f"{task.name}: {error}") from error
    try:
        worker.send(frame)
        reply = worker.receive(limit_s)
    except WorkerEndedError as error:
        reason = error.printed or f"its process {error.how}"
        raise CompileError(f"{task.name}: LLVM gave up: {reason}") from error
    finally:
        worker.close()
    if reply.error is not None:
        raise reply.error
    if reply.result is None:
        raise CompileError(f"{task.name}: {reply.unavailable_reason}")
    return reply.result
