"""Server process that forks compile workers: started fresh, and single-threaded throughout.

A program's own process is never forked: it may have threads, whose locks would stay closed in the
child, and libraries whose exit handlers wait for threads that the child does not have. This process
has neither. It imports the compiler once, and each fork of it is a worker that begins in a
millisecond.

    program --control socket--> server --fork--> worker <--task socket-- program

`ekiden.codegen.worker_process` is the program's side. Requests on the control socket are single
datagrams: a JSON list of modules to import, or an empty list with WORKER_FDS descriptors for a new
worker. A worker may ask for another one in the same way, by a socket that all workers share.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from ekiden.codegen import worker_loop

__all__ = ["EXIT_CODE_STRUCT", "MAX_REQUEST_BYTES", "WORKER_FDS", "serve"]

WORKER_FDS = 4
"""Number of descriptors in a request for a worker: its task socket, the pipe for its exit code, the
pipe that closes when the program ends, and the file for its output.
"""
MAX_REQUEST_BYTES = 1 << 14
EXIT_CODE_STRUCT = struct.Struct("<i")
"""Encoding of an exit code as subprocess has it: negative for a signal."""
SERVER_IDLE_TIMEOUT_S = 60.0
"""Seconds without workers and requests after which the server exits; the next compilation starts
another.
"""
PARENT_POLL_INTERVAL_S = 5.0
"""Interval in seconds at which the server polls whether the program still runs: a process forked
without Python's knowledge may keep a copy of the control socket open.
"""


class _ForkServer:
    """State of the server process: its sockets and the workers that run."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._from_workers, self._for_workers = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self._child_ended, wakeup = os.pipe()
        os.set_blocking(self._child_ended, False)
        # Python's set_wakeup_fd requires a descriptor that does not block.
        os.set_blocking(wakeup, False)
        # Python writes to the wakeup descriptor only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup)
        self._wakeup = wakeup
        self._exit_pipes: dict[int, int] = {}
        """Pipe that takes the exit code of each worker, by process id."""
        self._program = os.getppid()

    def serve_requests(self) -> None:
        """Handle requests until the program has exited or the server has been idle too long."""
        last_use = time.monotonic()
        sources: list[socket.socket | int] = [self._control, self._from_workers, self._child_ended]
        # An orphaned server is adopted by another process: its parent's id changes.
        while os.getppid() == self._program:
            ready, _, _ = select.select(sources, [], [], PARENT_POLL_INTERVAL_S)
            if self._child_ended in ready:
                with suppress(BlockingIOError):
                    os.read(self._child_ended, 4096)
            # On each wakeup: several SIGCHLD may be merged into one.
            self._reap_workers()
            for source in (self._control, self._from_workers):
                if source in ready:
                    if not self._handle_request(source):
                        return
                    last_use = time.monotonic()
            if not self._exit_pipes and time.monotonic() - last_use > SERVER_IDLE_TIMEOUT_S:
                return

    def _handle_request(self, source: socket.socket) -> bool:
        """Handle one request datagram; return whether the peer is still connected."""
        try:
            data, descriptors, _, _ = socket.recv_fds(source, MAX_REQUEST_BYTES, WORKER_FDS)
        except OSError:
            return False
        if not data:
            return False
        if len(descriptors) == WORKER_FDS:
            self._fork_worker(*descriptors)
        else:
            # Descriptors that are no complete request would leak into every later fork.
            for descriptor in descriptors:
                os.close(descriptor)
        for name in json.loads(data):
            with suppress(ImportError):  # a worker that needs the module says why it cannot be had
                import_module(name)
        return True

    def _fork_worker(self, tasks: int, exit_code: int, alive: int, output: int) -> None:
        """Fork a worker process that communicates through the descriptors. If it cannot be forked,
        the program sees them close, without an exit code.
        """
        gc.freeze()  # the collector ignores imported objects: no copy-on-write in workers
        try:
            pid = os.fork()
        except OSError as error:
            os.write(output, str(error).encode())
            pid = -1
        if pid == 0:
            os.close(exit_code)
            self._close_server_fds()
            worker_loop.run_worker(tasks, alive, output, self._for_workers)
        for descriptor in (tasks, alive, output):
            os.close(descriptor)
        if pid > 0:
            self._exit_pipes[pid] = exit_code
        else:
            os.close(exit_code)

    def _close_server_fds(self) -> None:
        """Close the server's descriptors in a forked worker."""
        # Signals of the worker must not write to the server's pipe.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        self._from_workers.close()
        # An exit pipe left open in a sibling would hide that its worker has ended.
        for descriptor in (self._child_ended, self._wakeup, *self._exit_pipes.values()):
            os.close(descriptor)

    def _reap_workers(self) -> None:
        """Reap ended workers and send the program their exit codes."""
        while self._exit_pipes:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self._exit_pipes.pop(pid, None)
            if pipe is not None:
                with suppress(OSError):  # the program has given the worker up
                    os.write(pipe, EXIT_CODE_STRUCT.pack(os.waitstatus_to_exitcode(status)))
                os.close(pipe)


def serve(control: int) -> None:
    """Run the fork server on a socket until its program has exited or it has been idle too long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    assert threading.active_count() == 1, "a process with threads is not forked"
    gc.disable()  # modules stay; each worker enables it
    with contextlib.suppress(KeyboardInterrupt):
        _ForkServer(socket.socket(fileno=control)).serve_requests()
    sys.stderr.flush()
    os._exit(0)  # nothing here is worth an exit handler
