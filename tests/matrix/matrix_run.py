"""Runs generated programs over the matrix.

    python tests/matrix/matrix_run.py --programs 20000 --cells 2 --seed 1 --record run.json
    python tests/matrix/matrix_run.py --program 1.217 --cell "vm / llvm / .so / text"    one again
    python tests/matrix/matrix_run.py --page run.json other.json       writes docs/matrix.md

The cells are rows of covering arrays, one array after another. Each find is printed with the seed
of its program, its cell, and the program made as small as it still shows the fault. The exit status
is 1 where there is any.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from choices import shrink  # noqa: E402
from matrix_cells import FINDS, Cell, Outcome, covering_stream  # noqa: E402
from matrix_page import PAGE, page_of  # noqa: E402
from matrix_record import Record, load_records  # noqa: E402
from matrix_ways import compile_c_program  # noqa: E402
from matrix_worker import Worker  # noqa: E402

from ekiden.tune.records import processor  # noqa: E402

SHRINK_ATTEMPTS = 150
SAVE_INTERVAL_CELLS = 25
"""Cells between two writings of the record: a run that is ended has its counts up to the last."""
Task = tuple[str, Cell]
"""The seed of a program, and a cell to run it in."""


@dataclass
class Find:
    """A fault: the seed of the program, the cell, what came, the smallest program that shows it."""

    seed: str
    cell: Cell
    outcome: Outcome
    program: str = ""


@dataclass
class Run:
    """What came of a run."""

    record: Record = field(default_factory=Record)
    finds: list[Find] = field(default_factory=list)
    last: str = ""
    """The seed of the last program: its cells follow one another."""

    def add(self, seed: str, cell: Cell, outcome: Outcome) -> None:
        """Count an outcome."""
        self.record.programs += seed != self.last
        self.last = seed
        self.record.add(cell, outcome)
        if outcome.kind in FINDS:
            self.finds.append(Find(seed, cell, outcome))


def signature(outcome: Outcome) -> str:
    """Return what two outcomes of one fault have in common: its kind and, without numbers and
    names in quotes, what is said."""
    lines = outcome.text.strip().splitlines() or [""]
    message = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f"{outcome.kind} {re.sub(r'[0-9]+|`[^`]*`', '', message)[:60]}"


def smallest(worker: Worker, find: Find) -> str:
    """Return the text of the smallest program that shows a fault."""
    expected = signature(find.outcome)
    shows = lambda choices: signature(worker.run(find.cell, None, choices)) == expected  # noqa: E731
    return worker.text(shrink(worker.choices(find.seed), shows, SHRINK_ATTEMPTS))


def run_cells(
    worker: Worker,
    tasks: Iterable[Task],
    seconds: float = float("inf"),
    save: Callable[[Record], None] = lambda record: None,
) -> Run:
    """Run programs by their seeds in cells, until all are done or the time is up; `save` is given
    the counts now and then, and at the end."""
    run, until = Run(Record({processor()})), time.monotonic() + seconds
    for number, (seed, cell) in enumerate(tasks, 1):
        if time.monotonic() > until:
            break
        outcome = worker.run(cell, seed)
        run.add(seed, cell, outcome)
        if outcome.kind in FINDS:
            print(f"{seed}  {cell}\n  {outcome.kind}: {outcome.text[:2000]}", flush=True)
        if number % SAVE_INTERVAL_CELLS == 0:
            save(run.record)
    save(run.record)
    return run


def covering_tasks(seeds: Sequence[str], cells: int, seed: int) -> Iterator[Task]:
    """Yield each program with as many cells, which cover the pairs of values evenly."""
    stream = covering_stream(seed)
    for program in seeds:
        for cell in itertools.islice(stream, cells):
            yield program, cell


def main(arguments: Sequence[str]) -> int:
    """Run, and print the finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--cells", type=int, default=1, help="cells of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", help="the seed of one program, as a find prints it")
    parser.add_argument("--cell", help="the cell of that program, as a find prints it")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--record", type=Path, help="a file for what the page is made of")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--page", type=Path, nargs="+", help="write docs/matrix.md from these records, run none"
    )
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page_of(load_records(options.page)))
        return 0
    os.environ.setdefault("EKIDEN_CACHE_LIMIT", "0")
    os.environ.setdefault("EKIDEN_COMPILE_JOBS", "1")
    with tempfile.TemporaryDirectory() as folder:
        c_program = Path(folder) / "run_calls"
        compile_c_program(c_program)
        worker = Worker(Path(folder), c_program)
        save = lambda record: record.save(options.record) if options.record else None  # noqa: E731
        try:
            run = run_cells(worker, _tasks(options), options.seconds, save)
            if not options.no_shrink:
                _show_smallest(worker, run)
        finally:
            worker.close()
    shares = [f"{count} {kind}" for kind, count in sorted(run.record.outcomes.items())]
    print(f"{run.record.programs} programs:", ", ".join(shares))
    return min(len(run.finds), 1)


def _tasks(options: argparse.Namespace) -> Iterable[Task]:
    """Return the programs and the cells that the options say."""
    seeds = [options.program] if options.program else _seeds(options.seed, options.programs)
    if options.cell:
        return [(seed, Cell(*options.cell.split(" / "))) for seed in seeds]
    return covering_tasks(seeds, options.cells, options.seed)


def _seeds(seed: int, programs: int) -> list[str]:
    return [f"{seed}.{number}" for number in range(programs)]


def _show_smallest(worker: Worker, run: Run) -> None:
    """Print the smallest program of each fault."""
    seen: set[str] = set()
    for find in run.finds:
        if signature(find.outcome) not in seen:
            seen.add(signature(find.outcome))
            print(f"\n== {find.seed}  {find.cell}\n{signature(find.outcome)}")
            print(smallest(worker, find), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
