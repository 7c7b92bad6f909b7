"""Main loop of a compile worker: a fork of the server that runs tasks for one program, one after
the other.

Messages on the task socket are frames: the length, then the bytes. The first is a Setup, each
further one a Task (`ekiden.ir.process_transfer` makes bytes of it). The answer to each is a Reply.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import field
from typing import cast

from ekiden.codegen import worker_process
from ekiden.codegen.compile_task import CompileTask
from ekiden.ir.pass_context import PassContext, PassInstrument
from ekiden.ir.process_transfer import decode
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["FrameConnection", "TaskReply", "WorkerSetup", "run_worker"]

_FRAME_LENGTH = struct.Struct("<Q")
_LOGGER_NAME = "ekiden"


class FrameConnection:
    """End of a stream socket that carries length-prefixed frames."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """Send a frame. Raises OSError where the other end is gone."""
        self._socket.sendall(_FRAME_LENGTH.pack(len(data)) + data)

    def receive(self) -> bytearray:
        """Return the next frame. Raises EOFError where the other end is gone, OSError, and
        TimeoutError after the time that `set_timeout` allows."""
        (size,) = _FRAME_LENGTH.unpack(self._read_exactly(_FRAME_LENGTH.size))
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as view:
            filled = 0
            while filled < size:
                count = self._socket.recv_into(view[filled:])
                if count == 0:
                    raise EOFError("the other end of a task socket has closed")
                filled += count
        return data

    def set_timeout(self, seconds: float | None) -> None:
        """Limit the seconds that each part of a frame may take."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """State that a worker takes over from the program before its first task."""

    environment: dict[str, str]
    working_directory: str
    """Working directory, to which file names are relative."""
    niceness: int
    log_level: int
    opt_level: int
    required_passes: tuple[str, ...]
    disabled_passes: tuple[str, ...]
    options: dict[str, object]
    """Options of the PassContext that affect lowering."""
    instruments: tuple[PassInstrument, ...]


@dataclass(slots=True)
class TaskReply:
    """Outcome of a task: its result, its error, or why this process cannot run it."""

    result: bytes | None = None
    error: BaseException | None = None
    unavailable_reason: str = ""
    """Reason why only the program's own process can run the task."""
    instrument_results: list[object] = field(default_factory=list)
    """Observations of each pass instrument."""
    records: list[logging.LogRecord] = field(default_factory=list)


class _LogRecorder(logging.Handler):
    """Log handler that collects records for the program to handle."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record whose message is formatted to text; its arguments may be anything."""
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self.records.append(record)

    def drain(self) -> list[logging.LogRecord]:
        """Return the records since the last call."""
        records, self.records = self.records, []
        return records


def _exit_with_parent(alive: int) -> None:
    """End this process once the program has closed its end of a pipe, or has ended."""
    with suppress(OSError):
        os.read(alive, 1)
    os._exit(1)


def _apply_setup(setup: WorkerSetup, recorder: _LogRecorder) -> PassContext:
    """Apply the program's state to this process, and return the context that tasks run in."""
    # The server has settings of its own (one thread), which the program does not have.
    os.environ.clear()
    os.environ.update(setup.environment)
    with suppress(OSError):  # a folder that was removed: names of files are absolute then
        os.chdir(setup.working_directory)
    with suppress(OSError):
        os.nice(setup.niceness)
    logger = logging.getLogger(_LOGGER_NAME)
    logger.setLevel(setup.log_level)
    # Records are replayed in the program; handlers of the server's root logger must not print them
    # too.
    logger.propagate = False
    logger.handlers = [recorder]
    return PassContext(
        setup.opt_level,
        setup.required_passes,
        setup.disabled_passes,
        instruments=setup.instruments,
        config=setup.options,
    )


def _run_task(frame: bytearray) -> TaskReply:
    """Run a task."""
    try:
        task = cast(CompileTask, decode(frame))
    except Exception as error:  # an operator, class or module that only the program has
        return TaskReply(unavailable_reason=f"{type(error).__name__}: {error}")
    try:
        return TaskReply(task.compile())
    except Exception as error:
        return TaskReply(error=error)


def _send_reply(connection: FrameConnection, reply: TaskReply) -> None:
    try:
        data = pickle.dumps(reply)
    except Exception:  # an error, or what an instrument saw, of a class that pickle does not take
        error = reply.error
        text = f"{type(error).__name__}: {error}" if error is not None else "no reply can be sent"
        # The class of the error is lost, its text is not.
        data = pickle.dumps(TaskReply(reply.result, CompileError(text), records=reply.records))
    connection.send(data)


def run_worker(tasks: int, alive: int, output: int, server: socket.socket) -> None:
    """Be a worker until the program closes its end of the task socket; this does not return."""
    status = 1
    try:
        worker_process.become_worker(server)
        # What LLVM prints before it aborts is read from this file by the program.
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        threading.Thread(target=_exit_with_parent, args=(alive,), daemon=True).start()
        # The server runs with the collector off, which its forks inherit.
        gc.enable()
        _serve_tasks(FrameConnection(socket.socket(fileno=tasks)))
        status = 0
    except (EOFError, OSError):  # the program needs no more
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        # Exit handlers that the fork has inherited belong to the server.
        os._exit(status)


def _serve_tasks(connection: FrameConnection) -> None:
    recorder = _LogRecorder()
    # This frame tells the program that the fork has succeeded.
    connection.send(pickle.dumps(os.getpid()))
    setup = decode(connection.receive())
    assert isinstance(setup, WorkerSetup), "the first frame is a Setup"
    with _apply_setup(setup, recorder) as context:
        while True:
            reply = _run_task(connection.receive())
            reply.instrument_results = [
                instrument.take_seen() for instrument in context.instruments
            ]
            reply.records = recorder.drain()
            _send_reply(connection, reply)
