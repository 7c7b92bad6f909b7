"""Processes of RPC sessions, which the server preforks, monitors and kills.

A process takes as long to start as Python does, so a spare one waits for the next client. The
server enforces the limits from outside, since a session cannot be trusted to limit itself.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ekiden.rpc.background_process import FIRST_PASSED_DESCRIPTOR, task_command, write_task_file
from ekiden.rpc.folders import SessionFolder
from ekiden.rpc.sandbox import Limits, start_sandboxed_process
from ekiden.rpc.session import FAILED, READY, UINT32_STRUCT, SessionTask
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["SessionProgram", "start_session_program"]

_log = logging.getLogger("ekiden.rpc")
MAX_LOGGED_OUTPUT_BYTES = 64 << 10
"""Most that is logged of what a session prints; the rest is read and dropped."""
_STAT_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""
_THREADS_FIELD = 17
"""Where /proc/PID/stat has the number of threads, counted behind the name."""


@dataclass(eq=False, slots=True)
class SessionProgram:
    """Process that serves one session, idle or with a client."""

    pid: int
    process_descriptor: int
    """The file descriptor of the process, readable when it has ended."""
    control: socket.socket | None
    """Where it says that it is ready, and gets its client; None then."""
    output_descriptor: int
    """What it prints, to be read."""
    folder: SessionFolder
    limits: Limits
    is_ready: bool = False
    num_logged_bytes: int = 0

    def read_report(self) -> str:
        """Receive the program's report: return why it cannot take a client, or "" if it is
        ready.
        """
        assert self.control is not None
        report = self.control.recv(8192)
        self.is_ready = report == READY
        if self.is_ready:
            return ""
        return report.removeprefix(FAILED).decode(errors="replace") or "its program ended"

    def hand_over(self, connection: socket.socket, peer_limit: int) -> None:
        """Pass a client's connection to the program."""
        assert self.control is not None
        control, self.control = self.control, None
        with control:
            socket.send_fds(control, [UINT32_STRUCT.pack(peer_limit)], [connection.fileno()])

    def log_output(self) -> bool:
        """Log the program's output, escaped because a terminal would interpret it. Return False at
        its end.
        """
        if self.output_descriptor < 0:
            return False
        data = os.read(self.output_descriptor, 1 << 14)
        if not data:
            os.close(self.output_descriptor)
            self.output_descriptor = -1
        log_budget = MAX_LOGGED_OUTPUT_BYTES - self.num_logged_bytes
        self.num_logged_bytes += len(data)
        for line in data[: max(log_budget, 0)].decode(errors="replace").splitlines():
            _log.info("session %d: %s", self.pid, line.encode("unicode_escape").decode())
        return bool(data)

    def exceeded_limit(self) -> str:
        """Return which of its limits the program has exceeded."""
        if _num_threads(self.pid) > self.limits.threads:
            return f"more than {self.limits.threads} threads"
        if _disk_usage(self.pid, self.folder.path) > self.limits.disk:
            return f"more than {self.limits.disk} bytes in its folder"
        return ""

    def kill(self) -> None:
        """Kill the program immediately."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process_descriptor, signal.SIGKILL)

    def clean_up(self) -> None:
        """Reap the process and remove its folder; `process_descriptor` is negative afterwards."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        while self.log_output():  # its last words
            continue
        os.close(self.process_descriptor)
        self.process_descriptor = -1
        if self.control is not None:
            self.control.close()
        self.folder.remove()


def start_session_program(template: SessionTask) -> SessionProgram:
    """Start a session program for the next client."""
    folder = SessionFolder.create()
    # SEQPACKET keeps a report or a connection in one datagram.
    own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source, output = os.pipe()
    task = -1
    try:
        task = write_task_file(
            "ekiden.rpc.session:run_session", replace(template, folder=folder.path)
        )
        descriptors = (other_end.fileno(), task)
        pid, isolation = start_sandboxed_process(
            task_command(FIRST_PASSED_DESCRIPTOR),
            folder.path,
            descriptors,
            output,
            template.libraries,
            template.has_sandbox,
        )
    except BaseException:
        own_end.close()
        os.close(source)
        folder.remove()
        raise
    finally:
        other_end.close()
        os.close(output)
        if task >= 0:
            os.close(task)
    own_end.send(UINT32_STRUCT.pack(isolation.bits))
    return SessionProgram(pid, os.pidfd_open(pid), own_end, source, folder, template.limits)


def _num_threads(pid: int) -> int:
    """Return the number of threads of a process; 0 of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_THREADS_FIELD])


def _disk_usage(pid: int, folder: str) -> int:
    """Return the disk usage of a session in bytes: those of files that it has removed, too."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # removed meanwhile
                total += entry.stat(follow_symlinks=False).st_blocks * _STAT_BLOCK_BYTES
    # A file that was unlinked keeps its blocks while a descriptor is open.
    removed = {}
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):  # closed meanwhile
                about = entry.stat()
                if about.st_nlink == 0 and stat.S_ISREG(about.st_mode):
                    removed[about.st_dev, about.st_ino] = about.st_blocks * _STAT_BLOCK_BYTES
    return total + sum(removed.values())
