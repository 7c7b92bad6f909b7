"""Cells in a process of their own, which a crash ends and the run survives.

`python matrix_worker.py FD FOLDER C_PROGRAM` takes tasks: (kind, seed, recorded choices, cell); it
answers with an outcome, the choices of the program, or its text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from helper_process import HelperProcess, ProcessEndedError, connection_of  # noqa: E402
from matrix_cells import CRASHED, FAILED, HUNG, Cell, Outcome, program_of, run_cell  # noqa: E402
from matrix_programs import Program  # noqa: E402
from matrix_ways import Resources  # noqa: E402

CELL_LIMIT_S = 240
"""Seconds after which a cell hangs."""


class Worker:
    """The process that runs cells."""

    def __init__(self, folder: Path, c_program: Path) -> None:
        arguments = [str(folder), str(c_program)]
        self._process = HelperProcess(Path(__file__), arguments)

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
        try:
            return self._process.ask(task, CELL_LIMIT_S)
        except ProcessEndedError as error:
            return Outcome(CRASHED, str(error))
        except TimeoutError as error:
            return Outcome(HUNG, str(error))

    def close(self) -> None:
        """End the process."""
        self._process.close()


class Server:
    """Answers tasks; the program of the last task is at hand, with what it should give."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._last: tuple[object, Program, list[int]] | None = None

    def serve(self, connection: Connection) -> None:
        """Answer until the other side has closed."""
        while True:
            try:
                kind, seed, recorded, cell = connection.recv()
            except (EOFError, OSError):
                return
            connection.send(self._answer(kind, seed, recorded, cell))

    def _answer(self, kind: str, seed: str | None, recorded: list[int], cell: Cell) -> object:
        if kind == "crash":
            os.abort()
        try:
            program, choices = self._program(seed, recorded)
        except Exception as error:  # the generator's own fault, or a refused expression
            return Outcome(FAILED, f"generator: {type(error).__name__}: {error}")
        if kind == "choices":
            return choices
        if kind == "text":
            return program.module.astext(show_meta_data=False)
        outcome = run_cell(program, cell, self._resources)
        for path in self._resources.folder.iterdir():
            path.unlink()
        return outcome

    def _program(self, seed: str | None, recorded: list[int]) -> tuple[Program, list[int]]:
        source = (seed, tuple(recorded))
        if self._last is None or self._last[0] != source:
            self._last = (source, *program_of(seed, recorded))
        return self._last[1:]


def main(arguments: Sequence[str]) -> None:
    """Serve until the other side has closed."""
    folder = Path(arguments[1]) / f"worker{os.getpid()}"
    folder.mkdir()
    resources = Resources(folder, Path(arguments[2]))
    try:
        Server(resources).serve(connection_of(arguments[0]))
    finally:
        resources.close()
        folder.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
