"""Runs generated programs over the matrix.

    python tests/matrix/matrix_run.py --programs 20000 --seed 1 --record run.json
    python tests/matrix/matrix_run.py --program 1.217 --cell "vm / llvm / .so / text"    one again
    python tests/matrix/matrix_run.py --page run.json                   writes docs/matrix.md

Each find is printed with the seed of its program, its cell, and the program made as small as it
still shows the fault. The exit status is 1 where there is any.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from choices import shrink  # noqa: E402
from matrix_cells import AGREES, FINDS, Cell, Outcome, draw_cell  # noqa: E402
from matrix_page import PAGE, page_of  # noqa: E402
from matrix_ways import compile_c_program  # noqa: E402
from matrix_worker import Worker  # noqa: E402

from ekiden.tune.records import processor  # noqa: E402

SHRINK_ATTEMPTS = 150


@dataclass
class Find:
    """A fault: the seed of the program, the cell, what came, the smallest program that shows it."""

    seed: str
    cell: Cell
    outcome: Outcome
    program: str = ""


@dataclass
class Run:
    """What came of a run: counts, finds, and which values were seen to agree together."""

    counts: Counter[str] = field(default_factory=Counter)
    finds: list[Find] = field(default_factory=list)
    agreed: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of values of axes and features, in one cell whose program agreed with the
    interpreter."""

    def add(self, seed: str, cell: Cell, outcome: Outcome) -> None:
        """Count an outcome."""
        self.counts[outcome.kind] += 1
        if outcome.kind in FINDS:
            self.finds.append(Find(seed, cell, outcome))
        if outcome.kind == AGREES:
            present = sorted((*cell.values(), *outcome.features))
            self.agreed.update(itertools.combinations(present, 2))

    def record(self, path: Path) -> None:
        """Write, or add to what a file has of earlier runs, what the page is made of."""
        earlier = json.loads(path.read_text()) if path.exists() else {"counts": {}, "agreed": []}
        counts = Counter(earlier["counts"]) + self.counts
        agreed = {tuple(pair) for pair in earlier["agreed"]} | self.agreed
        rows = {"processor": processor(), "counts": counts, "agreed": sorted(agreed)}
        path.write_text(json.dumps(rows))


def signature(outcome: Outcome) -> str:
    """Return what two outcomes of one fault have in common: its kind and, without numbers and
    names in quotes, what is said."""
    lines = outcome.text.strip().splitlines() or [""]
    said = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return f"{outcome.kind} {re.sub(r'[0-9]+|`[^`]*`', '', said)[:60]}"


def smallest(worker: Worker, find: Find) -> str:
    """Return the text of the smallest program that shows a fault."""
    wanted = signature(find.outcome)
    shows = lambda choices: signature(worker.run(find.cell, None, choices)) == wanted  # noqa: E731
    return worker.text(shrink(worker.choices(find.seed), shows, SHRINK_ATTEMPTS))


def run_cells(worker: Worker, cells: Sequence[tuple[str, Cell]], seconds: float) -> Run:
    """Run programs by their seeds in cells, until all are done or the time is up."""
    run, until = Run(), time.monotonic() + seconds
    for seed, cell in cells:
        if time.monotonic() > until:
            break
        outcome = worker.run(cell, seed)
        run.add(seed, cell, outcome)
        if outcome.kind in FINDS:
            print(f"{seed}  {cell}\n  {outcome.kind}: {outcome.text[:2000]}", flush=True)
    return run


def main(arguments: Sequence[str]) -> int:
    """Run, and print the finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", help="the seed of one program, as a find prints it")
    parser.add_argument("--cell", help="the cell of that program, as a find prints it")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--record", type=Path, help="a file for what the page is made of")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--page", type=Path, help="write docs/matrix.md from this record, run none")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page_of(json.loads(options.page.read_text())))
        return 0
    os.environ.setdefault("EKIDEN_CACHE_LIMIT", "0")
    os.environ.setdefault("EKIDEN_COMPILE_JOBS", "1")
    with tempfile.TemporaryDirectory() as folder:
        c_program = Path(folder) / "run_calls"
        compile_c_program(c_program)
        worker = Worker(Path(folder), c_program)
        try:
            run = run_cells(worker, _tasks(options), options.seconds)
            if not options.no_shrink:
                _show_smallest(worker, run)
        finally:
            worker.close()
    if options.record:
        run.record(options.record)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(run.counts.items())))
    return min(len(run.finds), 1)


def _tasks(options: argparse.Namespace) -> list[tuple[str, Cell]]:
    """Return the programs and the cells that the options say."""
    seeds = [f"{options.seed}.{n}" for n in range(options.programs)]
    if options.program:
        seeds = [options.program]
    cells = [draw_cell(random.Random(f"cell {seed}")) for seed in seeds]
    if options.cell:
        cells = [Cell(*options.cell.split(" / "))] * len(seeds)
    return list(zip(seeds, cells, strict=True))


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
