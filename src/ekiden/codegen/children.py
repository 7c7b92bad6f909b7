"""Forked processes and the one that waits for them: what they leave is gone with them, and they go
with it, however a process ends.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ekiden.runtime.late import Late

if TYPE_CHECKING:
    import tempfile
else:
    tempfile = Late("tempfile")

__all__ = ["Channel", "WorkerNotes", "nameless_file", "when_closed"]

TICKET = struct.Struct("<I")
ROOM = 512
"""Bytes at the start of a worker's file that say which process it is and what it compiles."""


def nameless_file() -> int:
    """An open file that no folder names. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ekiden")
    descriptor, path = tempfile.mkstemp(prefix="ekiden-")
    os.unlink(path)
    return descriptor


def when_closed(watched: int, end: Callable[[], object]) -> None:
    """Call `end` once nobody has the other end of a pipe, into which nothing is written: a process
    that alone has it is then gone."""

    def watch() -> None:
        """Waits for the end of the pipe."""
        with suppress(OSError):
            os.read(watched, 1)
        end()

    threading.Thread(target=watch, name="ekiden-watch", daemon=True).start()


class Channel:
    """One end of a pipe for messages, each as its size and as pickled; closed when nobody has it.
    That of `multiprocessing` imports what sockets and all ways to start processes need.
    """

    _SIZE = struct.Struct("<Q")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.close = weakref.finalize(self, os.close, descriptor)
        self.close.atexit = False  # a thread may wait for a message then

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Who receives, and who sends. Raises OSError."""
        receiver, sender = os.pipe()
        return Channel(receiver), Channel(sender)

    def send(self, message: object) -> None:
        """Raises OSError where nobody receives; what pickling raises, before anything is sent."""
        data = pickle.dumps(message)
        left = memoryview(self._SIZE.pack(len(data)) + data)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def receive(self) -> Any:  # noqa: ANN401
        """The next message. Raises EOFError where nobody sends any more, and OSError."""
        (size,) = self._SIZE.unpack(self._read(self._SIZE.size))
        return pickle.loads(self._read(size))

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as whole:
            at = 0
            while at < size:
                some = os.readv(self._descriptor, [whole[at:]])
                if some == 0:
                    raise EOFError("a message ends before it is whole")
                at += some
        return data


class WorkerNotes:
    """Where so many forked workers say what they compile, and what LLVM says before it ends them.

    Made before they are forked. Each takes a file without a name: one number of a pipe tells which.
    """

    def __init__(self, count: int) -> None:
        with ExitStack() as undo:
            self._tickets, given = os.pipe()
            undo.callback(os.close, self._tickets)
            with os.fdopen(given, "wb") as tickets:
                tickets.write(b"".join(map(TICKET.pack, range(count))))
            self._watched, self._alive = os.pipe()
            undo.callback(os.close, self._watched)
            undo.callback(os.close, self._alive)
            self._files: list[int] = []
            for _ in range(count):
                self._files.append(nameless_file())
                undo.callback(os.close, self._files[-1])
            self._undo = undo.pop_all()
        self._own = -1

    # A worker's ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """What a worker does first: its standard error is its file, and it ends with the process
        that waits for it, which would otherwise leave it waiting for work for ever."""
        os.close(self._alive)
        (number,) = TICKET.unpack(os.read(self._tickets, TICKET.size))
        self._own = self._files[number]
        self.say("")
        os.lseek(self._own, ROOM, os.SEEK_SET)
        if sys.__stderr__ is not None:  # else 2 may be a pipe of ours
            os.dup2(self._own, 2)
        when_closed(self._watched, lambda: os._exit(1))

    def say(self, kernel: str) -> None:
        """A worker compiles this from now on."""
        row = f"{os.getpid()} {kernel}".encode(errors="replace")[:ROOM]
        os.pwrite(self._own, row.ljust(ROOM, b"\0"), 0)

    # The waiting process's -----------------------------------------------------------------------

    def of(self, pid: int | None) -> tuple[str, str]:
        """The kernel that a worker was at, and what it has written to its standard error."""
        for row, said in map(self._read, self._files):
            number, _, kernel = row.partition(" ")
            if number == str(pid):
                return kernel, said
        return "", ""

    def said(self) -> str:
        """What all workers have written to their standard errors."""
        return "".join(said for _, said in map(self._read, self._files))

    def _read(self, file: int) -> tuple[str, str]:
        content = os.pread(file, os.fstat(file).st_size, 0)
        row, said = content[:ROOM].rstrip(b"\0"), content[ROOM:]
        return row.decode(errors="replace"), said.decode(errors="replace")

    def close(self) -> None:
        """Give back the files; workers that still run end."""
        self._undo.close()
