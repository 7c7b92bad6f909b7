"""Python processes that answer tasks one after the other, started afresh when they have ended.

A program of such a process calls `connection_of(argument)` and answers what it receives until
EOFError.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CLOSE_LIMIT_S = 5
"""Seconds that a process has to end after its tasks have."""


class ProcessEndedError(Exception):
    """The process ended with a code before it answered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the process ended with {code}")
        self.code = code


class HelperProcess:
    """A process that runs a program with arguments; the first argument is its connection."""

    def __init__(
        self, program: Path, arguments: Sequence[str] = (), variables: dict[str, str] | None = None
    ) -> None:
        self._program, self._arguments = program, arguments
        self._variables = {**os.environ, **(variables or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, task: object, limit_s: float) -> Any:  # noqa: ANN401 - whatever it answers
        """Return the answer to a task. Raises ProcessEndedError, and TimeoutError after so many
        seconds; the next task is for a new process then."""
        connection = self._start()
        try:
            connection.send(task)
            if connection.poll(limit_s):
                return connection.recv()
        except (EOFError, OSError):
            assert self._process is not None
            code = self._process.wait()
            self.close()
            raise ProcessEndedError(code) from None
        self.close()
        raise TimeoutError(f"no answer in {limit_s} s")

    def _start(self) -> Connection:
        if self._connection is None:
            result, reference = socket.socketpair()
            command = [
                sys.executable,
                str(self._program),
                str(reference.fileno()),
                *self._arguments,
            ]
            self._process = subprocess.Popen(
                command, pass_fds=[reference.fileno()], env=self._variables
            )
            reference.close()
            self._connection = Connection(result.detach())
        return self._connection

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._connection is not None:
            self._connection.close()  # it ends when it reads the end of its tasks
            try:
                self._process.wait(CLOSE_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._connection = None


def connection_of(argument: str) -> Connection:
    """Return the connection that a program has by its first argument."""
    return Connection(int(argument))
