"""Python programs started in fresh processes: servers, trackers, proxies and sessions.

Never by fork: what runs there begins with nothing of this process but what it is given, as data in
an open file and as descriptors. The user's own main module is not run again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import signal
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import NoReturn

from ekiden.rpc.errors import RPCError
from ekiden.runtime.python_subprocess import python_subprocess_command

__all__ = [
    "FIRST_PASSED_DESCRIPTOR",
    "Background",
    "has_parent",
    "run_task",
    "start_task",
    "task_command",
    "write_task_file",
]

FIRST_PASSED_DESCRIPTOR = 4
"""Of those that a program is given: 3 is the file of its task."""
_MIN_PARKED_DESCRIPTOR = 64
"""Descriptors are moved here before they get the numbers of a program, which others may have."""
_BOOTSTRAP_CODE = "from ekiden.rpc.background_process import run_task; run_task(int(sys.argv[1]))"


class Background:
    """Background process running a Python program; it ends with `terminate`, with this object, or
    with this process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end = weakref.finalize(self, _terminate_process, pid, os.getpid())

    def terminate(self) -> None:
        """Terminate the program and everything it started."""
        self._end()

    def wait(self) -> None:
        """Wait until the program ends."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


# A copy of the object in a forked process must not end the process that it names: the finalizer
# remembers whose it is.
def _terminate_process(pid: int, owner: int) -> None:
    if os.getpid() != owner:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def has_parent(parent: int) -> bool:
    """Return whether the parent process is still running."""
    return os.getppid() == parent


def write_task_file(entry: str, *arguments: object) -> int:
    """Write a task file that describes a call, and return its descriptor: `module:function`, and
    the arguments, which are plain data.
    """
    level = logging.getLogger("ekiden.rpc").getEffectiveLevel()
    with tempfile.TemporaryFile() as file:
        pickle.dump((entry, arguments, level), file)
        file.flush()
        # Both descriptors share one offset, so the reader would otherwise start at the end.
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        # The file closes at the end of the block, but the duplicate stays open.
        return os.dup(file.fileno())


def task_command(task: int) -> list[str]:
    """Return the command line of a program that runs the task in that descriptor."""
    try:
        return python_subprocess_command(_BOOTSTRAP_CODE, str(task))
    except OSError as error:
        text = f"rpc: {error}; servers and sessions are programs of their own"
        raise RPCError(text) from error


def start_task(entry: str, arguments: Sequence[object], descriptors: Sequence[int] = ()) -> int:
    """Start a process that calls `module:function` with plain data and exits; return its process
    id. `descriptors` become FIRST_PASSED_DESCRIPTOR and so on there. Raises OSError, RPCError.
    """
    with ExitStack() as opened:
        moved = []
        task = write_task_file(entry, *arguments)
        opened.callback(os.close, task)
        for number in (task, *descriptors):
            moved.append(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _MIN_PARKED_DESCRIPTOR))
            opened.callback(os.close, moved[-1])
        # The program must not read the terminal of its parent.
        nothing = os.open(os.devnull, os.O_RDONLY)
        opened.callback(os.close, nothing)
        actions = [(os.POSIX_SPAWN_DUP2, nothing, 0)]
        actions += [
            (os.POSIX_SPAWN_DUP2, number, FIRST_PASSED_DESCRIPTOR - 1 + index)
            for index, number in enumerate(moved)
        ]
        command = task_command(FIRST_PASSED_DESCRIPTOR - 1)
        # Ignored signals are inherited: without `setsigdef` nothing could end such a program.
        return os.posix_spawn(
            command[0], command, os.environ, file_actions=actions, setsigmask=(),
            setsigdef=(signal.SIGTERM, signal.SIGINT),
        )  # fmt: skip


def run_task(task: int) -> NoReturn:
    """Run the task of a descriptor, and exit the process."""
    code = 1
    log = logging.getLogger("ekiden.rpc")
    try:
        # Python's own handler of SIGINT would raise KeyboardInterrupt in the task.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with open(task, "rb") as file:
            entry, arguments, level = pickle.load(file)
        logging.basicConfig(format="%(message)s", level=level)
        module, _, function = entry.partition(":")
        getattr(import_module(module), function)(*arguments)
        code = 0
    except (RPCError, OSError) as error:
        log.info("%s", error)
    except BaseException:
        log.exception("a program of ekiden.rpc failed")
    finally:
        # `os._exit` skips the exit handlers that flush logs.
        logging.shutdown()
        # A normal exit would wait for the task's threads.
        os._exit(code)
