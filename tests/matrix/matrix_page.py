"""docs/matrix.md: each pair of features, as yes or as the sentence of its refusal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from matrix_record import NAMES, Record
from matrix_refusals import NO_CALLS, OPEN, REFUSALS

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"
_HEAD = """\
# What composes

Programs are drawn at random from features of the language, and run in cells: an executor, a target,
a way to run what was compiled, a view of the compilation. Each must give what the interpreter does,
or refuse with a sentence of this page; anything else fails the tests (`tests/matrix`). The tables
say of each pair whether programs that have both agreed: **yes**, or the number of the sentence with
which it is refused, or both where it depends on the rest; `.` where this run had none.

{programs:,} programs in {cells:,} cells: {outcomes}. Successive cells are the rows of covering
arrays, one array after another, so that all pairs are run evenly: each pair of values of two axes
was in {least_of_axes:,} cells or more, each pair of a feature and a value in {least_of_features:,}
or more; {pairs:,} pairs were run in all. On {processors}, by

<!-- not run: it takes hours -->
```sh
python tests/matrix/matrix_run.py --programs 20000 --record run.json
python tests/matrix/matrix_run.py --page run.json
```

Features of programs are those of `tests/matrix/program_features.py`; `llvm+opencl` and `llvm+llvm`
put a share of the tensors on each of two devices. `every stage` reads the module back from its text
and its JSON after each pass, `pass alone` runs one pass before compiling, `pass disabled` leaves
one out, `opt level` is 0, 1, 2 or 4, `tuned` takes a decision at random for each kernel, `tier
quick` begins with general ones.
"""


def sentences() -> list[tuple[str, str]]:
    """Return the refusals of the page, each once: what is said, and why."""
    rows = {row.sentence: row.why for row in REFUSALS}
    rows |= {row.sentence: "there is no function to call" for row in NO_CALLS}
    return list(rows.items())


def numbers_of(pair: tuple[str, str]) -> list[int]:
    """Return the numbers of the sentences that refuse a pair."""
    listed = [sentence for sentence, _ in sentences()]
    rows = [r for r in (*REFUSALS, *NO_CALLS) if set(r.values) <= set(pair)]
    return sorted({listed.index(row.sentence) + 1 for row in rows})


def entry(pair: tuple[str, str], record: Record) -> str:
    """Return what a table says of a pair."""
    words = ["yes"] if record.agreed[min(pair), max(pair)] else []
    words += [f"[{number}](#refusals)" for number in numbers_of(pair)]
    return " ".join(words) or "."


def table(down: str, across: str, record: Record) -> list[str]:
    """Return a table of pairs as Markdown."""
    columns = NAMES[across]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for row in NAMES[down]:
        entries = [entry((row, column), record) if row != column else "" for column in columns]
        lines.append(f"| {row} | {' | '.join(entries)} |")
    return lines


def page_of(record: Record) -> str:
    """Return the page of what runs have recorded."""
    outcomes = sorted(record.outcomes.items())
    head = _HEAD.format(
        programs=record.programs,
        cells=record.outcomes.total(),
        outcomes=", ".join(f"{count:,} {kind}" for kind, count in outcomes),
        least_of_axes=record.least_of_axes(),
        least_of_features=record.least_of_features(),
        pairs=len(record.ran),
        processors=", ".join(sorted(record.processors)),
    )
    lines = [head]
    axes = list(NAMES)
    for down, across in itertools.combinations(axes, 2):
        lines += [f"## {down.capitalize()} and {across}", "", *table(down, across, record), ""]
    lines += ["## Features together", "", *table("feature", "feature", record), ""]
    lines += ["## Faults that are known", ""]
    known = {f"- `{row.sentence}`: {row.why}." for row in OPEN}
    lines += [*(sorted(known) or ["None."]), ""]
    lines += ["## Refusals", ""]
    for number, (sentence, why) in enumerate(sentences(), 1):
        lines.append(f"{number}. `{sentence}`: {why}.")
    return "\n".join(lines) + "\n"


def rows_of(page: str) -> Sequence[str]:
    """Return the refusals that a page prints."""
    return page.partition("## Refusals\n")[2].strip().splitlines()
