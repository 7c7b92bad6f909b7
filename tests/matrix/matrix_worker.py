"""Cells in a process of their own, which a crash ends and the run survives.

`python matrix_worker.py FD FOLDER C_PROGRAM` takes tasks from a socket: (seed, recorded
choices, cell); it answers with an outcome and the choices of the program, or its text.
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

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from matrix_cells import CRASHED, FAILED, HUNG, Cell, Outcome, program_of, run_cell  # noqa: E402
from matrix_ways import Resources  # noqa: E402

CELL_LIMIT_S = 240
"""Seconds after which a cell hangs."""


class Worker:
    """The process that runs cells, started afresh when it has ended."""

    def __init__(self, folder: Path, c_program: Path) -> None:
        self._folder, self._c_program = folder, c_program
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(self, cell: Cell, seed: str | None, recorded: Sequence[int] = ()) -> Outcome:
        """Return what came of the program of a seed, or of choices, in a cell."""
        answer = self._ask(("run", seed, list(recorded), cell))
        assert isinstance(answer, Outcome)
        return answer

    def choices(self, seed: str) -> list[int]:
        """Return the choices that a seed draws."""
        answer = self._ask(("choices", seed, [], None))
        return answer if isinstance(answer, list) else []

    def text(self, recorded: Sequence[int]) -> str:
        """Return the program of choices as text."""
        answer = self._ask(("text", None, list(recorded), None))
        return answer if isinstance(answer, str) else str(answer)

    def crash(self) -> Outcome:
        """Return what comes of a cell of which the process dies."""
        outcome = self._ask(("crash", None, [], None))
        assert isinstance(outcome, Outcome)
        return outcome

    def _ask(self, task: tuple[object, ...]) -> Any:  # noqa: ANN401
        connection = self._started()
        try:
            connection.send(task)
            if connection.poll(CELL_LIMIT_S):
                return connection.recv()
            return self._ended(Outcome(HUNG, f"no answer in {CELL_LIMIT_S} s"))
        except (EOFError, OSError):
            assert self._process is not None
            code = self._process.wait()
            return self._ended(Outcome(CRASHED, f"the process ended with {code}"))

    def _started(self) -> Connection:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            command = [sys.executable, __file__, str(theirs.fileno())]
            command += [str(self._folder), str(self._c_program)]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
            theirs.close()
            self._connection = Connection(ours.detach())
        return self._connection

    def _ended(self, outcome: Outcome) -> Outcome:
        self.close()
        return outcome

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._connection is not None:
            self._connection.close()  # what it waits for has ended: so does it
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._connection = None


def serve(connection: Connection, resources: Resources) -> None:
    """Answer tasks until the other side has closed."""
    while True:
        try:
            kind, seed, recorded, cell = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_answer(kind, seed, recorded, cell, resources))


def _answer(
    kind: str, seed: str | None, recorded: list[int], cell: Cell, resources: Resources
) -> object:
    if kind == "crash":
        os.abort()
    try:
        program, choices = program_of(seed, recorded)
    except Exception as error:  # the generator's own fault, or a refused expression
        return Outcome(FAILED, f"generator: {type(error).__name__}: {error}")
    if kind == "choices":
        return choices
    if kind == "text":
        return program.module.astext(show_meta_data=False)
    outcome = run_cell(program, cell, resources)
    for path in resources.folder.iterdir():
        path.unlink()
    return outcome


def main(arguments: Sequence[str]) -> None:
    """Serve until the other side has closed."""
    folder = Path(arguments[1]) / f"worker{os.getpid()}"
    folder.mkdir()
    resources = Resources(folder, Path(arguments[2]))
    try:
        serve(Connection(int(arguments[0])), resources)
    finally:
        resources.close()
        folder.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
