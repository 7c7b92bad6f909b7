"""Table of digests: kernel texts and bytecode of each program, by target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

FILE = Path(__file__).parent / "digests.txt"
COLUMN = 48
"""Characters before the digests."""
ABSENT = "-" * 8
HEAD = """\
# What the compiler makes of the programs of tests/replay: digests of the texts of lowered kernels
# and of bytecode. Moving code changes none of them. scripts/replay prints the diff of the texts;
# scripts/replay --update writes this file.
"""

Digests: TypeAlias = dict[str, dict[str, dict[str, str]]]
"""Program -> target -> item (a kernel, the bytecode) -> digest."""


def digest(text: str) -> str:
    """Return the digest of a text: 32 bits as 8 hexadecimal digits."""
    return blake2b(text.encode(), digest_size=4).hexdigest()


def digests_of(texts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Map target -> item -> text to target -> item -> digest."""
    return {target: {i: digest(t) for i, t in items.items()} for target, items in texts.items()}


def read(text: str) -> Digests:
    """Parse the table."""
    table: Digests = {}
    targets: list[str] = []
    program = ""
    for line in text.splitlines():
        if line.startswith("targets "):
            targets = line.split()[1:]
        elif line.startswith("  "):
            item, *cells = line.split()
            for target, cell in zip(targets, cells, strict=True):
                if cell != ABSENT:
                    table[program][target][item] = cell
        elif line and not line.startswith("#"):
            program = line
            table[program] = {target: {} for target in targets}
    return table


def write(table: Digests, targets: Iterable[str]) -> str:
    """Return the text of the table: a line for each item of a program, a column for each target."""
    columns = list(targets)
    lines = ["targets".ljust(COLUMN) + " ".join(name.ljust(8) for name in columns)]
    for program in sorted(table):
        rows = table[program]
        lines.append(program)
        for item in sorted({item for items in rows.values() for item in items}):
            cells = [rows.get(target, {}).get(item, ABSENT) for target in columns]
            lines.append(f"  {item}".ljust(COLUMN) + " ".join(cells))
    return HEAD + "\n".join(line.rstrip() for line in lines) + "\n"


def changed(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return item -> the targets on which its value (a digest, a text) differs or is on one side
    alone."""
    items: dict[str, list[str]] = {}
    for target in dict.fromkeys([*after, *before]):
        old, new = before.get(target, {}), after.get(target, {})
        for item in sorted({*old, *new}):
            if old.get(item) != new.get(item):
                items.setdefault(item, []).append(target)
    return items
