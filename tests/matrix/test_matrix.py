"""Generated programs over the matrix of executors, targets, ways and views: each cell agrees
with the interpreter, or refuses with a sentence that docs/matrix.md has.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from choices import Choices, shrink
from matrix_cells import (
    AGREES,
    AXES,
    CRASHED,
    REFUSED,
    Cell,
    Outcome,
    covering_cells,
    covering_stream,
    pairs_of,
    program_of,
)
from matrix_page import PAGE, entry, page_of, rows_of, sentences
from matrix_record import Record, load_records
from matrix_refusals import NO_CALLS, REFUSALS, documented, no_call
from matrix_run import Task, covering_tasks, run_cells
from matrix_ways import compile_c_program
from matrix_worker import Worker
from program_features import feature_names

from ekiden.ir.structural import structural_digest, structural_equal
from long_runs import LONG, alike, sizes
from shared_files import made_once

SHARE = 10
"""The cells of the slice are run by so many tests, which workers of a run divide."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    program = made_once(tmp_path_factory, "run_calls", compile_c_program)
    process = Worker(tmp_path_factory.mktemp("cells"), program)
    yield process
    process.close()


def faults(worker: Worker, tasks: list[Task]) -> list[str]:
    run = run_cells(worker, tasks)
    assert run.record.outcomes.total() == len(tasks)
    return [f"{f.seed} {f.cell}: {f.outcome.kind} {f.outcome.text[:500]}" for f in run.finds]


def slice_tasks() -> list[Task]:
    """The cells that cover all pairs of values, two for each program."""
    return [(f"slice.{n // 2}", cell) for n, cell in enumerate(covering_cells(0))]


@alike(3)
@pytest.mark.parametrize("part", range(SHARE))
def test_slice_of_the_matrix_agrees_or_refuses(worker: Worker, part: int) -> None:
    assert faults(worker, slice_tasks()[part::SHARE]) == []


@LONG
@pytest.mark.parametrize("seed", range(20))
def test_programs_over_the_whole_matrix(worker: Worker, seed: int) -> None:
    """1,000 of each seed."""
    seeds = [f"{seed}.{n}" for n in range(1000)]
    assert faults(worker, list(covering_tasks(seeds, 1, seed))) == []


@pytest.mark.quick
def test_matrix_slice_covers_all_value_pairs() -> None:
    cells = covering_cells(0)
    assert not any(no_call(cell.values()) for cell in cells)
    covered = {frozenset((x, y)) for cell in cells for _, x, _, y in pairs_of(cell)}
    here = {name for cell in cells for name in cell.values()}
    for rows, columns in itertools.combinations(AXES.values(), 2):
        for pair in itertools.product(set(rows) & here, set(columns) & here):
            assert frozenset(pair) in covered or no_call(pair), pair
    assert all(name in here for axis in ("executor", "way", "view") for name in AXES[axis])


@pytest.mark.quick
@pytest.mark.slow
@sizes("count", 10, 60)
def test_programs_that_differ_have_different_digests(count: int) -> None:
    modules = [program_of(f"digest.{n}")[0].whole for n in range(count)]
    digests = [structural_digest(module) for module in modules]
    for a, b in itertools.combinations(range(count), 2):
        assert structural_equal(modules[a], modules[b]) == (digests[a] == digests[b])


@pytest.mark.quick
def test_program_is_drawn_again_from_its_choices() -> None:
    program, choices = program_of("again.1")
    again, _ = program_of(None, choices)
    assert again.module.astext() == program.module.astext()
    assert again.features == program.features


@pytest.mark.quick
@pytest.mark.slow
def test_generator_draws_every_feature() -> None:
    missing = set(feature_names())
    for n in range(250):
        missing -= set(program_of(f"features.{n}")[0].features)
        if not missing:
            break
    assert missing == set()


@pytest.mark.quick
def test_choices_shrink_to_the_least_that_show_a_fault() -> None:
    def shows(recorded: Sequence[int]) -> bool:
        choices = Choices(None, recorded)
        return sum(choices.integer(0, 9) for _ in range(8)) >= 7

    assert shrink([3, 9, 4, 0, 2, 8, 9, 9], shows, 500) == [9]


def test_cell_that_crashes_or_raises_is_a_find_and_the_run_goes_on(worker: Worker) -> None:
    """By a program that the worker cannot draw, and one of which the process dies."""
    cell = Cell("vm", "llvm", "in process", "as written")
    assert worker.run(cell, None, [0]).kind == AGREES
    assert worker.crash().kind == CRASHED
    assert worker.run(cell, None, [0]).kind == AGREES


@pytest.mark.quick
def test_refusals_apply_only_to_documented_values() -> None:
    row = REFUSALS[0]
    text = row.sentence.replace("(instruction ...)", "(instruction Switch)")
    assert documented(text, row.values, ()) is row
    assert documented(text, row.values[:1], ()) is None
    assert documented("another sentence", row.values, ()) is None


@pytest.mark.quick
def test_page_prints_every_refusal() -> None:
    printed = rows_of(PAGE.read_text())
    expected = [f"{n}. `{message}`: {why}." for n, (message, why) in enumerate(sentences(), 1)]
    assert printed == expected


@pytest.mark.quick
def test_table_entry_is_yes_refusal_or_untested() -> None:
    record = Record({"P"}, 1, Counter({AGREES: 2}), Counter({("let", "vm"): 2}))
    record.agreed["let", "vm"] = 2
    lines = page_of(record).splitlines()
    row = next(line for line in lines if line.startswith("| let |"))
    assert row == "| let | yes | . | . | . | . |"
    (call,) = [
        n for n, (message, _) in enumerate(sentences(), 1) if message == NO_CALLS[0].sentence
    ]
    assert entry(("debug", ".eki"), Record()) == f"[{call}](#refusals)"


@pytest.mark.quick
@pytest.mark.slow
def test_cell_stream_covers_pairs_evenly() -> None:
    cells = list(itertools.islice(covering_stream(5), 1100))
    counts = Counter(pair for cell in cells for pair in pairs_of(cell))
    assert min(counts.values()) >= 1100 // 110
    assert not any(no_call(cell.values()) for cell in cells)


@pytest.mark.quick
def test_run_counts_add_up(tmp_path: Path) -> None:
    cell = Cell("vm", "llvm", ".so", "text")
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path, outcome in zip(paths, (AGREES, REFUSED), strict=True):
        record = Record({"P"}, 1)
        record.add(cell, Outcome(outcome, "", ("let",)))
        record.save(path)
    both = load_records(paths)
    assert (both.programs, both.outcomes) == (2, Counter({AGREES: 1, REFUSED: 1}))
    assert (both.ran["let", "vm"], both.agreed["let", "vm"]) == (2, 1)
    assert both.least(["llvm"], [".so"]) == 2
