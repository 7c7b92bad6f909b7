"""A fork of this process that goes on compiling where it stood, and sends what it makes.

    job = Background.begin()
    if job.is_child: ...          the same program goes on here; job.send(...), then job.finish(...)
    else: for each in job.messages(): ...

The child ends when it has finished, when the parent stops it, and when the parent is gone, however
that ended: the child holds one end of a pipe of which the other is the parent's alone. Its workers
are in a group of processes with it and end with it.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pickle import PicklingError
from typing import TYPE_CHECKING

from ekiden.codegen.children import Channel, nameless_file, when_closed
from ekiden.codegen.parallel import LOCK
from ekiden.runtime.errors import CompileError
from ekiden.runtime.files import Writer
from ekiden.runtime.forks import forking
from ekiden.runtime.late import Late

if TYPE_CHECKING:
    import logging
    import signal
else:  # for the child, and for the end
    logging = Late("logging")
    signal = Late("signal")

__all__ = ["Background"]

_RUNNING: weakref.WeakSet[Background]
LATER = 5
"""How much nicer a child is than its parent: where both want a core it has a quarter of it, by the
weights of Linux. At none, general kernels answer at half the speed until the child is done; at 10,
a parent that does not rest has its own code three times later."""
FAILED = "failed"
"""The kind of the message that says what went wrong."""


class Background:
    """One end of a job: that of the parent, or that of the child."""

    def __init__(self, pid: int, channel: Channel, alive: int, result: int) -> None:
        self.is_child = pid == 0
        self._owner = os.getpid()
        self._pid = pid
        self._channel = channel
        self._alive: int | None = alive
        self.result = result
        """A file without a name, which the child writes and the parent maps."""
        self.is_wanted = True
        """Whether nobody has stopped it."""
        self._lock = threading.Lock()

    @staticmethod
    def begin() -> Background:
        """Fork. Raises OSError where the system lets no process start or another thread goes on
        importing a module, CompileError where none can be forked.
        """
        if not hasattr(os, "fork"):
            raise CompileError("compile in the background: this system cannot fork")
        with ExitStack() as undo:
            receiver, sender = Channel.pair()
            undo.callback(receiver.close)
            undo.callback(sender.close)
            watched, alive = os.pipe()
            undo.callback(os.close, watched)
            undo.callback(os.close, alive)
            result = nameless_file()
            undo.callback(os.close, result)
            pid = _fork()
            undo.pop_all()
        if pid == 0:
            try:
                receiver.close()
                os.close(alive)
                _leave_parent(watched)
                return Background(0, sender, watched, result)
            except BaseException as error:  # nothing of the caller may go on in the child
                said = CompileError(f"compiling in the background: {error}")
                with suppress(OSError):
                    sender.send((FAILED, said))
                _end(1)
        sender.close()
        os.close(watched)
        with suppress(OSError):
            os.setpgid(pid, pid)  # whoever is first: the child does so too
        job = Background(pid, receiver, alive, result)
        _RUNNING.add(job)
        return job

    # The child's ---------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Tell the parent something; one that is gone ends this process and its workers, which
        would wait for it for ever."""
        try:
            self._channel.send(message)
        except OSError:
            os.killpg(0, signal.SIGKILL)

    def finish(self, size: int, write: Callable[[Writer], object]) -> None:
        """Hand over the result, of so many bytes that `write` puts into a file, and end this
        process. What it raises is handed over as well."""
        try:
            with os.fdopen(self.result, "wb", closefd=False) as file:
                write(file)
        except Exception as error:
            self.fail(error)
        self.send(("done", size))
        _end(0)

    def fail(self, error: BaseException) -> None:
        """Hand over an error, and end this process."""
        try:
            self.send((FAILED, error))
        except (PicklingError, TypeError, AttributeError):  # a class that only this process knows
            self.send((FAILED, CompileError(f"{type(error).__name__}: {error}")))
        _end(1)

    # The parent's --------------------------------------------------------------------------------

    @property
    def is_here(self) -> bool:
        """Whether this process is the one whose child compiles, and not a fork of it."""
        return os.getpid() == self._owner

    def messages(self) -> Iterator[tuple[object, ...]]:
        """What the child sends, until it ends; the last one begins with "done" or FAILED."""
        ended = False
        while not ended:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                message = (FAILED, CompileError(f"compiling in the background: {self._end()}"))
            ended = message[0] in ("done", FAILED)
            yield message
        self.stop()

    def _end(self) -> str:
        """How the child ended, of which no message tells."""
        with self._lock:
            if self._alive is None:
                return "it was stopped"
            os.close(self._alive)
            self._alive = None
            _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        return f"its process ended {how}"

    def stop(self) -> None:
        """End the child and its workers, if they still run. Nothing in a fork of the parent."""
        if not self.is_here:
            return
        with self._lock:
            if self._alive is None:
                return
            os.close(self._alive)
            self._alive = None
            self.is_wanted = False
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # whoever waits for any child may have had it
                os.waitpid(self._pid, 0)
        _RUNNING.discard(self)

    def close(self) -> None:
        """Stop, and give back what is left of it."""
        self.stop()
        if self.result >= 0:
            os.close(self.result)
            self.result = -1


_RUNNING = weakref.WeakSet()
"""What an end of this process stops."""


def stop_all() -> None:
    """Stop every job of this process."""
    for job in list(_RUNNING):
        job.stop()


def _fork() -> int:
    """As os.fork, where no thread of ours is inside a lock that the child needs."""
    with LOCK, forking():  # as in ekiden.codegen.parallel
        return os.fork()


def _leave_parent(watched: int) -> None:
    """What a child does first: a group of its own, which Ctrl-C does not reach, and a watch. What
    is shown of the work is the parent's to show."""
    _RUNNING.clear()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    logging.disable(logging.INFO)
    os.nice(LATER)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    when_closed(watched, lambda: os.killpg(0, signal.SIGKILL))


def _end(code: int) -> None:
    """End this process without what a program does at its end, which is the parent's to do."""
    os._exit(code)
